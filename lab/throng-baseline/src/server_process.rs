//! The Throng server under measurement, as a child process.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::child::BoundChild;
use crate::http::{self, Http};

/// The maximum time until the server answers `/health`.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// The interval of the requests for `/health` during the start.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Attempts to start: another program may take the free port before the server listens on it.
const START_ATTEMPTS_MAX: usize = 3;

/// Connections beyond the subscribers: publishers, requests for `/health`, and those being closed.
const CONNECTIONS_SLACK: usize = 512;

/// How to start the server.
pub(crate) struct Setup<'a> {
    /// The `throng` program.
    pub(crate) program: &'a Path,
    /// The number of subscribers.
    pub(crate) connections: usize,
    /// Number of worker threads.
    pub(crate) workers: usize,
    /// Interval of heartbeats as `--heartbeat` takes it; `0` for none.
    pub(crate) heartbeat: &'a str,
}

/// A running server that has answered `/health`.
pub(crate) struct ServerProcess {
    child: BoundChild,
    /// The port of 127.0.0.1 that it listens on.
    pub(crate) port: u16,
}

impl ServerProcess {
    /// Starts it and waits until it answers `GET /health`.
    pub(crate) fn start(setup: &Setup<'_>) -> Result<Self> {
        ensure!(
            setup.program.is_file(),
            "there is no server at {}; build it or name it with --server",
            setup.program.display()
        );
        for _ in 1..START_ATTEMPTS_MAX {
            if let Ok(server) = Self::start_once(setup) {
                return Ok(server);
            }
        }
        Self::start_once(setup)
    }

    /// The process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    fn start_once(setup: &Setup<'_>) -> Result<Self> {
        let port = free_port()?;
        let child = BoundChild::start(setup.program, |command| {
            command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
            command.args(["--workers", &setup.workers.to_string()]);
            let connections = setup.connections + CONNECTIONS_SLACK;
            command.args(["--max-connections", &connections.to_string()]);
            command.args(["--heartbeat", setup.heartbeat, "--log", "error"]);
            // They wait for as long as a slow machine takes to serve them.
            command.args(["--admission-wait", "0"]);
            // The clients have left when it is stopped.
            command.args(["--drain-window", "1s", "--drain-timeout", "1s"]);
            command.stdin(Stdio::null()).stdout(Stdio::null());
        })?;
        let mut server = Self { child, port };
        server.await_health()?;
        Ok(server)
    }

    fn await_health(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if let Some(status) = self.child.ended()? {
                bail!("the server ended while it started: {status}");
            }
            match ask_health(self.port) {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(error).context("the server does not answer GET /health");
                }
                Err(_) => thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

fn ask_health(port: u16) -> Result<()> {
    let mut http = Http::connect(port)?;
    http.send(&http::get("/health"))?;
    http.expect_success()
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free")?;
    Ok(listener.local_addr()?.port())
}
