//! Compares runs side by side: what is better, by how much, and whether that exceeds chance.
//!
//! A [`Side`] is one run or several runs of the same thing. Its range is that of its runs; a single
//! run shows its own range (for example the quartiles of its seconds). A difference within the
//! ranges of both sides is shown, but is no win.

use std::path::{Path, PathBuf};

use throng_units::format::or_absent;

use crate::file::ReadError;
use crate::page::{Cell, Table};
use crate::unit::Unit;

/// Below every comparison.
pub const FOOTNOTE: &str = "Ratios are to the first. ± is half the range: of the runs; of a \
     single run that of its seconds or publishes, or 10 % where it shows none. At least 2.5 % are \
     assumed. A difference within the ranges of both sides is no win.";

/// Relative noise of every measurement: none repeats itself more closely, whatever its range.
const NOISE: f64 = 0.025;

/// Relative noise of a single run that does not show its own range.
const NOISE_UNKNOWN: f64 = 0.1;

/// One of the things compared.
#[derive(Debug, Clone)]
pub struct Side<R> {
    /// A short name.
    pub label: String,
    /// At least one run.
    pub runs: Vec<R>,
}

/// A measurement of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Measure {
    /// The same in all runs, and unique.
    pub key: String,
    /// Name for people.
    pub name: String,
    pub unit: Unit,
    pub better: Better,
    /// Absent if it was not measured.
    pub value: Option<f64>,
    pub range: Range,
}

/// Which values of a measurement are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Less,
    More,
    /// It says how much load there was, or both directions have their merits.
    Neither,
}

/// The range of a single run. 2.5 % of noise are added to all but exact values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// The value is a count, and exact.
    Exact,
    /// This much absolute noise, in the unit of the value: memory that other activity of the
    /// machine takes or releases.
    Noise(f64),
    /// A run does not show its range; 10 % are assumed.
    Unknown,
    /// The quartiles of values within the run, if there are any.
    Quartiles(Option<(f64, f64)>),
}

/// The median of the runs, and the range in which it could as well lie.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    median: f64,
    low: f64,
    high: f64,
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

/// Reads the sides with `read`: each argument is a file, or `label=file,file…` for several runs.
pub fn read_sides<R>(
    arguments: &[String],
    read: impl Fn(&Path) -> Result<R, ReadError>,
) -> Result<Vec<Side<R>>, ReadError> {
    let mut sides = Vec::new();
    for argument in arguments {
        let (label, paths) = parse_side(argument);
        let runs = paths.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
        sides.push(Side { label, runs });
    }
    // Files of the same name in different folders are labelled with their paths.
    let labels: Vec<String> = sides.iter().map(|side| side.label.clone()).collect();
    for (side, argument) in sides.iter_mut().zip(arguments) {
        let is_shared = labels.iter().filter(|label| **label == side.label).count() > 1;
        if is_shared && !argument.contains('=') {
            side.label.clone_from(argument);
        }
    }
    Ok(sides)
}

fn parse_side(argument: &str) -> (String, Vec<PathBuf>) {
    let path = Path::new(argument);
    match argument.split_once('=') {
        Some((label, paths)) if !path.exists() => {
            (label.to_owned(), paths.split(',').map(PathBuf::from).collect())
        }
        _ => {
            let stem = path.file_stem().unwrap_or(path.as_os_str());
            (stem.to_string_lossy().into_owned(), vec![path.to_owned()])
        }
    }
}

/// The name of each run, with the run: the side's label, and a number if the side has several.
pub fn named_runs<R>(sides: &[Side<R>]) -> impl Iterator<Item = (String, &R)> {
    sides.iter().flat_map(|Side { label, runs }| {
        runs.iter().enumerate().map(move |(index, run)| match runs.len() {
            1 => (label.clone(), run),
            count => (format!("{label} (run {} of {count})", index + 1), run),
        })
    })
}

