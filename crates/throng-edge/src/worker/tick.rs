//! The sweep over the slab: heartbeats and deadlines.
//!
//! No connection owns a timer. Each has one moment at which something is to be done about it
//! (`due`); the sweep passes every connection once a second and does what has come due. First
//! heartbeats are spread evenly over the interval, and so all later ones are.

use throng_core::{BehindPolicy, Counter, Waiting};
use throng_wire::Refusal;
use throng_wire::refusal::ResponseOptions;
use throng_wire::sse;

use super::{TICKS_PER_S, Worker};
use crate::connection::{Flags, State};
use crate::framing::Framing;
use crate::net::Net;

/// Connections passed in one tick, at least: all of a small server's, so that its deadlines are met
/// to the tick.
const VISITS_PER_TICK_MIN: u32 = 4096;

/// Never.
const NEVER: u32 = u32::MAX;

/// 2^32 divided by the golden ratio: multiples of it spread evenly, however many there are.
const GOLDEN: u32 = 0x9e37_79b9;

/// A ping frame without payload.
const PING: &[u8] = &[0x89, 0];

impl<N: Net> Worker<N> {
    /// To be called once per tick, after [`Worker::set_now`].
    pub fn tick(&mut self) {
        // Sets right what others have counted for connections that never came.
        self.publish_load();
        let dropped = self.roster.dropped();
        self.counters.add(Counter::DroppedForRoom, dropped - self.dropped);
        self.dropped = dropped;
        let extent = self.connections.extent();
        let visits = (extent / TICKS_PER_S + 1).max(VISITS_PER_TICK_MIN).min(extent);
        for _ in 0..visits {
            if self.sweep_at >= self.connections.extent() {
                self.sweep_at = 0;
            }
            let index = self.sweep_at;
            self.sweep_at += 1;
            let Some(connection) = self.connections.get(index) else { continue };
            if connection.due <= self.now.tick {
                self.due(index);
            } else if connection.state == State::Parked && connection.has(Flags::BLOCKED) {
                self.check_stalled(index);
            }
        }
    }

    fn due(&mut self, index: u32) {
        let Some(connection) = self.connections.get(index) else { return };
        match connection.state {
            State::Parked => self.heartbeat(index),
            State::Polling => self.answer_poll_empty(index, None),
            State::Closing => self.forget(index, Counter::Closed),
            State::Head => {
                if connection.has(Flags::AWAITS_CONTROL) {
                    return self.refuse_busy(index);
                }
                let has_begun = connection.io.as_ref().is_some_and(|io| !io.inbound.is_empty());
                if has_begun && !connection.has(Flags::BLOCKED) {
                    self.count(Counter::RefusedSlowHead);
                    let sentence = "the request head did not arrive in time";
                    let refusal = Refusal::new(408, "too_slow", sentence);
                    self.refuse(index, &refusal, &ResponseOptions::default());
                } else {
                    self.forget(index, Counter::ClosedIdle);
                }
            }
        }
    }

    pub(super) fn schedule_first_heartbeat(&mut self, index: u32) {
        let interval = Self::ticks(self.settings.heartbeat);
        let place = index.wrapping_add(u32::from(self.id.0)).wrapping_mul(GOLDEN);
        let spread = (u64::from(place) * u64::from(interval)) >> 32;
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.state == State::Parked {
            connection.due = match interval {
                0 => NEVER,
                _ => self.now.tick.saturating_add(1 + spread as u32),
            };
        }
    }

    fn heartbeat(&mut self, index: u32) {
        let interval = Self::ticks(self.settings.heartbeat).max(1);
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.due = self.now.tick.saturating_add(interval);
        if connection.has(Flags::BLOCKED) {
            // No ping gets through to be answered. If the peer takes nothing at all, the kernel
            // finds out (`TCP_USER_TIMEOUT`).
            return self.check_stalled(index);
        }
        let was_heard = connection.has(Flags::HEARD);
        let is_websocket = connection.has(Flags::WEBSOCKET);
        if is_websocket && !was_heard && connection.has(Flags::MISSED) {
            let sentence = "nothing was heard for two heartbeats";
            return self.close_websocket(index, 4001, sentence, Counter::ClosedSilent);
        }
        connection.flags.set(Flags::MISSED, !was_heard);
        connection.flags.set(Flags::HEARD, false);
        let is_chunked = connection.has(Flags::CHUNKED);
        let beat: &[u8] = match connection.framing {
            Framing::WebSocket | Framing::WebSocketEnvelope => PING,
            Framing::Sse | Framing::SseEnvelope if is_chunked => b"2\r\n:\n\r\n",
            Framing::Sse | Framing::SseEnvelope => sse::COMMENT,
            Framing::Line | Framing::LineEnvelope if is_chunked => b"1\r\n\n\r\n",
            Framing::Line | Framing::LineEnvelope => b"\n",
        };
        self.count(Counter::Heartbeats);
        self.send(index, beat);
    }

    /// Closes a blocked connection that has fallen behind, instead of waiting for its socket.
    fn check_stalled(&mut self, index: u32) {
        let has_gap = |subscription| {
            let waiting = self.roster.waiting(subscription);
            matches!(waiting, Waiting::Gap { policy: BehindPolicy::Close, .. })
        };
        if self.subscriptions(index).any(has_gap) {
            self.end_behind(index);
        }
    }
}
