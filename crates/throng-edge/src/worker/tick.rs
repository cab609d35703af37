//! The timer scan: deadlines, heartbeats, and connections that lag.
//!
//! No connection owns a timer. Each has one deadline, `due`. The scan passes every connection once
//! a second and acts on those that are due.

use throng_wire::ErrorResponse;

use super::Worker;
use super::error_response::Reader;
use crate::close_reason::CloseReason;
use crate::connection::{Connection, ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::delivery::DEFERRED_TICKS_MAX;
use crate::net::Net;
use crate::sockets::TICKS_PER_S;

/// The least number of connections passed in one tick. A small server passes all of them, so that
/// its deadlines are met to the tick. With a higher number, a large server of many workers would
/// pass all its connections several times a second.
const VISITS_PER_TICK_MIN: u32 = 1024;

impl<N: Net> Worker<N> {
    /// Does the work of a tick. Call it once per tick, after [`Worker::set_now`].
    pub fn tick(&mut self) {
        self.pass_tick();
        self.count_dropped();
        self.relieve();
        self.measure_admission();
        self.end_receipts();
        // Deliveries go before heartbeats.
        let deferred_ticks = if self.cursors().is_fanning_out() { DEFERRED_TICKS_MAX } else { 0 };
        let now_s = self.clock().wall_s();
        let extent = self.connections().extent();
        let visits = (extent / TICKS_PER_S + 1).max(VISITS_PER_TICK_MIN).min(extent);
        for _ in 0..visits {
            let id = self.connections_mut().next_scanned();
            // Not every place of the table is taken.
            let Some(connection) = self.connections().get(id) else { continue };
            let is_parked = connection.state == State::Streaming;
            // Only heartbeats are deferred, not the end of a wait.
            let is_deferred = is_parked && !self.connections().has_deadlines(connection);
            let delay = if is_deferred { deferred_ticks } else { 0 };
            let is_session_due = is_parked && self.is_session_due(connection, now_s);
            if is_session_due {
                self.turn(|worker| worker.attend_session(id));
            } else if connection.due.saturating_add(delay) <= self.clock().tick() {
                self.turn(|worker| worker.due(id));
            } else if is_parked && (connection.io.is_some() || connection.has(Flags::BLOCKED)) {
                self.turn(|worker| worker.check_busy(id));
            }
        }
        self.turn(|worker| worker.send_heartbeats());
    }

    /// True if the client is to be told that its session ends, or it has ended.
    fn is_session_due(&self, connection: &Connection<N::Socket>, now_s: u64) -> bool {
        let session = self.connections().session_of(connection);
        session.is_some_and(|session| u64::from(session.next_s()) <= now_s)
    }

    /// Acts on a connection whose deadline is over.
    fn due(&mut self, id: ConnectionId) {
        if self.makes_progress(id) {
            return;
        }
        let connection = &self[id];
        match connection.state {
            State::Streaming if self.connections().has_deadlines(connection) => self.due_beside(id),
            State::Streaming => self.heartbeat(id),
            State::Waiting => self.time_out_waiting(id),
            State::LongPolling => self.answer_long_poll_empty(id, None),
            State::Closing | State::Condemned => self.condemn(id, CloseReason::Complete),
            State::Head => {
                if connection.has(Flags::AWAITS_CONTROL) {
                    return self.refuse_busy(id);
                }
                if connection.has(Flags::AWAITS_PROXY_HEADER) {
                    return self.condemn(id, CloseReason::ProxyHeader);
                }
                if connection.has(Flags::READ_DEFERRED) && !connection.has(Flags::BLOCKED) {
                    // Its input waits for its turn, and may be a whole request. If it is not, a
                    // later scan finds it.
                    return;
                }
                let has_begun = connection.io.as_ref().is_some_and(|io| !io.inbound.is_empty());
                if has_begun && !connection.has(Flags::BLOCKED) {
                    self.count(Counter::RefusedTooSlow);
                    self.refuse(id, &ErrorResponse::slow_head(), &Reader::default());
                } else {
                    self.condemn(id, CloseReason::Idle);
                }
            }
        }
    }

    /// Acts on a streaming connection that is due, and has more deadlines than its
    /// heartbeat.
    fn due_beside(&mut self, id: ConnectionId) {
        let tick = self.clock().tick();
        if self.connections().is_wait_over(id, tick) {
            self.time_out_waiting(id);
        }
        if self.connections().is_expired(id, tick) {
            self.close_expired(id);
        }
        let is_parked = self[id].state == State::Streaming;
        if is_parked && self.connections().own_due(id) <= tick {
            self.heartbeat(id);
        }
    }
}
