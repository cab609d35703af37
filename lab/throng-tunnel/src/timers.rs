//! Retransmission timers.
//!
//! All waits after the same attempt are equally long, so one queue for each attempt number stays
//! sorted without a heap.

use std::collections::VecDeque;

/// The first wait, in nanoseconds; it doubles with each attempt.
pub(crate) const FIRST_NS: u64 = 1_000_000_000;

/// Attempts before a connection is given up, about a minute after the first.
pub(crate) const ATTEMPTS_MAX: usize = 6;

/// The attempt that established connections begin with: a wait of four seconds.
pub(crate) const ESTABLISHED_ATTEMPT: u8 = 2;

/// Pending timers: due time and position, by attempt.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    queues: [VecDeque<(u64, u32)>; ATTEMPTS_MAX],
}

impl Timers {
    /// Starts the wait after an attempt, counted from 0. Returns its due time.
    pub(crate) fn start(&mut self, position: u32, attempt: u8, now_ns: u64) -> u64 {
        let attempt = usize::from(attempt).min(ATTEMPTS_MAX - 1);
        let due_ns = now_ns + (FIRST_NS << attempt);
        self.queues[attempt].push_back((due_ns, position));
        due_ns
    }

    /// Removes a timer that is due, and returns its due time and position.
    pub(crate) fn pop(&mut self, now_ns: u64) -> Option<(u64, u32)> {
        let is_over = |queue: &&mut VecDeque<(u64, u32)>| {
            queue.front().is_some_and(|&(due_ns, _)| due_ns <= now_ns)
        };
        self.queues.iter_mut().find(is_over)?.pop_front()
    }

    /// When the next timer is due.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.queues.iter().filter_map(|queue| Some(queue.front()?.0)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_less_is_first() {
        let mut timers = Timers::default();
        assert_eq!(timers.start(1, 1, 0), 2 * FIRST_NS);
        assert_eq!(timers.start(2, 0, 5), FIRST_NS + 5);
        assert_eq!(timers.start(3, 200, 0), FIRST_NS << (ATTEMPTS_MAX - 1));
        assert_eq!(timers.next_ns(), Some(FIRST_NS + 5));
        assert_eq!(timers.pop(FIRST_NS), None);
        assert_eq!(timers.pop(2 * FIRST_NS), Some((FIRST_NS + 5, 2)));
        assert_eq!(timers.pop(2 * FIRST_NS), Some((2 * FIRST_NS, 1)));
        assert_eq!(timers.pop(2 * FIRST_NS), None);
    }
}
