//! A worker: its connections and everything that happens to them.
//!
//! It is a state machine without clock or sockets of its own: the event loop, or the simulation,
//! passes it events and the time, and it acts through [`Net`].
//!
//! # Layout
//!
//! Each part of a worker's state has an owner with private fields, which knows nothing of the
//! worker:
//!
//! | module | what it owns |
//! |---|---|
//! | `relief` | memory to give up when the server is short of it |
//! | `shutdown`, `pace` | how far the end of the worker has come |
//! | `delivery/heartbeat/queue` | heartbeats that are written together |
//! | `delivery/batch`, `delivery/answer` | parts of a slice of a fan-out |
//! | `session/client` | the identity of a client, and the policy's view of it |
//! | `scan/running` | a scan of all connections, and how far it has come |
//! | `session/questions` | the numbers of questions whose answers may come later |
//! | `session/presence_scan` | a presence query, and how far it has come |
//! | `session/kept_change` | a change of a user's kept channels, and how far it has come |
//! | `sockets`, at the root of the crate | the connections, and what is written to them |
//!
//! The files below have methods of [`Worker`], which connect these parts. A method calls only
//! methods of its own file and of files below it in this table. Where it would have to call
//! upwards, it defers work until the next [`Worker::work`]: a request that was pipelined behind a
//! long poll is read again after the answer. `scripts/tidy` checks that no files call each other in
//! a circle, so that such an order exists.
//!
//! | module | what it does |
//! |---|---|
//! | `freeze`, `thaw` | the worker as bytes, and back |
//! | `turn` | one slice of the worker's own work, in order |
//! | `notifications` | acts on notifications of the engine and the control plane |
//! | `leave` | asks clients to leave, at a pace, while the others are served |
//! | `drain` | tells clients when to come back, and closes their connections |
//! | `scan` | lists, closes or asks again about the connections of a user, a token or a channel |
//! | `scan/behind` | lists the connections that are behind |
//! | `scan/recheck` | ends subscriptions that new rules do not allow |
//! | `tick` | the timer scan: passes all connections, and does what is due |
//! | `relieve` | gives up memory when the server is short of it |
//! | `expiry` | closes connections that are allowed no longer, and tells clients before |
//! | `session/presence` | finds the users of a channel |
//! | `session/resume` | goes on with what has waited for an answer |
//! | `session/accept` | takes a connection in |
//! | `delivery/writable` | goes on with a connection whose socket takes more |
//! | `session/receive` | reads, and passes the input to the handler of the connection's state |
//! | `session/frames` | WebSocket frames |
//! | `session/command` | the commands of `throng.v1` in them |
//! | `session/refresh` | the command that shows a newer token |
//! | `session/subscribe` | parks a connection: follows its channels, answers the request |
//! | `session/poll` | answers a long poll at once, or parks it |
//! | `late` | tells subscribers whether messages are late |
//! | `session/fetch` | lets the engine fetch what subscriptions begin with |
//! | `session/admission` | tells clients moments when they come faster than they are served |
//! | `session/kept` | follows what the server keeps for users, and changes of that |
//! | `session/identify` | finds out who a client is |
//! | `session/shown` | requests and commands, as the identification sees them |
//! | `session/ask` | asks whether something is allowed, and lets a connection wait for the answer |
//! | `session/presence_events` | follows the presence events of channels |
//! | `delivery/heartbeat` | heartbeats and pings |
//! | `delivery/fan_out` | one slice of the fan-outs: which subscribers it visits |
//! | `delivery/deliver` | writes a subscriber the messages that it lacks |
//! | `delivery/long_poll` | answers long-polls |
//! | `delivery/in_order` | takes messages of several channels in the order of their stamps |
//! | `delivery/notice` | notices: what the server sends a subscriber beside messages |
//! | `delivery/evict` | closes the connections that buffer most |
//! | `session/limit` | whose a connection is; keeps clients to their limits |
//! | `close` | final responses and close frames |
//! | `release` | a turn, after which the connections are freed that it has condemned |
//! | `log` | connections and requests in the log |
//! | `subscriptions` | a connection's subscriptions |
//! | `events` | notifies the application of connections that begin and end |
//! | `error_response` | error responses |
//!
//! # Invariants
//!
//! * No method runs unbounded: fan-outs go in slices ([`Worker::work`]), reads in turns.

