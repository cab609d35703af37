//! Values of several runs, and how they compare.

use throng_flood::report::Report;

/// Sums of deliveries over all parts.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    pub(super) received: u64,
    pub(super) expected: u64,
}

impl Deliveries {
    pub(super) fn add(&mut self, report: &Report) {
        self.received += report.total.received;
        self.expected += report.total.expected;
    }
}

/// The part of `whole`; `None` unless both are known.
pub(super) fn share(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    Some(part? / whole.filter(|&whole| whole > 0.0)?)
}

/// How much more `with` is than `without`; `None` unless both are known.
pub(super) fn more(with: Option<f64>, without: Option<f64>) -> Option<f64> {
    Some(with? - without?)
}

/// The mean of what is known.
pub(super) fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let values: Vec<f64> = values.flatten().collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The median of what is known; of an even number of values, the mean of the middle two.
pub(super) fn median(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let mut values: Vec<f64> = values.flatten().collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some((values[last / 2] + values[last.div_ceil(2)]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_stays_absent() {
        assert_eq!((share(Some(1.0), Some(4.0)), share(Some(1.0), Some(0.0))), (Some(0.25), None));
        assert_eq!((more(Some(3.0), Some(1.0)), more(Some(3.0), None)), (Some(2.0), None));
        assert_eq!(mean([Some(1.0), None, Some(2.0)].into_iter()), Some(1.5));
        assert_eq!(mean([None].into_iter()), None);
        assert_eq!(median([Some(3.0), None, Some(1.0), Some(9.0)].into_iter()), Some(3.0));
        assert_eq!(median([Some(3.0), Some(1.0)].into_iter()), Some(2.0));
        assert_eq!(median([None].into_iter()), None);
    }
}
