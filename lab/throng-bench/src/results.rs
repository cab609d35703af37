//! The results of benchmarks, as they are stored in JSON.
//!
//! Sizes are in bytes, times in seconds unless the name says otherwise. A value that was not
//! measured is absent (`null`), never zero.

use std::collections::{BTreeMap, BTreeSet};
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

use crate::expression::{self, Figure};
use crate::figures::Figures;
use crate::file::{Benchmark, Goal, Measure, PlotOf, Published, Size, TableOf};

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
    /// How many times the runs were made.
    pub(crate) repeats: u32,
    /// The numbers of the file, which `--set` may have changed.
    pub(crate) numbers: BTreeMap<String, f64>,
    /// The name of the values that ours stand beside, such as `raw loop`.
    pub(crate) beside: Option<String>,
    /// How to read the measurements, one remark each.
    pub(crate) notes: Vec<String>,
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
    pub(crate) published: Option<Published>,
    /// How many times as good our value is; absent if the sizes are not comparable.
    pub(crate) ratio: Option<f64>,
    /// Our values of all runs; absent if there is one only.
    pub(crate) runs: Option<Spread>,
    /// The values that ours stand beside.
    pub(crate) beside: Option<Spread>,
    /// Ours divided by the one beside it, run by run.
    pub(crate) beside_ratio: Option<Spread>,
    pub(crate) goal: Option<Goal>,
    /// True if the median reaches the goal; absent without a goal or a value.
    pub(crate) is_reached: Option<bool>,
}

/// The median of the values of several runs, and their range.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
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

impl Spread {
    /// `None` without a known value.
    fn of(list: &[Figure]) -> Option<Spread> {
        let values: Vec<f64> = list.iter().filter_map(|figure| figure.value).collect();
        let (min, max) =
            (values.iter().copied().reduce(f64::min)?, values.iter().copied().reduce(f64::max)?);
        Some(Spread { median: expression::median(values)?, min, max })
    }
}

impl Goal {
    /// True if a value, and its ratio to the one beside it, reach the goal.
    fn is_reached(self, ours: Option<f64>, ratio: Option<f64>) -> Option<bool> {
        match self {
            Goal::AtMost(most) => ours.map(|ours| ours <= most),
            Goal::RatioAtLeast(least) => ratio.map(|ratio| ratio >= least),
            Goal::RatioAtMost(most) => ratio.map(|ratio| ratio <= most),
        }
    }
}

impl MeasuredValue {
    /// A measure with its values of all runs, and those that they stand beside.
    fn measured(measure: &Measure, figures: &Figures) -> MeasuredValue {
        let mut measured = MeasuredValue::of(measure, figures.figure(&measure.value));
        let ours = figures.list(&measure.value);
        measured.runs = Spread::of(&ours).filter(|_| ours.len() > 1);
        if let Some(beside) = &measure.beside {
            let beside = figures.list(beside);
            measured.beside = Spread::of(&beside);
            measured.beside_ratio = Spread::of(&expression::quotients(&ours, &beside));
        }
        let ratio = measured.beside_ratio.map(|ratio| ratio.median);
        measured.goal = measure.goal;
        measured.is_reached = measure.goal.and_then(|goal| goal.is_reached(measured.ours, ratio));
        measured
    }

    /// A measure with its value.
    fn of(measure: &Measure, figure: Figure) -> MeasuredValue {
        let mut measured = MeasuredValue {
            key: measure.key.clone(),
            name: measure.name.clone(),
            unit: Unit::named(&measure.unit).unwrap_or_default(),
            better: measure.better.clone(),
            is_per_connection: measure.per_connection,
            published: measure.published.clone(),
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
            repeats: benchmark.size.repeats,
            numbers: benchmark.numbers.clone(),
            beside: benchmark.beside.clone(),
            notes: benchmark.notes.clone(),
            ..Outcome::default()
        }
    }

