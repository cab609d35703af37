//! The results of benchmarks, as they are stored in JSON.
//!
//! Sizes are in bytes, times in seconds unless the name says otherwise. A value that was not
//! measured is absent (`null`), never zero.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use throng_flood::report::Report;
use throng_report::Environment;
use throng_report::Unit;
pub(crate) use throng_report::chart::Plot;
use throng_report::chart::PlotLine;
use throng_report::compare::Better;
use throng_report::file::{Format, ReadError, to_json};
use throng_units::format::decimal;

use crate::expression::Figure;
use crate::figures::Figures;
use crate::file::{Benchmark, Measure, PlotOf, Size, TableOf};

/// The format's version; it changes when a field changes its name or meaning.
pub(crate) const VERSION: u32 = 1;

const FORMAT: Format = Format { command: "throng bench", version: VERSION };

/// Rates and times for all clients are compared only with at least this share of the published
/// number of connections.
const SIZE_SHARE_MIN: f64 = 0.9;

/// The results of a command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Results {
    /// The format, [`VERSION`].
    #[serde(rename = "format")]
    pub(crate) version: u32,
    /// Start of the command, in seconds since 1970.
    pub(crate) started_unix_s: u64,
    /// The machine and its kernel settings.
    pub(crate) environment: Environment,
    /// The benchmarks in the order of execution.
    pub(crate) benchmarks: Vec<Outcome>,
}

/// The outcome of a benchmark.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Outcome {
    /// Name on the command line.
    pub(crate) name: String,
    /// Title for people.
    pub(crate) title: String,
    /// Author and title of the original.
    pub(crate) source: String,
    /// URL of the original.
    pub(crate) url: Option<String>,
    /// Year of the original.
    pub(crate) year: u16,
    /// The original and its merit.
    pub(crate) story: String,
    pub(crate) hardware: String,
    /// How this rerun works.
    pub(crate) setup: String,
    /// How this rerun differs from the original, one sentence each.
    pub(crate) differences: Vec<String>,
    /// Start of the benchmark, in seconds since 1970.
    pub(crate) started_unix_s: u64,
    /// Duration of the benchmark.
    pub(crate) seconds: f64,
    /// Peak number of clients.
    pub(crate) connections: usize,
    /// How long the clients were held, if `--time` applies.
    pub(crate) time_s: Option<f64>,
    /// The flags of each server that was started.
    pub(crate) servers: Vec<String>,
    pub(crate) verdict: Verdict,
    /// Reasons of the failure, one sentence each.
    pub(crate) reasons: Vec<String>,
    /// Reasons to doubt the measurements, one sentence each.
    pub(crate) warnings: Vec<String>,
    /// Our values and the published ones.
    pub(crate) measurements: Vec<MeasuredValue>,
    /// Values by size or step.
    pub(crate) tables: Vec<Table>,
    /// Values over time or size, for charts.
    pub(crate) plots: Vec<Plot>,
    /// The reports of the floods, with a sample per second.
    pub(crate) floods: Vec<Report>,
}

/// The end of a benchmark.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// Nothing failed, and nothing was lost.
    #[default]
    Done,
    /// Something failed or was lost.
    Failed,
}

/// A measurement: our value and the published one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MeasuredValue {
    /// Key for programs.
    pub(crate) key: String,
    /// Name for people.
    pub(crate) name: String,
    pub(crate) unit: Unit,
    /// The better direction: `less` or `more`; absent if there is none.
    pub(crate) better: Option<String>,
    /// The value is per connection, and so comparable between sizes.
    pub(crate) is_per_connection: bool,
    /// The value measured here.
    pub(crate) ours: Option<f64>,
    /// Number of connections of our value.
    pub(crate) connections: Option<usize>,
    /// The published value.
    pub(crate) published: Option<PublishedValue>,
    /// How many times as good our value is; absent if the sizes are not comparable.
    pub(crate) ratio: Option<f64>,
}

/// A published value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PublishedValue {
    /// The value in the measurement's unit.
    pub(crate) value: f64,
    /// Number of connections of the original.
    pub(crate) connections: usize,
    /// The original's exact figure, in words.
    pub(crate) what: String,
}

