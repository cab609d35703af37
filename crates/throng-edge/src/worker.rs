//! A worker: its connections and everything that happens to them.
//!
//! It is a state machine without a clock or sockets of its own: the event loop (or the simulation)
//! tells it what happened, and it acts through [`Net`].
//!
//! # Layout
//!
//! From the top down: a file's methods call only those of files below it. What would be a call
//! upwards waits in a list until the next [`Worker::work`], as the pipelined request behind a
//! long-poll's answer does. `scripts/tidy` holds this.
//!
//! | module | what it does |
//! |---|---|
//! | `turn` | one slice of the worker's own work, in order |
//! | `notifications` | acts on what engine and control plane tell the worker |
//! | `shutdown` | drains: tells clients when to come back, and ends |
//! | `tick` | the timer scan: passes all connections, and does what is due |
//! | `session/presence` | looks for the users of a channel |
//! | `session/accept` | takes a connection in |
//! | `delivery/writable` | goes on with a connection whose socket takes more |
//! | `session/receive` | reads, and passes what came to the handler of the connection's state |
//! | `session/frames` | WebSocket frames |
//! | `session/command` | the commands of `throng.v1` in them |
//! | `session/subscribe` | parks a connection: follows its channels, answers the request |
//! | `delivery/heartbeat` | heartbeats and pings |
//! | `delivery/fan_out` | one slice of the fan-outs: whom it visits, and what it writes together |
//! | `delivery/deliver` | writes one subscriber what it lacks |
//! | `delivery/long_poll`, `delivery/notice` | answers of long-polls; what is not a message |
//! | `delivery/evict` | closes those that buffer most |
//! | `close` | final responses, close frames, lingering |
//! | `send` | writes everything that is not a message; blocked sockets |
//! | `session/hand_off` | passes connections to the control plane and to other workers |
//! | `release` | frees a connection |
//! | `lookup`, `deferred`, `error_response`, `log` | what the others build on |
//! | `delivery/answer`, `delivery/batch`, `budget` | types without a worker |
//!
//! # Invariants
//!
//! * A connection is written to only in the order: a partly written message, then `outbound`, then
//!   messages after its cursors.
//! * No method runs unbounded: fan-outs go in slices ([`Worker::work`]), reads in turns.
//! * `Net::Socket`s are dropped only here, on the thread whose descriptor table they belong to.

mod budget;
mod close;
mod deferred;
mod delivery;
mod error_response;
mod log;
mod lookup;
mod notifications;
mod release;
mod send;
mod session;
mod shutdown;
mod tick;
mod turn;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use throng_core::retry::RetrySchedule;
use throng_core::{
    Access, Counter, Counters, Engine, Notification, Rules, SubscriptionTable, WorkerId,
    WorkerQueue,
};
use throng_wire::CurrentDate;

use crate::connection::{Connections, Token};
use crate::metrics::Metrics;
use crate::net::Net;
use crate::settings::Settings;
use budget::Budget;
use delivery::batch::Batch;
use delivery::fan_out::VISITS_PER_SLICE;
use delivery::heartbeat::Beats;
use session::frames::PendingClose;
use session::presence::PresenceScan;
use shutdown::Shutdown;

/// Ticks per second: the unit of a connection's deadline, and the pace of the timer scan.
pub const TICKS_PER_S: u32 = 10;

/// Room of the one buffer that everything is read into. Larger than any head, and than most
/// WebSocket messages, so that these are handled in place.
const READ_BYTES: usize = 64 << 10;

/// The moment at which something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Milliseconds since 1970; never goes back.
    pub unix_ms: u64,
    /// Ticks since the worker's start.
    pub tick: u32,
}

/// What a worker is made with.
pub struct Setup {
    /// The generation before that of the first connection. A random number, so that the name of a
    /// connection from before a restart names none afterwards.
    pub generation: u32,
    /// The worker's number.
    pub id: WorkerId,
    /// Settings of the data plane, shared by all workers.
    pub settings: Arc<Settings>,
    /// The logs, shared by both planes.
    pub engine: Arc<dyn Engine>,
    /// Decides who may do what.
    pub access: Arc<dyn Access>,
    /// Rules per channel, the engine's.
    pub rules: Arc<Rules>,
    /// What the engine and the control plane tell this worker.
    pub queue: Arc<WorkerQueue>,
    /// All workers' metrics: a full worker looks for one that is not.
    pub metrics: Metrics,
}

