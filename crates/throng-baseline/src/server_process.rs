//! The Throng server under measurement, as a child process.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::child::BoundChild;
use crate::http::{self, Http};

/// The server must answer `/health` within this.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// How often a starting server is asked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Between looking for a free port and listening on it, another program may take it.
const START_ATTEMPTS_MAX: usize = 3;

/// Room beyond the subscribers: publishers, probes of `/health`, and connections being closed.
const CONNECTIONS_SLACK: usize = 512;

/// How to start the server.
pub struct Setup<'a> {
    /// The `throng` program.
    pub program: &'a Path,
    /// Subscribers that it must hold.
    pub connections: usize,
    /// Number of worker threads.
    pub workers: usize,
    /// Interval of heartbeats as `--heartbeat` takes it; `0` for none.
    pub heartbeat: &'a str,
}

/// A running server that answers.
pub struct ServerProcess {
    child: BoundChild,
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
}

impl ServerProcess {
    /// Starts it and waits until it answers `GET /health`.
    pub fn start(setup: &Setup<'_>) -> Result<Self> {
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
    pub fn id(&self) -> u32 {
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
            // By then the clients are gone, so there is nobody to wait for.
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
