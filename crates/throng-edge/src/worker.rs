//! A worker: its connections and everything that happens to them.
//!
//! It is a state machine without a clock or sockets of its own: the event loop (or the simulation)
//! tells it what happened, and it acts through [`Net`]. The life of a connection has a folder:
//!
//! | module | what it does |
//! |---|---|
//! | `accept` | takes a socket in, or passes it on for want of room |
//! | `receive` | reads, and gives what came to whoever the state says |
//! | `hand_on` | hands connections that do not subscribe to the control plane |
//! | `subscribe` | parks a connection: follows its channels, answers the request |
//! | `frames` | what a WebSocket client sends |
//! | `command` | the commands of `throng.v1` |
//! | `fan_out` | a slice of the fan-outs: who is visited, and what they are written together |
//! | `deliver` | writes a subscriber what it lacks |
//! | `poll` | answers a long-poll |
//! | `send` | writes everything else; what blocks, and what happens when it no longer does |
//! | `close` | last words, and forgetting |
//! | `mail` | what engine and control plane say |
//! | `tick` | the sweep over the slab: what has come due |
//! | `heartbeat` | heartbeats |
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
mod mail;
mod poll;
mod receive;
mod send;
mod subscribe;
mod tick;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use throng_core::slab::Slab;
use throng_core::{
    Access, ChannelId, ConnectionName, Counter, Counters, Engine, Epoch, LocalId, Mail, Mailbox,
    PresenceQuestion, Roster, Rules, WorkerId,
};

use crate::connection::Connection;
use crate::figures::Figures;
use crate::net::Net;
use crate::settings::Settings;
pub(crate) use accept::REFUSALS_MAX;
use close::Farewell;
use drain::Drain;
use fan_out::Batch;

/// Ticks per second: the unit of [`Connection::due`] and the pace of the sweep over the slab.
pub const TICKS_PER_S: u32 = 10;

/// Room of the one buffer that everything is read into. Larger than any head, and than most
/// WebSocket messages, so that these are handled in place.
const READ_BYTES: usize = 64 << 10;

/// Visits of subscriptions in one slice of a fan-out: about a millisecond of writing.
const VISITS_PER_SLICE: u32 = 96;

/// Messages taken from the mailbox wait in mirrors until they have been offered to everyone; beyond
/// this many bytes of them, mail waits in the mailbox, and when that is full publishers are
/// refused.
const UNSWEPT_BYTES_MAX: usize = 64 << 20;

/// Half-read messages and unread answers of all connections of all workers may take so many bytes;
/// beyond their share, workers close connections that want more.
const HELD_BYTES_MAX: usize = 1 << 30;

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
    pub mailbox: Arc<Mailbox>,
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
    mailbox: Arc<Mailbox>,
    figures: Figures,
    counters: Arc<Counters>,
    connections: Slab<Connection<N::Socket>>,
    /// Those of them that are closing, which take nobody's room.
    closing: u32,
    /// What all connections hold of their own; see [`HELD_BYTES_MAX`].
    held_bytes: usize,
    roster: Roster,
    /// What the roster has dropped for want of room, as far as it is counted.
    dropped: u64,
    now: Now,
    /// Where the sweep over the slab stands.
    sweep_at: u32,
    next_generation: u32,
    buffer: Vec<u8>,
    /// For heads and notices on their way out.
    scratch: Vec<u8>,
    mail: Vec<Mail>,
    batch: Batch,
    /// Connections that had more to read, or to act upon, than one turn allows.
    unread: VecDeque<u64>,
    /// What is left of the turn of the connection that is being read, in heads and frames.
    steps: u32,
    /// Connections that wait for room on the way to the control plane.
    awaiting_control: VecDeque<u64>,
    /// Connections to close once what was published before is delivered to them.
    farewells: Vec<Farewell>,
    /// Presence questions that wait for their turn.
    questions: VecDeque<(LocalId, ChannelId, Arc<PresenceQuestion>)>,
    /// Since when, in ticks, nobody is taken in any more.
    doors_closed: Option<u32>,
    drain: Option<Drain>,
    /// The engine's epoch, known from the first subscription on.
    epoch: Option<Epoch>,
}

