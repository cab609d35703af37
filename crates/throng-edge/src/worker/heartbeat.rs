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
//! * A client has at least three quarters of the ping interval for its answer.

use std::time::Duration;

use throng_core::{Counter, Waiting};
use throng_wire::sse;

use super::{TICKS_PER_S, Worker};
use crate::connection::{Connection, Flags, State};
use crate::framing::Framing;
use crate::net::{Net, Parcel};

/// Never.
const NEVER: u32 = u32::MAX;

/// 2^32 divided by the golden ratio: multiples of it spread evenly, however many there are.
const GOLDEN: u32 = 0x9e37_79b9;

/// Connections that lie side by side in the slab and are looked at in the same tick.
const RUN: u32 = 64;

/// While a fan-out is under way, heartbeats wait for this long, in ticks.
pub(super) const DEFERRED_TICKS_MAX: u32 = 2 * TICKS_PER_S;

/// A late tick sends no more heartbeats than this many in time would have.
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
#[derive(Debug, Default)]
pub(super) struct Beats {
    /// How many it may still send.
    left: u32,
    /// The tick that they were allowed at.
    allowed_at: u32,
    /// Those that are about to be sent.
    queued: Vec<Beat>,
}

/// A heartbeat or ping that is about to be sent.
#[derive(Debug, Clone, Copy)]
struct Beat {
    index: u32,
    bytes: &'static [u8],
    /// Whether it counts as written.
    is_home: bool,
}

/// Moments that come back, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recurring {
    /// From one to the next; 0 for never.
    period: u32,
    /// Of the first one; less than the period.
    offset: u32,
}

impl Recurring {
    const NEVER: Recurring = Recurring { period: 0, offset: 0 };

    /// Every `period` ticks, at a `place` in it, of 2^32.
    fn new(period: u32, place: u32) -> Recurring {
        let offset = (u64::from(place) * u64::from(period)) >> 32;
        Recurring { period, offset: offset as u32 }
    }

    /// The first one after `tick`.
    fn next(self, tick: u32) -> u32 {
        if self.period == 0 {
            return NEVER;
        }
        tick.saturating_add(self.period - self.elapsed(tick))
    }

    /// Ticks since the last one at or before `tick`, which may lie before the beginning of time.
    fn elapsed(self, tick: u32) -> u32 {
        debug_assert!(self.period > 0);
        let period = u64::from(self.period);
        ((u64::from(tick) + period - u64::from(self.offset)) % period) as u32
    }

    /// How long ago the last one was, if it was at `since` or later.
    fn late(self, since: u32, tick: u32) -> Option<u32> {
        let elapsed = (self.period > 0).then(|| self.elapsed(tick))?;
        (elapsed <= tick.saturating_sub(since)).then_some(elapsed)
    }
}

/// When a connection is looked at.
#[derive(Debug, Clone, Copy)]
struct Looks {
    /// Once an interval.
    home: Recurring,
    /// Half an interval later.
    middle: Recurring,
    /// At some of the looks at home an answer is asked for; never of what is no WebSocket.
    ping: Recurring,
}

impl Looks {
    /// For a run of connections. The ping interval is rounded to a multiple of the interval.
    fn new(run: u32, interval: u32, ping_interval: u32) -> Looks {
        let home = Recurring::new(interval, run.wrapping_mul(GOLDEN));
        let offset = (home.offset + interval / 2) % interval.max(1);
        let middle = Recurring { period: interval, offset };
        if interval == 0 || ping_interval == 0 {
            return Looks { home, middle, ping: Recurring::NEVER };
        }
        let every = (ping_interval.saturating_add(interval / 2) / interval).max(1);
        let period = interval.saturating_mul(every);
        let ping = Recurring { period, offset: home.offset + interval * (run % every) };
        Looks { home, middle, ping }
    }

    fn next(self, tick: u32) -> u32 {
        self.home.next(tick).min(self.middle.next(tick))
    }

    /// Whether the last look was at home.
    fn is_home(self, tick: u32) -> bool {
        self.home.period > 0 && self.home.elapsed(tick) < self.home.period / 2
    }
}

