//! What is compared, and how certain each value is.

use super::Side;

/// Relative noise of every measurement: none repeats itself more closely, whatever its range.
pub(super) const NOISE: f64 = 0.025;

/// Relative noise of a single run that does not show its own range.
const NOISE_UNKNOWN: f64 = 0.1;

/// A measurement that is compared.
#[derive(Debug, Clone, Copy)]
pub struct Measure<R> {
    /// Name in tables.
    pub name: &'static str,
    /// Formats a value with its unit.
    pub show: fn(f64) -> String,
    /// The better direction.
    pub better: Better,
    /// The value of a run, if it was measured.
    pub value: fn(&R) -> Option<f64>,
    /// The range of a side with a single run.
    pub range: Range<R>,
}

/// Which values of a measurement are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Smaller values are better.
    Less,
    /// Larger values are better.
    More,
    /// Neither: it says how much load there was, or both directions have their merits.
    Neither,
}

/// Where the range of a single run comes from. [`NOISE`] is added to all but exact values.
#[derive(Debug, Clone, Copy)]
pub enum Range<R> {
    /// The value is a count, and exact.
    Exact,
    /// This much absolute noise, in the unit of the value: memory that other activity of the
    /// machine takes or releases.
    Noise(fn(&R) -> f64),
    /// A run does not show its range; 10 % are assumed.
    Unknown,
    /// The quartiles of values within the run.
    Quartiles(fn(&R) -> Option<(f64, f64)>),
}

/// A value and the range in which it could as well lie.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The median of the runs.
    pub median: f64,
    /// Lower end of the range.
    pub low: f64,
    /// Upper end of the range.
    pub high: f64,
}

impl Better {
    /// How many times as good `ours` is as `theirs`; `None` if that cannot be said.
    pub fn ratio(self, ours: f64, theirs: f64) -> Option<f64> {
        let ratio = match self {
            Better::Less => theirs / ours,
            Better::More => ours / theirs,
            Better::Neither => return None,
        };
        (ratio.is_finite() && ratio > 0.0).then_some(ratio)
    }
}

impl<R> Measure<R> {
    /// The value of a side; `None` if none of its runs has it.
    pub(super) fn estimate(&self, side: &Side<R>) -> Option<Estimate> {
        let mut values: Vec<f64> = side.runs.iter().filter_map(self.value).collect();
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let median = quantile(&values, 0.5)?;
        let (low, high) = match (values.as_slice(), &self.range) {
            ([], _) => return None,
            ([low, .., high], Range::Exact) => {
                return Some(Estimate { median, low: *low, high: *high });
            }
            ([_], Range::Exact) => return Some(Estimate { median, low: median, high: median }),
            ([_], Range::Quartiles(of)) => of(&side.runs[0]).unwrap_or((median, median)),
            ([_], Range::Noise(_) | Range::Unknown) => (median, median),
            ([low, .., high], _) => (*low, *high),
        };
        let relative = match (values.len(), &self.range) {
            (1, Range::Unknown) => NOISE_UNKNOWN,
            _ => NOISE,
        };
        let absolute = match self.range {
            Range::Noise(of) => of(&side.runs[0]),
            _ => 0.0,
        };
        let noise = median.abs() * relative + absolute;
        Some(Estimate { median, low: low.min(median - noise), high: high.max(median + noise) })
    }
}

/// The first and third quartiles; `None` without values.
pub fn quartiles(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    Some((quantile(&values, 0.25)?, quantile(&values, 0.75)?))
}

fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let index = last as f64 * share;
    let (below, above) = (sorted[index as usize], sorted[index.ceil() as usize]);
    Some(below + (above - below) * index.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_is_better() {
        assert_eq!(Better::Less.ratio(50.0, 100.0), Some(2.0));
        assert_eq!(Better::More.ratio(50.0, 100.0), Some(0.5));
        assert_eq!(Better::Neither.ratio(1.0, 1.0), None);
        assert_eq!(Better::Less.ratio(0.0, 1.0), None);
    }

    #[test]
    fn quartiles_are_interpolated() {
        assert_eq!(quartiles([4.0, 1.0, 3.0, 2.0]), Some((1.75, 3.25)));
        assert_eq!(quartiles([7.0]), Some((7.0, 7.0)));
        assert_eq!(quartiles([]), None);
    }
}