impl<N: Net> Worker<N> {
    /// A worker without connections.
    pub fn new(setup: Setup, net: N) -> Worker<N> {
        let counters = Arc::clone(&setup.figures.worker(setup.id).counters);
        let mut roster = Roster::new(setup.rules);
        roster.set_held_bytes_max(
            throng_core::roster::HELD_BYTES_MAX / setup.figures.workers().len().max(1),
        );
        Worker {
            net,
            id: setup.id,
            settings: setup.settings,
            engine: setup.engine,
            access: setup.access,
            mailbox: setup.mailbox,
            counters,
            figures: setup.figures,
            connections: Slab::default(),
            closing: 0,
            held_bytes: 0,
            roster,
            dropped: 0,
            now: Now::default(),
            sweep_at: 0,
            next_generation: 0,
            buffer: vec![0; READ_BYTES],
            scratch: Vec::new(),
            mail: Vec::new(),
            batch: Batch::default(),
            unread: VecDeque::new(),
            steps: 0,
            awaiting_control: VecDeque::new(),
            farewells: Vec::new(),
            questions: VecDeque::new(),
            doors_closed: None,
            drain: None,
            epoch: None,
        }
    }

    /// The world it acts through.
    pub fn net(&mut self) -> &mut N {
        &mut self.net
    }

    /// Sets the clock, before anything that happens at that moment.
    pub fn set_now(&mut self, now: Now) {
        self.now = now;
    }

    /// Takes mail, goes on with fan-outs for one slice if it may, and says farewell. To be called
    /// after each batch of events, and again while it returns `true`: there is more to do, beside
    /// fan-outs.
    pub fn work(&mut self, may_fan_out: bool) -> bool {
        self.read_on();
        self.hand_on();
        self.take_mail();
        self.answer_question();
        if may_fan_out {
            self.fan_out();
        }
        self.note_landings();
        self.say_farewells();
        self.drain_on();
        !self.unread.is_empty()
            || !self.farewells.is_empty()
            || !self.questions.is_empty()
            || self.is_parting()
    }

    /// Whether a fan-out is under way.
    pub fn is_fanning_out(&self) -> bool {
        self.roster.is_sweeping()
    }

    /// Whether something waits that no event will tell of: call [`Worker::work`] soon.
    pub fn is_waiting(&self) -> bool {
        !self.awaiting_control.is_empty()
    }

    /// Whether the worker has been told to end and has.
    pub fn is_ended(&self) -> bool {
        self.drain.as_ref().is_some_and(Drain::is_ended)
    }

    /// Whether the worker has been told to take no new connections.
    pub fn are_doors_closed(&self) -> bool {
        self.doors_closed.is_some()
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Subscriptions of all connections.
    pub fn subscriptions_in_all(&self) -> usize {
        self.roster.len()
    }

    fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    /// Measures the messages whose fan-out ended with this slice, to a slice's length. Never more
    /// than one look at the clock: where each message has one subscriber, many end at once.
    fn note_landings(&mut self) {
        let mut landings = self.roster.landings();
        let Some(first_us) = landings.next() else { return };
        let now_us = throng_core::clock::now_us();
        for accepted_us in std::iter::once(first_us).chain(landings) {
            self.counters.latency.record(now_us.saturating_sub(accepted_us));
        }
    }

    /// The connection is parked no longer; called before its state says so.
    fn unpark(&self, index: u32) {
        if let Some(parked) = self.connections.get(index).and_then(Connection::parked) {
            self.counters.unpark(parked);
        }
    }

    fn publish_load(&self) {
        let load = &self.figures.worker(self.id).connections;
        let all = self.connections.len() as u32;
        // As `is_full` sees it.
        let taken = (all - self.closing).max(all.saturating_sub(REFUSALS_MAX));
        load.store(taken, Ordering::Relaxed);
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
