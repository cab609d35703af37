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
//! | `clock` | the current time, deadlines, `Retry-After` |
//! | `own_metrics` | counters, and the load of the other workers |
//! | `relief` | memory to give up when the server is short of it |
//! | `deferred` | work that waits for a later slice |
//! | `budget` | the rest of a slice and of a connection's turn |
//! | `shutdown`, `pace` | how far the end of the worker has come |
//! | `buffers` | reused memory |
//! | `delivery/heartbeat/queue` | heartbeats that are written together |
//! | `delivery/unwritten` | receipts of messages that are written in part |
//! | `delivery/batch`, `delivery/answer`, `delivery/outcome` | parts of a slice of a fan-out |
//! | `session/client` | the identity of a client, and the policy's view of it |
//! | `scan/running` | a scan of all connections, and how far it has come |
//! | `session/questions` | the numbers of questions whose answers may come later |
//! | `session/presence_scan` | a presence query, and how far it has come |
//! | `session/kept_change` | a change of a user's kept channels, and how far it has come |
//! | [`connection`](crate::connection) | all connections, and the places that they take |
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
//! | `close` | final responses, close frames, lingering |
//! | `send` | writes everything that is not a message; blocked sockets |
//! | `session/hand_off` | passes connections to the control plane and to other workers |
//! | `release` | frees the connections that a turn has condemned |
//! | `log` | connections and requests in the log |
//! | `subscriptions` | a connection's subscriptions |
//! | `scan/describe` | the entry of a connection in a list |
//! | `events` | notifies the application of connections that begin and end |
//! | `error_response` | error responses |
//!
//! # Invariants
//!
//! * A connection is written to only in the order: a partly written message, then `outbound`, then
//!   messages after its cursors.
//! * No method runs unbounded: fan-outs go in slices ([`Worker::work`]), reads in turns.
//! * `Net::Socket`s are dropped only here, on the thread whose descriptor table they belong to.

mod budget;
mod buffers;
mod clock;
mod close;
mod deferred;
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
mod own_metrics;
mod pace;
mod release;
mod relief;
mod relieve;
mod scan;
mod send;
mod session;
mod shutdown;
mod subscriptions;
mod thaw;
mod tick;
mod turn;

use std::sync::Arc;

use throng_access::{AccessControl, Verifier};
use throng_core::events::EventSink;
use throng_core::{
    Engine, MemoryPressure, QueueWatch, Rules, SubscriptionTable, Watermark, WorkerId, WorkerQueue,
};

use crate::compression::Compression;
use crate::connection::{ConnectionId, Connections, Flags};
use crate::counters::Counter;
use crate::metrics::Metrics;
use crate::net::Net;
use crate::settings::Settings;
use budget::Budget;
use buffers::Buffers;
use clock::Clock;
pub use clock::{Now, TICKS_PER_S};
use deferred::Deferred;
use delivery::heartbeat::queue::HeartbeatQueue;
use delivery::unwritten::UnwrittenReceipts;
use own_metrics::OwnMetrics;
use relief::Relief;
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
    /// The sockets, and the ways to the control plane and to other workers.
    net: N,
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
    /// Counts what happens, and says where there is room when this worker is full.
    metrics: OwnMetrics,
    /// The connections and the places that they take.
    connections: Connections<N::Socket>,
    /// The subscriptions of the connections: cursors, and replay buffers of the channels.
    subscriptions: SubscriptionTable,
    clock: Clock,
    /// Work that waits for a later slice.
    deferred: Deferred,
    heartbeats: HeartbeatQueue,
    /// Receipts of messages that connections have been written in part.
    unwritten: UnwrittenReceipts,
    /// The rest of the slice, and of the turn of the connection that is being read.
    budget: Budget,
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
    /// Reused memory, so that an idle connection needs none.
    buffers: Buffers,
}

impl<N: Net> Worker<N> {
    /// A worker without connections.
    pub fn new(setup: Setup, net: N) -> Worker<N> {
        let Setup { generation, id, settings, engine, access, rules, .. } = setup;
        let Setup { compression, events, queue, pressure, metrics, .. } = setup;
        let clients = Arc::clone(&access.clients);
        let (limits, workers) = (settings.limits, metrics.workers().len().max(1));
        let node = engine.node();
        let mut subscriptions = SubscriptionTable::new(rules);
        // The limit is the whole server's. Each worker has a fixed share, so that none has to ask
        // others.
        subscriptions.set_max_blocked_bytes(limits.max_blocked_bytes / workers);
        let mut connections =
            Connections::new(node, id, metrics.clone(), limits, clients, generation);
        if access.passed.users {
            connections.keep_all_names();
        }
        Worker {
            net,
            watermark: engine.watermark(),
            has_kept: false,
            engine,
            verifier: access.tokens.as_ref().map(|tokens| tokens.verifier()),
            access,
            compression,
            events,
            queue,
            relief: Relief::new(pressure),
            connections,
            metrics: OwnMetrics::new(id, metrics),
            subscriptions,
            clock: Clock::new(id.0.into()),
            deferred: Deferred::default(),
            heartbeats: HeartbeatQueue::default(),
            unwritten: UnwrittenReceipts::default(),
            budget: Budget::new(limits.slice_bytes),
            is_late: false,
            shutdown: Shutdown::default(),
            crowds: [QueueWatch::default(); 2],
            questions: Questions::default(),
            buffers: Buffers::new(),
            settings,
        }
    }

    /// The world that the worker acts through.
    pub fn net(&mut self) -> &mut N {
        &mut self.net
    }

    /// Sets the time of the events that follow. It never goes back.
    pub fn set_now(&mut self, now: Now) {
        self.clock.set(now);
        self.subscriptions.set_now(now.unix_ms);
    }

    /// True if a fan-out is under way.
    pub fn is_fanning_out(&self) -> bool {
        self.subscriptions.is_fanning_out()
    }

    /// True if the worker retries something that no event reports: call [`Worker::work`] soon.
    pub fn is_retrying(&self) -> bool {
        self.deferred.handoffs() > 0
    }

    /// True if there is no place for another subscriber.
    pub fn is_full(&self) -> bool {
        self.connections.is_full()
    }

    /// Places left for new connections, if each that has not subscribed yet will.
    pub(crate) fn room_for_new(&self) -> u32 {
        self.connections.room_for_new()
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Number of subscriptions of all connections.
    pub fn subscriptions_in_all(&self) -> usize {
        self.subscriptions.len()
    }

    /// Panics unless the parts agree with each other. For tests: it visits all connections.
    pub fn check_invariants(&self) {
        self.connections.check_invariants();
        self.deferred.check_invariants(&self.connections);
        let is_blocked = |id| self.connections.get(id).is_some_and(|it| it.has(Flags::BLOCKED));
        self.unwritten.check_invariants(is_blocked);
        let places = (0..self.connections.extent()).map(ConnectionId::new);
        let ids = places.filter(|&id| self.connections.get(id).is_some());
        let linked: usize = ids.map(|id| self.subscriptions(id).count()).sum();
        assert_eq!(self.subscriptions.len(), linked, "subscriptions that connections link to");
    }

    fn count(&self, counter: Counter) {
        self.metrics.add(counter, 1);
    }
}
