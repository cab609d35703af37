//! `serve` with the real engine, and a data plane that does only what a test tells it.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use throng_control::{Arrival, Arrivals, Control, Edge, Settings, WorkerMetrics, serve};
use throng_core::{
    Access, Allow, ChannelName, Counters, Engine as _, Epoch, Follow, Listener, LocalId, Mail,
    Mailbox, MemoryEngine, Rules, Start, WorkerId,
};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::client::{Answer, Client, PATIENCE, get, get_from};

/// What ids begin with here.
pub const EPOCH: &str = "z";

/// A server, and the end of the data plane that the test plays.
pub struct Server {
    pub engine: Arc<MemoryEngine>,
    pub edge: Arc<FakeEdge>,
    runtime: Runtime,
    serving: JoinHandle<()>,
    listener: TcpListener,
    arrivals: UnboundedSender<io::Result<Arrival>>,
    drain: Option<oneshot::Sender<()>>,
    parted: mpsc::Receiver<()>,
    mailbox: Arc<Mailbox>,
    woken: mpsc::Receiver<()>,
}

/// Small enough that a test reaches every limit at once.
pub fn small() -> Settings {
    Settings {
        head_bytes_max: 2000,
        message_bytes_max: 1000,
        batch_bytes_max: 10_000,
        channels_max: 4,
        ..Settings::default()
    }
}

