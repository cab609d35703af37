//! Heartbeats and pings that are about to be written, and how many more may be.

use super::schedule::GROUP;
use crate::connection::ConnectionId;
use crate::net::Transfer;
use crate::sockets::TICKS_PER_S;

/// The most heartbeats that are written together.
const TOGETHER_MAX: usize = 128;

/// Heartbeats that were not sent in time are made up for at the rate of at most this many ticks in
/// one.
const LATE_TICKS_MAX: u32 = TICKS_PER_S;

/// A heartbeat or ping that is about to be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heartbeat {
    pub(super) id: ConnectionId,
    pub(super) bytes: &'static [u8],
    /// True if the next check counts it as something written.
    pub(super) counts_as_written: bool,
}

/// The heartbeats and pings that are to be written together, and a token bucket that spreads those
/// that are late.
#[derive(Debug)]
pub(crate) struct HeartbeatQueue {
    /// Heartbeats that may be sent now.
    allowance: u32,
    /// The tick of the last refill.
    refilled_at: u32,
    /// The shortest interval of a dialect that was spoken here, in ticks; `u32::MAX` for none.
    of_dialects: u32,
    /// The shortest one that a client here has chosen, while there are such clients.
    chosen: u32,
    queued: Vec<Heartbeat>,
    /// For the results of their writes; reused.
    transfers: Vec<Transfer>,
}

impl Default for HeartbeatQueue {
    fn default() -> HeartbeatQueue {
        HeartbeatQueue {
            allowance: GROUP,
            refilled_at: 0,
            of_dialects: u32::MAX,
            chosen: u32::MAX,
            queued: Vec::new(),
            transfers: Vec::new(),
        }
    }
}

impl HeartbeatQueue {
    /// A connection whose dialect has this interval, in ticks, may get a heartbeat.
    pub(super) fn note_dialect(&mut self, interval: u32) {
        self.of_dialects = self.of_dialects.min(interval);
    }

    /// A connection whose client has chosen this interval, in ticks, may get a heartbeat.
    pub(super) fn note_chosen(&mut self, interval: u32) {
        self.chosen = self.chosen.min(interval);
    }

    /// Allows heartbeats at twice the average rate at which they are due: each of the `connections`
    /// once in an `interval` of ticks, which is 0 without heartbeats, or in that of a dialect, and
    /// each of the `choosers` among them once in the shortest one that any of them has chosen. So
    /// late ones do not go out all at once. What a tick does not use is kept for later ones, up to
    /// a group, which is due in one tick, or the rate of [`LATE_TICKS_MAX`].
    pub(super) fn refill(&mut self, tick: u32, connections: usize, choosers: usize, interval: u32) {
        if choosers == 0 {
            self.chosen = u32::MAX;
        }
        let elapsed = tick.saturating_sub(self.refilled_at).clamp(1, LATE_TICKS_MAX);
        let interval = if interval == 0 { u32::MAX } else { interval };
        let rate = |count: usize, interval: u32| (2 * count as u32).div_ceil(interval.max(1));
        let of_all = 2 * connections as u32 / interval.min(self.of_dialects).max(1);
        let per_tick = (of_all + rate(choosers, self.chosen)).max(1);
        let max_allowance = GROUP.max(per_tick * LATE_TICKS_MAX);
        self.refilled_at = tick;
        self.allowance = (self.allowance + per_tick * elapsed).min(max_allowance);
    }

    /// True if another heartbeat may be queued before the next refill.
    pub(super) fn has_allowance(&self) -> bool {
        self.allowance > 0
    }

    /// Queues a heartbeat. Returns whether it is time to write what is queued.
    pub(super) fn push(&mut self, heartbeat: Heartbeat) -> bool {
        debug_assert!(self.has_allowance(), "asked before");
        self.allowance = self.allowance.saturating_sub(1);
        self.queued.push(heartbeat);
        self.queued.len() >= TOGETHER_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Takes what is queued, with an empty list for the results. Give both back with
    /// [`HeartbeatQueue::return_buffers`].
    pub(super) fn take(&mut self) -> (Vec<Heartbeat>, Vec<Transfer>) {
        (std::mem::take(&mut self.queued), std::mem::take(&mut self.transfers))
    }

    pub(super) fn return_buffers(&mut self, queued: Vec<Heartbeat>, transfers: Vec<Transfer>) {
        debug_assert!(self.queued.is_empty() && queued.is_empty() && transfers.is_empty());
        (self.queued, self.transfers) = (queued, transfers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Heartbeat =
        Heartbeat { id: ConnectionId::new(0), bytes: b"", counts_as_written: false };

    /// Heartbeats that may be sent at once.
    fn allowed(queue: &mut HeartbeatQueue) -> u32 {
        let mut count = 0;
        while queue.has_allowance() {
            queue.push(HEARTBEAT);
            count += 1;
        }
        count
    }

    #[test]
    fn a_group_may_be_sent_at_once_and_then_twice_the_average_rate() {
        let mut queue = HeartbeatQueue::default();
        assert_eq!(allowed(&mut queue), GROUP);
        queue.refill(1, 25_000, 0, 250);
        assert_eq!(allowed(&mut queue), 200);
        queue.refill(1, 10, 0, 250);
        assert_eq!(allowed(&mut queue), 1, "few connections are served all the same");
    }

    #[test]
    fn time_without_refills_is_made_up_for_within_limits() {
        let mut queue = HeartbeatQueue::default();
        allowed(&mut queue);
        queue.refill(4, 25_000, 0, 250);
        assert_eq!(allowed(&mut queue), 4 * 200);
        queue.refill(1000, 25_000, 0, 250);
        assert_eq!(allowed(&mut queue), LATE_TICKS_MAX * 200);
        (1001..2000).for_each(|tick| queue.refill(tick, 25_000, 0, 250));
        assert_eq!(allowed(&mut queue), LATE_TICKS_MAX * 200, "what is kept has a limit");
    }

    #[test]
    fn clients_that_choose_an_interval_add_their_own_heartbeats() {
        let mut queue = HeartbeatQueue::default();
        let mut allowed_with = |chosen: &[u32], choosers, interval| {
            allowed(&mut queue);
            chosen.iter().for_each(|&chosen| queue.note_chosen(chosen));
            queue.refill(1, 25_000, choosers, interval);
            allowed(&mut queue)
        };
        assert_eq!(allowed_with(&[2250], 1, 250), 201, "one does not unleash the others");
        assert_eq!(allowed_with(&[100], 5_000, 250), 200 + 100);
        assert_eq!(allowed_with(&[100], 5_000, 0), 100, "the others get none");
        assert_eq!(allowed_with(&[], 0, 0), 1, "nobody gets one");
        assert_eq!(allowed_with(&[600], 600, 250), 200 + 2, "those of before have gone");
    }

    #[test]
    fn heartbeats_are_written_when_enough_are_queued() {
        let mut queue = HeartbeatQueue::default();
        let pushed = (1..).find(|_| queue.push(HEARTBEAT));
        assert_eq!(pushed, Some(TOGETHER_MAX));
        let (mut queued, transfers) = queue.take();
        assert!(queue.is_empty() && queued.len() == TOGETHER_MAX && transfers.is_empty());
        queued.clear();
        queue.return_buffers(queued, transfers);
    }
}
