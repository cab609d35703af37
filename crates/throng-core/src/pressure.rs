//! How near the memory of the server is to its limit, and what the server gives up for that.
//!
//! [`MemoryDefence`] decides, from what is used; [`MemoryPressure`] tells everybody who has to act.
//! The steps follow one another: each gives up more than the one before, and what is given up first
//! hurts least. A step ends some way below where it begins, so that the server does not switch
//! between two of them all the time.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Steps by which the server gives up memory. Each includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum MemoryStep {
    #[default]
    None,
    /// Replay buffers, logs and spare memory shrink: the oldest messages are dropped early.
    Shrink,
    /// Pages of history and batches are refused.
    RefuseReads,
    RefuseSubscriptions,
    /// Of the connections that are behind, those that hold most are closed.
    CloseSlow,
}

impl MemoryStep {
    /// All steps at which something is given up, in order.
    pub const ALL: [MemoryStep; 4] = [
        MemoryStep::Shrink,
        MemoryStep::RefuseReads,
        MemoryStep::RefuseSubscriptions,
        MemoryStep::CloseSlow,
    ];

    /// The word for it in metrics, in the log and on the status page.
    pub fn word(self) -> &'static str {
        match self {
            MemoryStep::None => "none",
            MemoryStep::Shrink => "shrink",
            MemoryStep::RefuseReads => "refuse_reads",
            MemoryStep::RefuseSubscriptions => "refuse_subscriptions",
            MemoryStep::CloseSlow => "close_slow",
        }
    }

    /// The step as a sentence for people.
    pub fn message(self) -> &'static str {
        match self {
            MemoryStep::None => "memory suffices",
            MemoryStep::Shrink => "memory is short: old messages are dropped early",
            MemoryStep::RefuseReads => "memory is short: history and batches are refused",
            MemoryStep::RefuseSubscriptions => "memory is short: new subscriptions are refused",
            MemoryStep::CloseSlow => {
                "memory is short: connections of clients that do not read are closed"
            }
        }
    }

    fn numbered(number: u8) -> MemoryStep {
        let found = MemoryStep::ALL.into_iter().find(|&step| step as u8 == number);
        found.unwrap_or(MemoryStep::None)
    }
}

/// Requests that are refused for want of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum RefusedForMemory {
    History,
    Batch,
    Subscription,
}

impl RefusedForMemory {
    /// All of them, with their words in metrics.
    pub const ALL: [(RefusedForMemory, &'static str); 3] = [
        (RefusedForMemory::History, "history"),
        (RefusedForMemory::Batch, "batch"),
        (RefusedForMemory::Subscription, "subscription"),
    ];

    /// The first step that refuses it.
    fn step(self) -> MemoryStep {
        match self {
            RefusedForMemory::History | RefusedForMemory::Batch => MemoryStep::RefuseReads,
            RefusedForMemory::Subscription => MemoryStep::RefuseSubscriptions,
        }
    }
}

/// The step of now, which every thread may read.
#[derive(Debug, Default)]
pub struct MemoryPressure {
    step: AtomicU8,
    used_bytes: AtomicU64,
    limit_bytes: AtomicU64,
    /// How often each step was begun.
    begun: [AtomicU64; MemoryStep::ALL.len()],
    refused: [AtomicU64; RefusedForMemory::ALL.len()],
}

impl MemoryPressure {
    /// The step of now.
    pub fn step(&self) -> MemoryStep {
        MemoryStep::numbered(self.step.load(Ordering::Relaxed))
    }

    /// Reports what is used of which limit, and the step that follows.
    pub fn report(&self, used_bytes: u64, limit_bytes: u64, step: MemoryStep) {
        self.used_bytes.store(used_bytes, Ordering::Relaxed);
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
        let before = self.step();
        for begun in MemoryStep::ALL.into_iter().filter(|&other| before < other && other <= step) {
            self.begun[begun as usize - 1].fetch_add(1, Ordering::Relaxed);
        }
        self.step.store(step as u8, Ordering::Relaxed);
    }

    /// The bytes that count against the limit; 0 if nobody reports them.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The limit in bytes; 0 if nobody reports it.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// How often each step was begun, by its word.
    pub fn begun(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let count = |step| self.begun[step as usize - 1].load(Ordering::Relaxed);
        MemoryStep::ALL.into_iter().map(move |step| (step.word(), count(step)))
    }

    /// True if this is refused now. Counts it if so.
    pub fn refuses(&self, what: RefusedForMemory) -> bool {
        let is_refused = self.step() >= what.step();
        if is_refused {
            self.refused[what as usize].fetch_add(1, Ordering::Relaxed);
        }
        is_refused
    }

    /// How much was refused, by what it is.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let count = |what| self.refused[what as usize].load(Ordering::Relaxed);
        RefusedForMemory::ALL.into_iter().map(move |(what, word)| (word, count(what)))
    }
}

/// The shares of the limit, in percent, at which the steps begin, and how far below these they end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryThresholds {
    /// For each of [`MemoryStep::ALL`], the share at which it begins. They grow.
    begin_percent: [u8; MemoryStep::ALL.len()],
    /// A step ends this much below the share at which it begins.
    hysteresis_percent: u8,
}

