//! Heartbeats: what keeps idle connections alive, and tells which are dead.
//!
//! First ones are spread evenly over the interval, and so all later ones are.

use throng_core::Counter;
use throng_wire::sse;

use super::Worker;
use crate::connection::{Connection, Flags, State};
use crate::framing::Framing;
use crate::net::Net;

/// Never.
const NEVER: u32 = u32::MAX;

/// 2^32 divided by the golden ratio: multiples of it spread evenly, however many there are.
pub(super) const GOLDEN: u32 = 0x9e37_79b9;

/// A ping frame without payload.
const PING: &[u8] = &[0x89, 0];

impl<N: Net> Worker<N> {
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

    /// The moment of a parked connection has come: it gets a heartbeat, unless it is found dead.
    pub(super) fn heartbeat(&mut self, index: u32) {
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
        let beat = beat(connection);
        self.count(Counter::Heartbeats);
        self.send(index, beat);
    }
}

/// What a connection gets that its client need not notice.
fn beat<S>(connection: &Connection<S>) -> &'static [u8] {
    let is_chunked = connection.has(Flags::CHUNKED);
    match connection.framing {
        Framing::WebSocket | Framing::WebSocketEnvelope => PING,
        Framing::Sse | Framing::SseEnvelope if is_chunked => b"2\r\n:\n\r\n",
        Framing::Sse | Framing::SseEnvelope => sse::COMMENT,
        Framing::Line | Framing::LineEnvelope if is_chunked => b"1\r\n\n\r\n",
        Framing::Line | Framing::LineEnvelope => b"\n",
    }
}
