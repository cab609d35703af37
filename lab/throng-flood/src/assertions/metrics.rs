//! The metrics of a report that an assertion can name, from the table `metrics.toml`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;
use throng_report::Unit;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum MetricUnit {
    #[default]
    Plain,
    Rate,
    Bytes,
    Milliseconds,
    Microseconds,
    Seconds,
}

/// A condition on the plan, without which a metric is not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Requirement {
    Publishing,
    /// The server's process is known.
    Server,
    Storm,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Metric {
    #[serde(default)]
    pub(super) unit: MetricUnit,
    #[serde(rename = "needs")]
    pub(super) requirement: Option<Requirement>,
    of: String,
    by: Option<String>,
    storms: Option<Fold>,
}

/// How the numbers of all storms are combined.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fold {
    Sum,
    Max,
    /// The maximum, if every storm has a number.
    MaxOfAll,
}

/// The fields of a distribution. One alone is of all deliveries.
const POINTS: [&str; 7] = ["min", "mean", "p50", "p90", "p99", "p999", "max"];

/// All metrics, by their names.
static METRICS: LazyLock<BTreeMap<String, Metric>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Tables {
        metrics: BTreeMap<String, Metric>,
        distributions: BTreeMap<String, Metric>,
    }
    // Tests read it.
    let tables: Tables = toml::from_str(include_str!("metrics.toml")).expect("a table of metrics");
    let mut metrics = tables.metrics;
    for (name, distribution) in tables.distributions {
        for point in POINTS {
            let of = format!("{}/{point}", distribution.of);
            let metric = Metric { of, unit: MetricUnit::Milliseconds, ..distribution.clone() };
            if name == "delivery" {
                metrics.insert(point.to_owned(), metric.clone());
            }
            metrics.insert(format!("{name}.{point}"), metric);
        }
    }
    metrics
});

impl Metric {
    /// The metric with this name.
    pub(crate) fn named(name: &str) -> Option<&'static Metric> {
        METRICS.get(&name.replace('-', "_").replace("p99.9", "p999"))
    }

    /// The [value](Self::find) in a unit of reports.
    pub(crate) fn in_unit(&self, unit: Unit, report: &Value) -> Option<f64> {
        let factor = match (self.unit, unit) {
            (MetricUnit::Microseconds, Unit::Milliseconds) => 1e-3,
            (MetricUnit::Seconds, Unit::Milliseconds) => 1e3,
            _ => 1.0,
        };
        Some(self.find(report)? * factor)
    }

    /// The value in the JSON of a report; `None` where it was not measured.
    pub(crate) fn find(&self, report: &Value) -> Option<f64> {
        let Some(fold) = self.storms else {
            let found = number(report, &self.of)?;
            return match &self.by {
                Some(by) => Some(found / number(report, by).filter(|by| *by > 0.0)?),
                None => Some(found),
            };
        };
        let is_storm =
            |phase: &&Value| phase["name"].as_str().is_some_and(|it| it.starts_with("storm"));
        let storms = report["phases"].as_array()?.iter().filter(is_storm);
        let mut numbers = storms.map(|storm| number(storm, &self.of));
        match fold {
            Fold::Sum => Some(numbers.flatten().sum()),
            Fold::Max => numbers.flatten().reduce(f64::max),
            Fold::MaxOfAll => numbers.try_fold(None, |max: Option<f64>, found| {
                found.map(|found| Some(max.map_or(found, |max| max.max(found))))
            })?,
        }
    }
}

/// The number at a path; `None` if it is a point of an empty distribution.
fn number(report: &Value, path: &str) -> Option<f64> {
    let (around, _) = path.rsplit_once('/')?;
    if report.pointer(around)?["count"] == 0 {
        return None;
    }
    match report.pointer(path)? {
        Value::Array(list) => Some(list.len() as f64),
        Value::Object(counts) => Some(counts.values().filter_map(Value::as_f64).sum()),
        other => other.as_f64(),
    }
}

/// Every name, for suggestions.
pub(super) fn names() -> impl Iterator<Item = &'static str> + Clone {
    METRICS.keys().map(String::as_str)
}
