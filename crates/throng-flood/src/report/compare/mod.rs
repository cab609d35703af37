//! Several runs side by side: what is better, by how much, and whether that is more than chance.
//!
//! A side is one result file or several of the same thing. Its spread is that of its runs; of a
//! single run it is what the run itself shows (the quartiles of its seconds or of its publishes).
//! A difference within the spread of the two sides is told and not called a win.

mod doubts;
mod measures;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::Report;
use super::file::ReadError;
use super::table::Grid;
use throng_units::format::{self, ABSENT};
use throng_units::paint::{Ink, Paint, sanitized};

/// One thing that is compared.
#[derive(Debug, Clone)]
pub struct Side {
    /// Its name, in one or two words.
    pub label: String,
    /// Its runs, one at least.
    pub runs: Vec<Report>,
}

/// Everything that is compared; the first side is what the others are measured by.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// What is compared.
    pub sides: Vec<Side>,
    /// Figure by figure.
    pub rows: Vec<Row>,
    /// What makes the comparison doubtful.
    pub warnings: Vec<String>,
}

/// A figure.
#[derive(Debug, Clone)]
pub struct Row {
    /// What it is.
    pub name: &'static str,
    /// A value of each side, in words.
    pub show: fn(f64) -> String,
    /// Which way is better.
    pub better: Better,
    /// The value of each side, if it was measured.
    pub values: Vec<Option<Spread>>,
}

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// More is.
    More,
    /// Less is.
    Less,
    /// The plan decides it, or both ways have their reasons.
    Neither,
}

/// A value and how sure it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median of the runs.
    pub middle: f64,
    /// It may as well be as low.
    pub low: f64,
    /// It may as well be as high.
    pub high: f64,
}

/// How a side stands to the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Better by more than the spread.
    Better,
    /// Worse by more than the spread.
    Worse,
    /// Within the spread, or neither way is better.
    Open,
}

/// Reads the sides: each argument is a file, or `label=file,file…` for several runs of one thing.
pub fn read(arguments: &[String]) -> Result<Vec<Side>, ReadError> {
    let mut sides = Vec::new();
    for argument in arguments {
        let (label, paths) = parsed(argument);
        let runs = paths.iter().map(|path| Report::read(path)).collect::<Result<Vec<_>, _>>()?;
        sides.push(Side { label, runs });
    }
    // Files of the same name in different folders are told apart by their whole paths.
    let labels: Vec<String> = sides.iter().map(|side| side.label.clone()).collect();
    for (side, argument) in sides.iter_mut().zip(arguments) {
        let is_shared = labels.iter().filter(|label| **label == side.label).count() > 1;
        if is_shared && !argument.contains('=') {
            side.label.clone_from(argument);
        }
    }
    Ok(sides)
}

fn parsed(argument: &str) -> (String, Vec<PathBuf>) {
    let whole = Path::new(argument);
    match argument.split_once('=') {
        Some((label, paths)) if !whole.exists() => {
            (label.to_owned(), paths.split(',').map(PathBuf::from).collect())
        }
        _ => {
            let stem = whole.file_stem().unwrap_or(whole.as_os_str());
            (stem.to_string_lossy().into_owned(), vec![whole.to_owned()])
        }
    }
}

impl Comparison {
    /// Compares; sides without runs are left out.
    pub fn of(mut sides: Vec<Side>) -> Comparison {
        sides.retain(|side| !side.runs.is_empty());
        let rows = measures::ALL.iter().map(|measure| Row {
            name: measure.name,
            show: measure.show,
            better: measure.better,
            values: sides.iter().map(|side| measure.of(side)).collect(),
        });
        let rows = rows.filter(|row| row.values.iter().any(Option::is_some)).collect();
        let warnings = doubts::of(&sides);
        Comparison { sides, rows, warnings }
    }
}

impl Row {
    /// How many times the first side's value a side has.
    pub fn ratio(&self, side: usize) -> Option<f64> {
        let (first, other) = (self.values.first()?.as_ref()?, self.values.get(side)?.as_ref()?);
        // A memory that has shrunk is how much something else gave back, and no part of another.
        let are_comparable = first.middle > 0.0 && other.middle >= 0.0;
        are_comparable.then(|| other.middle / first.middle)
    }

