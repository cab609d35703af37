//! The frames with messages that a client has been asked to acknowledge, and has not yet.

use std::collections::VecDeque;

/// The frames that a client owes acknowledgements of. A connection has this only while there are
/// some.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Unacknowledged {
    /// When each was written, by the worker's clock, oldest first.
    sent_ms: VecDeque<u64>,
    /// True if messages are held until some of them are acknowledged.
    pub(crate) holds: bool,
}

impl Unacknowledged {
    /// Frames that a client may owe before it counts as slow. With frames of about 4 KiB, what may
    /// wait at its end stays near the 32 KiB that its socket takes here.
    pub(crate) const FRAMES_MAX: usize = 8;

    /// Frames that were written at these times; `None` if there are none.
    pub(crate) fn resume(sent_ms: impl Iterator<Item = u64>) -> Option<Box<Unacknowledged>> {
        let all = Unacknowledged { sent_ms: sent_ms.collect(), holds: false };
        (!all.sent_ms.is_empty()).then(|| Box::new(all))
    }

    /// When each was written, oldest first.
    pub(crate) fn sent_ms(&self) -> impl Iterator<Item = u64> {
        self.sent_ms.iter().copied()
    }

    /// Further frames were written.
    pub(crate) fn note_sent(&mut self, frames: usize, now_ms: u64) {
        self.sent_ms.extend(std::iter::repeat_n(now_ms, frames));
    }

    /// True if the client owes at least this many frames.
    pub(crate) fn owes(&self, frames: u32) -> bool {
        frames as usize <= self.sent_ms.len()
    }

    /// The client is done with the oldest of them.
    pub(crate) fn acknowledge(&mut self, frames: u32) {
        debug_assert!(self.owes(frames));
        self.sent_ms.drain(..self.sent_ms.len().min(frames as usize));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sent_ms.is_empty()
    }

    /// How many more the client may owe.
    pub(crate) fn room(&self) -> usize {
        Unacknowledged::FRAMES_MAX.saturating_sub(self.sent_ms.len())
    }

    /// True if one of them is older than this.
    pub(crate) fn is_older_than(&self, age_ms: u64, now_ms: u64) -> bool {
        self.sent_ms.front().is_some_and(|&oldest| now_ms.saturating_sub(oldest) > age_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAMES_MAX: usize = Unacknowledged::FRAMES_MAX;

    #[test]
    fn a_client_owes_what_it_was_sent_and_no_more() {
        let mut owed = Unacknowledged::default();
        assert_eq!((owed.room(), owed.is_older_than(0, 1_000)), (FRAMES_MAX, false));
        owed.note_sent(3, 1_000);
        owed.note_sent(FRAMES_MAX - 3, 1_200);
        assert_eq!(owed.room(), 0);
        assert!(!owed.is_older_than(500, 1_500) && owed.is_older_than(500, 1_501));
        owed.acknowledge(3);
        assert_eq!((owed.room(), owed.is_older_than(500, 1_501)), (3, false));
        let left = FRAMES_MAX as u32 - 3;
        assert!(owed.owes(left) && !owed.owes(left + 1) && !owed.owes(u32::MAX));
        owed.acknowledge(left);
        assert!(owed.is_empty());
    }
}
