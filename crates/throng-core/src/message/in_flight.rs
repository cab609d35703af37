//! Measures how long the delivery of a message takes.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::clock;

/// A message in flight: from the engine's acceptance until the last worker has offered it to its
/// subscriptions. Measures how long that takes.
#[derive(Debug)]
pub struct InFlight {
    /// When the engine accepted the message, by [`clock::now_us`](crate::clock::now_us).
    accepted_us: u64,
    /// Workers that have yet to offer the message to some subscription.
    workers_left: AtomicU32,
}

impl InFlight {
    /// A message that is accepted now and goes to this many workers.
    pub fn to(workers: usize) -> InFlight {
        let workers_left = AtomicU32::new(u32::try_from(workers).unwrap_or(u32::MAX));
        InFlight { accepted_us: clock::now_us(), workers_left }
    }

    /// Records that a worker has offered the message to all of its subscriptions; each worker calls
    /// it once. Returns to the last of them when the message was accepted.
    pub fn complete(&self) -> Option<u64> {
        // Mostly one worker follows a channel, and can do without the slower operation.
        let is_last = self.workers_left.load(Ordering::Relaxed) == 1
            || self.workers_left.fetch_sub(1, Ordering::Relaxed) == 1;
        is_last.then_some(self.accepted_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_worker_ends_the_flight() {
        let in_flight = InFlight::to(3);
        assert_eq!((in_flight.complete(), in_flight.complete()), (None, None));
        assert_eq!(in_flight.complete(), Some(in_flight.accepted_us));
        assert!(InFlight::to(1).complete().is_some());
    }
}