/// A table of values by size or step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Table {
    /// Heading for people.
    pub(crate) title: String,
    /// Column headings with units.
    pub(crate) columns: Vec<String>,
    /// Rows with a value for each column.
    pub(crate) rows: Vec<Vec<Option<f64>>>,
}

impl MeasuredValue {
    /// A measure with its value.
    fn of(measure: &Measure, figure: Figure) -> MeasuredValue {
        let published = measure.published.as_ref().map(|published| PublishedValue {
            value: published.value,
            connections: published.connections,
            what: published.what.clone(),
        });
        let mut measured = MeasuredValue {
            key: measure.key.clone(),
            name: measure.name.clone(),
            unit: Unit::named(&measure.unit).unwrap_or_default(),
            better: measure.better.clone(),
            is_per_connection: measure.per_connection,
            published,
            ..MeasuredValue::default()
        };
        if let Some(value) = figure.value {
            measured.set(value, figure.connections);
        }
        measured
    }

    /// The better direction.
    pub(crate) fn better(&self) -> Better {
        match self.better.as_deref() {
            Some("less") => Better::Less,
            Some("more") => Better::More,
            _ => Better::Neither,
        }
    }

    /// True if the sizes of our value and the published one allow a comparison.
    pub(crate) fn is_comparable(&self) -> bool {
        let published = self.published.as_ref().map_or(0, |published| published.connections);
        let ours = self.connections.unwrap_or_default();
        self.is_per_connection || ours as f64 >= published as f64 * SIZE_SHARE_MIN
    }

    /// Sets our value.
    pub(crate) fn set(&mut self, value: f64, connections: usize) {
        self.ours = value.is_finite().then_some(value);
        self.connections = Some(connections);
        let published = self.published.as_ref().filter(|_| self.is_comparable());
        self.ratio = published.and_then(|published| self.better().ratio(value, published.value));
    }
}

impl Outcome {
    /// The outcome of a benchmark that starts now.
    pub(crate) fn of(benchmark: &Benchmark, size: &Size) -> Outcome {
        Outcome {
            name: benchmark.name.clone(),
            title: benchmark.title.clone(),
            source: benchmark.source.clone(),
            url: benchmark.url.clone(),
            year: benchmark.year,
            story: benchmark.story.clone(),
            hardware: benchmark.hardware.clone(),
            setup: benchmark.setup.clone(),
            differences: benchmark.differences.clone(),
            started_unix_s: now_unix_s(),
            connections: size.connections,
            time_s: benchmark.held_s(size),
            ..Outcome::default()
        }
    }

    /// Adds what the runs have measured.
    pub(crate) fn complete(&mut self, benchmark: &Benchmark, figures: &Figures) {
        let measured = |measure| MeasuredValue::of(measure, figures.figure(&measure.value));
        self.measurements = benchmark.measures.iter().map(measured).collect();
        self.tables.extend(benchmark.tables.iter().filter_map(|table| Table::of(table, figures)));
        self.plots.extend(benchmark.plots.iter().map(|of| plot(of, figures)));
    }

    /// Fails if a check of the benchmark does.
    pub(crate) fn check(&mut self, benchmark: &Benchmark, figures: &Figures) {
        for check in &benchmark.checks {
            let bound = |text: &Option<String>| figures.figure(text.as_ref()?).value;
            let Some(value) = figures.figure(&check.value).value else { continue };
            let shown = decimal(value);
            if let Some(min) = bound(&check.min).filter(|min| value < *min) {
                self.fail(format!(
                    "{}: {shown}, and {} at least expected",
                    check.name,
                    decimal(min)
                ));
            }
            if let Some(max) = bound(&check.max).filter(|max| value > *max) {
                self.fail(format!(
                    "{}: {shown}, and {} at most expected",
                    check.name,
                    decimal(max)
                ));
            }
        }
    }

    /// Marks the benchmark as failed, and adds a reason.
    pub(crate) fn fail(&mut self, reason: impl Into<String>) {
        self.verdict = Verdict::Failed;
        self.reasons.push(reason.into());
    }
}

