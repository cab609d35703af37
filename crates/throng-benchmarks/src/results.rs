//! What comes out of benchmarks, as it is written to JSON; table, page and comparison are made of
//! it.
//!
//! Memory is in bytes, times are in seconds unless the name says otherwise. What was not measured
//! is absent (`null`), never zero.

use std::path::Path;

use serde::{Deserialize, Serialize};
use throng_flood::report::Report;
use throng_report::Environment;
use throng_report::Unit;
use throng_report::compare::Better;
use throng_report::file::{Format, ReadError, to_json};

use crate::benchmark::{Benchmark, Figure, Size};

/// The format's version: it changes when a field changes its meaning.
pub const VERSION: u32 = 2;

const FORMAT: Format = Format { command: "throng bench", version: VERSION };

/// With fewer connections than this part of the published number, a time for all or a rate is not
/// compared.
const SIZE_SHARE_MIN: f64 = 0.9;

/// All benchmarks of a command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Results {
    /// [`VERSION`].
    pub version: u32,
    /// When they began, in seconds since 1970.
    pub started_unix_s: u64,
    /// The machine and its kernel settings.
    pub environment: Environment,
    /// In the order in which they were run.
    pub benchmarks: Vec<Outcome>,
}

/// A benchmark that was run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// As on the command line.
    pub name: String,
    /// As people call it.
    pub title: String,
    /// Who published it first.
    pub source: String,
    /// When.
    pub year: u16,
    /// When it began, in seconds since 1970.
    pub started_unix_s: u64,
    /// How long it took.
    pub seconds: f64,
    /// The most clients at once.
    pub connections: usize,
    /// How long they were held, where that could be chosen.
    pub time_s: Option<f64>,
    /// The flags of each server that was started.
    pub servers: Vec<String>,
    /// Whether all went well.
    pub verdict: Verdict,
    /// Why it failed, a sentence each.
    pub reasons: Vec<String>,
    /// What makes figures doubtful, a sentence each.
    pub warnings: Vec<String>,
    /// What was measured, and what was published.
    pub figures: Vec<Measured>,
    /// Measures by size or step.
    pub tables: Vec<Table>,
    /// Measures over time or size.
    pub courses: Vec<Course>,
    /// The reports of the floods, with a sample a second.
    pub floods: Vec<Report>,
}

/// Whether a benchmark went well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Done: nothing failed, nothing is lost.
    #[default]
    Done,
    /// Something failed, was lost, or could not be done.
    Failed,
}

/// A figure, ours and theirs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Names it for programs.
    pub key: String,
    /// Names it for people.
    pub name: String,
    /// What the values are: `bytes`, `milliseconds`, `per_second`, `cores`, `share` or `count`.
    pub unit: String,
    /// Which values are better: `less` or `more`; absent if neither is.
    pub better: Option<String>,
    /// Whether it is of a single connection, and can be compared with one of another size.
    pub is_each: bool,
    /// What was measured.
    pub ours: Option<f64>,
    /// With so many connections.
    pub connections: Option<usize>,
    /// What was published.
    pub published: Option<Theirs>,
    /// How many times as good ours is; absent where the sizes are too different to be compared.
    pub ratio: Option<f64>,
}

/// A published value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Theirs {
    /// In the figure's unit.
    pub value: f64,
    /// With so many connections.
    pub connections: usize,
    /// What exactly was measured.
    pub what: String,
}

/// Measures by size or step, with their names above.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// A name for each column, with its unit.
    pub columns: Vec<String>,
    /// A value for each column.
    pub rows: Vec<Vec<Option<f64>>>,
}

/// Measures over time or size.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Course {
    /// Names it on the page.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// What one should know to read it.
    pub note: String,
    /// What the values are, as in [`Measured::unit`].
    pub unit: String,
    /// What is across: `time` (seconds) or `clients`.
    pub across: String,
    /// Whether each step up is ten times as much.
    pub is_log: bool,
    /// Whether each step to the right is ten times as much.
    pub is_log_across: bool,
    /// The lines.
    pub lines: Vec<CourseLine>,
}

