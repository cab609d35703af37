//! Heartbeats and pings: what keeps idle connections alive, and finds those that are dead.
//!
//! A **heartbeat** wants no answer: an unsolicited pong (RFC 6455 section 5.5.3), a frame that a
//! page can see on `throng.v1`, a comment, an empty line. A peer that is gone does not acknowledge
//! it, and the kernel ends the connection (`TCP_USER_TIMEOUT`, see `sys/listener.rs`). A **ping**
//! wants an answer from the client itself: it finds one that has died behind a proxy which goes on
//! acknowledging. See `docs/decisions/0008-heartbeats-without-answers.md`.
//!
//! # Invariants
//!
//! * A connection that takes what it is sent is never silent for longer than the interval, but for
//!   what a look may be late: [`DEFERRED_TICKS_MAX`] and one pass of the sweep.
//! * Looks are spread evenly over the interval, whenever connections came and whatever they were
//!   sent. Neighbours in the slab, which mostly are neighbours in the kernel's memory, are looked
//!   at together.
//! * `HEARD` is cleared by a ping that is sent, and set by anything that is read, and while the
//!   connection takes nothing. A look closes a connection without `HEARD` if the moment of the last
//!   ping was [`Looks::answer`] ago or earlier: two intervals, 20 s if that is longer, the ping
//!   interval if that is shorter.
//! * So a client that says nothing any more is closed within the ping interval, the time for the
//!   answer, and what that look may be late.
//! * So a client has at least three quarters of the time for its answer, because a ping that is
//!   late by more than a quarter of it is left out. A look that is later closes no one: what came
//!   meanwhile may not be read yet.

mod looks;

use std::time::Duration;

use throng_core::{Counter, Waiting};
use throng_wire::sse;

use crate::close_reason::CloseReason;
use crate::connection::{Connection, ConnectionId, Flags, State};
use crate::encoding::Encoding;
use crate::net::{Net, WriteRequest};
use crate::worker::{TICKS_PER_S, Worker, ticks};
use looks::Looks;

/// Neighbours in the slab that are due in the same tick. Their sockets are neighbours in the
/// kernel's memory, and on one machine a client that the first heartbeat wakes finds the others:
/// with 512 a heartbeat costs a tenth less than with 64. Writing to all of them takes some 5 ms.
const RUN: u32 = 512;

/// While a fan-out is under way, heartbeats wait for this long, in ticks.
pub(in crate::worker) const DEFERRED_TICKS_MAX: u32 = 2 * TICKS_PER_S;

/// A tick sends no more heartbeats, beside a run, than this many allow.
const LATE_TICKS_MAX: u32 = TICKS_PER_S;

/// Heartbeats that are sent together, at most.
const BEATS_TOGETHER: usize = 128;

/// An unsolicited pong without payload.
const PONG: &[u8] = &[0x8a, 0];

/// A ping without payload.
const PING: &[u8] = &[0x89, 0];

/// `{"type":"heartbeat"}` in a text frame.
const V1_HEARTBEAT: &[u8] = b"\x81\x14{\"type\":\"heartbeat\"}";

/// A ping, which no page can see, and a heartbeat, which it can.
const V1_PING: &[u8] = b"\x89\0\x81\x14{\"type\":\"heartbeat\"}";

/// The heartbeats and pings of a tick.
#[derive(Debug)]
pub(in crate::worker) struct Beats {
    /// How many may be sent now: a token bucket, filled at each tick.
    left: u32,
    /// The tick at which it was last filled.
    filled_at: u32,
    /// Those that are about to be sent.
    queued: Vec<Beat>,
}

impl Default for Beats {
    fn default() -> Beats {
        Beats { left: RUN, filled_at: 0, queued: Vec::new() }
    }
}

/// A heartbeat or ping that is about to be sent.
#[derive(Debug, Clone, Copy)]
struct Beat {
    id: ConnectionId,
    bytes: &'static [u8],
    /// Whether it counts as written.
    is_home: bool,
}

impl<N: Net> Worker<N> {
    fn looks(&self, id: ConnectionId, is_websocket: bool) -> Looks {
        let run = (id.index() / RUN).wrapping_add(u32::from(self.id.0));
        let ping_interval = if is_websocket { self.settings.ping_interval } else { Duration::ZERO };
        Looks::new(run, ticks(self.settings.heartbeat), ticks(ping_interval))
    }

    pub(in crate::worker) fn schedule_first_heartbeat(&mut self, id: ConnectionId) {
        // Sending the response may have found the peer gone.
        let Some(connection) = self.connections.get(id) else { return };
        let due = self.looks(id, connection.has(Flags::WEBSOCKET)).next(self.now.tick);
        if let Some(connection) = self.connections.get_mut(id)
            && connection.state == State::Streaming
        {
            connection.due = due;
        }
    }

    /// Allows heartbeats at twice the average rate at which they are due, so that late ones do not
    /// come all at once. What a tick does not use is kept for later ones, up to a run or what
    /// [`LATE_TICKS_MAX`] ticks allow, because a run is due in one tick.
    pub(in crate::worker) fn allow_beats(&mut self) {
        let interval = ticks(self.settings.heartbeat).max(1);
        let elapsed = self.now.tick.saturating_sub(self.beats.filled_at).clamp(1, LATE_TICKS_MAX);
        let per_tick = (2 * self.connections.len() as u32 / interval).max(1);
        self.beats.filled_at = self.now.tick;
        let kept_max = RUN.max(per_tick * LATE_TICKS_MAX);
        self.beats.left = (self.beats.left + per_tick * elapsed).min(kept_max);
    }