mod close;
mod delivery;
mod drain;
mod error_response;
mod events;
mod expiry;
mod freeze;
mod late;
mod leave;
mod log;
mod notifications;
mod pace;
mod release;
mod relief;
mod relieve;
mod scan;
mod session;
mod shutdown;
mod subscriptions;
mod thaw;
mod tick;
mod turn;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use throng_access::{AccessControl, Verifier};
use throng_core::events::EventSink;
use throng_core::{
    ChannelId, Engine, MemoryPressure, Notification, QueueWatch, Rules, SubscriptionTable,
    Watermark, WorkerId, WorkerQueue,
};

use crate::compression::Compression;
use crate::connection::{ConnectionId, PendingClose};
use crate::metrics::Metrics;
use crate::net::Net;
use crate::settings::Settings;
use crate::sockets::Sockets;
pub use crate::sockets::{Now, TICKS_PER_S};
use delivery::batch::Batch;
use delivery::heartbeat::queue::HeartbeatQueue;
use relief::Relief;
use scan::running::RunningScan;
use session::kept_change::RunningKeptChange;
use session::presence_scan::PresenceScan;
use session::questions::Questions;
use shutdown::Shutdown;
pub use thaw::WorkerThaw;
pub(crate) use thaw::connection_token;

/// The parameters of a new worker.
#[derive(Clone)]
pub struct Setup {
    /// The generation before the first connection's. A random number, so that the name of a
    /// connection from before a restart names none afterwards.
    pub generation: u32,
    pub id: WorkerId,
    /// Settings of the data plane, shared by all workers.
    pub settings: Arc<Settings>,
    /// The logs, shared by both planes.
    pub engine: Arc<dyn Engine>,
    /// Decides who may do what, for both planes.
    pub access: Arc<AccessControl>,
    pub rules: Arc<Rules>,
    pub compression: Arc<Compression>,
    /// Hears of connections that begin and end, if the application wants to know.
    pub events: Option<Arc<dyn EventSink>>,
    /// Notifications of the engine and the control plane for this worker.
    pub queue: Arc<WorkerQueue>,
    pub pressure: Arc<MemoryPressure>,
    /// All workers' metrics: a full worker looks for one that is not.
    pub metrics: Metrics,
}

/// A worker. What its parts have to keep true is in the parts; the methods of this type connect
/// them.
pub struct Worker<N: Net> {
    /// The connections and what is written to them.
    sockets: Sockets<N>,
    settings: Arc<Settings>,
    /// The logs that this worker's subscriptions follow, shared by all workers.
    engine: Arc<dyn Engine>,
    /// Asked before a client subscribes, publishes or reads.
    access: Arc<AccessControl>,
    /// Verifies tokens; `None` if the server has no keys for tokens.
    verifier: Option<Verifier>,
    /// Hears of connections that begin and end.
    events: Option<Arc<dyn EventSink>>,
    compression: Arc<Compression>,
    /// The memory pressure, and this worker's response to it.
    relief: Relief,
    /// Notifications from the engine and the control plane.
    queue: Arc<WorkerQueue>,
    /// The subscriptions of the connections: cursors, and replay buffers of the channels.
    subscriptions: SubscriptionTable,
    heartbeats: HeartbeatQueue,
    /// Close frames that wait for their answers.
    closes: Vec<PendingClose>,
    /// Presence queries under way.
    presence_scans: VecDeque<PresenceScan>,
    /// Scans of all connections. They go on one after the other: each is over in less than a
    /// second.
    scans: VecDeque<RunningScan>,
    /// Changes of kept channels, in their order.
    kept_changes: VecDeque<RunningKeptChange>,
    /// All messages up to this one have come: they are in the replay buffers, or were written.
    watermark: Watermark,
    /// True if any connection may follow kept channels. Only they need `watermark`.
    has_kept: bool,
    /// True if clients are told that messages come late.
    is_late: bool,
    /// How far the end of the worker has come.
    shutdown: Shutdown,
    /// How long the queues of new connections are: of plain ones, and of those with TLS.
    crowds: [QueueWatch; 2],
    /// Numbers the questions whose answers may come later.
    questions: Questions,
    /// Reused: the notifications that are taken from the queue, the channels that a connection
    /// leaves, the lists of a slice of a fan-out.
    notifications: Vec<Notification>,
    channels: Vec<ChannelId>,
    batch: Batch,
}

