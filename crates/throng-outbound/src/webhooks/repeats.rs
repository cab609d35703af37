//! What an application need not be told again. A client that comes and goes causes as much of it as
//! it likes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::happened::{Happened, What};

/// For how long after a missed cache the application is not told of it again: it is about to
/// publish what is missing.
const MISSED_MS: u64 = 3_000;

/// The most missed caches that are remembered once the application was told.
const TOLD_MAX: usize = 10_000;

/// What waits for the application, or was told a moment ago.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// The channels with a missed cache, those of `told` included.
    missed: HashSet<Box<str>>,
    /// When the application was told of them, the oldest first.
    told: VecDeque<(u64, Box<str>)>,
    /// The numbers of subscribers that wait, and are not being sent.
    counts: HashMap<Box<str>, Arc<AtomicU64>>,
}

impl Repeats {
    /// True if something is told with what waits already, or was told a moment ago.
    pub(super) fn take(&mut self, happened: &Happened) -> bool {
        match &happened.what {
            What::CacheMiss => {
                self.forget_told(happened.at_ms, TOLD_MAX);
                self.missed.contains(&happened.channel)
            }
            What::Count(count) => self.counts.get(&happened.channel).is_some_and(|waiting| {
                waiting.store(count.load(Ordering::Relaxed), Ordering::Relaxed);
                true
            }),
            _ => false,
        }
    }

    /// Something waits from now on.
    pub(super) fn waits(&mut self, happened: &Happened) {
        match &happened.what {
            What::CacheMiss => {
                self.missed.insert(happened.channel.clone());
            }
            What::Count(count) => {
                self.counts.insert(happened.channel.clone(), Arc::clone(count));
            }
            _ => {}
        }
    }

    /// Something is being sent, and changes no more.
    pub(super) fn is_sent(&mut self, happened: &Happened) {
        if let What::Count(count) = &happened.what
            && self.counts.get(&happened.channel).is_some_and(|own| Arc::ptr_eq(own, count))
        {
            self.counts.remove(&happened.channel);
        }
    }

    /// Something waits no longer.
    pub(super) fn is_gone(&mut self, now_ms: u64, happened: Happened) {
        self.is_sent(&happened);
        if matches!(happened.what, What::CacheMiss) {
            self.forget_told(now_ms, TOLD_MAX - 1);
            self.told.push_back((now_ms, happened.channel));
        }
    }

    /// Forgets what was told a while ago, and the oldest beyond `most`.
    fn forget_told(&mut self, now_ms: u64, most: usize) {
        let is_old = |at_ms: u64| at_ms + MISSED_MS <= now_ms;
        while self.told.len() > most || self.told.front().is_some_and(|(at, _)| is_old(*at)) {
            if let Some((_, channel)) = self.told.pop_front() {
                self.missed.remove(&channel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at_ms: u64, channel: &str, what: What) -> Happened {
        Happened { at_ms, channel: channel.into(), what }
    }

    #[test]
    fn a_missed_cache_is_told_again_only_after_a_while() {
        let mut repeats = Repeats::default();
        let miss = |at_ms| at(at_ms, "cache-a", What::CacheMiss);
        assert!(!repeats.take(&miss(0)));
        repeats.waits(&miss(0));
        assert!(repeats.take(&miss(60_000)), "it waits");
        repeats.is_gone(60_000, miss(0));
        assert!(repeats.take(&miss(59_000 + MISSED_MS)), "it was just told");
        assert!(!repeats.take(&miss(60_000 + MISSED_MS)));
        for n in 0..2 * TOLD_MAX {
            let miss = || at(60_000, &format!("cache-{n}"), What::CacheMiss);
            repeats.waits(&miss());
            repeats.is_gone(60_000, miss());
        }
        assert_eq!((repeats.told.len(), repeats.missed.len()), (TOLD_MAX, TOLD_MAX));
    }

    #[test]
    fn a_number_that_waits_is_replaced_until_it_is_sent() {
        let mut repeats = Repeats::default();
        let count = |number| at(0, "a", What::Count(Arc::new(AtomicU64::new(number))));
        let (first, newer) = (count(1), count(3));
        repeats.waits(&first);
        assert!(repeats.take(&count(2)));
        let What::Count(number) = &first.what else { panic!("it is a number") };
        assert_eq!(number.load(Ordering::Relaxed), 2);
        repeats.is_sent(&first);
        assert!(!repeats.take(&newer));
        repeats.waits(&newer);
        repeats.is_gone(0, first);
        assert!(repeats.take(&count(4)), "the newer one waits still");
    }
}
