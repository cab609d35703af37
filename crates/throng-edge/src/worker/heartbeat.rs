//! Heartbeats: what keeps idle connections alive, and tells which are dead.
//!
//! First ones are spread evenly over the interval, and so all later ones are. What falls into one
//! tick is written together: to a server of idle connections they are nearly all of its work.

use throng_core::Counter;
use throng_wire::sse;

use super::Worker;
use crate::connection::{Connection, Flags, State};
use crate::framing::Framing;
use crate::net::{Net, Parcel, Transfer};

/// Never.
const NEVER: u32 = u32::MAX;

/// 2^32 divided by the golden ratio: multiples of it spread evenly, however many there are.
pub(super) const GOLDEN: u32 = 0x9e37_79b9;

/// A ping frame without payload.
const PING: &[u8] = &[0x89, 0];

/// Written together, at the most: as much as goes to the kernel in one call.
const TOGETHER_MAX: usize = 128;

/// Room of a worker that is used anew in each tick.
#[derive(Debug, Default)]
pub(super) struct Beats {
    /// Connections whose moment has come, and what they get.
    due: Vec<(u32, &'static [u8])>,
    transfers: Vec<Transfer>,
}

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

    /// The moment of a parked connection has come: it gets a heartbeat with the next
    /// [`Worker::send_beats`], unless it is found dead.
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
        self.beats.due.push((index, beat(connection)));
        if self.beats.due.len() == TOGETHER_MAX {
            self.send_beats();
        }
    }

    /// Writes the heartbeats that are due. Whoever is due must be as [`Worker::heartbeat`] left
    /// it: not blocked, and with nothing else on its way.
    pub(super) fn send_beats(&mut self) {
        if self.beats.due.is_empty() {
            return;
        }
        let Beats { mut due, mut transfers } = std::mem::take(&mut self.beats);
        let Worker { connections, net, .. } = self;
        let parcels = due.iter().filter_map(|&(index, bytes)| {
            let socket = &connections.get(index)?.socket;
            Some(Parcel { socket, bytes })
        });
        let parcels: Vec<_> = parcels.collect();
        debug_assert_eq!(parcels.len(), due.len(), "nobody goes between being due and the write");
        net.write_each(&parcels, &mut transfers);
        self.counters.add(Counter::Heartbeats, due.len() as u64);
        for ((index, bytes), transfer) in due.drain(..).zip(transfers.drain(..)) {
            self.sent(index, bytes, transfer);
        }
        self.beats = Beats { due, transfers };
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
