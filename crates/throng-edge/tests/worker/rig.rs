//! A worker with an engine of its own, and clients that are two buffers each.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use throng_access::{Access, AccessControl, AllowAll};
use throng_core::events::EventSink;
use throng_core::{
    Attributes, Body, ChannelName, Channels, ConnectionName, Epoch, MemoryEngine, MemoryPressure,
    Publication, Rules, VolatilePublication, WorkerId, WorkerQueue,
};
use throng_edge::compression::Compression;
use throng_edge::connection::Token;
use throng_edge::net::{HandoffHeader, Net, Read, Transfer};
use throng_edge::worker::{Now, Setup, Worker, WorkerThaw};
use throng_edge::{Counter, Metrics, Settings};
use throng_wire::Labels;
use throng_wire::labels::StateKey;
use throng_wire::websocket::{Opcode, write_masked_frame};

const ROOM: u32 = 100_000;

#[derive(Debug, Default)]
struct Pipe {
    to_worker: Vec<u8>,
    to_client: Vec<u8>,
    /// How many more bytes the socket takes; `None` if there is no limit.
    room: Option<usize>,
    is_gone: bool,
    /// True if the worker resets the connection.
    is_reset: bool,
    /// True if little of it may wait unsent.
    is_bounded: bool,
    /// True if nothing more comes from the worker.
    is_finished: bool,
    peer: Option<SocketAddr>,
}

/// A worker's end of a connection.
#[derive(Debug)]
pub(crate) struct Socket(Rc<RefCell<Pipe>>);

/// Sockets that take everything, unless their clients are stalled.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    tokens: HashMap<*const RefCell<Pipe>, Token>,
}

impl Net for Sockets {
    type Socket = Socket;

    fn read(&mut self, socket: &Socket, buffer: &mut [u8]) -> Read {
        let mut pipe = socket.0.borrow_mut();
        if pipe.is_gone {
            return Read::Gone;
        }
        let bytes = &mut pipe.to_worker;
        let count = bytes.len().min(buffer.len());
        if count == 0 {
            return Read::Blocked;
        }
        buffer[..count].copy_from_slice(&bytes[..count]);
        bytes.drain(..count);
        Read::Bytes(count)
    }

    fn write(&mut self, socket: &Socket, slices: &[IoSlice<'_>]) -> Transfer {
        let mut pipe = socket.0.borrow_mut();
        if pipe.is_gone {
            return Transfer::Gone;
        }
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let count = pipe.room.map_or(total, |room| room.min(total));
        if count == 0 {
            return Transfer::Blocked;
        }
        pipe.room = pipe.room.map(|room| room - count);
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied());
        pipe.to_client.extend(bytes.take(count));
        Transfer::Bytes(count)
    }

    fn watch(&mut self, socket: &Socket, token: Token) -> bool {
        self.tokens.insert(Rc::as_ptr(&socket.0), token);
        true
    }

    fn watch_writable(&mut self, socket: &Socket, token: Token) -> bool {
        self.watch(socket, token)
    }

    fn unacknowledged_bytes(&self, socket: &Socket) -> usize {
        let pipe = socket.0.borrow();
        if pipe.room.is_some() { pipe.to_client.len() } else { 0 }
    }

    fn keep_alive(&mut self, _: &Socket) {}

    fn bound_unread(&mut self, _: &Socket) {}

    fn bound_unsent(&mut self, socket: &Socket) {
        socket.0.borrow_mut().is_bounded = true;
    }

    fn peer(&self, socket: &Socket) -> Option<SocketAddr> {
        socket.0.borrow().peer
    }

    fn resume(&mut self, _: &Socket) {}

    fn reset(&mut self, socket: &Socket) {
        socket.0.borrow_mut().is_reset = true;
    }

    fn finish(&mut self, socket: &Socket) {
        socket.0.borrow_mut().is_finished = true;
    }

    fn to_control(&mut self, _: HandoffHeader, _: Socket, _: &[u8]) -> Result<(), Socket> {
        Ok(())
    }

    fn to_worker(
        &mut self,
        _: WorkerId,
        _: HandoffHeader,
        socket: Socket,
        _: &[u8],
    ) -> Result<(), Socket> {
        Err(socket)
    }
}

/// A client's end of a connection.
pub(crate) struct Client(Rc<RefCell<Pipe>>);

impl Client {
    /// The bytes received since the last call.
    pub(crate) fn received(&self) -> String {
        String::from_utf8_lossy(&self.received_bytes()).into_owned()
    }

