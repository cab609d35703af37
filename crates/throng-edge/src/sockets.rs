//! Sockets: the lowest of a worker's three objects. It owns the connections and what is written to
//! them and read from them.
//!
//! It knows a connection by its id, and neither its client nor its channels. A call never frees a
//! connection: it condemns it, and the floor above releases it at the end of the turn.
//!
//! # Layout
//!
//! | module | what it does |
//! |---|---|
//! | `send` | writes bytes; blocked sockets |
//! | `messages` | writes shared messages, to one connection or to many in one call |
//! | `joined` | writes a connection messages joined in frames |
//! | `close` | the last bytes, lingering, release |
//! | `listed` | connections before and after their time in the table, and what is asked of one |
//! | `hand_off` | passes connections to the control plane and to other workers |
//! | `deferred` | connections that wait for another turn |
//! | `unwritten` | receipts of messages that are written in part |
//! | `clock`, `own_metrics` | the time, the counters |
//! | `budget`, `buffers` | the rest of a slice, reused memory |
//!
//! # Invariants
//!
//! * A connection is written to only in the order: a partly written message, then `outbound`, then
//!   messages after its cursors.
//! * [`Net`] is called from here only, and its sockets are dropped only here, on the thread whose
//!   descriptor table they belong to.

mod budget;
mod buffers;
mod clock;
mod close;
mod deferred;
mod hand_off;
mod joined;
mod listed;
mod messages;
mod own_metrics;
mod send;
#[cfg(test)]
mod tests;
mod unwritten;

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use throng_core::frozen::ThawError;
use throng_core::{ConnectionName, Fate, WatchId};
use throng_dialect::CloseReason;

use crate::connection::{Connection, ConnectionId, Connections, Flags, Token};
use crate::counters::Counter;
use crate::net::Net;
use crate::settings::Settings;
use crate::setup::Setup;
use budget::Budget;
use buffers::Buffers;
use clock::Clock;
pub(crate) use clock::ticks;
pub use clock::{Now, TICKS_PER_S};
pub(crate) use hand_off::Arrival;
pub(crate) use joined::{BYTES_PER_WRITE, Due, MESSAGES_PER_WRITE, Sent};
pub(crate) use messages::Outcome;
use own_metrics::OwnMetrics;
use unwritten::UnwrittenReceipts;

/// The sockets of a worker, with everything that is half read or half written.
pub struct Sockets<N: Net> {
    /// The sockets, and the ways to the control plane and to other workers.
    net: N,
    settings: Arc<Settings>,
    /// The connections and the places that they take.
    connections: Connections<N::Socket>,
    clock: Clock,
    /// Counts what happens, and says where there is room when this worker is full.
    metrics: OwnMetrics,
    /// Connections that wait for another turn.
    deferred: Deferred,
    /// Receipts of messages that connections have been written in part.
    unwritten: UnwrittenReceipts,
    /// The rest of the slice, and of the turn of the connection that is being read.
    budget: Budget,
    /// Reused memory, so that an idle connection needs none.
    buffers: Buffers,
    /// When a client last had the answer to a long-poll that it follows up on another connection.
    poll_ended: Option<u32>,
    /// Streams that have ended. The floor that tells of them takes them at the end of the turn.
    ended: VecDeque<(ConnectionName, CloseReason)>,
}

/// Connections that wait for another turn.
#[derive(Debug, Default)]
struct Deferred {
    /// Connections that have more to read, or to act upon, than one turn allows.
    reads: VecDeque<Token>,
    /// Connections that lack messages, and whose sockets may take more than one slice allows.
    deliveries: VecDeque<Token>,
    /// Connections that lack only messages which are not settled, and will not be soon.
    unsettled: VecDeque<Token>,
    /// Connections that the control plane has not taken yet, maybe closing or gone.
    handoffs: VecDeque<Token>,
}