/// Compares all sides with the first one: a row for each measurement that some side has.
pub fn table<R>(sides: &[Side<R>], measures: impl Fn(&R) -> Vec<Measure>) -> Table {
    let sides: Vec<(&str, Vec<Vec<Measure>>)> = sides
        .iter()
        .map(|side| (side.label.as_str(), side.runs.iter().map(&measures).collect()))
        .collect();
    let mut headings = vec!["measurement"];
    for (index, (label, _)) in sides.iter().enumerate() {
        headings.push(label);
        headings.extend((index > 0).then_some("ratio"));
    }
    let rows = sides.iter().flat_map(|(_, runs)| runs).next().into_iter().flatten();
    let rows = rows.filter_map(|measure| {
        let estimates: Vec<_> =
            sides.iter().map(|(_, runs)| estimate(&measure.key, runs)).collect();
        estimates.iter().any(Option::is_some).then(|| row(measure, &estimates))
    });
    Table::new(&headings, rows)
}

fn row(measure: &Measure, estimates: &[Option<Estimate>]) -> Vec<Cell> {
    let mut cells = vec![measure.name.as_str().into()];
    for (index, estimate) in estimates.iter().enumerate() {
        cells.push(or_absent(*estimate, |found| found.text(measure.unit)).into());
        if index == 0 {
            continue;
        }
        let compared = estimates[0].zip(*estimate).map(|(first, other)| first.compared(&other));
        let (ratio, is_more) = compared.unwrap_or_default();
        let ratio = or_absent(ratio, |ratio| format!("{ratio:.2}×"));
        cells.push(match (measure.better, is_more) {
            (Better::More, Some(true)) | (Better::Less, Some(false)) => {
                Cell::good(format!("{ratio} better"))
            }
            (Better::More, Some(false)) | (Better::Less, Some(true)) => {
                Cell::bad(format!("{ratio} worse"))
            }
            _ => ratio.into(),
        });
    }
    cells
}

/// The measurement of a side; `None` if none of its runs has it.
fn estimate(key: &str, runs: &[Vec<Measure>]) -> Option<Estimate> {
    let measured = runs.iter().flatten().filter(|measure| measure.key == key);
    let measured: Vec<(f64, Range)> = measured
        .filter_map(|measure| Some((measure.value?, measure.range)))
        .filter(|(value, _)| value.is_finite())
        .collect();
    let (_, range) = *measured.first()?;
    let mut values: Vec<f64> = measured.iter().map(|(value, _)| *value).collect();
    values.sort_by(f64::total_cmp);
    let median = quantile(&values, 0.5)?;
    let (mut low, mut high) = (*values.first()?, *values.last()?);
    let (mut relative, mut absolute) = (NOISE, 0.0);
    match (values.len(), range) {
        (_, Range::Exact) => return Some(Estimate { median, low, high }),
        (_, Range::Noise(noise)) => absolute = noise,
        (1, Range::Unknown) => relative = NOISE_UNKNOWN,
        (1, Range::Quartiles(Some(quartiles))) => (low, high) = quartiles,
        _ => {}
    }
    let noise = median.abs() * relative + absolute;
    Some(Estimate { median, low: low.min(median - noise), high: high.max(median + noise) })
}

impl Estimate {
    /// The ratio of `other` to this one, and whether it is more or less by more than chance.
    fn compared(&self, other: &Estimate) -> (Option<f64>, Option<bool>) {
        // Memory that shrank was released by something else: there is no ratio to it.
        if self.median < 0.0 || other.median < 0.0 {
            return (None, None);
        }
        let ratio = (self.median > 0.0).then(|| other.median / self.median);
        let is_certain = other.low > self.high || other.high < self.low;
        (ratio, is_certain.then_some(other.low > self.high))
    }

