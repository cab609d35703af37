//! Threads open their clients one group after the other.
//!
//! The kernel's memory of sockets that were made one after the other lies side by side. Threads
//! that all open clients at once have theirs scattered over all of it, and receiving costs them and
//! the sender more for each message; a test of many clients would show that instead of the server.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Whoever is not on looks again after this: short against the time that a group takes.
pub(super) const LOOK_AGAIN_NS: u64 = 5_000_000;

/// The turns of one ramp.
#[derive(Debug)]
pub(super) struct Turns {
    /// Threads that are on at the same time.
    together: usize,
    /// Connects under way of each of them, at most.
    in_flight: usize,
    /// Threads that have begun to open all their clients. They come in the order of the groups,
    /// because nobody is done who was not on.
    done: AtomicUsize,
}

impl Turns {
    /// For `together` threads at a time, with `in_flight` connects under way of all of them.
    pub(super) fn new(together: usize, in_flight: usize) -> Turns {
        let together = together.max(1);
        let in_flight = (in_flight / together).max(1);
        Turns { together, in_flight, done: AtomicUsize::new(0) }
    }

    /// Connects that a thread may have under way while it is on.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether all groups before that of the thread are done.
    pub(super) fn is_on(&self, index: usize) -> bool {
        self.done.load(Ordering::Relaxed) >= index / self.together * self.together
    }

    /// A thread that is on is done. To be called once.
    pub(super) fn finish(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_waits_for_the_one_before() {
        let turns = Turns::new(2, 100);
        assert_eq!(turns.in_flight(), 50);
        let on = || (0..5).filter(|&index| turns.is_on(index)).collect::<Vec<_>>();
        assert_eq!(on(), [0, 1]);
        turns.finish();
        assert_eq!(on(), [0, 1]);
        turns.finish();
        assert_eq!(on(), [0, 1, 2, 3]);
        turns.finish();
        turns.finish();
        assert_eq!(on(), [0, 1, 2, 3, 4]);
    }
}
