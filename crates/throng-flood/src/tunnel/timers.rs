//! When something that is not acknowledged is sent again.
//!
//! All that was sent as often waits equally long, so that one queue for each number of attempts is
//! in order by itself.

use std::collections::VecDeque;

/// The first wait; each further one is twice as long.
pub(super) const FIRST_NS: u64 = 1_000_000_000;

/// What was sent so often without an answer is not sent again: after a minute, nobody is there.
pub(super) const ATTEMPTS_MAX: usize = 6;

/// The attempt that those begin with who can wait: four times as long as the first wait.
pub(super) const PATIENT_ATTEMPT: u8 = 2;

/// What is awaited, and until when.
#[derive(Debug, Default)]
pub(super) struct Timers {
    queues: [VecDeque<(u64, u32)>; ATTEMPTS_MAX],
}

impl Timers {
    /// Starts the wait after an attempt, the first of which is 0; returns when it is over.
    pub(super) fn start(&mut self, position: u32, attempt: u8, now_ns: u64) -> u64 {
        let attempt = usize::from(attempt).min(ATTEMPTS_MAX - 1);
        let due_ns = now_ns + (FIRST_NS << attempt);
        self.queues[attempt].push_back((due_ns, position));
        due_ns
    }

    /// The next one whose wait is over, with its time.
    pub(super) fn pop(&mut self, now_ns: u64) -> Option<(u64, u32)> {
        let is_over = |queue: &&mut VecDeque<(u64, u32)>| {
            queue.front().is_some_and(|&(due_ns, _)| due_ns <= now_ns)
        };
        self.queues.iter_mut().find(is_over)?.pop_front()
    }

    /// When the next wait is over.
    pub(super) fn next_ns(&self) -> Option<u64> {
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
