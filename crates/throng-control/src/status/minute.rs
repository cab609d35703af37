//! Durations over the last minute, from a histogram that only grows.

use std::collections::VecDeque;

use throng_core::Snapshot;

use super::sample::{Distribution, Durations};

/// How many samples make a minute.
const MINUTE_SAMPLES: usize = 60;

/// Snapshots of a histogram, one for each sample of the last minute; the oldest comes first.
#[derive(Debug)]
pub(super) struct Minute(VecDeque<Snapshot>);

impl Default for Minute {
    /// A minute before which nothing was recorded.
    fn default() -> Minute {
        Minute::since(Snapshot::default())
    }
}

impl Minute {
    /// A minute that leaves out what is in `start`.
    pub(super) fn since(start: Snapshot) -> Minute {
        Minute(VecDeque::from([start]))
    }

    /// Adds the snapshot of the next sample. Returns the durations since the previous sample, and
    /// in the last minute.
    pub(super) fn add(&mut self, now: Snapshot) -> Durations {
        let since = |then: Option<&Snapshot>| {
            then.map_or_else(Distribution::default, |then| Distribution::of(&now.since(then)))
        };
        let durations = Durations { second: since(self.0.back()), minute: since(self.0.front()) };
        if self.0.len() == MINUTE_SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(now);
        durations
    }
}

#[cfg(test)]
mod tests {
    use throng_core::Histogram;

    use super::*;

    #[test]
    fn durations_older_than_a_minute_are_dropped() {
        let histogram = Histogram::default();
        let now = || Snapshot::of([&histogram].into_iter());
        let mut minute = Minute::since(now());
        histogram.record(1000);
        let durations = minute.add(now());
        assert_eq!((durations.second.count, durations.minute.count), (1, 1));
        assert_eq!(durations.second.mean_ms, Some(1.0));
        for _ in 1..MINUTE_SAMPLES {
            let durations = minute.add(now());
            assert_eq!((durations.second.count, durations.minute.count), (0, 1));
        }
        let durations = minute.add(now());
        assert_eq!((durations.second.count, durations.minute.count), (0, 0));
        assert_eq!(durations.minute.p50_ms, None);
    }
}
