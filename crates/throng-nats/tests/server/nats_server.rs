//! A real nats-server, and a way to it that can be cut.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// How long anything may take before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

fn binary() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/go/bin/nats-server");
    assert!(path.exists(), "nats-server is missing: run `make setup`");
    path
}

/// A server with JetStream, and a door to it whose port stays the same.
pub(crate) struct NatsServer {
    directory: TempDir,
    configuration: String,
    process: Option<Child>,
    starts: u32,
    upstream: Arc<AtomicU16>,
    is_cut: Arc<AtomicBool>,
    /// `host:port` of the door.
    pub(crate) address: String,
}

impl NatsServer {
    /// Starts a server. `configuration` is added to its file.
    pub(crate) async fn start(configuration: &str) -> NatsServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
        let address = listener.local_addr().expect("it is bound").to_string();
        let mut server = NatsServer {
            directory: tempfile::tempdir().expect("there is a place for files"),
            configuration: configuration.to_owned(),
            process: None,
            starts: 0,
            upstream: Arc::default(),
            is_cut: Arc::default(),
            address,
        };
        let (upstream, is_cut) = (Arc::clone(&server.upstream), Arc::clone(&server.is_cut));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (port, is_cut) = (upstream.load(Ordering::Relaxed), Arc::clone(&is_cut));
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        () = pump(from_client, to_server, &is_cut) => {}
                        () = pump(from_server, to_client, &is_cut) => {}
                    }
                });
            }
        });
        server.launch().await;
        server
    }

    /// Where the server keeps its streams.
    pub(crate) fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    /// Starts the server again, and waits until it listens.
    pub(crate) async fn launch(&mut self) {
        self.starts += 1;
        let ports = self.directory.path().join(format!("ports{}", self.starts));
        std::fs::create_dir(&ports).expect("it is new");
        let file = self.directory.path().join("nats.conf");
        let text = format!(
            "listen: \"127.0.0.1:-1\"\nports_file_dir: {ports:?}\nping_interval: \"5s\"\n\
             jetstream {{ store_dir: {:?} }}\n{}\n",
            self.store(),
            self.configuration
        );
        std::fs::write(&file, text).expect("the directory is writable");
        let log = std::fs::File::create(self.directory.path().join("log")).expect("as above");
        let process = Command::new(binary())
            .arg("-c")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("nats-server starts");
        let name = format!("nats-server_{}.ports", process.id());
        self.process = Some(process);
        let until = Instant::now() + PATIENCE;
        loop {
            let found = std::fs::read(ports.join(&name)).unwrap_or_default();
            let found = serde_json::from_slice::<serde_json::Value>(&found).unwrap_or_default();
            let port =
                found["nats"][0].as_str().and_then(|url| url.rsplit(':').next()?.parse().ok());
            if let Some(port) = port {
                self.upstream.store(port, Ordering::Relaxed);
                return;
            }
            let log = std::fs::read_to_string(self.directory.path().join("log"));
            assert!(Instant::now() < until, "nats-server does not listen: {log:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Kills the server, as if its machine had no power any more.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Whether nothing passes the door, while all connections stay.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_cut: &AtomicBool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        while is_cut.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Servers of a cluster.
const MEMBERS: usize = 3;

/// How often a cluster is started with other ports, since another process may take one.
const STARTS_MAX: usize = 5;

/// Three servers with JetStream that are a cluster.
pub(crate) struct NatsCluster {
    _directory: TempDir,
    processes: Vec<Child>,
    /// `host:port` of each.
    pub(crate) addresses: Vec<String>,
}

impl NatsCluster {
    /// Starts three servers. They elect their leaders later.
    pub(crate) fn start() -> NatsCluster {
        let started = (0..STARTS_MAX).find_map(|_| NatsCluster::try_start());
        started.expect("three servers keep running")
    }

    /// Starts three servers; `None` if one of them ends.
    fn try_start() -> Option<NatsCluster> {
        let directory = tempfile::tempdir().expect("there is a place for files");
        // Each has to know the ports of all before it starts.
        let free = || std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        let kept: Vec<_> = (0..2 * MEMBERS).map(|_| free()).collect();
        let found = kept.iter().map(|kept| kept.local_addr().expect("it is bound").to_string());
        let mut addresses: Vec<String> = found.collect();
        let routes = addresses.split_off(MEMBERS);
        drop(kept);
        let list: Vec<String> = routes.iter().map(|route| format!("nats://{route}")).collect();
        let start = |(number, (address, route)): (usize, (&String, &String))| {
            let own = directory.path().join(number.to_string());
            std::fs::create_dir(&own).expect("it is new");
            let text = format!(
                "listen: {address:?}\nserver_name: n{number}\n\
                 jetstream {{ store_dir: {:?} }}\n\
                 cluster {{ name: c, listen: {route:?}, routes: {list:?} }}\n",
                own.join("store"),
            );
            let file = own.join("nats.conf");
            std::fs::write(&file, text).expect("the directory is writable");
            let mut command = Command::new(binary());
            command.arg("-c").arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().expect("nats-server starts")
        };
        let processes = addresses.iter().zip(&routes).enumerate().map(start).collect();
        let mut cluster = NatsCluster { _directory: directory, processes, addresses };
        cluster.listens().then_some(cluster)
    }

    /// Waits until all listen; `false` if one ends.
    fn listens(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            if self.processes.iter_mut().any(|one| !matches!(one.try_wait(), Ok(None))) {
                return false;
            }
            let is_there = |address: &String| std::net::TcpStream::connect(address).is_ok();
            if self.addresses.iter().all(is_there) {
                return true;
            }
            assert!(Instant::now() < until, "three servers do not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for NatsCluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