    /// How a side stands to the first.
    pub fn outcome(&self, side: usize) -> Outcome {
        let (Some(Some(first)), Some(Some(other))) = (self.values.first(), self.values.get(side))
        else {
            return Outcome::Open;
        };
        if first.middle < 0.0 || other.middle < 0.0 {
            return Outcome::Open;
        }
        let is_more = other.low > first.high;
        let is_less = other.high < first.low;
        match self.better {
            Better::More if is_more => Outcome::Better,
            Better::More if is_less => Outcome::Worse,
            Better::Less if is_less => Outcome::Better,
            Better::Less if is_more => Outcome::Worse,
            _ => Outcome::Open,
        }
    }

    /// A side's value with its spread, in words.
    pub fn told(&self, side: usize) -> String {
        let Some(Some(value)) = self.values.get(side) else { return ABSENT.to_owned() };
        let text = (self.show)(value.middle);
        let around = (value.high - value.low) / 2.0 / value.middle.abs();
        if !around.is_finite() || around <= measures::NOISE * 1.01 {
            return text;
        }
        let around = around * 100.0;
        format!("{text} ±{around:.0}%")
    }

    /// A side's ratio to the first, in words.
    pub fn told_ratio(&self, side: usize) -> String {
        format::or_absent(self.ratio(side), |ratio| format!("{ratio:.2}×"))
    }
}

/// The comparison for a terminal.
pub fn table(comparison: &Comparison, paint: Paint) -> String {
    let mut text = String::from("\n");
    for warning in &comparison.warnings {
        let _ = writeln!(text, "{} {}", paint.ink(Ink::WARNING, "doubtful:"), sanitized(warning));
    }
    let mut grid = Grid::new(headings(comparison).iter().map(|name| sanitized(name)), paint);
    for row in &comparison.rows {
        let mut cells = vec![row.name.to_owned()];
        for side in 0..comparison.sides.len() {
            cells.push(row.told(side));
            if side > 0 {
                let ratio = row.told_ratio(side);
                cells.push(match row.outcome(side) {
                    Outcome::Better => paint.ink(Ink::GOOD, ratio + " better").to_string(),
                    Outcome::Worse => paint.ink(Ink::BAD, ratio + " worse").to_string(),
                    Outcome::Open => ratio,
                });
            }
        }
        grid.row(cells);
    }
    grid.write(&mut text);
    let _ = writeln!(text, "\n{}", paint.ink(Ink::Dim, EXPLAINED));
    text
}

/// Said beneath every comparison.
pub const EXPLAINED: &str = "Ratios are to the first. ± is half the spread: of the runs; of a \
     single run that of its seconds or publishes, or 10 % where it shows none. At least 2.5 % are \
     assumed. A difference within the spread of both sides is no win.";

