//! `serve` with the real engine and a fake data plane that the test controls.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use throng_access::{Access, AccessControl, AllowAll};
use throng_control::{
    Control, Edge, EdgeMetrics, Handoff, HandoffReceiver, Health, Settings, TlsConnection, serve,
};
use throng_core::records::Records;
use throng_core::{
    Answer as LaterAnswer, ChannelName, Channels, Epoch, Follow, Later, Listener, LocalId,
    MembersRule, MemoryEngine, Notification, Rule, Rules, ScanAction, ScanTarget, Scanned, StartAt,
    Ticket, WorkerId, WorkerQueue,
};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::client::{Answer, Client, TIMEOUT, get, get_from};

/// The epoch of all ids in these tests.
pub(crate) const EPOCH: &str = "z";

/// A server, with the data plane's side of its connections.
pub(crate) struct Server {
    pub engine: Arc<MemoryEngine>,
    pub edge: Arc<FakeEdge>,
    pub health: Arc<Health>,
    runtime: Runtime,
    serving: JoinHandle<()>,
    listener: TcpListener,
    /// The address of the connection that was opened last.
    opened: Mutex<Option<SocketAddr>>,
    handoffs: UnboundedSender<io::Result<Handoff>>,
    drain: Option<oneshot::Sender<()>>,
    workers_draining: mpsc::Receiver<()>,
    queue: Arc<WorkerQueue>,
    woken: mpsc::Receiver<()>,
}

/// Settings whose limits a test reaches quickly.
pub(crate) fn small() -> Settings {
    Settings {
        max_head_bytes: 2000,
        max_message_bytes: 1000,
        max_batch_bytes: 10_000,
        compression_min_bytes: Some(1024),
        max_channels_per_connection: 4,
        ..Settings::for_tests()
    }
}

impl Server {
    pub(crate) fn new() -> Server {
        Server::with(Settings::for_tests())
    }

    pub(crate) fn with(settings: Settings) -> Server {
        Server::with_access(settings, Arc::new(AllowAll))
    }

    pub(crate) fn with_access(settings: Settings, access: Arc<dyn Access>) -> Server {
        Server::prepared(settings, access, |_| ())
    }

    pub(crate) fn controlled(settings: Settings, access: AccessControl) -> Server {
        Server::prepared_with(settings, access, None, |_| ())
    }

    /// A server that stores in `records` what it keeps for users.
    pub(crate) fn storing(records: Arc<dyn Records>) -> Server {
        let access = AccessControl::open(Arc::new(AllowAll));
        Server::prepared_with(Settings::for_tests(), access, Some(records), |_| ())
    }

    /// The same, which reads what is stored from the first request on.
    pub(crate) fn reading(records: Arc<dyn Records>) -> Server {
        let access = AccessControl::open(Arc::new(AllowAll));
        access.kept.begin_reading(Arc::clone(&records)).unwrap();
        Server::prepared_with(Settings::for_tests(), access, Some(records), |_| ())
    }

    /// A server whose engine `prepare` uses before the control plane starts.
    pub(crate) fn prepared(
        settings: Settings,
        access: Arc<dyn Access>,
        prepare: impl FnOnce(&MemoryEngine),
    ) -> Server {
        Server::prepared_with(settings, AccessControl::open(access), None, prepare)
    }

