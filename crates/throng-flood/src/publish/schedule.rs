//! When each message is to go out, and to which stream: known before the first one is sent.
//!
//! A message's place in the schedule follows from its number alone, so that several publishing
//! threads walk the same schedule and each takes what is its own, without a word between them.

use std::time::Duration;

use super::random::{below, random};
use crate::plan::{Pattern, Publishing};

/// A phase's messages.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// CLOCK_MONOTONIC of the first message.
    start_ns: u64,
    /// Between two messages.
    interval_ns: f64,
    /// Messages in all.
    count: u64,
    to: Pattern,
    streams: u32,
    /// Messages that earlier phases scheduled: `in turn` goes on where it was, and what is random
    /// is not the same again.
    before: u64,
    seed: u64,
}

/// A message of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// When it is to go out.
    pub intended_ns: u64,
    /// To which stream.
    pub stream: u32,
}

impl Schedule {
    /// The messages of a phase that begins at `start_ns` and lasts `time`.
    pub fn new(
        publishing: &Publishing,
        start_ns: u64,
        time: Duration,
        streams: u32,
        before: u64,
        seed: u64,
    ) -> Schedule {
        let rate = publishing.rate.max(f64::MIN_POSITIVE);
        // The message of the very end belongs to the time after it.
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

    /// Messages in all.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The message of this number, from 0; `None` behind the last.
    pub fn slot(&self, number: u64) -> Option<Slot> {
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
        Some(Slot { intended_ns: self.intended_ns(number), stream })
    }

    fn intended_ns(&self, number: u64) -> u64 {
        // Multiplied, not summed up: no error grows with the number.
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
    fn the_count_ends_it_early_and_the_time_does_too() {
        assert_eq!(schedule(20.0, Some(7), Pattern::One, 0).count(), 7);
        assert_eq!(schedule(20.0, Some(1000), Pattern::One, 0).count(), 200);
        assert_eq!(schedule(0.05, None, Pattern::One, 0).count(), 1);
    }

    #[test]
    fn in_turn_goes_on_where_the_phase_before_ended() {
        let streams = |before| -> Vec<u32> {
            let schedule = schedule(0.4, None, Pattern::InTurn, before);
            (0..schedule.count()).filter_map(|n| schedule.slot(n)).map(|s| s.stream).collect()
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