/// A line of a course.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CourseLine {
    /// What it is.
    pub name: String,
    /// What is across, and the value there.
    pub points: Vec<(f64, Option<f64>)>,
}

impl Measured {
    /// A figure that is still to be measured.
    pub fn of(figure: &Figure) -> Measured {
        Measured {
            key: figure.key.to_owned(),
            name: figure.name.to_owned(),
            unit: figure.unit.name().to_owned(),
            better: match figure.better {
                Better::Less => Some("less".to_owned()),
                Better::More => Some("more".to_owned()),
                Better::Neither => None,
            },
            is_each: figure.is_each,
            published: figure.published.map(|published| Theirs {
                value: published.value,
                connections: published.connections,
                what: published.what.to_owned(),
            }),
            ..Measured::default()
        }
    }

    /// Which values are better.
    pub fn better(&self) -> Better {
        match self.better.as_deref() {
            Some("less") => Better::Less,
            Some("more") => Better::More,
            _ => Better::Neither,
        }
    }

    /// What the values are.
    pub fn unit(&self) -> Unit {
        Unit::named(&self.unit)
    }

    /// Whether ours is of the size of the published one, or size does not matter.
    pub fn is_comparable(&self) -> bool {
        let published = self.published.as_ref().map_or(0, |published| published.connections);
        let ours = self.connections.unwrap_or_default();
        self.is_each || ours as f64 >= published as f64 * SIZE_SHARE_MIN
    }

    /// Takes a value.
    pub fn set(&mut self, value: f64, connections: usize) {
        self.ours = value.is_finite().then_some(value);
        self.connections = Some(connections);
        let published = self.published.as_ref().filter(|_| self.is_comparable());
        self.ratio = published.and_then(|published| self.better().ratio(value, published.value));
    }
}

impl Outcome {
    /// Of a benchmark that has not begun.
    pub fn of(benchmark: &Benchmark, size: &Size, started_unix_s: u64) -> Outcome {
        Outcome {
            name: benchmark.name.to_owned(),
            title: benchmark.title.to_owned(),
            source: benchmark.source.to_owned(),
            year: benchmark.year,
            started_unix_s,
            connections: size.connections,
            time_s: benchmark.scope.has_time.then_some(size.time.as_secs_f64()),
            figures: benchmark.figures.iter().map(Measured::of).collect(),
            ..Outcome::default()
        }
    }

    /// It has failed for this reason too.
    pub fn fail(&mut self, reason: impl Into<String>) {
        self.verdict = Verdict::Failed;
        self.reasons.push(reason.into());
    }
}

impl Results {
    /// The results as indented JSON.
    pub fn to_json(&self) -> String {
        to_json(self)
    }

    /// Reads what [`to_json`](Self::to_json) has written.
    pub fn read(path: &Path) -> Result<Results, ReadError> {
        FORMAT.read(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_back_as_they_were() {
        let benchmark = &crate::benchmarks::ALL[0];
        let mut outcome = Outcome::of(benchmark, &benchmark.scope.size, 7);
        outcome.figures[0].set(12.5, 100);
        outcome.fail("one");
        let results = Results { version: VERSION, benchmarks: vec![outcome], ..Results::default() };
        let path = std::env::temp_dir().join(format!("throng-results-{}", std::process::id()));
        std::fs::write(&path, results.to_json()).expect("written");
        assert_eq!(Results::read(&path).expect("read"), results);
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_value_has_its_ratio() {
        let figure = Figure::less("a", "A", Unit::Bytes).published(100.0, 10, "x");
        let mut measured = Measured::of(&figure);
        measured.set(25.0, 10);
        assert_eq!((measured.ours, measured.ratio), (Some(25.0), Some(4.0)));
        measured.set(f64::NAN, 10);
        assert_eq!((measured.ours, measured.ratio), (None, None));
        measured.set(25.0, 8);
        assert_eq!((measured.ours, measured.ratio), (Some(25.0), None));
        let mut each = Measured::of(&figure.each());
        each.set(25.0, 8);
        assert_eq!(each.ratio, Some(4.0));
    }
}