impl Table {
    /// A row for each element of the longest column; a column of one element has it in each row.
    fn of(table: &TableOf, figures: &Figures) -> Option<Table> {
        let columns = table.columns.iter().map(|(_, expression)| figures.list(expression));
        let columns: Vec<_> = columns.collect();
        let rows = columns.iter().map(Vec::len).max().filter(|&rows| rows > 0)?;
        let cell = |column: &Vec<Figure>, row: usize| {
            let figure = if column.len() == 1 { column.first() } else { column.get(row) };
            figure.and_then(|figure| figure.value)
        };
        let row = |row| columns.iter().map(|column| cell(column, row)).collect();
        Some(Table {
            title: table.title.clone(),
            columns: table.columns.iter().map(|(name, _)| name.clone()).collect(),
            rows: (0..rows).map(row).collect(),
        })
    }
}

/// The values of a plot.
fn plot(plot: &PlotOf, figures: &Figures) -> Plot {
    let (axis, x) = match &plot.x {
        Some(x) => ("clients", figures.list(x)),
        None => ("time", figures.list("samples.at_s")),
    };
    let line = |(name, expression): &(String, String)| {
        let values = figures.list(expression);
        let at = |nth: usize| if values.len() == 1 { values.first() } else { values.get(nth) };
        let points = x.iter().enumerate().filter_map(|(nth, x)| Some((x.value?, at(nth)?.value)));
        PlotLine { name: name.clone(), points: points.collect() }
    };
    let published = plot.published.iter().map(|(name, points)| PlotLine {
        name: name.clone(),
        points: points.iter().map(|&(x, y)| (x, Some(y))).collect(),
    });
    Plot {
        id: plot.id.clone(),
        title: plot.title.clone(),
        note: plot.note.clone(),
        unit: Unit::named(&plot.unit).unwrap_or_default(),
        x_axis: axis.to_owned(),
        is_log: plot.log,
        is_log_x: plot.log_x,
        lines: plot.lines.iter().map(line).chain(published).collect(),
    }
}

impl Results {
    /// The results as indented JSON.
    pub(crate) fn to_json(&self) -> String {
        to_json(self)
    }

    /// Reads what [`to_json`](Self::to_json) has written.
    pub(crate) fn read(path: &Path) -> Result<Results, ReadError> {
        FORMAT.read(path)
    }
}

/// Now, in seconds since 1970.
pub(crate) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::PublishedOf;
    use crate::library::all;

    #[test]
    fn results_are_read_as_they_were_written() {
        let benchmark = &all()[0];
        let mut outcome = Outcome::of(benchmark, &benchmark.sized(None, None));
        outcome
            .measurements
            .push(MeasuredValue::of(&benchmark.measures[0], Figure::of(Some(1.5), 9)));
        outcome.fail("one");
        let results = Results { version: VERSION, benchmarks: vec![outcome], ..Results::default() };
        let directory = crate::directory::temporary().expect("made");
        let path = directory.path().join("results.json");
        std::fs::write(&path, results.to_json()).expect("written");
        assert_eq!(Results::read(&path).expect("read"), results);
    }

    #[test]
    fn a_value_has_a_ratio_if_sizes_are_comparable() {
        let published = PublishedOf { value: 100.0, connections: 10, what: String::new() };
        let mut measure = all()[0].measures[0].clone();
        measure.per_connection = false;
        (measure.better, measure.published) = (Some("less".to_owned()), Some(published));
        let of = |measure: &Measure, value, connections| {
            let measured = MeasuredValue::of(measure, Figure::of(Some(value), connections));
            (measured.ours, measured.ratio)
        };
        assert_eq!(of(&measure, 25.0, 10), (Some(25.0), Some(4.0)));
        assert_eq!(of(&measure, f64::NAN, 10), (None, None));
        assert_eq!(of(&measure, 25.0, 8), (Some(25.0), None));
        measure.per_connection = true;
        assert_eq!(of(&measure, 25.0, 8).1, Some(4.0));
    }
}
