//! Compares runs side by side: what is better, by how much, and whether that exceeds chance.
//!
//! A [`Side`] is one run or several runs of the same thing. Its range is that of its runs; a single
//! run shows its own range (for example the quartiles of its seconds). A difference within the
//! ranges of both sides is shown, but is no win.

mod measure;
mod show;

use std::path::{Path, PathBuf};

use crate::file::ReadError;

pub use measure::{Better, Estimate, Measure, Range, quartiles};
pub use show::{html_table, table};

/// One of the things compared.
#[derive(Debug, Clone)]
pub struct Side<R> {
    /// A short name.
    pub label: String,
    /// At least one run.
    pub runs: Vec<R>,
}

/// A comparison of several sides with the first one.
#[derive(Debug, Clone)]
pub struct Comparison<R> {
    /// The sides, in the order of the columns.
    pub sides: Vec<Side<R>>,
    /// One row for each measurement that at least one side has.
    pub rows: Vec<ComparisonRow>,
    /// Reasons to doubt the comparison, one sentence each.
    pub warnings: Vec<String>,
}

/// One measurement of all sides.
#[derive(Debug, Clone)]
pub struct ComparisonRow {
    /// Name of the measurement.
    pub name: &'static str,
    show: fn(f64) -> String,
    better: Better,
    values: Vec<Option<Estimate>>,
}

/// How a side compares to the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Better, by more than the ranges of both sides.
    Better,
    /// Worse, by more than the ranges of both sides.
    Worse,
    /// Within the ranges, or neither direction is better.
    Undecided,
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

impl<R> Comparison<R> {
    /// Compares the sides by `measures`. Sides without runs are left out.
    pub fn of(
        mut sides: Vec<Side<R>>,
        measures: &[Measure<R>],
        warnings: Vec<String>,
    ) -> Comparison<R> {
        sides.retain(|side| !side.runs.is_empty());
        let rows = measures.iter().map(|measure| ComparisonRow {
            name: measure.name,
            show: measure.show,
            better: measure.better,
            values: sides.iter().map(|side| measure.estimate(side)).collect(),
        });
        let rows = rows.filter(|row| row.values.iter().any(Option::is_some)).collect();
        Comparison { sides, rows, warnings }
    }
}

impl ComparisonRow {
    /// The side's value divided by that of the first side.
    pub fn ratio(&self, side: usize) -> Option<f64> {
        let (first, other) = (self.values.first()?.as_ref()?, self.values.get(side)?.as_ref()?);
        // Memory that shrank was released by something else: there is no ratio to it.
        let is_comparable = first.median > 0.0 && other.median >= 0.0;
        is_comparable.then(|| other.median / first.median)
    }

    /// How the side compares to the first.
    pub fn verdict(&self, side: usize) -> Verdict {
        let (Some(Some(first)), Some(Some(other))) = (self.values.first(), self.values.get(side))
        else {
            return Verdict::Undecided;
        };
        if first.median < 0.0 || other.median < 0.0 {
            return Verdict::Undecided;
        }
        let is_more = other.low > first.high;
        let is_less = other.high < first.low;
        match self.better {
            Better::More if is_more => Verdict::Better,
            Better::More if is_less => Verdict::Worse,
            Better::Less if is_less => Verdict::Better,
            Better::Less if is_more => Verdict::Worse,
            _ => Verdict::Undecided,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_units::format;

    #[derive(Debug, Clone)]
    struct Run {
        latency_ms: f64,
        lost: u64,
        grown_bytes: f64,
    }

    const MEASURES: [Measure<Run>; 3] = [
        Measure {
            name: "latency",
            show: format::milliseconds,
            better: Better::Less,
            value: |run| Some(run.latency_ms),
            range: Range::Unknown,
        },
        Measure {
            name: "lost",
            show: format::decimal,
            better: Better::Less,
            value: |run| Some(run.lost as f64),
            range: Range::Exact,
        },
        Measure {
            name: "memory",
            show: format::bytes,
            better: Better::Less,
            value: |run| run.grown_bytes.is_finite().then_some(run.grown_bytes),
            range: Range::Noise(|_| 1e6),
        },
    ];

    fn side(label: &str, latencies: &[f64]) -> Side<Run> {
        let run = |&latency_ms: &f64| Run { latency_ms, lost: 0, grown_bytes: 5e6 };
        Side { label: label.to_owned(), runs: latencies.iter().map(run).collect() }
    }

    fn compare(first: Side<Run>, other: Side<Run>, name: &str) -> ComparisonRow {
        let comparison = Comparison::of(vec![first, other], &MEASURES, Vec::new());
        comparison.rows.into_iter().find(|row| row.name == name).expect("a row")
    }

    #[test]
    fn a_difference_is_a_win_only_beyond_the_ranges() {
        let latency = |one: &[f64], other: &[f64]| {
            compare(side("a", one), side("b", other), "latency").verdict(1)
        };
        assert_eq!(latency(&[1.0], &[1.1]), Verdict::Undecided);
        assert_eq!(latency(&[1.0], &[2.0]), Verdict::Worse);
        assert_eq!(latency(&[1.0, 2.0, 3.0], &[2.5]), Verdict::Undecided);
        assert_eq!(latency(&[1.0, 1.01, 1.02], &[0.5]), Verdict::Better);
    }

    #[test]
    fn counts_are_exact() {
        let mut other = side("b", &[1.0]);
        other.runs[0].lost = 1;
        let row = compare(side("a", &[1.0]), other, "lost");
        assert_eq!((row.verdict(1), row.ratio(1)), (Verdict::Worse, None));
        assert_eq!((row.text(0), row.text(1)), ("0".to_owned(), "1.00".to_owned()));
    }

    #[test]
    fn memory_that_shrank_or_hardly_differs_is_no_win() {
        let memory = |before: f64, after: f64| {
            let mut sides = [side("a", &[1.0]), side("b", &[1.0])];
            sides[0].runs[0].grown_bytes = before;
            sides[1].runs[0].grown_bytes = after;
            let [one, other] = sides;
            let row = compare(one, other, "memory");
            (row.verdict(1), row.ratio(1).is_some())
        };
        assert_eq!(memory(6e6, -4e6), (Verdict::Undecided, false));
        assert_eq!(memory(-4e6, 6e6), (Verdict::Undecided, false));
        assert_eq!(memory(6e6, 5e6), (Verdict::Undecided, true));
        assert_eq!(memory(80e6, 40e6), (Verdict::Better, true));
        assert_eq!(memory(80e6, f64::NAN), (Verdict::Undecided, false));
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
