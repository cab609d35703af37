//! Histograms of durations, for percentiles.
//!
//! Each power of two is divided into [`SUBBUCKETS`] equal buckets, so that a quantile is at most a
//! sixteenth too large, and recording is one addition. The counts only grow: the difference of two
//! snapshots holds the values recorded between them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets per power of two.
const SUBBUCKETS: usize = 1 << SUBBUCKET_BITS;
const SUBBUCKET_BITS: u32 = 4;

/// Longer durations count as this one: over an hour.
const VALUE_MAX_US: u64 = (1 << 32) - 1;

pub(crate) const BUCKETS: usize = (33 - SUBBUCKET_BITS as usize) * SUBBUCKETS;

const _: () = assert!(bucket_of(VALUE_MAX_US) == BUCKETS - 1);

/// Counts of durations in microseconds.
#[derive(Debug)]
pub struct Histogram {
    counts: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        let counts = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Histogram { counts, sum_us: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts one value. Only one thread may call this.
    pub fn record(&self, value_us: u64) {
        let value_us = value_us.min(VALUE_MAX_US);
        let add = |cell: &AtomicU64, amount| {
            cell.store(cell.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
        };
        add(&self.counts[bucket_of(value_us)], 1);
        add(&self.sum_us, value_us);
    }

    /// Counts one value; any thread may call this, unless one calls [`Histogram::record`].
    pub fn record_shared(&self, value_us: u64) {
        let value_us = value_us.min(VALUE_MAX_US);
        self.counts[bucket_of(value_us)].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(value_us, Ordering::Relaxed);
    }
}

/// The counts of one or more histograms at one time, or their difference between two times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    counts: Box<[u64]>,
    sum_us: u64,
}

impl Default for Snapshot {
    fn default() -> Snapshot {
        Snapshot { counts: vec![0; BUCKETS].into(), sum_us: 0 }
    }
}

impl Snapshot {
    /// The sum of these histograms now.
    pub fn of<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Snapshot {
        let mut sum = Snapshot::default();
        for histogram in histograms {
            for (to, from) in sum.counts.iter_mut().zip(&histogram.counts) {
                *to += from.load(Ordering::Relaxed);
            }
            sum.sum_us += histogram.sum_us.load(Ordering::Relaxed);
        }
        sum
    }

    /// The values recorded since `earlier`.
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let counts = self.counts.iter().zip(&earlier.counts);
        Snapshot {
            counts: counts.map(|(now, then)| now.saturating_sub(*then)).collect(),
            sum_us: self.sum_us.saturating_sub(earlier.sum_us),
        }
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How many of them were at most this long. Those that differ from it by less than a sixteenth
    /// may be left out.
    pub fn count_within(&self, value_us: u64) -> u64 {
        let whole = (0..BUCKETS).take_while(|&bucket| bucket_end(bucket) <= value_us);
        whole.map(|bucket| self.counts[bucket]).sum()
    }

    /// The sum of all values, in microseconds.
    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// The mean of all values, in microseconds; `None` without values.
    pub fn mean_us(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum_us as f64 / count as f64)
    }

    /// The smallest value that at least `share` of all values do not exceed, in microseconds and at
    /// most a sixteenth too large; `None` without values.
    pub fn quantile_us(&self, share: f64) -> Option<u64> {
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(bucket_end(at))
    }
}

const fn bucket_of(value_us: u64) -> usize {
    if value_us < SUBBUCKETS as u64 {
        return value_us as usize;
    }
    let shift = value_us.ilog2() - SUBBUCKET_BITS;
    shift as usize * SUBBUCKETS + (value_us >> shift) as usize
}

/// The largest value of a bucket.
const fn bucket_end(bucket: usize) -> u64 {
    if bucket < 2 * SUBBUCKETS {
        return bucket as u64;
    }
    let shift = bucket / SUBBUCKETS - 1;
    (((SUBBUCKETS + bucket % SUBBUCKETS + 1) as u64) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_at_most_a_sixteenth_wide() {
        for bucket in 0..BUCKETS {
            let end = bucket_end(bucket);
            assert_eq!(bucket_of(end), bucket);
            assert_eq!(bucket_of(end + 1).min(BUCKETS), bucket + 1);
            let begin = if bucket == 0 { 0 } else { bucket_end(bucket - 1) + 1 };
            assert!((end - begin) * 16 <= begin.max(1), "{begin} to {end}");
        }
    }

    #[test]
    fn quantiles_are_close_and_never_too_small() {
        let histogram = Histogram::default();
        (1..=10_000).for_each(|value| histogram.record(value));
        let all = Snapshot::of([&histogram].into_iter());
        for (share, exact) in [(0.5, 5_000), (0.99, 9_900), (1.0, 10_000), (0.0, 1)] {
            let found = all.quantile_us(share).unwrap();
            assert!((exact..=exact + exact / 16).contains(&found), "{share}: {found}");
        }
        assert_eq!(all.mean_us(), Some(5_000.5));
    }

    #[test]
    fn counts_within_a_bound_are_exact_to_a_sixteenth() {
        let histogram = Histogram::default();
        (1..=10_000).for_each(|value| histogram.record(value));
        let all = Snapshot::of([&histogram].into_iter());
        let mut last = 0;
        for value in [0, 1, 15, 100, 1_000, 5_000, 9_999, 20_000, u64::MAX] {
            let (found, exact) = (all.count_within(value), value.min(10_000));
            assert!((exact - exact / 16..=exact).contains(&found), "{value}: {found}");
            assert!(found >= last);
            last = found;
        }
        assert_eq!(last, all.count());
        assert_eq!(all.sum_us(), 50_005_000);
    }

    #[test]
    fn a_difference_of_snapshots_holds_the_values_in_between() {
        let (one, other) = (Histogram::default(), Histogram::default());
        one.record(10);
        let before = Snapshot::of([&one, &other].into_iter());
        one.record(1_000);
        other.record_shared(u64::MAX);
        let after = Snapshot::of([&one, &other].into_iter());
        let since = after.since(&before);
        assert_eq!((since.count(), after.count()), (2, 3));
        assert!(since.quantile_us(0.5).unwrap() >= 1_000);
        assert_eq!(since.quantile_us(1.0), Some(VALUE_MAX_US));
        assert_eq!(before.since(&after).quantile_us(0.5), None);
    }
}
