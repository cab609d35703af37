//! Of a histogram, the [`Distribution`] that is written.
//!
//! Its buckets lie on one grid for all runs, so that two reports can be laid over each other, and a
//! distribution of any number of values takes a few hundred of them at most.

use super::Distribution;
use crate::tally::Nanoseconds;

/// Buckets for each factor of ten: neighbours are 6 % apart, finer than a chart can show.
pub const BUCKETS_PER_DECADE: f64 = 40.0;

const NS_PER_MS: f64 = 1e6;

/// Below a microsecond there is only noise.
const LEAST_MS: f64 = 1e-3;

impl Distribution {
    /// The distribution of a histogram of nanoseconds; none of an empty one.
    pub fn of(histogram: &Nanoseconds) -> Option<Distribution> {
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

    /// The same without its buckets: for a sample a second, which would otherwise make a report of
    /// an hour too large to open.
    pub fn summary_of(histogram: &Nanoseconds) -> Option<Distribution> {
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

    /// Below how many milliseconds this share of the values lies, as exact as the buckets are.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let wanted = share * self.buckets.iter().map(|(_, count)| count).sum::<u64>() as f64;
        let mut below = 0;
        let bucket = self.buckets.iter().find(|(_, count)| {
            below += count;
            below as f64 >= wanted
        });
        bucket.map(|&(edge, _)| edge.min(self.max))
    }

    /// Points of the percentile curve, ascending: the share of values that lie above, and the
    /// milliseconds they lie above.
    pub fn tail(&self) -> Vec<(f64, f64)> {
        let whole: u64 = self.buckets.iter().map(|(_, count)| count).sum();
        let mut left = whole;
        let mut points = Vec::with_capacity(self.buckets.len() + 1);
        for &(edge, count) in &self.buckets {
            left -= count;
            if left > 0 {
                points.push((left as f64 / whole as f64, edge.min(self.max)));
            }
        }
        if whole > 0 {
            // The largest value: nothing lies above; it is drawn where one value in all is left.
            points.push((1.0 / whole as f64, self.max));
        }
        points
    }
}

/// The lower edge of the bucket that ends at `edge`.
pub fn lower_edge(edge: f64) -> f64 {
    edge / 10_f64.powf(1.0 / BUCKETS_PER_DECADE)
}

fn bucket(ms: f64) -> i32 {
    (ms.max(LEAST_MS).log10() * BUCKETS_PER_DECADE).ceil() as i32
}

fn edge(bucket: i32) -> f64 {
    rounded(10_f64.powf(f64::from(bucket) / BUCKETS_PER_DECADE))
}

/// Six digits: more than a histogram knows, and short in a file.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::nanoseconds;

    #[test]
    fn nothing_has_no_distribution() {
        assert_eq!(Distribution::of(&nanoseconds()), None);
    }

    #[test]
    fn percentiles_are_milliseconds() {
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
    fn quantiles_of_buckets() {
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

    #[test]
    fn the_tail_ends_with_the_largest() {
        let mut histogram = nanoseconds();
        for ms in [1, 1, 1, 1, 1, 1, 1, 1, 1, 50_u64] {
            histogram.record(ms * 1_000_000).expect("recorded");
        }
        let tail = Distribution::of(&histogram).expect("values").tail();
        assert_eq!(tail.len(), 2);
        assert!((tail[0].0 - 0.1).abs() < 1e-9);
        assert!((tail[1].0 - 0.1).abs() < 1e-9 && tail[1].1 > 49.0);
    }
}
