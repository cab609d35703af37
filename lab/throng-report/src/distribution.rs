//! The [`Distribution`] of a latency histogram, as it is stored in reports.
//!
//! All distributions share one bucket grid, so that reports can be compared, and a distribution of
//! any number of values takes a few hundred buckets at most.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A distribution of latencies, in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// The smallest value.
    pub min: f64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The median: half of the values are below.
    pub p50: f64,
    /// 90 % of the values are below.
    pub p90: f64,
    /// 99 % of the values are below.
    pub p99: f64,
    /// 99.9 % of the values are below.
    pub p999: f64,
    /// The largest value.
    pub max: f64,
    /// Upper edges of the non-empty buckets and their counts, ascending; empty in a summary.
    pub buckets: Vec<(f64, u64)>,
}

/// Buckets per factor of ten: neighbours are 6 % apart, finer than a chart can show. The
/// script of a page knows it, too.
const BUCKETS_PER_DECADE: f64 = 40.0;

const NS_PER_MS: f64 = 1e6;

/// The first bucket ends here: below a microsecond there is only noise.
const MIN_MS: f64 = 1e-3;

impl Distribution {
    /// The distribution of a histogram of nanoseconds; `None` if it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Option<Distribution> {
        let summary = Distribution::summary_of(histogram)?;
        let mut buckets: Vec<(i32, u64)> = Vec::new();
        for value in histogram.iter_recorded() {
            let at = bucket(value.value_iterated_to() as f64 / NS_PER_MS);
            match buckets.last_mut() {
                Some((last, count)) if *last == at => *count += value.count_at_value(),
                _ => buckets.push((at, value.count_at_value())),
            }
        }
        let buckets = buckets.into_iter().map(|(at, count)| (edge(at), count)).collect();
        Some(Distribution { buckets, ..summary })
    }

    /// [`of`](Self::of) without buckets. A report has one for each second; with buckets, that of
    /// an hour would be too large to open.
    pub fn summary_of(histogram: &Histogram<u64>) -> Option<Distribution> {
        if histogram.is_empty() {
            return None;
        }
        let at = |quantile| rounded(histogram.value_at_quantile(quantile) as f64 / NS_PER_MS);
        Some(Distribution {
            count: histogram.len(),
            min: rounded(histogram.min() as f64 / NS_PER_MS),
            mean: rounded(histogram.mean() / NS_PER_MS),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: rounded(histogram.max() as f64 / NS_PER_MS),
            buckets: Vec::new(),
        })
    }

    /// The value, in milliseconds, below which `share` of all values lie; as exact as the buckets.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let target = share * self.buckets.iter().map(|(_, count)| count).sum::<u64>() as f64;
        let mut below = 0;
        let bucket = self.buckets.iter().find(|(_, count)| {
            below += count;
            below as f64 >= target
        });
        bucket.map(|&(edge, _)| edge.min(self.max))
    }
}

fn bucket(ms: f64) -> i32 {
    (ms.max(MIN_MS).log10() * BUCKETS_PER_DECADE).ceil() as i32
}

fn edge(bucket: i32) -> f64 {
    rounded(10_f64.powf(f64::from(bucket) / BUCKETS_PER_DECADE))
}

/// Six digits: more than the histogram's precision, and short in a file.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanoseconds() -> Histogram<u64> {
        Histogram::new(3).expect("three digits")
    }

    #[test]
    fn an_empty_histogram_has_no_distribution() {
        assert_eq!(Distribution::of(&nanoseconds()), None);
    }

    #[test]
    fn nanoseconds_become_milliseconds() {
        let mut histogram = nanoseconds();
        for ms in 1..=1000_u64 {
            histogram.record(ms * 1_000_000).expect("recorded");
        }
        let found = Distribution::of(&histogram).expect("values");
        let is_near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 2e-3;
        assert_eq!(found.count, 1000);
        assert!(is_near(found.min, 1.0) && is_near(found.max, 1000.0), "{found:?}");
        assert!(is_near(found.p50, 500.0) && is_near(found.p99, 990.0), "{found:?}");
        assert!(is_near(found.p999, 999.0) && is_near(found.mean, 500.5), "{found:?}");
    }

    #[test]
    fn buckets_keep_every_value_and_are_few() {
        let mut histogram = nanoseconds();
        let mut value = 500_u64;
        while value < 100_000_000_000 {
            histogram.record(value).expect("recorded");
            value += value / 100 + 1;
        }
        let found = Distribution::of(&histogram).expect("values");
        let counted: u64 = found.buckets.iter().map(|(_, count)| count).sum();
        assert_eq!(counted, found.count);
        assert!(found.buckets.len() < 350, "{}", found.buckets.len());
        assert!(found.buckets.is_sorted_by(|one, next| one.0 < next.0));
        assert_eq!(Distribution::summary_of(&histogram).expect("values").buckets, []);
    }

    #[test]
    fn quantiles_come_from_buckets() {
        let mut histogram = nanoseconds();
        for ms in 1..=1000_u64 {
            histogram.record(ms * 1_000_000).expect("recorded");
        }
        let found = Distribution::of(&histogram).expect("values");
        let quarter = found.quantile(0.25).expect("values");
        assert!((250.0..270.0).contains(&quarter), "{quarter}");
        assert_eq!(found.quantile(1.0), Some(found.max));
        assert_eq!(Distribution::default().quantile(0.5), None);
    }
}
