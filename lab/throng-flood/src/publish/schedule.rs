//! When each message is sent, and to which stream. All of it is known before the first one is sent.
//!
//! The time and stream of a message follow from its number, so publishing threads walk the same
//! schedule without coordination, and each takes its own messages.

use std::time::Duration;

use crate::plan::{Pattern, Publishing};
use crate::random::{below, random};

/// The messages of a phase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// The time of the first message, in nanoseconds of `CLOCK_MONOTONIC`.
    start_ns: u64,
    /// The time between two messages.
    interval_ns: f64,
    /// The number of messages.
    count: u64,
    to: Pattern,
    streams: u32,
    /// Messages scheduled in earlier phases: `in-turn` continues after them, and random choices do
    /// not repeat.
    before: u64,
    seed: u64,
}

/// A message of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScheduledMessage {
    /// When the message is due.
    pub intended_ns: u64,
    /// The stream that gets it.
    pub stream: u32,
}

impl Schedule {
    /// The messages of a phase that starts at `start_ns` and takes `time`.
    pub(crate) fn new(
        publishing: &Publishing,
        start_ns: u64,
        time: Duration,
        streams: u32,
        before: u64,
        seed: u64,
    ) -> Schedule {
        let rate = publishing.rate.max(f64::MIN_POSITIVE);
        // A message at the very end belongs to the time after the phase.
        let fitting = (time.as_secs_f64() * rate).ceil() as u64;
        Schedule {
            start_ns,
            interval_ns: 1e9 / rate,
            count: publishing.count.map_or(fitting, |count| count.min(fitting)),
            to: publishing.to,
            streams: streams.max(1),
            before,
            seed,
        }
    }

    /// The number of messages.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The message with this number, from 0 on; `None` after the last.
    pub(crate) fn slot(&self, number: u64) -> Option<ScheduledMessage> {
        if number >= self.count {
            return None;
        }
        let position = self.before + number;
        let stream = match self.to {
            Pattern::One => 0,
            // Less than `streams`, which is a `u32`.
            Pattern::InTurn => (position % u64::from(self.streams)) as u32,
            Pattern::Random => below(random(self.seed, position), self.streams),
        };
        Some(ScheduledMessage { intended_ns: self.intended_ns(number), stream })
    }

    fn intended_ns(&self, number: u64) -> u64 {
        // Multiplied instead of summed up, so that errors do not accumulate.
        self.start_ns.saturating_add((number as f64 * self.interval_ns) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(rate: f64, count: Option<u64>, to: Pattern, before: u64) -> Schedule {
        let publishing = Publishing { rate, count, size: 64, to };
        Schedule::new(&publishing, 1_000, Duration::from_secs(10), 3, before, 5)
    }

    #[test]
    fn times_are_exact_to_the_end() {
        let schedule = schedule(3.0, None, Pattern::One, 0);
        assert_eq!(schedule.count(), 30);
        assert_eq!(schedule.slot(0).map(|slot| slot.intended_ns), Some(1_000));
        assert_eq!(schedule.slot(29).map(|slot| slot.intended_ns), Some(9_666_667_666));
        assert_eq!(schedule.slot(30), None);
    }

    #[test]
    fn count_or_time_ends_the_schedule() {
        assert_eq!(schedule(20.0, Some(7), Pattern::One, 0).count(), 7);
        assert_eq!(schedule(20.0, Some(1000), Pattern::One, 0).count(), 200);
        assert_eq!(schedule(0.05, None, Pattern::One, 0).count(), 1);
    }

    #[test]
    fn in_turn_continues_after_the_previous_phase() {
        let streams = |before| -> Vec<u32> {
            let schedule = schedule(0.4, None, Pattern::InTurn, before);
            (0..schedule.count())
                .filter_map(|number| schedule.slot(number))
                .map(|message| message.stream)
                .collect()
        };
        assert_eq!(streams(0), [0, 1, 2, 0]);
        assert_eq!(streams(4), [1, 2, 0, 1]);
    }

    #[test]
    fn random_streams_are_all_reached() {
        let schedule = schedule(10.0, None, Pattern::Random, 0);
        let mut counts = [0; 3];
        for slot in (0..100).filter_map(|number| schedule.slot(number)) {
            counts[slot.stream as usize] += 1;
        }
        assert!(counts.iter().all(|&count| count > 15), "{counts:?}");
    }
}