    fn prepared_with(
        settings: Settings,
        access: AccessControl,
        records: Option<Arc<dyn Records>>,
        prepare: impl FnOnce(&MemoryEngine),
    ) -> Server {
        let (wake, woken) = mpsc::channel();
        let queue = Arc::new(WorkerQueue::new(move || {
            // Fails only after the test has ended.
            let _ = wake.send(());
        }));
        let queues = vec![Arc::clone(&queue)];
        let members = Some(MembersRule { are_connections: false, grace_ms: 0 });
        let with_members = Rule { pattern: "halls/*".into(), members, ..Rule::default() };
        let rules = Arc::new(Rules::new(vec![with_members], Rule::default()));
        let epoch = Epoch::numbered(35);
        let engine = Arc::new(MemoryEngine::new(epoch, rules, queues, 1 << 30));
        let (give, handed_off) = mpsc::channel();
        let (scan, scans) = mpsc::channel();
        let edge = Arc::new(FakeEdge {
            is_full: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            give,
            handed_off: Mutex::new(handed_off),
            scan,
            scans: Mutex::new(scans),
        });
        let (handoffs, receiver) = unbounded_channel();
        let (drain, draining) = oneshot::channel();
        let control = Control::new(
            Arc::new(Channels::new(Arc::clone(&engine), Vec::new())),
            Arc::new(access),
            Arc::clone(&edge) as _,
            settings,
        )
        .with_records(records);
        prepare(&engine);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        // A test without a drain drops the sender at its end, which must not start the drain.
        let drain_begins = async move {
            if draining.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let (drain_workers, workers_draining) = mpsc::channel();
        let drain_workers = move || {
            // As above.
            let _ = drain_workers.send(());
        };
        let receiver = TestReceiver(receiver);
        let admin = None;
        let control = Arc::new(control);
        let health = Arc::clone(control.health());
        let serving = runtime.spawn(serve(control, receiver, admin, drain_begins, drain_workers));
        Server {
            engine,
            edge,
            health,
            runtime,
            serving,
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            opened: Mutex::new(None),
            handoffs,
            drain: Some(drain),
            workers_draining,
            queue,
            woken,
        }
    }

    /// Opens a connection that a worker hands off after it has read `bytes`.
    pub(crate) fn connect(&self, bytes: impl Into<Vec<u8>>) -> Client {
        let stream = self.open();
        self.hand_over(bytes, None);
        Client::new(stream)
    }

    /// The client's end of a new connection, which [`Server::hand_over`] hands off.
    pub(crate) fn open(&self) -> TcpStream {
        let stream = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        *self.opened.lock().unwrap() = Some(stream.local_addr().unwrap());
        stream
    }

    /// Hands the connection off that was opened last.
    pub(crate) fn hand_over(&self, bytes: impl Into<Vec<u8>>, tls: Option<Box<TlsConnection>>) {
        let opened = self.opened.lock().unwrap().expect("a connection was opened");
        // The port may be one to which another program on this machine still connects.
        let mut accepted = self.listener.incoming().map(Result::unwrap);
        let stream = accepted.find(|it| it.peer_addr().is_ok_and(|peer| peer == opened)).unwrap();
        stream.set_nonblocking(true).unwrap();
        let handoff = Handoff { stream, bytes: bytes.into(), client: None, tls };
        self.handoffs.send(Ok(handoff)).unwrap();
    }

    /// Opens a connection and makes one request on it, so that hyper serves it already.
    pub(crate) fn connect_again(&self) -> Client {
        let mut client = self.connect(get("/health"));
        client.answer();
        client
    }

    /// Makes a request on a new connection.
    pub(crate) fn ask(&self, request: impl Into<Vec<u8>>) -> Answer {
        self.connect(request).answer()
    }

    /// Makes receiving a connection fail once.
    pub(crate) fn lose_one(&self) {
        self.handoffs.send(Err(io::ErrorKind::Other.into())).unwrap();
    }

    pub(crate) fn begin_drain(&mut self) {
        self.drain.take().unwrap().send(()).unwrap();
    }

    /// Waits until the server tells the workers to drain.
    pub(crate) fn expect_workers_draining(&self) {
        self.workers_draining.recv_timeout(TIMEOUT).unwrap();
    }

    /// Expects that a drain has begun and the workers have not been told to drain. The server
    /// accepts the new connection after it has decided whether to tell them.
    pub(crate) fn expect_workers_not_draining(&self) {
        assert_eq!(self.ask(get("/health")).status, 503);
        assert!(self.workers_draining.try_recv().is_err());
    }

    pub(crate) fn join(self) {
        let Server { runtime, serving, .. } = self;
        let joined = async { tokio::time::timeout(TIMEOUT, serving).await };
        runtime.block_on(joined).expect("it ends").unwrap();
        runtime.shutdown_timeout(Duration::ZERO);
    }

    /// Ends the server, so that another one can open its files.
    pub(crate) fn end(mut self) {
        self.begin_drain();
        self.join();
    }

    /// Adds a subscription of the only worker.
    pub(crate) fn follow(&self, channel: &ChannelName) {
        let local_if_new = LocalId(NonZeroU32::MIN);
        let worker = WorkerId(0);
        self.engine.follow(0, Follow { channel, worker, local_if_new, start: StartAt::Live });
    }

    /// The next notifications of the only worker.
    pub(crate) fn notification(&self) -> Notification {
        let mut notifications = Vec::new();
        loop {
            self.queue.take(&mut notifications);
            if !notifications.is_empty() {
                assert_eq!(notifications.len(), 1, "{notifications:?}");
                return notifications.remove(0);
            }
            if self.queue.prepare_to_sleep() {
                self.woken.recv_timeout(TIMEOUT).unwrap();
                self.queue.finish_sleep();
            }
        }
    }

    /// The value of a metric, by its name with labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = self.ask(get("/metrics"));
        let line = page.text().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is missing")).parse().unwrap()
    }

