//! Runs of expired messages, so that whoever reads a log passes each of them at once.

use std::collections::BTreeMap;

/// Offsets from the first one to the last one, between which all messages of the log have expired.
/// It may have had more of them before, which the log has dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u64,
    pub(super) last: u64,
}

/// The runs of a log. Each expired message of the log is in one of them, and between two of them
/// is a message that has not expired.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Last offsets, by first ones.
    last: BTreeMap<u64, u64>,
}

impl Runs {
    /// A message has expired. `around` are the offsets of the messages before and after it, if
    /// those have expired, too.
    pub(super) fn add(&mut self, offset: u64, around: [Option<u64>; 2]) {
        let mut run = Run { first: offset, last: offset };
        for beside in around.into_iter().flatten() {
            let found = self.find(beside);
            debug_assert!(found.is_some(), "each expired message is in a run");
            if let Some(Run { first, last }) = found {
                self.last.remove(&first);
                run = Run { first: run.first.min(first), last: run.last.max(last) };
            }
        }
        self.last.insert(run.first, run.last);
    }

    /// The run that has a message.
    pub(super) fn find(&self, offset: u64) -> Option<Run> {
        let (&first, &last) = self.last.range(..=offset).next_back()?;
        (offset <= last).then_some(Run { first, last })
    }

    /// The log has none of the expired messages up to an offset any more.
    pub(super) fn forget_up_to(&mut self, offset: u64) {
        while let Some(first) = self.last.first_entry()
            && *first.get() <= offset
        {
            first.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_run() {
        let mut runs = Runs::default();
        runs.add(2, [None, None]);
        runs.add(6, [None, None]);
        runs.add(3, [Some(2), None]);
        assert_eq!(runs.find(3), Some(Run { first: 2, last: 3 }));
        assert_eq!([1, 4, 5, 7].map(|offset| runs.find(offset)), [None; 4]);
        // The log has no message 4.
        runs.add(5, [Some(3), Some(6)]);
        assert_eq!(runs.find(4), Some(Run { first: 2, last: 6 }));
        runs.add(9, [None, None]);
        runs.forget_up_to(5);
        assert_eq!(runs.find(6), Some(Run { first: 2, last: 6 }), "a part of it is there");
        runs.forget_up_to(6);
        assert_eq!((runs.find(6), runs.last.len()), (None, 1));
    }
}