impl<N: Net> Sockets<N> {
    /// No connections.
    pub(crate) fn new(setup: &Setup, net: N) -> Sockets<N> {
        let (metrics, limits) = (setup.metrics.clone(), setup.settings.limits);
        let (clients, generation) = (Arc::clone(&setup.access.clients), setup.generation);
        let node = setup.engine.node();
        Sockets {
            net,
            connections: Connections::new(node, setup.id, metrics, limits, clients, generation),
            metrics: OwnMetrics::new(setup.id, setup.metrics.clone()),
            clock: Clock::new(setup.id.0.into()),
            deferred: Deferred::default(),
            unwritten: UnwrittenReceipts::default(),
            budget: Budget::new(limits.slice_bytes),
            buffers: Buffers::new(),
            poll_ended: None,
            ended: VecDeque::new(),
            settings: Arc::clone(&setup.settings),
        }
    }

    /// The world that the worker acts through.
    pub fn net(&mut self) -> &mut N {
        &mut self.net
    }

    /// Ends without closing anything.
    pub(crate) fn into_net(self) -> N {
        self.net
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
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn connections(&self) -> &Connections<N::Socket> {
        &self.connections
    }

    pub(crate) fn connections_mut(&mut self) -> &mut Connections<N::Socket> {
        &mut self.connections
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sets the time. It never goes back.
    pub(crate) fn set_clock(&mut self, now: Now) {
        self.clock.set(now);
    }

    /// Goes on from the tick of another process, which showed it at `unix_ms`.
    pub(crate) fn resume_clock(
        &mut self,
        tick: u32,
        unix_ms: u64,
        poll_ended: Option<u32>,
    ) -> Result<(), ThawError> {
        self.poll_ended = poll_ended;
        self.clock.resume(tick, unix_ms)
    }

    pub(crate) fn metrics(&self) -> &OwnMetrics {
        &self.metrics
    }

    pub(crate) fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    pub(crate) fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    pub(crate) fn count(&self, counter: Counter) {
        self.metrics.add(counter, 1);
    }

    /// Begins a slice of the worker's work.
    pub(crate) fn begin_slice(&mut self) {
        self.budget.begin_slice();
        self.net.begin_slice();
    }

    /// Does what is due in each tick.
    pub(crate) fn pass_tick(&mut self) {
        self.metrics.count_tick();
        self.net.tick(self.clock.tick());
        // The load that other threads see is never older than a tick.
        self.connections.publish_load();
    }

    /// When a client last had the answer to a long-poll that it follows up on another connection.
    pub(crate) fn poll_ended(&self) -> Option<u32> {
        self.poll_ended
    }

    /// A client had the answer to its long-poll, and is about to ask on another connection.
    pub(crate) fn note_poll_end(&mut self) {
        self.poll_ended = Some(self.clock.tick());
    }

    /// Lists watched messages that the connection is about to be written, or of which it keeps the
    /// rest.
    pub(crate) fn hold_receipts(&mut self, id: ConnectionId, watches: Vec<WatchId>) {
        self.unwritten.hold(id, watches);
    }

    /// The next watched message whose fate is known, and its fate.
    pub(crate) fn next_settled(&mut self) -> Option<(WatchId, Fate)> {
        self.unwritten.next_settled()
    }

    /// Panics unless the parts agree with each other. For tests: it visits all connections.
    pub(crate) fn check_invariants(&self) {
        self.connections.check_invariants();
        self.deferred.check_invariants(&self.connections);
        let is_blocked = |id| self.connections.get(id).is_some_and(|it| it.has(Flags::BLOCKED));
        self.unwritten.check_invariants(is_blocked);
    }
}

/// A connection that was found in this turn.
impl<N: Net> Index<ConnectionId> for Sockets<N> {
    type Output = Connection<N::Socket>;

    #[track_caller]
    fn index(&self, id: ConnectionId) -> &Connection<N::Socket> {
        &self.connections[id]
    }
}

impl<N: Net> IndexMut<ConnectionId> for Sockets<N> {
    #[track_caller]
    fn index_mut(&mut self, id: ConnectionId) -> &mut Connection<N::Socket> {
        &mut self.connections[id]
    }
}