impl Server {
    pub fn new() -> Server {
        Server::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Server {
        Server::with_access(settings, Arc::new(Allow))
    }

    pub fn with_access(settings: Settings, access: Arc<dyn Access>) -> Server {
        Server::prepared(settings, access, |_| ())
    }

    /// A server with whose engine `prepare` does something while the control plane is starting.
    pub fn prepared(
        settings: Settings,
        access: Arc<dyn Access>,
        prepare: impl FnOnce(&MemoryEngine),
    ) -> Server {
        let (wake, woken) = mpsc::channel();
        let mailbox = Arc::new(Mailbox::new(move || {
            // A test that has ended listens no more.
            let _ = wake.send(());
        }));
        let mailboxes = vec![Arc::clone(&mailbox)];
        let rules = Arc::new(Rules::default());
        let epoch = Epoch::numbered(35);
        let engine = Arc::new(MemoryEngine::new(epoch, rules, mailboxes, 1 << 30));
        let (give, handed_back) = mpsc::channel();
        let edge = Arc::new(FakeEdge {
            is_full: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            give,
            handed_back: Mutex::new(handed_back),
            counters: Arc::default(),
        });
        let (arrivals, arriving) = unbounded_channel();
        let (drain, draining) = oneshot::channel();
        let control =
            Control::new(Arc::clone(&engine) as _, access, Arc::clone(&edge) as _, settings);
        prepare(&engine);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        // A test that does not drain drops its end with the server, and not before.
        let drain_begins = async move {
            if draining.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let (part, parted) = mpsc::channel();
        let part = move || {
            // As above.
            let _ = part.send(());
        };
        let arriving = Arriving(arriving);
        let admin = None;
        let serving = runtime.spawn(serve(Arc::new(control), arriving, admin, drain_begins, part));
        Server {
            engine,
            edge,
            runtime,
            serving,
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            arrivals,
            drain: Some(drain),
            parted,
            mailbox,
            woken,
        }
    }

    /// A connection from which a worker has read `bytes`.
    pub fn connect(&self, bytes: impl Into<Vec<u8>>) -> Client {
        let stream = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = self.listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        self.arrivals.send(Ok(Arrival { stream: accepted, bytes: bytes.into() })).unwrap();
        Client::new(stream)
    }

    /// A connection that has had one answer already: the control plane's own.
    pub fn connect_again(&self) -> Client {
        let mut client = self.connect(get("/health"));
        client.answer();
        client
    }

    /// The answer to a request on a connection of its own.
    pub fn ask(&self, request: impl Into<Vec<u8>>) -> Answer {
        self.connect(request).answer()
    }

    /// A connection is lost on its way here.
    pub fn lose_one(&self) {
        self.arrivals.send(Err(io::ErrorKind::Other.into())).unwrap();
    }

    pub fn begin_drain(&mut self) {
        self.drain.take().unwrap().send(()).unwrap();
    }

    /// Waits until the workers are told to send everybody home.
    pub fn expect_parting(&self) {
        self.parted.recv_timeout(PATIENCE).unwrap();
    }

    /// That the workers have not been told so yet, once the drain has begun. Whoever is answered
    /// has been taken in after the server has looked whether they are to be told.
    pub fn expect_no_parting(&self) {
        assert_eq!(self.ask(get("/health")).status, 503);
        assert!(self.parted.try_recv().is_err());
    }

    /// Waits until `serve` has returned.
    pub fn join(self) {
        let Server { runtime, serving, .. } = self;
        let joined = async { tokio::time::timeout(PATIENCE, serving).await };
        runtime.block_on(joined).expect("it ends").unwrap();
        runtime.shutdown_timeout(Duration::ZERO);
    }

    /// One subscription of the only worker.
    pub fn follow(&self, channel: &ChannelName) {
        let local_if_new = LocalId(NonZeroU32::MIN);
        let worker = WorkerId(0);
        self.engine.follow(0, Follow { channel, worker, local_if_new, start: Start::Live });
    }

    /// The next mail of the only worker.
    pub fn mail(&self) -> Mail {
        let mut mail = Vec::new();
        loop {
            self.mailbox.take(&mut mail);
            if !mail.is_empty() {
                assert_eq!(mail.len(), 1, "{mail:?}");
                return mail.remove(0);
            }
            if self.mailbox.doze() {
                self.woken.recv_timeout(PATIENCE).unwrap();
                self.mailbox.rouse();
            }
        }
    }

    /// A figure of `/metrics`, by its full name.
    pub fn figure(&self, name: &str) -> u64 {
        let page = self.ask(get("/metrics"));
        let line = page.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is not counted")).parse().unwrap()
    }

    /// How often a code was given.
    pub fn refused(&self, code: &str) -> u64 {
        self.figure(&format!("throng_http_refused_total{{code=\"{code}\"}}"))
    }

    /// What a channel keeps.
    pub fn texts(&self, channel: &str) -> Vec<String> {
        self.texts_at("127.0.0.1", channel)
    }

    /// What a channel keeps, as it is told under the name of that host.
    pub fn texts_at(&self, host: &str, channel: &str) -> Vec<String> {
        let target = format!("/channels/{channel}/history?limit=1000");
        let answer = self.ask(get_from(host, &target));
        let json = answer.json();
        let messages = json["messages"].as_array().unwrap();
        messages.iter().map(|message| message["data"].as_str().unwrap().to_owned()).collect()
    }
}

struct Arriving(UnboundedReceiver<io::Result<Arrival>>);

impl Arrivals for Arriving {
    async fn next(&mut self) -> io::Result<Option<Arrival>> {
        self.0.recv().await.transpose()
    }
}

/// The workers, as the control plane sees them.
pub struct FakeEdge {
    /// Whether nobody has room.
    pub is_full: AtomicBool,
    /// Connections that the only worker holds.
    pub connections: AtomicU64,
    give: mpsc::Sender<(TcpStream, Vec<u8>)>,
    handed_back: Mutex<mpsc::Receiver<(TcpStream, Vec<u8>)>>,
    counters: Arc<Counters>,
}

impl FakeEdge {
    /// The next connection that comes back.
    pub fn handed_back(&self) -> (TcpStream, Vec<u8>) {
        self.handed_back.lock().unwrap().recv_timeout(PATIENCE).unwrap()
    }

    pub fn expect_nothing_back(&self) {
        assert!(self.handed_back.lock().unwrap().try_recv().is_err());
    }
}

impl Edge for FakeEdge {
    fn hand_back(&self, _: Listener, stream: TcpStream, bytes: &[u8]) -> Result<(), TcpStream> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(stream);
        }
        self.give.send((stream, bytes.to_vec())).unwrap();
        Ok(())
    }

    fn subscribers(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    fn has_ended(&self) -> bool {
        self.subscribers() == 0
    }

    fn workers(&self) -> Vec<WorkerMetrics> {
        let connections = self.subscribers();
        vec![WorkerMetrics { connections, counters: Arc::clone(&self.counters) }]
    }
}