    /// The value with its range.
    fn text(&self, unit: Unit) -> String {
        let text = unit.show(self.median);
        let half_range = (self.high - self.low) / 2.0 / self.median.abs();
        // A range that is only the assumed noise is not shown.
        if !half_range.is_finite() || half_range <= NOISE * 1.01 {
            return text;
        }
        format!("{text} ±{:.0}%", half_range * 100.0)
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
    use throng_units::format::ABSENT;

    use super::*;
    use crate::page::Tone;

    fn side(label: &str, values: &[f64], range: Range) -> Side<Measure> {
        let run = |&value: &f64| Measure {
            key: "latency".to_owned(),
            name: "latency".to_owned(),
            unit: Unit::Milliseconds,
            better: Better::Less,
            value: value.is_finite().then_some(value),
            range,
        };
        Side { label: label.to_owned(), runs: values.iter().map(run).collect() }
    }

    fn compared(one: &[f64], other: &[f64], range: Range) -> Cell {
        let sides = [side("a", one, range), side("b", other, range)];
        let table = table(&sides, |measure| vec![measure.clone()]);
        table.rows[0][3].clone()
    }

    #[test]
    fn a_difference_is_a_win_only_beyond_the_ranges() {
        let tone = |one, other| compared(one, other, Range::Unknown).tone;
        assert_eq!(tone(&[1.0], &[1.1]), Tone::Plain);
        assert_eq!(tone(&[1.0], &[2.0]), Tone::Bad);
        assert_eq!(tone(&[1.0, 2.0, 3.0], &[2.5]), Tone::Plain);
        assert_eq!(tone(&[1.0, 1.01, 1.02], &[0.5]), Tone::Good);
        let quartiles = |low, high| Range::Quartiles(Some((low, high)));
        assert_eq!(compared(&[1.0], &[2.0], quartiles(0.5, 2.5)).tone, Tone::Plain);
        assert_eq!(compared(&[1.0], &[1.1], Range::Quartiles(None)).tone, Tone::Bad);
    }

    #[test]
    fn counts_are_exact() {
        assert_eq!(compared(&[100.0], &[101.0], Range::Exact), Cell::bad("1.01× worse"));
        assert_eq!(compared(&[0.0], &[1.0], Range::Exact), Cell::bad(format!("{ABSENT} worse")));
    }

    #[test]
    fn memory_that_shrank_or_hardly_differs_is_no_win() {
        let memory = |before: f64, after: f64| compared(&[before], &[after], Range::Noise(1e6));
        assert_eq!(memory(6e6, -4e6), ABSENT.into());
        assert_eq!(memory(-4e6, 6e6), ABSENT.into());
        assert_eq!(memory(6e6, 5e6), "0.83×".into());
        assert_eq!(memory(80e6, 40e6), Cell::good("0.50× better"));
        assert_eq!(memory(80e6, f64::NAN), ABSENT.into());
    }

    #[test]
    fn every_side_has_a_column_with_its_range() {
        let sides = [
            side("one", &[1.0], Range::Unknown),
            side("two", &[1.0, 3.0], Range::Unknown),
            side("none", &[], Range::Unknown),
        ];
        let table = table(&sides, |measure| vec![measure.clone()]);
        assert_eq!(table.headings, ["measurement", "one", "two", "ratio", "none", "ratio"]);
        let texts: Vec<_> = table.rows[0].iter().map(|cell| cell.text.as_str()).collect();
        let expected = ["latency", "1.00 ms ±10%", "2.00 ms ±50%", "2.00×", ABSENT, ABSENT];
        assert_eq!(texts, expected);
        let names: Vec<_> = named_runs(&sides).map(|(name, _)| name).collect();
        assert_eq!(names, ["one", "two (run 1 of 2)", "two (run 2 of 2)"]);
    }

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

    #[test]
    fn arguments_name_files() {
        assert_eq!(parse_side("out/a.json"), ("a".to_owned(), vec![PathBuf::from("out/a.json")]));
        let (label, paths) = parse_side("throng=a.json,b.json");
        assert_eq!((label.as_str(), paths.len()), ("throng", 2));
    }

    #[test]
    fn files_of_the_same_name_are_labelled_with_their_paths() {
        let labels = |arguments: &[&str]| -> Vec<String> {
            let arguments: Vec<_> = arguments.iter().map(|&path| path.to_owned()).collect();
            let sides = read_sides(&arguments, |_| Ok(())).expect("read");
            sides.into_iter().map(|side| side.label).collect()
        };
        assert_eq!(labels(&["x/run.json", "y/run.json"]), ["x/run.json", "y/run.json"]);
        assert_eq!(labels(&["x/run.json", "other=y/run.json"]), ["run", "other"]);
    }
}