impl<N: Net> Worker<N> {
    fn looks(&self, index: u32, is_websocket: bool) -> Looks {
        let run = (index / RUN).wrapping_add(u32::from(self.id.0));
        let ping_interval = if is_websocket { self.settings.ping_interval } else { Duration::ZERO };
        Looks::new(run, Self::ticks(self.settings.heartbeat), Self::ticks(ping_interval))
    }

    pub(super) fn schedule_first_heartbeat(&mut self, index: u32) {
        let Some(connection) = self.connections.get(index) else { return };
        let due = self.looks(index, connection.has(Flags::WEBSOCKET)).next(self.now.tick);
        if let Some(connection) = self.connections.get_mut(index)
            && connection.state == State::Parked
        {
            connection.due = due;
        }
    }

    /// A tick may send twice as many heartbeats as are due on average, and at least a run: those
    /// that are late do not come all at once.
    pub(super) fn allow_beats(&mut self) {
        let interval = Self::ticks(self.settings.heartbeat).max(1);
        let ticks = self.now.tick.saturating_sub(self.beats.allowed_at).clamp(1, LATE_TICKS_MAX);
        self.beats.allowed_at = self.now.tick;
        self.beats.left = (2 * self.connections.len() as u32 / interval).max(RUN) * ticks;
    }