/// Headings of the table.
pub fn headings(comparison: &Comparison) -> Vec<String> {
    let mut headings = vec!["figure".to_owned()];
    for (nth, side) in comparison.sides.iter().enumerate() {
        headings.push(side.label.clone());
        if nth > 0 {
            headings.push("ratio".to_owned());
        }
    }
    headings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    fn side(label: &str, slowness: &[f64]) -> Side {
        let runs = slowness.iter().zip(1..);
        let runs = runs.map(|(&slowness, seed)| fixture::of(label, slowness, seed)).collect();
        Side { label: label.to_owned(), runs }
    }

    fn row<'a>(comparison: &'a Comparison, name: &str) -> &'a Row {
        comparison.rows.iter().find(|row| row.name == name).expect("a row")
    }

    #[test]
    fn a_difference_is_a_win_only_beyond_the_spread() {
        let comparison = Comparison::of(vec![side("a", &[1.0]), side("b", &[1.01])]);
        for row in &comparison.rows {
            assert_eq!(row.outcome(1), Outcome::Open, "{}", row.name);
        }
        let again = Side { label: "b".to_owned(), runs: vec![fixture::of("b", 1.0, 9)] };
        let comparison = Comparison::of(vec![side("a", &[1.0]), again]);
        for row in &comparison.rows {
            assert_eq!(row.outcome(1), Outcome::Open, "{}", row.name);
        }
        let comparison = Comparison::of(vec![side("a", &[1.0]), side("b", &[2.0])]);
        for name in ["delivery p50", "last of a publish", "server memory a client"] {
            let row = row(&comparison, name);
            assert_eq!(row.outcome(1), Outcome::Worse, "{name}");
            let ratio = row.ratio(1).expect("measured");
            assert!((1.7..2.3).contains(&ratio), "{name} {ratio}");
        }
        assert_eq!(row(&comparison, "delivery rate").outcome(1), Outcome::Open);
    }

    #[test]
    fn runs_of_one_side_are_its_spread() {
        let wide = Comparison::of(vec![side("a", &[1.0, 2.0, 3.0]), side("b", &[2.5])]);
        assert_eq!(row(&wide, "delivery p50").outcome(1), Outcome::Open);
        let narrow = Comparison::of(vec![side("a", &[1.0, 1.01, 1.02]), side("b", &[0.5])]);
        assert_eq!(row(&narrow, "delivery p50").outcome(1), Outcome::Better);
    }

    #[test]
    fn memory_that_shrank_or_hardly_differs_is_no_win() {
        let kernel = |label: &str, bytes: i64, clients: u64| {
            let mut side = side(label, &[1.0]);
            (side.runs[0].total.kernel_bytes, side.runs[0].total.active) = (Some(bytes), clients);
            side
        };
        let of = |before, after| {
            let comparison = Comparison::of(vec![before, after]);
            let row = row(&comparison, "kernel memory a client");
            (row.outcome(1), row.told_ratio(1))
        };
        let shrunk = of(kernel("a", 6_330_000, 1000), kernel("b", -3_670_000, 1000));
        assert_eq!(shrunk, (Outcome::Open, ABSENT.to_owned()));
        let shrunk = of(kernel("a", -3_670_000, 1000), kernel("b", 6_330_000, 1000));
        assert_eq!(shrunk, (Outcome::Open, ABSENT.to_owned()));
        // What the machine does besides moves its slabs by megabytes.
        let few = of(kernel("a", 6_330_000, 1000), kernel("b", 4_000_000, 1000));
        assert_eq!(few.0, Outcome::Open);
        let many = of(kernel("a", 850_000_000, 100_000), kernel("b", 430_000_000, 100_000));
        assert_eq!(many.0, Outcome::Better);
        let server = |clients| {
            let sides = [500_000.0, 250_000.0].map(|bytes| {
                let mut side = side("s", &[1.0]);
                let total = &mut side.runs[0].total;
                total.active = clients;
                let cost = total.server.as_mut().expect("measured");
                cost.bytes_per_client = Some(bytes / clients as f64);
                side
            });
            let comparison = Comparison::of(sides.to_vec());
            row(&comparison, "server memory a client").outcome(1)
        };
        assert_eq!(server(1000), Outcome::Open);
    }

    #[test]
    fn what_is_counted_is_exact() {
        let mut other = side("b", &[1.0]);
        other.runs[0].total.lost = 1;
        let comparison = Comparison::of(vec![side("a", &[1.0]), other]);
        let lost = row(&comparison, "lost");
        assert_eq!(lost.outcome(1), Outcome::Worse);
        assert_eq!((lost.told(0), lost.told(1)), ("0".to_owned(), "1".to_owned()));
        assert_eq!(lost.told_ratio(1), ABSENT);
    }

    #[test]
    fn the_table_names_everything() {
        let sides = vec![side("one", &[1.0]), side("two", &[2.0]), side("three", &[1.0])];
        let text = table(&Comparison::of(sides), Paint::plain());
        let heading = text.lines().find(|line| line.contains("ratio")).expect("headings");
        assert_eq!(heading.matches("ratio").count(), 2);
        assert!(
            text.lines().any(|line| line.starts_with("delivery p50") && line.contains("worse"))
        );
        assert!(Comparison::of(Vec::new()).rows.is_empty());
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let mut other = side("b", &[1.0]);
        other.runs[0].total.server = None;
        let comparison = Comparison::of(vec![side("a", &[1.0]), other]);
        let row = row(&comparison, "server memory a client");
        assert_eq!((row.told(1), row.told_ratio(1)), (ABSENT.to_owned(), ABSENT.to_owned()));
        assert_eq!(row.outcome(1), Outcome::Open);
    }

    #[test]
    fn arguments_name_files() {
        assert_eq!(parsed("out/a.json"), ("a".to_owned(), vec![PathBuf::from("out/a.json")]));
        let (label, paths) = parsed("throng=a.json,b.json");
        assert_eq!((label.as_str(), paths.len()), ("throng", 2));
        assert!(read(&["/nowhere/a.json".to_owned()]).is_err());
    }

    #[test]
    fn files_of_one_name_are_told_apart() {
        let folder = std::env::temp_dir().join(format!("flood-compare-{}", std::process::id()));
        let mut arguments = Vec::new();
        for part in ["x", "y"] {
            let path = folder.join(part).join("run.json");
            std::fs::create_dir_all(folder.join(part)).expect("a folder");
            crate::report::file::write(&path, &fixture::sample().to_json()).expect("written");
            arguments.push(path.display().to_string());
        }
        let sides = read(&arguments).expect("read");
        assert_eq!(sides.iter().map(|side| side.label.clone()).collect::<Vec<_>>(), arguments);
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
