//! nats-servers as child processes, with JetStream in files of their own, for benchmarks of several
//! nodes.
//!
//! They listen on an address of loopback that nobody else uses, so that the port of one that was
//! killed is still free when it starts again: on 127.0.0.1, a client's connection may have taken
//! it. Like [`Server`](crate::server::Server), they are stopped on drop, and end with this process.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::bound;
use crate::directory::temporary;

/// How long a server may take until it listens.
const START_DEADLINE: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How long connecting to a server may take while it starts.
const CONNECT: Duration = Duration::from_secs(1);

/// A nats-server that runs or was killed.
pub(crate) struct NatsServer {
    program: PathBuf,
    /// For its configuration, its store and its log; removed on drop.
    directory: TempDir,
    name: String,
    address: SocketAddrV4,
    /// `None` while it is killed.
    child: Option<Child>,
}

impl NatsServer {
    /// Starts `count` servers, which form a cluster if they are several, and waits until they
    /// listen. Must be called on the main thread, like
    /// [`Server::start`](crate::server::Server::start).
    pub(crate) fn start(program: &Path, count: usize) -> Result<Vec<NatsServer>, String> {
        let failed = |error: io::Error| format!("nats-server cannot be started: {error}");
        let host = host();
        let routes = (0..count).map(|_| free(host)).collect::<io::Result<Vec<_>>>();
        let routes = routes.map_err(failed)?;
        let mut servers = Vec::new();
        for (nth, route) in routes.iter().enumerate() {
            let mut server = NatsServer {
                program: program.to_owned(),
                directory: temporary()?,
                name: format!("nats{}", nth + 1),
                address: free(host).map_err(failed)?,
                child: None,
            };
            let cluster = if count > 1 { cluster(*route, &routes) } else { String::new() };
            fs::write(server.configuration(), server.settings(&cluster)).map_err(failed)?;
            server.launch()?;
            servers.push(server);
        }
        for server in &mut servers {
            server.await_listening()?;
        }
        Ok(servers)
    }

    /// The name that the others and the stream know it by.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The URL for nodes.
    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Kills it: it writes nothing more.
    pub(crate) fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // Both fail only if it has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Starts it again after a kill, with what it has stored, and does not wait.
    pub(crate) fn restart(&mut self) -> Result<(), String> {
        self.kill();
        self.launch()
    }

    /// How it ended, as text; `None` while it runs, or is killed.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        Some(format!("{} ended: {status}{}", self.name, self.last_line()))
    }

    fn configuration(&self) -> PathBuf {
        self.directory.path().join("nats.conf")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("nats.log")
    }

    fn settings(&self, cluster: &str) -> String {
        let store = self.directory.path().join("store");
        format!(
            "listen: \"{}\"\nserver_name: {}\njetstream {{ store_dir: \"{}\" }}\n{cluster}",
            self.address,
            self.name,
            store.display()
        )
    }

    fn launch(&mut self) -> Result<(), String> {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log());
        let started = log.and_then(|log| {
            let mut command = bound::command(&self.program);
            command.arg("-c").arg(self.configuration());
            command.stdout(Stdio::null()).stderr(log).spawn()
        });
        let child = started.map_err(|error| format!("{} cannot be started: {error}", self.name))?;
        eprintln!("a nats-server: process {}", child.id());
        self.child = Some(child);
        Ok(())
    }

    fn await_listening(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + START_DEADLINE;
        while Instant::now() < deadline {
            if greets(self.address).is_ok() {
                return Ok(());
            }
            if let Some(how) = self.ended() {
                return Err(how);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Err(format!("{} did not listen within {START_DEADLINE:?}", self.name))
    }

    fn last_line(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().last().map(|line| format!("; its last line: {line}")).unwrap_or_default()
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An address of loopback for this process.
fn host() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high & 63, middle, low)
}

/// A port that is free there.
fn free(host: Ipv4Addr) -> io::Result<SocketAddrV4> {
    let address = TcpListener::bind((host, 0))?.local_addr()?;
    Ok(SocketAddrV4::new(host, address.port()))
}

/// The part of a configuration that makes a cluster.
fn cluster(own: SocketAddrV4, all: &[SocketAddrV4]) -> String {
    let mut text = format!("cluster {{ name: bench, listen: \"{own}\", routes: [");
    for route in all {
        let _ = write!(text, "\"nats://{route}\",");
    }
    text.push_str("] }\n");
    text
}

/// Succeeds if a server says something, as a nats-server does as soon as somebody connects.
fn greets(address: SocketAddrV4) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address.into(), CONNECT)?;
    stream.set_read_timeout(Some(CONNECT))?;
    stream.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_at_once_is_told() {
        // The words are no script for the shell.
        let error = NatsServer::start("/bin/false".as_ref(), 1).err();
        let error = error.expect("it is none");
        assert!(error.starts_with("nats1 ended: exit status"), "{error}");
    }

    #[test]
    fn those_of_a_cluster_know_each_other() {
        let [one, two] = [1, 2].map(|port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        let text = cluster(one, &[one, two]);
        assert!(text.contains("listen: \"127.0.0.1:1\""), "{text}");
        assert!(text.contains("\"nats://127.0.0.1:2\""), "{text}");
    }
}
