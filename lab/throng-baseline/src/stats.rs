//! Medians, percentiles and spreads.

use serde::Serialize;

/// The runs of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// `None` without a run.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let summary = Self {
            median: median(values),
            min: percentile(values, 0),
            max: percentile(values, 100),
        };
        (!values.is_empty()).then_some(summary)
    }
}

/// The median, between the middle two of an even number of values; 0 without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let Some(&upper) = sorted.get(sorted.len() / 2) else { return 0.0 };
    let lower = if sorted.len() % 2 == 1 { upper } else { sorted[sorted.len() / 2 - 1] };
    (lower + upper) / 2.0
}

/// The value that `percent` of the values do not exceed (nearest rank); 0 without values.
pub(crate) fn percentile(values: &[f64], percent: usize) -> f64 {
    let rank = (values.len() * percent).div_ceil(100).max(1);
    sorted(values).get(rank - 1).copied().unwrap_or(0.0)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_median_and_both_ends() {
        let summary = Summary::of(&[5.0, 1.0, 9.0, 3.0]);
        assert_eq!(summary, Some(Summary { median: 4.0, min: 1.0, max: 9.0 }));
        assert_eq!((Summary::of(&[]), median(&[7.0])), (None, 7.0));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        for (percent, value) in [(50, 100.0), (99, 198.0), (100, 200.0)] {
            assert_eq!(percentile(&values, percent), value);
        }
        assert_eq!((percentile(&[4.0], 99), percentile(&[], 99)), (4.0, 0.0));
    }
}