    /// The moment of a parked connection has come: it gets a heartbeat if it needs one, or a ping.
    /// A WebSocket that has not answered the last ping is closed.
    ///
    /// Each look takes note of what was written since the one before, half an interval ago. If
    /// there was nothing, the connection gets a heartbeat. One that is sent at home counts as
    /// written, so that an idle connection gets the next one at home. One that is sent in the
    /// middle, because messages came in the half before, does not, so that heartbeats come home
    /// and stay spread after a message to all.
    pub(super) fn heartbeat(&mut self, index: u32) {
        let Some(connection) = self.connections.get(index) else { return };
        if self.beats.left == 0 {
            // It stays due.
            return;
        }
        let (tick, due) = (self.now.tick, connection.due);
        let looks = self.looks(index, connection.has(Flags::WEBSOCKET));
        let is_written_soon = self.is_written_soon(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.due = looks.next(tick);
        // If a look was missed nobody knows how long ago that was.
        let is_in_time = tick - due.min(tick) < looks.home.period / 2;
        let was_written = connection.has(Flags::WRITTEN) && is_in_time;
        connection.flags.set(Flags::WRITTEN, false);
        if connection.has(Flags::BLOCKED) {
            // No ping gets through to be answered. If the peer takes nothing at all, the kernel
            // finds out.
            connection.flags.set(Flags::HEARD, true);
            return self.check_stalled(index);
        }
        match looks.ping.late(due, tick) {
            Some(late) if late <= looks.ping.period / 4 => return self.ping(index),
            // Too late to leave the client its time until the next one.
            Some(_) => connection.flags.set(Flags::HEARD, true),
            None => {}
        }
        if was_written || is_written_soon {
            return;
        }
        let bytes = beat(connection);
        self.count(Counter::Heartbeats);
        self.queue_beat(Beat { index, bytes, is_home: looks.is_home(tick) });
    }

    /// Asks for an answer, unless there was none since the last ping.
    fn ping(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        // What waits for its turn to be read may be the answer.
        if !connection.has(Flags::HEARD) && !connection.has(Flags::UNREAD) {
            let sentence = "a ping was not answered before the next one was due";
            return self.close_websocket(index, 4001, sentence, Counter::ClosedSilent);
        }
        connection.flags.set(Flags::HEARD, false);
        let bytes = if connection.has(Flags::V1) { V1_PING } else { PING };
        self.count(Counter::Pings);
        self.queue_beat(Beat { index, bytes, is_home: true });
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
    pub(super) fn send_beats(&mut self) {
        if self.beats.queued.is_empty() {
            return;
        }
        let mut beats = std::mem::take(&mut self.beats.queued);
        let mut transfers = std::mem::take(&mut self.batch.transfers);
        let Worker { connections, net, .. } = self;
        // Indices are not used anew within a tick, but what has come due since may have closed one.
        let takes =
            |it: &Connection<N::Socket>| it.state == State::Parked && !it.has(Flags::BLOCKED);
        beats.retain(|beat| connections.get(beat.index).is_some_and(takes));
        let parcels: Vec<_> = beats
            .iter()
            .filter_map(|beat| {
                let socket = &connections.get(beat.index)?.socket;
                Some(Parcel { socket, bytes: beat.bytes })
            })
            .collect();
        net.write_each(&parcels, &mut transfers);
        for (beat, transfer) in beats.drain(..).zip(transfers.drain(..)) {
            self.sent(beat.index, beat.bytes, transfer);
            if let Some(connection) = self.connections.get_mut(beat.index) {
                connection.flags.set(Flags::WRITTEN, beat.is_home);
            }
        }
        (self.beats.queued, self.batch.transfers) = (beats, transfers);
    }

    /// Whether a fan-out that is under way is about to write to the connection.
    fn is_written_soon(&self, index: u32) -> bool {
        let name = Some(self.name_of(index));
        let lacks = |id| match self.roster.waiting(id) {
            Waiting::Nothing => false,
            Waiting::Messages(mut messages) => messages.any(|message| message.except != name),
            Waiting::Gap { .. } => true,
        };
        self.roster.is_sweeping() && self.subscriptions(index).any(lacks)
    }
}

/// A sign of life that wants no answer. But on `throng.v1` the client need not notice it.
fn beat<S>(connection: &Connection<S>) -> &'static [u8] {
    let is_chunked = connection.has(Flags::CHUNKED);
    match connection.framing {
        Framing::WebSocket | Framing::WebSocketEnvelope if connection.has(Flags::V1) => {
            V1_HEARTBEAT
        }
        Framing::WebSocket | Framing::WebSocketEnvelope => PONG,
        Framing::Sse | Framing::SseEnvelope if is_chunked => b"2\r\n:\n\r\n",
        Framing::Sse | Framing::SseEnvelope => sse::COMMENT,
        Framing::Line | Framing::LineEnvelope if is_chunked => b"1\r\n\n\r\n",
        Framing::Line | Framing::LineEnvelope => b"\n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_come_back() {
        let moments = Recurring { period: 10, offset: 3 };
        assert_eq!([0, 2, 3, 12, 13].map(|tick| moments.next(tick)), [3, 3, 13, 13, 23]);
        assert_eq!([3, 4, 12, 13, 0].map(|tick| moments.elapsed(tick)), [0, 1, 9, 0, 7]);
        assert_eq!(moments.late(14, 15), None);
        assert_eq!(moments.late(13, 15), Some(2));
        assert_eq!(moments.late(1, 35), Some(2));
        let never = Recurring::NEVER;
        assert_eq!((never.next(5), never.late(0, 5)), (NEVER, None));
    }

    #[test]
    fn looks_alternate_between_home_and_middle() {
        for interval in [10, 11, 250] {
            for run in 0..100_u32 {
                let looks = Looks::new(run, interval, 0);
                let first = looks.next(1000);
                let second = looks.next(first);
                assert_ne!(looks.is_home(first), looks.is_home(second));
                assert_eq!(looks.next(second), first + interval);
                assert!(second - first >= interval / 2);
            }
        }
    }

    #[test]
    fn some_of_the_looks_at_home_are_pings() {
        for (ping_interval, every) in [(1200, 5), (250, 1), (100, 1), (300, 1), (400, 2)] {
            for run in 0..50 {
                let looks = Looks::new(run, 250, ping_interval);
                let first = looks.ping.next(5000);
                assert!(looks.is_home(first) && looks.home.elapsed(first) == 0);
                assert_eq!(looks.ping.next(first), first + 250 * every);
            }
        }
    }

    #[test]
    fn runs_are_spread_evenly() {
        let interval = 250;
        let home = |run: u32| Looks::new(run, interval, 0).home.offset;
        let mut counts = [0; 10];
        (0..300).for_each(|run| counts[(home(run) / 25) as usize] += 1);
        assert!(counts.iter().all(|count| (28..=32).contains(count)), "{counts:?}");
        let ping = |run: u32| Looks::new(run, interval, 1250).ping.offset;
        let mut counts = [0; 10];
        (0..300).for_each(|run| counts[(ping(run) / 125) as usize] += 1);
        assert!(counts.iter().all(|count| (27..=33).contains(count)), "{counts:?}");
    }
}