    /// The moment of a parked connection has come: it gets a heartbeat if it needs one, or a ping.
    /// A WebSocket that has not answered the last ping in its time is closed.
    ///
    /// Each look takes note of what was written since the one before, half an interval ago. If
    /// there was nothing, the connection gets a heartbeat. One that is sent at home counts as
    /// written, so that an idle connection gets the next one at home. One that is sent in the
    /// middle, because messages came in the half before, does not, so that heartbeats come home
    /// and stay spread after a message to all.
    pub(in crate::worker) fn heartbeat(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.expect_live(id) else { return };
        if self.beats.left == 0 {
            // It stays due.
            return;
        }
        let (tick, due) = (self.now.tick, connection.due);
        let looks = self.looks(id, connection.has(Flags::WEBSOCKET));
        let is_written_soon = self.is_written_soon(id);
        let Some(connection) = self.connections.expect_live_mut(id) else { return };
        connection.due = looks.next(tick);
        // If a look was missed nobody knows how long ago that was.
        let was_written = connection.has(Flags::WRITTEN) && !looks.is_missed(due, tick);
        connection.flags.set(Flags::WRITTEN, false);
        if connection.has(Flags::BLOCKED) {
            // No ping gets through to be answered. If the peer takes nothing at all, the kernel
            // finds out.
            connection.flags.set(Flags::HEARD, true);
            return self.check_blocked(id);
        }
        // What waits for its turn to be read may be the answer.
        let is_unheard = !connection.has(Flags::HEARD) && !connection.has(Flags::READ_DEFERRED);
        if is_unheard && looks.is_answer_due(due, tick) {
            return self.close_websocket(id, CloseReason::Silent);
        }
        if looks.is_ping(due, tick) {
            return self.ping(id);
        }
        if was_written || is_written_soon {
            return;
        }
        let bytes = beat(connection);
        self.count(Counter::Heartbeats);
        self.queue_beat(Beat { id, bytes, is_home: looks.is_home(tick) });
    }

    /// Asks for an answer.
    fn ping(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.expect_live_mut(id) else { return };
        connection.flags.set(Flags::HEARD, false);
        let bytes = if connection.has(Flags::V1) { V1_PING } else { PING };
        self.count(Counter::Pings);
        self.queue_beat(Beat { id, bytes, is_home: true });
    }

    fn queue_beat(&mut self, beat: Beat) {
        self.beats.left = self.beats.left.saturating_sub(1);
        self.beats.queued.push(beat);
        if self.beats.queued.len() >= BEATS_TOGETHER {
            self.send_beats();
        }
    }

    /// Hands what is queued to the [`Net`] together: a reader that the first wakes finds the rest,
    /// too, instead of going to sleep and being woken for each.
    pub(in crate::worker) fn send_beats(&mut self) {
        if self.beats.queued.is_empty() {
            return;
        }
        let mut beats = std::mem::take(&mut self.beats.queued);
        let mut transfers = std::mem::take(&mut self.batch.transfers);
        let Worker { connections, net, .. } = self;
        // Indices are not used anew within a tick, but what has come due since may have closed one.
        let takes = |connection: &Connection<N::Socket>| {
            connection.state == State::Streaming && !connection.has(Flags::BLOCKED)
        };
        beats.retain(|beat| connections.get(beat.id).is_some_and(takes));
        let parcels: Vec<_> = beats
            .iter()
            .filter_map(|beat| {
                let socket = &connections.get(beat.id)?.socket;
                Some(WriteRequest { socket, bytes: beat.bytes })
            })
            .collect();
        net.write_each(&parcels, &mut transfers);
        for (beat, transfer) in beats.drain(..).zip(transfers.drain(..)) {
            self.sent(beat.id, beat.bytes, transfer);
            if let Some(connection) = self.connections.get_mut(beat.id) {
                connection.flags.set(Flags::WRITTEN, beat.is_home);
            }
        }
        (self.beats.queued, self.batch.transfers) = (beats, transfers);
    }

    /// Whether a fan-out that is under way is about to write to the connection.
    fn is_written_soon(&self, id: ConnectionId) -> bool {
        let name = self.connections.name(id);
        let lacks = |id| match self.subscriptions.waiting(id) {
            Waiting::Nothing => false,
            Waiting::Messages(mut messages) => messages.any(|message| message.excluded != name),
            Waiting::Gap { .. } => true,
        };
        self.subscriptions.is_fanning_out() && self.subscriptions(id).any(lacks)
    }
}

/// A sign of life that wants no answer. But on `throng.v1` the client need not notice it.
fn beat<S>(connection: &Connection<S>) -> &'static [u8] {
    let is_chunked = connection.has(Flags::CHUNKED);
    match connection.encoding {
        Encoding::WebSocket | Encoding::WebSocketEnvelope if connection.has(Flags::V1) => {
            V1_HEARTBEAT
        }
        Encoding::WebSocket | Encoding::WebSocketEnvelope => PONG,
        Encoding::Sse | Encoding::SseEnvelope if is_chunked => b"2\r\n:\n\r\n",
        Encoding::Sse | Encoding::SseEnvelope => sse::COMMENT,
        Encoding::Line | Encoding::LineEnvelope if is_chunked => b"1\r\n\n\r\n",
        Encoding::Line | Encoding::LineEnvelope => b"\n",
    }
}