/// One worker's state.
pub struct Worker<N: Net> {
    /// The sockets and the ways to others.
    net: N,
    id: WorkerId,
    settings: Arc<Settings>,
    engine: Arc<dyn Engine>,
    access: Arc<dyn Access>,
    /// What the engine and the control plane tell this worker.
    queue: Arc<WorkerQueue>,
    /// All workers' metrics: a full worker looks for one that is not.
    metrics: Metrics,
    /// This worker's counters, also in `metrics`: found once.
    counters: Arc<Counters>,
    /// The connections and the places that they take.
    connections: Connections<N::Socket>,
    /// Whether the connection that is being read was handed off to this worker: then it is not
    /// handed off again, and may take a place that was kept.
    is_handoff: bool,
    /// Spreads the moments at which refused clients come back.
    retry_schedule: RetrySchedule,
    /// The channels that connections follow, their cursors and replay buffers.
    subscriptions: SubscriptionTable,
    /// Messages that `subscriptions` has dropped for want of room, as far as they are counted.
    dropped: u64,
    now: Now,
    /// `now` as responses give it.
    date: CurrentDate,
    /// The index at which the timer scan goes on.
    scan_index: u32,
    /// The heartbeats of a tick, which are written together.
    beats: Beats,
    /// All reads go into this one buffer: an idle connection needs none.
    buffer: Vec<u8>,
    /// For heads and notices on their way out; reused.
    scratch: Vec<u8>,
    /// For what is taken from `queue`; reused.
    notifications: Vec<Notification>,
    /// For the visits of a slice; reused.
    batch: Batch,
    /// Visits of the next slice of a fan-out: fewer where the last slice wrote much.
    visits_per_slice: u32,
    /// What is left of the slice, and of the turn of the connection that is being read.
    budget: Budget,
    /// Connections that had more to read, or to act upon, than one turn allows.
    deferred_reads: VecDeque<Token>,
    /// Connections that lack messages and whose sockets may take more than one slice allowed.
    deferred_deliveries: VecDeque<Token>,
    /// Connections that the control plane did not take yet.
    awaiting_control: VecDeque<Token>,
    /// Close frames of clients, to be answered behind the messages that were published before.
    pending_closes: Vec<PendingClose>,
    /// Presence queries that wait for their turn.
    presence_scans: VecDeque<PresenceScan>,
    shutdown: Shutdown,
}

impl<N: Net> Worker<N> {
    /// A worker without connections.
    pub fn new(setup: Setup, net: N) -> Worker<N> {
        let counters = Arc::clone(&setup.metrics.worker(setup.id).counters);
        let mut subscriptions = SubscriptionTable::new(setup.rules);
        let (limits, workers) = (setup.settings.limits, setup.metrics.workers().len().max(1));
        subscriptions.set_blocked_bytes_max(limits.blocked_bytes_max / workers);
        let metrics = setup.metrics.clone();
        Worker {
            net,
            id: setup.id,
            settings: setup.settings,
            engine: setup.engine,
            access: setup.access,
            queue: setup.queue,
            metrics: setup.metrics,
            counters,
            connections: Connections::new(setup.id, metrics, limits, setup.generation),
            is_handoff: false,
            retry_schedule: RetrySchedule::numbered(setup.id.0.into()),
            subscriptions,
            dropped: 0,
            now: Now::default(),
            date: CurrentDate::default(),
            scan_index: 0,
            beats: Beats::default(),
            buffer: vec![0; READ_BYTES],
            scratch: Vec::new(),
            notifications: Vec::new(),
            batch: Batch::default(),
            visits_per_slice: VISITS_PER_SLICE,
            budget: Budget::new(limits.slice_bytes),
            deferred_reads: VecDeque::new(),
            deferred_deliveries: VecDeque::new(),
            awaiting_control: VecDeque::new(),
            pending_closes: Vec::new(),
            presence_scans: VecDeque::new(),
            shutdown: Shutdown::default(),
        }
    }

    /// The world that the worker acts through.
    pub fn net(&mut self) -> &mut N {
        &mut self.net
    }

    /// Sets the clock, before anything that happens at that moment.
    pub fn set_now(&mut self, now: Now) {
        self.now = now;
        self.date.set_ms(throng_core::clock::wall_ms(now.unix_ms));
    }

    /// Whether a fan-out is under way.
    pub fn is_fanning_out(&self) -> bool {
        self.subscriptions.is_fanning_out()
    }

    /// Whether the worker retries something of which no event tells: call [`Worker::work`] soon.
    pub fn is_waiting(&self) -> bool {
        !self.awaiting_control.is_empty()
    }

    /// Whether there is no place for another subscriber.
    pub fn is_full(&self) -> bool {
        self.connections.is_full()
    }

    /// Places left for subscribers.
    pub fn room(&self) -> u32 {
        self.connections.room()
    }

    /// Number of open connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Number of subscriptions of all connections.
    pub fn subscriptions_in_all(&self) -> usize {
        self.subscriptions.len()
    }

    /// Panics unless what is counted of the connections is true. For tests: it visits all of them.
    pub fn check_invariants(&self) {
        self.connections.check_invariants();
    }

    fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }
}

/// Whole ticks in a duration, at most half of all that a `u32` counts.
fn ticks(duration: Duration) -> u32 {
    let ticks = duration.as_millis() * u128::from(TICKS_PER_S) / 1000;
    u32::try_from(ticks).unwrap_or(u32::MAX / 2)
}
