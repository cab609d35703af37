//! Whether every client got every message, once and in order.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Sequences below the last that are remembered one by one.
const WINDOW: u32 = 64;

/// What was due and what came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Deliveries that were due.
    pub expected: u64,
    /// Of these, those that came.
    pub received: u64,
    /// Of these, those that never came, and nobody said so.
    pub lost: u64,
    /// Of these, those that were gone when the client came back for them, and the server said so.
    #[serde(default)]
    pub missed: u64,
    /// Deliveries that came again.
    pub duplicated: u64,
    /// Deliveries that came after a later one.
    pub reordered: u64,
}

impl AddAssign for Audit {
    fn add_assign(&mut self, other: Audit) {
        self.expected += other.expected;
        self.received += other.received;
        self.lost += other.lost;
        self.missed += other.missed;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
    }
}

impl Audit {
    /// The same, of which so many losses were told of: they were missed.
    pub fn without(self, missed: u64) -> Audit {
        let missed = missed.min(self.lost);
        Audit { lost: self.lost - missed, missed: self.missed + missed, ..self }
    }
}

/// What an arrival is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Sent before the client was subscribed: neither expected nor a fault.
    Before,
    /// The next one, or one after a hole.
    New,
    /// One after a hole of so many, of which the server has told.
    AfterGap(u32),
    /// Fills a hole.
    Late,
    /// Had come before.
    Again,
}

/// What one client got of one stream since it was subscribed.
///
/// A sequence at or below the last is late if it is one of the [`WINDOW`] last ones and has not
/// come yet; otherwise it is a duplicate. A hole that leaves the window is not known to be open any
/// more: what fills it later counts as a duplicate, and the hole as lost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Track {
    /// Bit `k` says that sequence `last - k` has come.
    window: u64,
    /// What follows this is expected.
    base: u32,
    /// The highest that has come, or `base`.
    last: u32,
    /// How many different ones have come.
    distinct: u32,
    /// The server has told of a gap before the next new one.
    is_gap_told: bool,
}

impl Track {
    /// Expects what follows `base`.
    pub fn begin(base: u32) -> Track {
        Track { base, last: base, ..Track::default() }
    }

    /// Expects what follows `base`, if nothing has come yet.
    pub fn begin_later(&mut self, base: u32) {
        if self.is_empty() && base > self.base {
            *self = Track::begin(base);
        }
    }

    /// Whether nothing has come yet.
    pub fn is_empty(&self) -> bool {
        self.distinct == 0
    }

    /// The highest sequence that has come.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// The server says that what comes next may not follow what came before.
    pub fn tell_gap(&mut self) {
        self.is_gap_told = true;
    }

    /// Takes note of a sequence.
    pub fn arrive(&mut self, sequence: u32) -> Arrival {
        if sequence <= self.base {
            return Arrival::Before;
        }
        if sequence > self.last {
            let step = sequence - self.last;
            self.window = if step < WINDOW { self.window << step | 1 } else { 1 };
            self.last = sequence;
            self.distinct += 1;
            let is_gap_told = std::mem::take(&mut self.is_gap_told);
            return match step - 1 {
                missed @ 1.. if is_gap_told => Arrival::AfterGap(missed),
                _ => Arrival::New,
            };
        }
        let back = self.last - sequence;
        let bit = if back < WINDOW { 1 << back } else { 0 };
        if bit == 0 || self.window & bit != 0 {
            return Arrival::Again;
        }
        self.window |= bit;
        self.distinct += 1;
        Arrival::Late
    }

    /// What was due up to `last_sent`, without `refused` of them; the sequences between
    /// [`expected_from`](Self::expected_from) and `last_sent` were due. What was missed counts as
    /// lost here: see [`Audit::without`].
    pub fn settle(&self, last_sent: u32, refused: u64) -> Audit {
        let due = u64::from(last_sent.max(self.last) - self.base);
        let received = u64::from(self.distinct);
        // One that was refused may have come all the same.
        let expected = due.saturating_sub(refused).max(received);
        Audit { expected, received, lost: expected - received, ..Audit::default() }
    }

    /// The first sequence that is due.
    pub fn expected_from(&self) -> u32 {
        self.base.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn after(base: u32, sequences: impl IntoIterator<Item = u32>) -> (Track, Vec<Arrival>) {
        let mut track = Track::begin(base);
        let arrivals = sequences.into_iter().map(|sequence| track.arrive(sequence)).collect();
        (track, arrivals)
    }

    #[test]
    fn all_in_order_is_all_well() {
        let (track, arrivals) = after(3, 4..=200);
        assert!(arrivals.iter().all(|&arrival| arrival == Arrival::New));
        let audit = track.settle(200, 0);
        assert_eq!((audit.expected, audit.received, audit.lost), (197, 197, 0));
    }

    #[test]
    fn holes_and_the_tail_are_lost() {
        let (track, _) = after(0, [1, 2, 5, 6]);
        assert_eq!(track.settle(9, 0).lost, 5);
        assert_eq!(track.settle(9, 2).lost, 3);
        assert_eq!(Track::begin(4).settle(9, 0).lost, 5);
        assert_eq!(Track::begin(9).settle(4, 0), Audit::default());
    }

    #[test]
    fn late_is_told_from_again() {
        use Arrival::{Again, Before, Late, New};
        let (track, arrivals) = after(2, [3, 5, 4, 4, 5, 2, 70, 6, 7, 6]);
        assert_eq!(arrivals, [New, New, Late, Again, Again, Before, New, Again, Late, Again]);
        assert_eq!(track.settle(70, 0).received, 5);
    }

    #[test]
    fn a_hole_of_which_the_server_has_told_is_no_loss() {
        use Arrival::{AfterGap, New};
        let (mut track, _) = after(0, [1]);
        track.tell_gap();
        assert_eq!(track.arrive(5), AfterGap(3));
        // It was told of once.
        assert_eq!([track.arrive(6), track.arrive(8)], [New, New]);
        // Nothing was gone after all.
        track.tell_gap();
        assert_eq!([track.arrive(9), track.arrive(11)], [New, New]);
        let audit = track.settle(11, 0).without(3);
        assert_eq!((audit.lost, audit.missed, audit.expected), (2, 3, 11));
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec(0_u32..60, 0..300)) {
            // Moves forward by one on average, with holes, repetitions and late ones.
            let (mut track, mut all) = (Track::begin(100), BTreeSet::new());
            for (position, step) in steps.iter().enumerate() {
                let sequence = 80 + position as u32 + step;
                let arrival = track.arrive(sequence);
                let is_known = all.contains(&sequence);
                let is_highest = all.last().is_none_or(|&last| sequence > last);
                let expected = match (sequence <= 100, is_known, is_highest) {
                    (true, ..) => Arrival::Before,
                    (_, true, _) => Arrival::Again,
                    (_, _, true) => Arrival::New,
                    _ => Arrival::Late,
                };
                prop_assert_eq!(arrival, expected);
                if sequence > 100 {
                    all.insert(sequence);
                }
            }
            let audit = track.settle(0, 0);
            prop_assert_eq!(audit.received, all.len() as u64);
            let due = all.last().map_or(0, |last| u64::from(last - 100));
            prop_assert_eq!(audit.lost, due - all.len() as u64);
        }
    }
}
