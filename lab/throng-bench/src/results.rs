//! The results of benchmarks, as they are stored in JSON.
//!
//! Sizes are in bytes, times in seconds unless the name says otherwise. A value that was not
//! measured is absent (`null`), never zero.

use std::path::Path;

use serde::{Deserialize, Serialize};
use throng_flood::report::Report;
use throng_report::Environment;
use throng_report::Unit;
use throng_report::compare::Better;
use throng_report::file::{Format, ReadError, to_json};

use crate::definition::{Definition, Measurement, Size};

/// The format's version; it changes when a field changes its name or meaning.
pub(crate) const VERSION: u32 = 2;

const FORMAT: Format = Format { command: "throng bench", version: VERSION };

/// Rates and times for all clients are compared only with at least this share of the published
/// number of connections.
const SIZE_SHARE_MIN: f64 = 0.9;

/// The results of a command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Results {
    /// The format, [`VERSION`].
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
    /// Year of the original.
    pub(crate) year: u16,
    /// What the original did, and why it is remembered.
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
    /// Whether the benchmark succeeded.
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

/// Whether a benchmark succeeded.
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
    /// Unit of the values: `bytes`, `milliseconds`, `per_second`, `cores`, `share` or `count`.
    pub(crate) unit: String,
    /// The better direction: `less` or `more`; absent if there is none.
    pub(crate) better: Option<String>,
    /// Whether the value is per connection, and so comparable between sizes.
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
    /// What exactly the original measured.
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

/// A chart of values over time or size.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Plot {
    /// Element id on the page.
    pub(crate) id: String,
    /// Heading for people.
    pub(crate) title: String,
    /// How to read it; may be empty.
    pub(crate) note: String,
    /// Unit of the values, as in [`MeasuredValue::unit`].
    pub(crate) unit: String,
    /// Horizontal axis: `time` (seconds) or `clients`.
    pub(crate) x_axis: String,
    /// Whether the vertical axis is logarithmic.
    pub(crate) is_log: bool,
    /// Whether the horizontal axis is logarithmic.
    pub(crate) is_log_x: bool,
    /// Lines of the chart.
    pub(crate) lines: Vec<PlotLine>,
}

/// A line of a plot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PlotLine {
    /// Name in the legend.
    pub(crate) name: String,
    /// X, and the value there if it was measured.
    pub(crate) points: Vec<(f64, Option<f64>)>,
}

impl MeasuredValue {
    /// A measurement without a value yet.
    pub(crate) fn of(measurement: &Measurement) -> MeasuredValue {
        MeasuredValue {
            key: measurement.key.to_owned(),
            name: measurement.name.to_owned(),
            unit: measurement.unit.name().to_owned(),
            better: match measurement.better {
                Better::Less => Some("less".to_owned()),
                Better::More => Some("more".to_owned()),
                Better::Neither => None,
            },
            is_per_connection: measurement.is_per_connection,
            published: measurement.published.map(|published| PublishedValue {
                value: published.value,
                connections: published.connections,
                what: published.what.to_owned(),
            }),
            ..MeasuredValue::default()
        }
    }

    /// The better direction.
    pub(crate) fn better(&self) -> Better {
        match self.better.as_deref() {
            Some("less") => Better::Less,
            Some("more") => Better::More,
            _ => Better::Neither,
        }
    }

    /// Unit of the values.
    pub(crate) fn unit(&self) -> Unit {
        Unit::named(&self.unit)
    }

    /// Whether the sizes of our value and the published one allow a comparison.
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
    /// The outcome of a benchmark that has not started.
    pub(crate) fn of(benchmark: &Definition, size: &Size, started_unix_s: u64) -> Outcome {
        Outcome {
            name: benchmark.name.to_owned(),
            title: benchmark.title.to_owned(),
            source: benchmark.source.to_owned(),
            year: benchmark.year,
            story: benchmark.story.to_owned(),
            hardware: benchmark.hardware.to_owned(),
            setup: benchmark.setup.to_owned(),
            differences: benchmark.differences.iter().map(|&text| text.to_owned()).collect(),
            started_unix_s,
            connections: size.connections,
            time_s: benchmark.scope.has_time.then_some(size.time.as_secs_f64()),
            measurements: benchmark.measurements.iter().map(MeasuredValue::of).collect(),
            ..Outcome::default()
        }
    }

    /// Marks the benchmark as failed, and adds a reason.
    pub(crate) fn fail(&mut self, reason: impl Into<String>) {
        self.verdict = Verdict::Failed;
        self.reasons.push(reason.into());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_as_they_were_written() {
        let benchmark = crate::benchmarks::ALL[0].definition;
        let mut outcome = Outcome::of(benchmark, &benchmark.scope.size, 7);
        outcome.measurements[0].set(12.5, 100);
        outcome.fail("one");
        let results = Results { version: VERSION, benchmarks: vec![outcome], ..Results::default() };
        let path = std::env::temp_dir().join(format!("throng-results-{}", std::process::id()));
        std::fs::write(&path, results.to_json()).expect("written");
        assert_eq!(Results::read(&path).expect("read"), results);
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_value_has_a_ratio_if_sizes_are_comparable() {
        let measurement = Measurement::less("a", "A", Unit::Bytes).published(100.0, 10, "x");
        let mut measured = MeasuredValue::of(&measurement);
        measured.set(25.0, 10);
        assert_eq!((measured.ours, measured.ratio), (Some(25.0), Some(4.0)));
        measured.set(f64::NAN, 10);
        assert_eq!((measured.ours, measured.ratio), (None, None));
        measured.set(25.0, 8);
        assert_eq!((measured.ours, measured.ratio), (Some(25.0), None));
        let mut each = MeasuredValue::of(&measurement.per_connection());
        each.set(25.0, 8);
        assert_eq!(each.ratio, Some(4.0));
    }
}