    /// How many responses had this error code.
    pub(crate) fn refused(&self, code: &str) -> u64 {
        self.metric(&format!("throng_http_refused_total{{code=\"{code}\"}}"))
    }

    /// The messages that a channel keeps.
    pub(crate) fn texts(&self, channel: &str) -> Vec<String> {
        self.texts_at("127.0.0.1", channel)
    }

    /// The messages that a channel keeps, requested from the host `host`.
    pub(crate) fn texts_at(&self, host: &str, channel: &str) -> Vec<String> {
        let target = format!("/channels/{channel}/history?limit=1000");
        let answer = self.ask(get_from(host, &target));
        let json = answer.json();
        let messages = json["messages"].as_array().unwrap();
        messages.iter().map(|message| message["data"].as_str().unwrap().to_owned()).collect()
    }
}

struct TestReceiver(UnboundedReceiver<io::Result<Handoff>>);

impl HandoffReceiver for TestReceiver {
    async fn next(&mut self) -> io::Result<Option<Handoff>> {
        self.0.recv().await.transpose()
    }
}

/// A data plane of one worker.
pub(crate) struct FakeEdge {
    /// True if the worker accepts no connection.
    pub is_full: AtomicBool,
    /// Connections of the worker.
    pub connections: AtomicU64,
    give: mpsc::Sender<(Listener, Handoff)>,
    handed_off: Mutex<mpsc::Receiver<(Listener, Handoff)>>,
    scan: mpsc::Sender<Scan>,
    scans: Mutex<mpsc::Receiver<Scan>>,
}

/// A scan that the workers are asked for.
pub(crate) struct Scan {
    pub(crate) target: ScanTarget,
    pub(crate) action: ScanAction,
    pub(crate) ticket: Ticket<Scanned>,
}

impl FakeEdge {
    /// Waits for the next connection that is handed off to the worker.
    pub(crate) fn handed_off(&self) -> (TcpStream, Vec<u8>) {
        let (_, stream, bytes) = self.handed_off_by();
        (stream, bytes)
    }

    /// The same, with the listener whose rules it has passed.
    pub(crate) fn handed_off_by(&self) -> (Listener, TcpStream, Vec<u8>) {
        let (listener, handoff) = self.handed_off_with_tls();
        (listener, handoff.stream, handoff.bytes)
    }

    /// The same, with all that goes with it.
    pub(crate) fn handed_off_with_tls(&self) -> (Listener, Handoff) {
        self.handed_off.lock().unwrap().recv_timeout(TIMEOUT).unwrap()
    }

    pub(crate) fn scan(&self) -> Scan {
        self.scans.lock().unwrap().recv_timeout(TIMEOUT).unwrap()
    }

    pub(crate) fn expect_no_handoff(&self) {
        assert!(self.handed_off.lock().unwrap().try_recv().is_err());
    }
}

impl Edge for FakeEdge {
    fn hand_off(&self, listener: Listener, handoff: Handoff) -> Result<(), Handoff> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(handoff);
        }
        self.give.send((listener, handoff)).unwrap();
        Ok(())
    }

    fn scan(
        &self,
        target: ScanTarget,
        action: ScanAction,
        later: Later<'_, Scanned>,
    ) -> LaterAnswer<Scanned> {
        let (ticket, answer) = later.ticket();
        self.scan.send(Scan { target, action, ticket }).unwrap();
        answer
    }

    fn subscribers(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    fn hand_off_canary(&self, _: usize, _: &TcpStream, _: &[u8]) -> bool {
        false
    }

    fn is_busy(&self) -> bool {
        self.is_full.load(Ordering::SeqCst)
    }

    fn has_ended(&self) -> bool {
        self.subscribers() == 0
    }

    fn metrics(&self) -> EdgeMetrics {
        EdgeMetrics { connections: vec![self.subscribers()], ..EdgeMetrics::default() }
    }
}
