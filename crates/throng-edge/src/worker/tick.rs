//! The sweep over the slab: what has come due, and who has fallen behind.
//!
//! No connection owns a timer. Each has one moment at which something is to be done about it
//! (`due`); the sweep passes every connection once a second and does what has come due.

use throng_core::{Counter, LagPolicy, Waiting};
use throng_wire::{ErrorCode, ErrorResponse};

use super::heartbeat::DEFERRED_TICKS_MAX;
use super::{TICKS_PER_S, Worker};
use crate::close_reason::CloseReason;
use crate::connection::{Flags, Io, State};
use crate::net::Net;

/// Connections passed in one tick, at least: all of a small server's, so that its deadlines are met
/// to the tick. With more, a large server of many workers would pass all its connections several
/// times a second.
const VISITS_PER_TICK_MIN: u32 = 1024;

impl<N: Net> Worker<N> {
    /// To be called once per tick, after [`Worker::set_now`].
    pub fn tick(&mut self) {
        // What others see of it is never older than a tick.
        self.publish_load();
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
            if self.sweep_at >= self.connections.extent() {
                self.sweep_at = 0;
            }
            let index = self.sweep_at;
            self.sweep_at += 1;
            let Some(connection) = self.connections.get(index) else { continue };
            let is_parked = connection.state == State::Parked;
            let patience = if is_parked { deferred_ticks } else { 0 };
            if connection.due.saturating_add(patience) <= self.now.tick {
                self.due(index);
            } else if is_parked && connection.io.is_some() {
                self.check_busy(index);
            }
        }
        self.send_beats();
    }

    fn due(&mut self, index: u32) {
        if self.makes_progress(index) {
            return;
        }
        let Some(connection) = self.connections.get(index) else { return };
        match connection.state {
            State::Parked => self.heartbeat(index),
            State::Polling => self.answer_poll_empty(index, None),
            State::Closing => self.forget(index, CloseReason::Complete),
            State::Head => {
                if connection.has(Flags::AWAITS_CONTROL) {
                    return self.refuse_busy(index);
                }
                let has_begun = connection.io.as_ref().is_some_and(|io| !io.inbound.is_empty());
                if has_begun && !connection.has(Flags::BLOCKED) {
                    self.count(Counter::RefusedSlowHead);
                    self.refuse(index, &ErrorResponse::slow_head(), None);
                } else {
                    self.forget(index, CloseReason::Idle);
                }
            }
        }
    }

    /// Looks at a parked connection that is half read or half written: a message must not take for
    /// ever, and one that has fallen behind does not wait for its socket.
    fn check_busy(&mut self, index: u32) {
        let Some(connection) = self.connections.get(index) else { return };
        if connection.has(Flags::BLOCKED) {
            self.check_blocked(index);
        }
        let timeout = self.settings.limits.message_timeout;
        let (ticks, now) = (Self::ticks(timeout), self.now.tick);
        let is_late =
            |io: &Io| !io.reader.is_idle() && io.message_since.saturating_add(ticks) <= now;
        let connection = self.connections.get(index).filter(|it| it.state == State::Parked);
        let io = connection.and_then(|it| it.io.as_deref());
        if io.is_some_and(is_late) {
            let message = format!("a message must arrive within {} s", timeout.as_secs());
            let reason = CloseReason::Refused(ErrorCode::TooSlow);
            self.close_websocket_with(index, reason, &message);
        }
    }

    /// Closes a blocked connection that has fallen behind, instead of waiting for its socket.
    pub(super) fn check_blocked(&mut self, index: u32) {
        let has_gap = |subscription| {
            let waiting = self.subscriptions.waiting(subscription);
            matches!(waiting, Waiting::Gap { policy: LagPolicy::Close, .. })
        };
        if self.subscriptions(index).any(has_gap) {
            self.end_behind(index);
        }
    }
}
