//! A worker: its connections and everything that happens to them.
//!
//! It is a state machine without a clock or sockets of its own: the event loop (or the simulation)
//! tells it what happened, and it acts through [`Net`]. The life of a connection has a folder:
//!
//! | module | what it does |
//! |---|---|
//! | `accept` | takes a socket in, or passes it on to a worker that has room |
//! | `reserve` | the places that subscribers cannot take |
//! | `receive` | reads, and gives what came to whoever the state says |
//! | `hand_on` | hands connections that do not subscribe to the control plane |
//! | `subscribe` | parks a connection: follows its channels, answers the request |
//! | `frames` | what a WebSocket client sends |
//! | `command` | the commands of `throng.v1` |
//! | `fan_out` | a slice of the fan-outs: who is visited, and what they are written together |
//! | `deliver` | writes a subscriber what it lacks |
//! | `poll` | answers a long-poll |
//! | `presence` | looks for the users of a channel |
//! | `send` | writes everything else; what blocks, and what happens when it no longer does |
//! | `held` | what connections hold of their own, and which give way |
//! | `close` | last words, and forgetting |
//! | `notifications` | what engine and control plane say |
//! | `tick` | the sweep over the slab: what has come due |
//! | `heartbeat` | heartbeats |
//! | `log` | requests in the log |
//! | `drain` | the end |
//!
//! # Invariants
//!
//! * A connection is written to only in the order: a partly written message, then `outbound`, then
//!   messages after its cursors.
//! * No method runs unbounded: fan-outs go in slices ([`Worker::work`]), reads in rounds.
//! * `Net::Socket`s are dropped only here, on the thread whose descriptor table they belong to.

mod accept;
mod close;
mod command;
mod deliver;
mod drain;
mod fan_out;
mod frames;
mod hand_on;
mod heartbeat;
mod held;
mod log;
mod notifications;
mod poll;
mod presence;
mod receive;
mod reserve;
mod send;
mod subscribe;
mod tick;

use std::collections::VecDeque;
use std::sync::Arc;

use throng_core::retry::RetrySchedule;
use throng_core::slab::Slab;
use throng_core::{
    Access, ConnectionName, Counter, Counters, Engine, Notification, Rules, SubscriptionTable,
    WorkerId, WorkerQueue,
};
use throng_wire::CurrentDate;

use crate::connection::Connection;
use crate::figures::Figures;
use crate::net::Net;
use crate::settings::Settings;
use close::Farewell;
use drain::Drain;
use fan_out::Batch;
use heartbeat::Beats;
pub(crate) use held::Held;
use held::Holdings;
use presence::Walk;
use reserve::UnfinishedHeads;

/// Ticks per second: the unit of [`Connection::due`] and the pace of the sweep over the slab.
pub const TICKS_PER_S: u32 = 10;

/// Room of the one buffer that everything is read into. Larger than any head, and than most
/// WebSocket messages, so that these are handled in place.
const READ_BYTES: usize = 64 << 10;

/// Visits of subscriptions in one slice of a fan-out: about a millisecond of writing, unless they
/// are written much.
const VISITS_PER_SLICE: u32 = 96;

/// And at least, however much they are written.
const VISITS_PER_SLICE_MIN: u32 = 6;

/// An answer of so many bytes counts for one step of a connection's turn.
const BYTES_PER_STEP: usize = 8 << 10;

/// The moment at which something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Milliseconds since 1970; never goes back.
    pub unix_ms: u64,
    /// Ticks since the worker's start.
    pub tick: u32,
}

/// What all workers share, and what is one worker's own.
pub struct Setup {
    /// After which its connections' generations are counted. A random number, so that a name from
    /// before a restart is nobody's afterwards.
    pub generation: u32,
    /// Which worker.
    pub id: WorkerId,
    /// Settings of the data plane.
    pub settings: Arc<Settings>,
    /// Owner of the logs.
    pub engine: Arc<dyn Engine>,
    /// Who may do what.
    pub access: Arc<dyn Access>,
    /// Rules per channel, the engine's.
    pub rules: Arc<Rules>,
    /// This worker's inbox.
    pub queue: Arc<WorkerQueue>,
    /// All workers' figures.
    pub figures: Figures,
}

