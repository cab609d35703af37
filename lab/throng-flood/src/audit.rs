//! Checks that every client gets every message, once and in order.

use serde::{Deserialize, Serialize};

use crate::sums::sums;

/// How many of the last sequences are tracked individually.
const WINDOW: u32 = 64;

sums! {
    /// The outcome of an audit.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Audit {
        /// Deliveries that should have happened.
        pub expected: u64,
        /// Expected deliveries that happened.
        pub received: u64,
        /// Expected deliveries that never happened, without notice by the server.
        pub lost: u64,
        /// Expected deliveries that never happened, with notice: the messages were gone when the
        /// client resumed.
        #[serde(default)]
        pub missed: u64,
        /// Deliveries of a message that had been delivered before.
        pub duplicated: u64,
        /// Deliveries after the delivery of a later message.
        pub reordered: u64,
    }
}

impl Audit {
    /// Reclassifies losses that the server announced as missed.
    pub fn without(self, missed: u64) -> Audit {
        let missed = missed.min(self.lost);
        Audit { lost: self.lost - missed, missed: self.missed + missed, ..self }
    }
}

/// How a message relates to those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SequenceOrder {
    /// Sent before the client was subscribed: neither expected nor an error.
    Before,
    /// The next message, or one after a gap.
    New,
    /// The next message after a gap of this many, which the server announced.
    AfterGap(u32),
    /// The message fills a gap.
    Late,
    /// The message has arrived before.
    Again,
}

/// The messages of one stream that one client has received since it subscribed.
///
/// A sequence at or below the last is late if it is one of the [`WINDOW`] last and has not
/// arrived; otherwise it is a duplicate. A gap that leaves the window is no longer tracked: a
/// message that fills it later counts as a duplicate, and the gap as lost.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Track {
    /// Bit `k` is set if sequence `last - k` has arrived.
    window: u64,
    /// Sequences above this are expected.
    base: u32,
    /// The highest sequence that has arrived, or `base`.
    last: u32,
    /// How many distinct sequences have arrived.
    distinct: u32,
    /// The server has announced a gap before the next new message.
    is_gap_announced: bool,
}

impl Track {
    /// Expects every sequence above `base`.
    pub(crate) fn begin(base: u32) -> Track {
        Track { base, last: base, ..Track::default() }
    }

    /// Expects every sequence above `base`, unless something has arrived already.
    pub(crate) fn begin_later(&mut self, base: u32) {
        if self.is_empty() && base > self.base {
            *self = Track::begin(base);
        }
    }

    /// Whether nothing has arrived.
    pub(crate) fn is_empty(&self) -> bool {
        self.distinct == 0
    }

    /// The highest sequence that has arrived.
    pub(crate) fn last(&self) -> u32 {
        self.last
    }

    /// Records that the server has announced a gap before the next new message.
    pub(crate) fn announce_gap(&mut self) {
        self.is_gap_announced = true;
    }

    /// Records a message.
    pub(crate) fn arrive(&mut self, sequence: u32) -> SequenceOrder {
        if sequence <= self.base {
            return SequenceOrder::Before;
        }
        if sequence > self.last {
            let step = sequence - self.last;
            self.window = if step < WINDOW { self.window << step | 1 } else { 1 };
            self.last = sequence;
            self.distinct += 1;
            let is_gap_announced = std::mem::take(&mut self.is_gap_announced);
            return match step - 1 {
                missed @ 1.. if is_gap_announced => SequenceOrder::AfterGap(missed),
                _ => SequenceOrder::New,
            };
        }
        let back = self.last - sequence;
        let bit = if back < WINDOW { 1 << back } else { 0 };
        if bit == 0 || self.window & bit != 0 {
            return SequenceOrder::Again;
        }
        self.window |= bit;
        self.distinct += 1;
        SequenceOrder::Late
    }