impl<N: Net> Worker<N> {
    /// A worker without connections.
    pub fn new(setup: Setup, net: N) -> Worker<N> {
        let Setup { generation, id, settings, engine, access, rules, .. } = setup;
        let Setup { compression, events, queue, pressure, metrics, .. } = setup;
        let clients = Arc::clone(&access.clients);
        let (limits, workers) = (settings.limits, metrics.workers().len().max(1));
        let mut subscriptions = SubscriptionTable::new(rules);
        // The limit is the whole server's. Each worker has a fixed share, so that none has to ask
        // others.
        subscriptions.set_max_blocked_bytes(limits.max_blocked_bytes / workers);
        let own = (id, engine.node(), generation);
        let mut sockets = Sockets::new(net, own, Arc::clone(&settings), clients, metrics);
        if access.passed.users {
            sockets.connections_mut().keep_all_names();
        }
        Worker {
            sockets,
            watermark: engine.watermark(),
            has_kept: false,
            engine,
            verifier: access.tokens.as_ref().map(|tokens| tokens.verifier()),
            access,
            compression,
            events,
            queue,
            relief: Relief::new(pressure),
            subscriptions,
            heartbeats: HeartbeatQueue::default(),
            closes: Vec::new(),
            presence_scans: VecDeque::new(),
            scans: VecDeque::new(),
            kept_changes: VecDeque::new(),
            is_late: false,
            shutdown: Shutdown::default(),
            crowds: [QueueWatch::default(); 2],
            questions: Questions::default(),
            notifications: Vec::new(),
            channels: Vec::new(),
            batch: Batch::default(),
            settings,
        }
    }

    /// Sets the time of the events that follow. It never goes back.
    pub fn set_now(&mut self, now: Now) {
        self.set_clock(now);
        self.subscriptions.set_now(now.unix_ms);
    }

    /// True if a fan-out is under way.
    pub fn is_fanning_out(&self) -> bool {
        self.subscriptions.is_fanning_out()
    }

    /// Number of subscriptions of all connections.
    pub fn subscriptions_in_all(&self) -> usize {
        self.subscriptions.len()
    }

    /// Panics unless the parts agree with each other. For tests: it visits all connections.
    pub fn check_invariants(&self) {
        self.check_sockets();
        let places = (0..self.connections().extent()).map(ConnectionId::new);
        let ids = places.filter(|&id| self.connections().get(id).is_some());
        let linked: usize = ids.map(|id| self.subscriptions(id).count()).sum();
        assert_eq!(self.subscriptions.len(), linked, "subscriptions that connections link to");
    }
}

/// A worker does all that its sockets do.
impl<N: Net> Deref for Worker<N> {
    type Target = Sockets<N>;

    fn deref(&self) -> &Sockets<N> {
        &self.sockets
    }
}

impl<N: Net> DerefMut for Worker<N> {
    fn deref_mut(&mut self) -> &mut Sockets<N> {
        &mut self.sockets
    }
}