impl Default for MemoryThresholds {
    fn default() -> MemoryThresholds {
        MemoryThresholds { begin_percent: [75, 82, 88, 93], hysteresis_percent: 5 }
    }
}

/// Decides which step it is time for.
#[derive(Debug, Default)]
pub struct MemoryDefence {
    thresholds: MemoryThresholds,
    step: MemoryStep,
}

impl MemoryDefence {
    /// A defence with these thresholds, at no step.
    pub fn new(thresholds: MemoryThresholds) -> MemoryDefence {
        MemoryDefence { thresholds, step: MemoryStep::None }
    }

    /// The step while this much of the limit is used.
    pub fn step(&mut self, used_bytes: u64, limit_bytes: u64) -> MemoryStep {
        let MemoryThresholds { begin_percent, hysteresis_percent } = self.thresholds;
        let reaches = |percent: u8| {
            u128::from(used_bytes) * 100 >= u128::from(limit_bytes) * u128::from(percent)
        };
        let lasts = |(step, begin): (MemoryStep, u8)| {
            let has_begun = step <= self.step;
            reaches(if has_begun { begin.saturating_sub(hysteresis_percent) } else { begin })
        };
        let steps = MemoryStep::ALL.into_iter().zip(begin_percent);
        let reached = steps.take_while(|&step| lasts(step)).last();
        self.step = reached.map_or(MemoryStep::None, |(step, _)| step);
        self.step
    }

    /// The bytes to free at the last step, so that it ends.
    pub fn excess_bytes(&self, used_bytes: u64, limit_bytes: u64) -> u64 {
        let MemoryThresholds { begin_percent, hysteresis_percent } = self.thresholds;
        let last = begin_percent[MemoryStep::ALL.len() - 1].saturating_sub(hysteresis_percent);
        used_bytes.saturating_sub(limit_bytes / 100 * u64::from(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_begin_in_order_and_end_some_way_below() {
        let mut defence = MemoryDefence::default();
        let mut at = |percent| defence.step(percent, 100);
        assert_eq!(at(74), MemoryStep::None);
        assert_eq!(at(75), MemoryStep::Shrink);
        assert_eq!(at(70), MemoryStep::Shrink, "it ends below");
        assert_eq!(at(69), MemoryStep::None);
        assert_eq!(at(74), MemoryStep::None, "and does not come back at once");
        assert_eq!(at(100), MemoryStep::CloseSlow);
        assert_eq!(
            [at(88), at(87), at(83), at(82)].map(MemoryStep::word),
            ["close_slow", "refuse_subscriptions", "refuse_subscriptions", "refuse_reads",]
        );
        assert_eq!(at(0), MemoryStep::None);
    }

    #[test]
    fn no_load_makes_it_switch_within_the_hysteresis() {
        for base in 0..100_u64 {
            let mut defence = MemoryDefence::default();
            let first = defence.step(base, 100);
            for wave in [0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0, 5, 0] {
                assert!(defence.step(base + wave, 100) >= first);
            }
            let highest = defence.step(base + 5, 100);
            assert_eq!(defence.step(base, 100), highest, "{base}");
        }
    }

    #[test]
    fn a_limit_that_nobody_knows_is_never_reached_by_nothing() {
        let mut defence = MemoryDefence::new(MemoryThresholds::default());
        assert_eq!(defence.step(0, u64::MAX), MemoryStep::None);
        assert_eq!(defence.step(u64::MAX, u64::MAX), MemoryStep::CloseSlow);
    }

    #[test]
    fn the_excess_is_what_ends_the_last_step() {
        let mut defence = MemoryDefence::default();
        assert_eq!(defence.step(950, 1000), MemoryStep::CloseSlow);
        let excess = defence.excess_bytes(950, 1000);
        assert_eq!(
            (excess, defence.step(950 - excess - 1, 1000)),
            (70, { MemoryStep::RefuseSubscriptions })
        );
    }

    #[test]
    fn begun_steps_and_refusals_are_counted() {
        let pressure = MemoryPressure::default();
        assert!(!pressure.refuses(RefusedForMemory::History));
        pressure.report(90, 100, MemoryStep::RefuseReads);
        assert!(pressure.refuses(RefusedForMemory::History));
        assert!(!pressure.refuses(RefusedForMemory::Subscription));
        pressure.report(95, 100, MemoryStep::CloseSlow);
        assert!(pressure.refuses(RefusedForMemory::Subscription));
        pressure.report(80, 100, MemoryStep::Shrink);
        pressure.report(85, 100, MemoryStep::RefuseReads);
        assert_eq!(pressure.begun().map(|(_, count)| count).collect::<Vec<_>>(), [1, 2, 1, 1]);
        let refused: Vec<_> = pressure.refused().collect();
        assert_eq!(refused, [("history", 1), ("batch", 0), ("subscription", 1)]);
        assert_eq!((pressure.used_bytes(), pressure.limit_bytes()), (85, 100));
    }
}