    /// The audit up to `last_sent`. Of the sequences from [`expected_from`](Self::expected_from)
    /// on, `refused` were rejected by the server. Missed messages count as lost here; see
    /// [`Audit::without`].
    pub(crate) fn audit(&self, last_sent: u32, refused: u64) -> Audit {
        let due = u64::from(last_sent.max(self.last) - self.base);
        let received = u64::from(self.distinct);
        // A rejected message may have been delivered all the same.
        let expected = due.saturating_sub(refused).max(received);
        Audit { expected, received, lost: expected - received, ..Audit::default() }
    }

    /// The first expected sequence.
    pub(crate) fn expected_from(&self) -> u32 {
        self.base.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn after(base: u32, sequences: impl IntoIterator<Item = u32>) -> (Track, Vec<SequenceOrder>) {
        let mut track = Track::begin(base);
        let arrivals = sequences.into_iter().map(|sequence| track.arrive(sequence)).collect();
        (track, arrivals)
    }

    #[test]
    fn messages_in_order_are_all_received() {
        let (track, arrivals) = after(3, 4..=200);
        assert!(arrivals.iter().all(|&arrival| arrival == SequenceOrder::New));
        let audit = track.audit(200, 0);
        assert_eq!((audit.expected, audit.received, audit.lost), (197, 197, 0));
    }

    #[test]
    fn gaps_and_the_tail_are_lost() {
        let (track, _) = after(0, [1, 2, 5, 6]);
        assert_eq!(track.audit(9, 0).lost, 5);
        assert_eq!(track.audit(9, 2).lost, 3);
        assert_eq!(Track::begin(4).audit(9, 0).lost, 5);
        assert_eq!(Track::begin(9).audit(4, 0), Audit::default());
    }

    #[test]
    fn late_messages_differ_from_duplicates() {
        use SequenceOrder::{Again, Before, Late, New};
        let (track, arrivals) = after(2, [3, 5, 4, 4, 5, 2, 70, 6, 7, 6]);
        assert_eq!(arrivals, [New, New, Late, Again, Again, Before, New, Again, Late, Again]);
        assert_eq!(track.audit(70, 0).received, 5);
    }

    #[test]
    fn an_announced_gap_is_missed_not_lost() {
        use SequenceOrder::{AfterGap, New};
        let (mut track, _) = after(0, [1]);
        track.announce_gap();
        assert_eq!(track.arrive(5), AfterGap(3));
        // An announcement applies once.
        assert_eq!([track.arrive(6), track.arrive(8)], [New, New]);
        // An announcement without a gap has no effect.
        track.announce_gap();
        assert_eq!([track.arrive(9), track.arrive(11)], [New, New]);
        let audit = track.audit(11, 0).without(3);
        assert_eq!((audit.lost, audit.missed, audit.expected), (2, 3, 11));
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec(0_u32..60, 0..300)) {
            // Advances by one on average, with gaps, duplicates and late messages.
            let (mut track, mut all) = (Track::begin(100), BTreeSet::new());
            for (position, step) in steps.iter().enumerate() {
                let sequence = 80 + position as u32 + step;
                let arrival = track.arrive(sequence);
                let is_known = all.contains(&sequence);
                let is_highest = all.last().is_none_or(|&last| sequence > last);
                let expected = match (sequence <= 100, is_known, is_highest) {
                    (true, ..) => SequenceOrder::Before,
                    (_, true, _) => SequenceOrder::Again,
                    (_, _, true) => SequenceOrder::New,
                    _ => SequenceOrder::Late,
                };
                prop_assert_eq!(arrival, expected);
                if sequence > 100 {
                    all.insert(sequence);
                }
            }
            let audit = track.audit(0, 0);
            prop_assert_eq!(audit.received, all.len() as u64);
            let due = all.last().map_or(0, |last| u64::from(last - 100));
            prop_assert_eq!(audit.lost, due - all.len() as u64);
        }
    }
}