    /// Adds what the runs have measured.
    pub(crate) fn complete(&mut self, benchmark: &Benchmark, figures: &Figures) {
        let measured = |measure| MeasuredValue::measured(measure, figures);
        self.measurements = benchmark.measures.iter().map(measured).collect();
        // A run that is repeated says everything again.
        let mut said = BTreeSet::new();
        self.warnings.retain(|warning| said.insert(warning.clone()));
        self.tables.extend(benchmark.tables.iter().filter_map(|table| Table::of(table, figures)));
        self.plots.extend(benchmark.plots.iter().map(|of| plot(of, figures)));
    }

    /// Fails if a check of the benchmark does.
    pub(crate) fn check(&mut self, benchmark: &Benchmark, figures: &Figures) {
        for check in &benchmark.checks {
            let bound = |text: &Option<String>| figures.figure(text.as_ref()?).value;
            let Some(value) = figures.figure(&check.value).value else { continue };
            let (min, max) = (bound(&check.min), bound(&check.max));
            let too_low = min.filter(|min| value < *min).map(|min| (min, "least"));
            let too_high = max.filter(|max| value > *max).map(|max| (max, "most"));
            for (bound, most) in too_low.into_iter().chain(too_high) {
                let (name, shown, bound) = (&check.name, decimal(value), decimal(bound));
                self.fail(format!("{name}: {shown}, and {bound} at {most} expected"));
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
    use crate::benchmarks::all;
    use crate::figures::RunFigures;
    use crate::file::Published;

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

    /// The measure of `baseline` with this key, with values of Throng and of the raw loop.
    fn beside(key: &str, ours: &[f64], raw: &[f64]) -> MeasuredValue {
        let all = all();
        let baseline = all.iter().find(|benchmark| benchmark.name == "baseline").expect("known");
        let measure = baseline.measures.iter().find(|measure| measure.key == key).expect("known");
        let runs = [(&measure.value, ours), (measure.beside.as_ref().expect("beside"), raw)];
        let runs = runs.map(|(place, values)| {
            let (run, figure) = place.split_once('.').expect("a figure of a run");
            let mut figures = RunFigures::new(run, 1);
            values.iter().for_each(|value| figures.give(figure, Figure::of(Some(*value), 1)));
            figures
        });
        let size = baseline.sized(None, None);
        MeasuredValue::measured(measure, &Figures { size, cores: 1.0, runs: runs.to_vec() })
    }

    #[test]
    fn ratios_are_taken_run_by_run() {
        let found = beside("burst_batch_rate", &[300.0, 800.0, 100.0], &[100.0, 200.0, 50.0]);
        assert_eq!(found.runs, Some(Spread { median: 300.0, min: 100.0, max: 800.0 }));
        assert_eq!(found.beside, Some(Spread { median: 100.0, min: 50.0, max: 200.0 }));
        assert_eq!(found.beside_ratio, Some(Spread { median: 3.0, min: 2.0, max: 4.0 }));
        assert_eq!(found.is_reached, Some(true));
    }

    #[test]
    fn a_goal_needs_a_value() {
        let reached = |key, ours: &[f64], raw: &[f64]| beside(key, ours, raw).is_reached;
        assert_eq!(reached("fanout_64_cpu", &[1.2], &[1.0]), Some(false));
        assert_eq!(reached("fanout_64_cpu", &[1.1], &[1.0]), Some(true));
        assert_eq!(reached("health_new_p50", &[20.5], &[]), Some(false));
        assert_eq!(reached("fanout_64_rate", &[1.0], &[]), None);
        assert_eq!(reached("fanout_64_rate", &[], &[1.0]), None);
        assert_eq!(reached("fanout_64_p50", &[1.0], &[1.0]), None);
    }

    #[test]
    fn a_value_has_a_ratio_if_sizes_are_comparable() {
        let published = Published { value: 100.0, connections: 10, what: String::new() };
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
