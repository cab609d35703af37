//! The sweep over the slab: what has come due, and who has fallen behind.
//!
//! No connection owns a timer. Each has one moment at which something is to be done about it
//! (`due`); the sweep passes every connection once a second and does what has come due.

use throng_core::Counter;
use throng_wire::{ErrorCode, ErrorResponse};

use super::delivery::heartbeat::DEFERRED_TICKS_MAX;
use super::{TICKS_PER_S, Worker, ticks};
use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, Io, State};
use crate::net::Net;

/// Connections passed in one tick, at least: all of a small server's, so that its deadlines are met
/// to the tick. With more, a large server of many workers would pass all its connections several
/// times a second.
const VISITS_PER_TICK_MIN: u32 = 1024;

impl<N: Net> Worker<N> {
    /// To be called once per tick, after [`Worker::set_now`].
    pub fn tick(&mut self) {
        // What others see of it is never older than a tick.
        self.connections.publish_load();
        let dropped = self.subscriptions.dropped();
        self.counters.add(Counter::DroppedForRoom, dropped - self.dropped);
        self.dropped = dropped;
        let extent = self.connections.extent();
        self.allow_beats();
        // Deliveries go before heartbeats.
        let deferred_ticks =
            if self.subscriptions.is_fanning_out() { DEFERRED_TICKS_MAX } else { 0 };
        let visits = (extent / TICKS_PER_S + 1).max(VISITS_PER_TICK_MIN).min(extent);
        for _ in 0..visits {
            if self.scan_index >= self.connections.extent() {
                self.scan_index = 0;
            }
            let id = ConnectionId::new(self.scan_index);
            self.scan_index += 1;
            // Not every place of the table is taken.
            let Some(connection) = self.connections.get(id) else { continue };
            let is_parked = connection.state == State::Streaming;
            let patience = if is_parked { deferred_ticks } else { 0 };
            if connection.due.saturating_add(patience) <= self.now.tick {
                self.due(id);
            } else if is_parked && connection.io.is_some() {
                self.check_busy(id);
            }
        }
        self.send_beats();
    }

    fn due(&mut self, id: ConnectionId) {
        if self.makes_progress(id) {
            return;
        }
        let Some(connection) = self.connections.get(id) else { return };
        match connection.state {
            State::Streaming => self.heartbeat(id),
            State::LongPolling => self.answer_long_poll_empty(id, None),
            State::Closing => self.release(id, CloseReason::Complete),
            State::Head => {
                if connection.has(Flags::AWAITS_CONTROL) {
                    return self.refuse_busy(id);
                }
                let has_begun = connection.io.as_ref().is_some_and(|io| !io.inbound.is_empty());
                if has_begun && !connection.has(Flags::BLOCKED) {
                    self.count(Counter::RefusedSlowHead);
                    self.refuse(id, &ErrorResponse::slow_head(), None);
                } else {
                    self.release(id, CloseReason::Idle);
                }
            }
        }
    }

    /// Looks at a parked connection that is half read or half written: a message must not take for
    /// ever, and one that has fallen behind does not wait for its socket.
    fn check_busy(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(id) else { return };
        if connection.has(Flags::BLOCKED) {
            self.check_blocked(id);
        }
        let timeout = self.settings.limits.message_timeout;
        let (ticks, now) = (ticks(timeout), self.now.tick);
        let is_late =
            |io: &Io| !io.reader.is_idle() && io.message_since.saturating_add(ticks) <= now;
        let connection =
            self.connections.get(id).filter(|connection| connection.state == State::Streaming);
        let io = connection.and_then(|connection| connection.io.as_deref());
        if io.is_some_and(is_late) {
            let message = format!("a message must arrive within {} s", timeout.as_secs());
            let reason = CloseReason::Refused(ErrorCode::TooSlow);
            self.close_websocket_with(id, reason, &message);
        }
    }
}