    /// The bytes that have come since the last call.
    pub(crate) fn received_bytes(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.borrow_mut().to_client)
    }

    /// True if nothing has come since the last call of [`Client::received`].
    pub(crate) fn has_nothing(&self) -> bool {
        self.0.borrow().to_client.is_empty()
    }

    /// From now on its socket takes this many bytes and no more.
    pub(crate) fn stall_after(&self, bytes: usize) {
        self.0.borrow_mut().room = Some(bytes);
    }

    /// True if the worker has closed the connection.
    pub(crate) fn is_closed(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// True if the worker has written its last byte.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_closed() || self.0.borrow().is_finished
    }

    /// True if the worker has reset the connection.
    pub(crate) fn is_reset(&self) -> bool {
        self.0.borrow().is_reset
    }

    pub(crate) fn is_bounded(&self) -> bool {
        self.0.borrow().is_bounded
    }
}

/// A worker and what is around it. Nothing happens unless a test says so.
pub(crate) struct Rig {
    pub worker: Worker<Sockets>,
    pub engine: Arc<MemoryEngine>,
    pub queue: Arc<WorkerQueue>,
    metrics: Metrics,
    tick: u32,
    /// The tick of the rig at which the ticks of the worker's process began.
    first_tick: u32,
    setup: Setup,
    pub pressure: Arc<MemoryPressure>,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with(Settings::for_tests())
    }

    pub(crate) fn with(settings: Settings) -> Rig {
        Rig::with_access(settings, Arc::new(AllowAll))
    }

    pub(crate) fn with_access(settings: Settings, access: Arc<dyn Access>) -> Rig {
        Rig::with_control(settings, Arc::new(AccessControl::open(access)))
    }

    pub(crate) fn with_control(settings: Settings, access: Arc<AccessControl>) -> Rig {
        Rig::with_rules(settings, access, Rules::default())
    }

    pub(crate) fn with_rules(settings: Settings, access: Arc<AccessControl>, rules: Rules) -> Rig {
        Rig::with_engine(settings, (access, rules), |memory| Channels::new(memory, Vec::new()))
    }

    /// The channels of the worker.
    pub(crate) fn channels(&self) -> &Channels {
        &self.setup.engine
    }

    /// As [`Rig::with_rules`], with the channels that `wrap` makes of what is in memory.
    pub(crate) fn with_engine(
        settings: Settings,
        (access, rules): (Arc<AccessControl>, Rules),
        wrap: impl FnOnce(Arc<MemoryEngine>) -> Channels,
    ) -> Rig {
        let new = |rules, queues| MemoryEngine::new(Epoch::numbered(35), rules, queues, 1 << 30);
        Rig::with_memory(settings, (access, rules), new, wrap)
    }

    /// As [`Rig::with_engine`], with an engine that `memory` makes with these rules and queues.
    pub(crate) fn with_memory(
        settings: Settings,
        (access, rules): (Arc<AccessControl>, Rules),
        memory: impl FnOnce(Arc<Rules>, Vec<Arc<WorkerQueue>>) -> MemoryEngine,
        wrap: impl FnOnce(Arc<MemoryEngine>) -> Channels,
    ) -> Rig {
        let queue = Arc::new(WorkerQueue::new(|| {}));
        let rules = Arc::new(rules);
        let engine = Arc::new(memory(Arc::clone(&rules), vec![Arc::clone(&queue)]));
        let metrics = Metrics::new([ROOM].into_iter());
        let compression = Arc::new(Compression::new(settings.compression));
        let pressure = Arc::new(MemoryPressure::default());
        let setup = Setup {
            // The generation passes zero in some tests.
            generation: u32::MAX - 2,
            id: WorkerId(0),
            settings: Arc::new(settings),
            engine: Arc::new(wrap(Arc::clone(&engine))),
            access,
            rules,
            compression,
            events: None,
            queue: Arc::clone(&queue),
            pressure: Arc::clone(&pressure),
            metrics: metrics.clone(),
        };
        let worker = new_worker(&setup);
        let mut rig =
            Rig { worker, engine, queue, metrics, tick: 1, first_tick: 0, setup, pressure };
        // Begins a slice.
        rig.worker.work(true);
        rig
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.metrics.workers()[0].counters.get(counter)
    }

    /// A worker that can take the place of the rig's.
    pub(crate) fn new_worker(&self) -> Worker<Sockets> {
        new_worker(&self.setup)
    }

    /// A connection that the worker does not know of yet.
    pub(crate) fn pair() -> (Socket, Client) {
        let pipe = Rc::new(RefCell::new(Pipe::default()));
        (Socket(Rc::clone(&pipe)), Client(pipe))
    }

    /// Lets a new worker tell `events` of its connections.
    pub(crate) fn notify(&mut self, events: Arc<dyn EventSink>) {
        self.setup.events = Some(events);
        self.worker = new_worker(&self.setup);
        self.worker.work(true);
    }

    /// A connection that has sent these bytes, which the worker has read.
    pub(crate) fn connect(&mut self, bytes: &str) -> Client {
        self.connect_from(None, bytes)
    }

    /// As [`Rig::connect`], from an address.
    pub(crate) fn connect_from(&mut self, address: Option<IpAddr>, bytes: &str) -> Client {
        let peer = address.map(|address| SocketAddr::new(address, 9));
        let pipe = Rc::new(RefCell::new(Pipe { peer, ..Pipe::default() }));
        pipe.borrow_mut().to_worker.extend_from_slice(bytes.as_bytes());
        self.worker.accepted(Socket(Rc::clone(&pipe)));
        Client(pipe)
    }

    /// The same, whose socket takes so many bytes and no more.
    pub(crate) fn connect_stalled(&mut self, bytes: &str, room: usize) -> Client {
        let pipe = Rc::new(RefCell::new(Pipe { room: Some(room), ..Pipe::default() }));
        pipe.borrow_mut().to_worker.extend_from_slice(bytes.as_bytes());
        self.worker.accepted(Socket(Rc::clone(&pipe)));
        Client(pipe)
    }

    /// A connection that asks for this.
    pub(crate) fn get(&mut self, target: &str) -> Client {
        self.connect(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    /// A connection that speaks `throng.v1` and follows nothing.
    pub(crate) fn v1(&mut self) -> Client {
        self.v1_with("")
    }

    /// The same, with further fields in its head.
    pub(crate) fn v1_with(&mut self, fields: &str) -> Client {
        self.connect(&format!(
            "GET /subscribe HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
             Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: throng.v1\r\n{fields}\r\n"
        ))
    }

    /// Lets the worker do all that it can.
    pub(crate) fn work(&mut self) {
        while self.worker.work(true) || !self.queue.is_empty() || self.worker.is_fanning_out() {}
    }

    /// Lets `ticks` pass from the beginning.
    pub(crate) fn pass(&mut self, ticks: u32) {
        self.tick += ticks;
        self.worker.set_now(self.now());
        self.worker.tick();
        self.work();
    }

    /// Lets less than a tick pass, in which the worker does nothing.
    pub(crate) fn pass_ms(&mut self, ms: u64) {
        let now = self.now();
        self.worker.set_now(Now { unix_ms: now.unix_ms + ms, part_ms: ms as u32, ..now });
    }

    fn now(&self) -> Now {
        Now::after(u64::from(self.tick - self.first_tick) * 100, u64::from(self.tick) * 100)
    }

    /// The time in seconds since 1970.
    pub(crate) fn now_s(&self) -> u64 {
        self.now_ms() / 1000
    }

    /// The time in milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now().unix_ms
    }

    /// Puts a worker of a new process in the place of the rig's, thawed from its bytes.
    pub(crate) fn replace_process(&mut self) {
        self.replace_process_with(|_| {});
    }

    /// The same with records that `alter` has altered.
    pub(crate) fn replace_process_with(&mut self, mut alter: impl FnMut(&mut Vec<u8>)) {
        self.worker.prepare_to_freeze();
        let mut records = Vec::new();
        let frozen = std::mem::replace(&mut self.worker, new_worker(&self.setup));
        frozen.freeze(&mut |record, socket| records.push((record, socket)));
        self.first_tick = self.tick;
        let mut vacant = Worker::new(self.setup.clone(), Sockets::default());
        vacant.set_now(self.now());
        let mut thaw = WorkerThaw::new(vacant);
        for (mut record, socket) in records {
            alter(&mut record);
            thaw.record(&record, socket).expect("a record of the worker before");
        }
        self.worker = thaw.finish().expect("all records were there");
        self.worker.check_invariants();
    }

    /// The client sends a frame with this text.
    pub(crate) fn send_frame(&mut self, client: &Client, text: &str) {
        let mut frame = Vec::new();
        write_masked_frame(&mut frame, Opcode::Text, text.as_bytes(), [0; 4]);
        self.send(client, &frame);
    }

    pub(crate) fn send(&mut self, client: &Client, bytes: &[u8]) {
        client.0.borrow_mut().to_worker.extend_from_slice(bytes);
        let token = self.worker.net().tokens[&Rc::as_ptr(&client.0)];
        self.worker.readable(token, false);
    }

    /// The client of a stalled socket reads all that comes.
    pub(crate) fn read_again(&mut self, client: &Client) {
        client.0.borrow_mut().room = None;
        if let Some(&token) = self.worker.net().tokens.get(&Rc::as_ptr(&client.0)) {
            self.worker.writable(token);
        }
    }

    /// The socket of a stalled client takes this many bytes more.
    pub(crate) fn read_some(&mut self, client: &Client, bytes: usize) {
        client.stall_after(bytes);
        if let Some(&token) = self.worker.net().tokens.get(&Rc::as_ptr(&client.0)) {
            self.worker.writable(token);
        }
    }

    /// The client's end of the connection is gone, and no event has reported it to the worker yet.
    pub(crate) fn vanish(&self, client: &Client) {
        client.0.borrow_mut().is_gone = true;
    }

    /// The client's end of the connection is gone.
    pub(crate) fn hang_up(&mut self, client: &Client) {
        client.0.borrow_mut().is_gone = true;
        let token = self.worker.net().tokens[&Rc::as_ptr(&client.0)];
        self.worker.readable(token, true);
    }

    pub(crate) fn publish(&self, channel: &str, text: &str, excluded: Option<ConnectionName>) {
        self.publish_with(channel, text, excluded, None);
    }

    pub(crate) fn publish_to_user(&self, user: &str, text: &str) {
        self.publish_to(ChannelName::user(user), text, None, None);
    }

    pub(crate) fn publish_brief(&self, channel: &str, text: &str, expires_in_ms: u64) {
        self.publish_with(channel, text, None, Some(expires_in_ms));
    }

    /// Publishes a message that sets a key.
    pub(crate) fn set_key(&self, channel: &str, key: &str, text: &str) {
        self.publish_key(channel, StateKey { name: key.into(), is_removed: false }, text, None);
    }

    /// The same with a value that expires.
    pub(crate) fn set_brief_key(&self, channel: &str, key: &str, text: &str, expires_in_ms: u64) {
        let key = StateKey { name: key.into(), is_removed: false };
        self.publish_key(channel, key, text, Some(expires_in_ms));
    }

    /// Publishes a message that removes a key.
    pub(crate) fn remove_key(&self, channel: &str, key: &str) {
        self.publish_key(channel, StateKey { name: key.into(), is_removed: true }, "", None);
    }

    fn publish_key(&self, channel: &str, key: StateKey, text: &str, expires_in_ms: Option<u64>) {
        let labels = Labels { key: Some(key), ..Labels::default() };
        let publication = Publication {
            attributes: Attributes::of_publication(&labels, None),
            expires_in_ms,
            ..Publication::new(ChannelName::channel(channel), Body::Text(text.into()))
        };
        self.engine.publish(self.now().unix_ms, publication).expect("the queue has room");
    }

    /// Publishes a volatile message. Returns the number of subscriptions that it is for.
    pub(crate) fn publish_volatile(&self, channel: &str, text: &str) -> u64 {
        let publication =
            VolatilePublication::new(ChannelName::channel(channel), Body::Text(text.into()));
        self.engine.publish_volatile(self.now().unix_ms, publication)
    }

    fn publish_with(
        &self,
        channel: &str,
        text: &str,
        excluded: Option<ConnectionName>,
        expires_in_ms: Option<u64>,
    ) {
        self.publish_to(ChannelName::channel(channel), text, excluded, expires_in_ms);
    }

    fn publish_to(
        &self,
        channel: ChannelName,
        text: &str,
        excluded: Option<ConnectionName>,
        expires_in_ms: Option<u64>,
    ) {
        let publication = Publication {
            excluded,
            expires_in_ms,
            ..Publication::new(channel, Body::Text(text.into()))
        };
        self.engine.publish(self.now().unix_ms, publication).expect("the queue has room");
    }
}

fn new_worker(setup: &Setup) -> Worker<Sockets> {
    let mut worker = Worker::new(setup.clone(), Sockets::default());
    worker.set_now(Now::after(100, 1));
    worker
}