/// One worker's state.
pub struct Worker<N: Net> {
    net: N,
    id: WorkerId,
    settings: Arc<Settings>,
    engine: Arc<dyn Engine>,
    access: Arc<dyn Access>,
    queue: Arc<WorkerQueue>,
    figures: Figures,
    counters: Arc<Counters>,
    connections: Slab<Connection<N::Socket>>,
    /// Those of them that subscribe, or have: each has a place until it closes.
    admitted: u32,
    /// Those of the admitted whose places are of the reserve: viewers, at most `viewers_max`.
    viewers_in_reserve: u32,
    /// Those of them that are closing.
    closing: u32,
    holdings: Holdings,
    unfinished_heads: UnfinishedHeads,
    /// Whether the connection that is looked at comes from another worker or from the control
    /// plane.
    is_taking_over: bool,
    /// When clients that are turned away are to come back.
    retry_schedule: RetrySchedule,
    subscriptions: SubscriptionTable,
    /// What the subscription table has dropped for want of room, as far as it is counted.
    dropped: u64,
    now: Now,
    /// What answers tell of it.
    date: CurrentDate,
    /// Where the sweep over the slab stands.
    sweep_at: u32,
    beats: Beats,
    /// Of the newest connection.
    generation: u32,
    buffer: Vec<u8>,
    /// For heads and notices on their way out.
    scratch: Vec<u8>,
    notifications: Vec<Notification>,
    batch: Batch,
    /// Connections that had more to read, or to act upon, than one turn allows.
    unread: VecDeque<u64>,
    /// What is left of the turn of the connection that is being read, in heads and frames.
    steps: u32,
    /// What is left of the slice, in bytes to be written.
    slice_bytes: usize,
    /// Connections that lack messages and whose sockets may take more than one slice allowed.
    postponed: VecDeque<u64>,
    /// Visits of the next slice of a fan-out.
    visits_per_slice: u32,
    /// Connections that wait for room on the way to the control plane.
    awaiting_control: VecDeque<u64>,
    /// Connections to close once what was published before is delivered to them.
    farewells: Vec<Farewell>,
    /// Presence questions that wait for their turn.
    queries: VecDeque<Walk>,
    /// Since when, in ticks, nobody is taken in any more.
    doors_closed: Option<u32>,
    /// In ticks: when a client last had the answer to its long-poll that will ask again on another
    /// connection.
    poller_left: Option<u32>,
    drain: Option<Drain>,
}

impl<N: Net> Worker<N> {
    /// A worker without connections.
    pub fn new(setup: Setup, net: N) -> Worker<N> {
        let counters = Arc::clone(&setup.figures.worker(setup.id).counters);
        let mut subscriptions = SubscriptionTable::new(setup.rules);
        let (limits, workers) = (setup.settings.limits, setup.figures.workers().len().max(1));
        subscriptions.set_blocked_bytes_max(limits.blocked_bytes_max / workers);
        let holdings = Holdings::new(limits.max_buffered_bytes / workers, limits.held_bytes_floor);
        Worker {
            net,
            id: setup.id,
            settings: setup.settings,
            engine: setup.engine,
            access: setup.access,
            queue: setup.queue,
            counters,
            figures: setup.figures,
            connections: Slab::default(),
            admitted: 0,
            viewers_in_reserve: 0,
            closing: 0,
            holdings,
            unfinished_heads: UnfinishedHeads::default(),
            is_taking_over: false,
            retry_schedule: RetrySchedule::numbered(setup.id.0.into()),
            subscriptions,
            dropped: 0,
            now: Now::default(),
            date: CurrentDate::default(),
            sweep_at: 0,
            beats: Beats::default(),
            generation: setup.generation,
            buffer: vec![0; READ_BYTES],
            scratch: Vec::new(),
            notifications: Vec::new(),
            batch: Batch::default(),
            unread: VecDeque::new(),
            steps: 0,
            slice_bytes: 0,
            postponed: VecDeque::new(),
            visits_per_slice: VISITS_PER_SLICE,
            awaiting_control: VecDeque::new(),
            farewells: Vec::new(),
            queries: VecDeque::new(),
            doors_closed: None,
            poller_left: None,
            drain: None,
        }
    }

