//! The timer scan: deadlines, heartbeats, and connections that lag.
//!
//! No connection owns a timer. Each has one deadline, `due`. The scan passes every connection once
//! a second and acts on those that are due.

use super::Worker;
use crate::connection::{Flags, State};
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
        if self.relieve() {
            self.notifications = Vec::new();
        }
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
            let is_parked = connection.state() == State::Streaming;
            // Only heartbeats are deferred, not the end of a wait.
            let is_deferred = is_parked && !self.connections().side().has_deadlines(connection);
            let delay = if is_deferred { deferred_ticks } else { 0 };
            let is_session_due = is_parked && self.is_session_due(connection, now_s);
            if is_session_due {
                self.turn(|sessions| sessions.attend_session(id));
            } else if connection.due.saturating_add(delay) <= self.clock().tick() {
                self.turn(|sessions| sessions.due(id));
            } else if is_parked && (connection.io.is_some() || connection.has(Flags::BLOCKED)) {
                self.turn(|sessions| sessions.check_busy(id));
            }
        }
        self.turn(|sessions| sessions.ask_clients());
        self.turn(|sessions| sessions.send_heartbeats());
    }
}
