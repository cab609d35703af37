//! Long runs of expired messages that pages have passed over, so that no other page passes them
//! message by message. They stay expired.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use throng_core::ChannelName;

use crate::storage::KeyOrder;

/// A shorter run is read each time.
const RUN_MIN: u64 = 256;

/// Runs of a channel that are known at most: the longest.
const RUNS_MAX: usize = 16;

/// Channels whose runs are known at most.
const CHANNELS_MAX: usize = 4_096;

/// Offsets from the first to the last one, between which all messages have expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpiredRun {
    first: u64,
    last: u64,
}

impl ExpiredRun {
    /// The run of one expired message.
    pub(super) fn of(offset: u64) -> ExpiredRun {
        ExpiredRun { first: offset, last: offset }
    }

    /// Both runs and all between them.
    pub(super) fn with(self, other: ExpiredRun) -> ExpiredRun {
        ExpiredRun { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// The last message of the run in a direction.
    pub(super) fn end(self, order: KeyOrder) -> u64 {
        match order {
            KeyOrder::Up => self.last,
            KeyOrder::Down => self.first,
        }
    }

    fn length(self) -> u64 {
        self.last - self.first + 1
    }
}

#[derive(Debug, Default)]
pub(super) struct ExpiredRuns(Mutex<HashMap<ChannelName, Vec<ExpiredRun>>>);

/// The runs of a channel.
#[derive(Debug, Default)]
pub(super) struct RunsOf(Vec<ExpiredRun>);

impl RunsOf {
    /// The known run that has a message.
    pub(super) fn find(&self, offset: u64) -> Option<ExpiredRun> {
        self.0.iter().copied().find(|run| (run.first..=run.last).contains(&offset))
    }
}

impl ExpiredRuns {
    pub(super) fn of(&self, channel: &ChannelName) -> RunsOf {
        let channels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        RunsOf(channels.get(channel).cloned().unwrap_or_default())
    }

    /// Notes a run of a channel, all of whose messages up to `floor` are gone.
    pub(super) fn note(&self, channel: &ChannelName, mut run: ExpiredRun, floor: u64) {
        if run.length() < RUN_MIN {
            return;
        }
        let mut channels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if channels.len() >= CHANNELS_MAX && !channels.contains_key(channel) {
            channels.clear();
        }
        let runs = channels.entry(channel.clone()).or_default();
        runs.retain(|known| {
            let touches = known.first <= run.last + 1 && run.first <= known.last + 1;
            if touches {
                run = run.with(*known);
            }
            !touches && known.last > floor
        });
        runs.push(run);
        if runs.len() > RUNS_MAX
            && let Some(at) = (0..runs.len()).min_by_key(|at| runs[*at].length())
        {
            runs.swap_remove(at);
        }
    }
}

/// Has the visit go on with the next message.
pub(super) const ON: ControlFlow<()> = ControlFlow::Continue(());

/// Has the visit end at this message.
pub(super) const END: ControlFlow<()> = ControlFlow::Break(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_touch_become_one_and_the_longest_are_known() {
        let runs = ExpiredRuns::default();
        let channel = ChannelName::channel("a");
        let run = |first, last| ExpiredRun { first, last };
        runs.note(&channel, run(1, RUN_MIN - 1), 0);
        assert_eq!(runs.of(&channel).find(1), None, "it is too short");
        runs.note(&channel, run(1_000, 2_000), 0);
        runs.note(&channel, run(2_001, 3_000), 0);
        runs.note(&channel, run(500, 1_200), 0);
        let whole = runs.of(&channel).find(2_500).expect("it is known");
        assert_eq!((whole, whole.end(KeyOrder::Up)), (run(500, 3_000), 3_000));
        for n in 1..=RUNS_MAX as u64 {
            runs.note(&channel, run(n * 10_000, n * 10_000 + 300), 0);
        }
        assert!(runs.of(&channel).find(500).is_some());
        assert_eq!(runs.of(&channel).0.len(), RUNS_MAX);
        runs.note(&channel, run(1_000_000, 1_001_000), 500_000);
        assert_eq!(runs.of(&channel).0, [run(1_000_000, 1_001_000)]);
    }
}
