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
//! | `session/client` | the identity of a client, and the policy's view of it |
//! | `scan/running` | a scan of all connections, and how far it has come |
//! | `session/questions` | the numbers of questions whose answers may come later |
//! | `session/presence_scan` | a presence query, and how far it has come |
//! | `session/kept_change` | a change of a user's kept channels, and how far it has come |
//! | `sockets`, at the root of the crate | the connections, and what is written to them |
//! | `delivery`, at the root of the crate | the subscriptions, and the messages that they lack |
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
//! | `session/receive` | reads, and passes the input to the handler of the connection's state |
//! | `session/frames` | WebSocket frames |
//! | `session/command` | the commands of `throng.v1` in them |
//! | `session/refresh` | the command that shows a newer token |
//! | `session/evict` | closes the connections that buffer most |
//! | `session/writable` | goes on with a connection whose socket takes more |
//! | `session/subscribe` | parks a connection: follows its channels, answers the request |
//! | `session/poll` | answers a long poll at once, or parks it |
//! | `session/fetch` | lets the engine fetch what subscriptions begin with |
//! | `session/admission` | tells clients moments when they come faster than they are served |
//! | `session/kept` | follows what the server keeps for users, and changes of that |
//! | `session/identify` | finds out who a client is |
//! | `session/shown` | requests and commands, as the identification sees them |
//! | `session/ask` | asks whether something is allowed, and lets a connection wait for the answer |
//! | `session/presence_events` | follows the presence events of channels |
//! | `session/limit` | whose a connection is; keeps clients to their limits |
//! | `close` | final responses and close frames |
//! | `release` | a turn, after which the connections are freed that it has condemned |
//! | `log` | connections and requests in the log |
//! | `events` | notifies the application of connections that begin and end |
//! | `error_response` | error responses |
//!
//! # Invariants
//!
//! * No method runs unbounded: fan-outs go in slices ([`Worker::work`]), reads in turns.

mod close;
mod drain;
mod error_response;
mod events;
mod expiry;
mod freeze;
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
mod thaw;
mod tick;
mod turn;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use throng_access::{AccessControl, Verifier};
use throng_core::events::EventSink;
use throng_core::{Engine, MemoryPressure, Notification, QueueWatch, Rules, WorkerId, WorkerQueue};

use crate::compression::Compression;
use crate::connection::PendingClose;
use crate::delivery::Delivery;
use crate::metrics::Metrics;
use crate::net::Net;
use crate::settings::Settings;
use crate::sockets::Sockets;
pub use crate::sockets::{Now, TICKS_PER_S};
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
    /// The subscriptions and what stands below them.
    delivery: Delivery<N>,
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
    /// Close frames that wait for their answers.
    closes: Vec<PendingClose>,
    /// Presence queries under way.
    presence_scans: VecDeque<PresenceScan>,
    /// Scans of all connections. They go on one after the other: each is over in less than a
    /// second.
    scans: VecDeque<RunningScan>,
    /// Changes of kept channels, in their order.
    kept_changes: VecDeque<RunningKeptChange>,
    /// How far the end of the worker has come.
    shutdown: Shutdown,
    /// How long the queues of new connections are: of plain ones, and of those with TLS.
    crowds: [QueueWatch; 2],
    /// Numbers the questions whose answers may come later.
    questions: Questions,
    /// Reused: what is taken from the queue.
    notifications: Vec<Notification>,
}

impl<N: Net> Worker<N> {
    /// A worker without connections.
    pub fn new(setup: Setup, net: N) -> Worker<N> {
        let Setup { generation, id, settings, engine, access, rules, .. } = setup;
        let Setup { compression, events, queue, pressure, metrics, .. } = setup;
        let clients = Arc::clone(&access.clients);
        let own = (id, engine.node(), generation);
        let mut sockets = Sockets::new(net, own, Arc::clone(&settings), clients, metrics);
        if access.passed.users {
            sockets.connections_mut().keep_all_names();
        }
        let (logs, compressing) = (Arc::clone(&engine), Arc::clone(&compression));
        let (shared, own_queue) = (Arc::clone(&settings), Arc::clone(&queue));
        let delivery = Delivery::new(sockets, shared, logs, rules, compressing, own_queue);
        Worker {
            delivery,
            engine,
            verifier: access.tokens.as_ref().map(|tokens| tokens.verifier()),
            access,
            compression,
            events,
            queue,
            relief: Relief::new(pressure),
            closes: Vec::new(),
            presence_scans: VecDeque::new(),
            scans: VecDeque::new(),
            kept_changes: VecDeque::new(),
            shutdown: Shutdown::default(),
            crowds: [QueueWatch::default(); 2],
            questions: Questions::default(),
            notifications: Vec::new(),
            settings,
        }
    }

    /// Sets the time of the events that follow. It never goes back.
    pub fn set_now(&mut self, now: Now) {
        self.set_time(now);
    }

    /// Panics unless the parts agree with each other. For tests: it visits all connections.
    pub fn check_invariants(&self) {
        self.check_delivery();
    }
}

/// A worker does all that its delivery does.
impl<N: Net> Deref for Worker<N> {
    type Target = Delivery<N>;

    fn deref(&self) -> &Delivery<N> {
        &self.delivery
    }
}

impl<N: Net> DerefMut for Worker<N> {
    fn deref_mut(&mut self) -> &mut Delivery<N> {
        &mut self.delivery
    }
}
