//! Medians, percentiles and spreads.

use serde::Serialize;

/// Several runs of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The middle run.
    pub median: f64,
    /// The lowest run.
    pub min: f64,
    /// The highest run.
    pub max: f64,
}

impl Summary {
    /// `None` without a run.
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self { median: middle(&sorted)?, min, max })
    }
}

/// The median; 0 without values, which only a measurement of nothing has.
pub fn median(values: &[f64]) -> f64 {
    middle(&sorted(values)).unwrap_or(0.0)
}

/// The value below which `hundredths` percent of the values lie (nearest rank); 0 without values.
pub fn percentile(values: &[f64], hundredths: usize) -> f64 {
    let sorted = sorted(values);
    let rank = (sorted.len() * hundredths).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some((sorted.get(sorted.len() / 2 - 1)? + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_the_middle_and_both_ends() {
        let summary = Summary::of(&[5.0, 1.0, 9.0, 3.0]).expect("values");
        assert_eq!(summary, Summary { median: 4.0, min: 1.0, max: 9.0 });
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(median(&[7.0]), 7.0);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50), 100.0);
        assert_eq!(percentile(&values, 99), 198.0);
        assert_eq!(percentile(&values, 100), 200.0);
        assert_eq!(percentile(&[4.0], 99), 4.0);
        assert_eq!(percentile(&[], 99), 0.0);
    }
}