    /// The world it acts through.
    pub fn net(&mut self) -> &mut N {
        &mut self.net
    }

    /// Sets the clock, before anything that happens at that moment.
    pub fn set_now(&mut self, now: Now) {
        self.now = now;
        self.date.set_ms(throng_core::clock::told_ms(now.unix_ms));
    }

    /// Takes notifications, goes on with fan-outs for one slice if it may, and says farewell. To be
    /// called after each batch of events, and again while it returns `true`: there is more to do,
    /// beside fan-outs.
    pub fn work(&mut self, may_fan_out: bool) -> bool {
        self.begin_slice();
        self.read_on();
        self.hand_on();
        self.begin_slice();
        self.catch_up_on();
        let has_taken_notifications = self.take_notifications();
        self.answer_queries();
        if may_fan_out {
            self.fan_out();
        }
        self.note_completions();
        if has_taken_notifications {
            self.say_farewells();
        }
        self.relieve();
        self.drain_on();
        self.begin_slice();
        !self.unread.is_empty()
            || !self.postponed.is_empty()
            || (!self.farewells.is_empty() && self.takes_notifications())
            || !self.queries.is_empty()
            || self.is_parting()
    }

    /// Whether a fan-out is under way.
    pub fn is_fanning_out(&self) -> bool {
        self.subscriptions.is_fanning_out()
    }

    /// Whether something waits that no event will tell of: call [`Worker::work`] soon.
    pub fn is_waiting(&self) -> bool {
        !self.awaiting_control.is_empty()
    }

    /// Whether the worker has been told to end and has.
    pub fn is_ended(&self) -> bool {
        self.drain.as_ref().is_some_and(Drain::is_ended)
    }

    /// Whether new connections are still taken: to the end of a drain's wait for long-polls.
    pub fn takes_connections(&self) -> bool {
        self.drain.is_none() || self.expects_polls()
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Subscriptions of all connections.
    pub fn subscriptions_in_all(&self) -> usize {
        self.subscriptions.len()
    }

    fn begin_slice(&mut self) {
        self.slice_bytes = self.settings.limits.slice_bytes;
    }

    /// So many bytes have been made or written.
    fn charge(&mut self, bytes: usize) {
        self.slice_bytes = self.slice_bytes.saturating_sub(bytes);
        let steps = bytes / BYTES_PER_STEP;
        self.steps = self.steps.saturating_sub(u32::try_from(steps).unwrap_or(u32::MAX));
    }

    fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    /// Measures the messages whose fan-out ended with this slice, to a slice's length. Never more
    /// than one look at the clock: where each message has one subscriber, many end at once.
    fn note_completions(&mut self) {
        let mut completions = self.subscriptions.completions();
        let Some(first_us) = completions.next() else { return };
        let now_us = throng_core::clock::now_us();
        for accepted_us in std::iter::once(first_us).chain(completions) {
            self.counters.latency.record(now_us.saturating_sub(accepted_us));
        }
    }

    /// The connection is parked no longer; called before its state says so.
    fn unpark(&self, index: u32) {
        if let Some(parked) = self.connections.get(index).and_then(Connection::parked) {
            self.counters.unpark(parked);
        }
    }

    /// What events about the connection carry.
    fn token(index: u32, generation: u32) -> u64 {
        u64::from(index) | u64::from(generation) << 32
    }

    /// The index that a token means, if its connection is still there.
    fn index_of(&self, token: u64) -> Option<u32> {
        let index = token as u32;
        let connection = self.connections.get(index)?;
        (connection.generation == (token >> 32) as u32).then_some(index)
    }

    /// The connection's public name: worker, generation and index.
    fn name_of(&self, index: u32) -> ConnectionName {
        let generation = self.connections.get(index).map_or(0, |it| it.generation);
        ConnectionName::new(self.id, generation, index)
    }

    fn ticks(duration: std::time::Duration) -> u32 {
        let ticks = duration.as_millis() * u128::from(TICKS_PER_S) / 1000;
        u32::try_from(ticks).unwrap_or(u32::MAX / 2)
    }
}
