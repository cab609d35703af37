//! The metrics of a report that an assertion can name: where they stand in its JSON.

use serde_json::Value;
use throng_report::Unit;

use MetricSource::{Field, Ratio, Storms};
use MetricUnit::{Bytes, Microseconds, Milliseconds, Plain, Rate, Seconds};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricUnit {
    Plain,
    Rate,
    Bytes,
    Milliseconds,
    Microseconds,
    Seconds,
}

/// A condition on the plan, without which a metric is not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requirement {
    Publishing,
    /// The server's process is known.
    Server,
    Storm,
}

/// A metric, by its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Metric {
    unit: MetricUnit,
    requirement: Option<Requirement>,
    source: MetricSource,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum MetricSource {
    /// A number of the report; the sum of an object, or the length of a list.
    Field(&'static str),
    /// One number divided by another, if that is not 0.
    Ratio(&'static str, &'static str),
    /// A number of all storms; `None` if it has to be there for each, and is not.
    Storms(&'static str, Fold),
    /// A point of a distribution.
    Point(&'static str, &'static str),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fold {
    Sum,
    Max,
    /// The maximum, if every storm has a number.
    MaxOfAll,
}

type NamedMetric = (&'static str, MetricUnit, Option<Requirement>, MetricSource);

const PUBLISHING: Option<Requirement> = Some(Requirement::Publishing);
const SERVER: Option<Requirement> = Some(Requirement::Server);
const STORM: Option<Requirement> = Some(Requirement::Storm);

#[rustfmt::skip]
const METRICS: [NamedMetric; 37] = [
    ("lost", Plain, PUBLISHING, Field("/total/lost")),
    ("missed", Plain, PUBLISHING, Field("/total/missed")),
    ("duplicated", Plain, PUBLISHING, Field("/total/duplicated")),
    ("reordered", Plain, PUBLISHING, Field("/total/reordered")),
    ("expected", Plain, PUBLISHING, Field("/total/expected")),
    ("received", Plain, PUBLISHING, Field("/total/received")),
    ("published", Plain, PUBLISHING, Field("/total/published")),
    ("failures", Plain, None, Field("/total/failures")),
    ("publish_failures", Plain, PUBLISHING, Field("/total/publish_failures")),
    ("active", Plain, None, Field("/total/active")),
    ("attempts", Plain, None, Field("/total/attempts")),
    ("subscribed", Plain, None, Field("/total/subscribed")),
    ("warnings", Plain, None, Field("/warnings")),
    ("connect_rate", Rate, None, Field("/total/connect_rate")),
    ("publish_rate", Rate, PUBLISHING, Field("/total/publish_rate")),
    ("delivery_rate", Rate, PUBLISHING, Field("/total/delivery_rate")),
    ("seconds", Seconds, None, Field("/seconds")),
    ("kernel.bytes", Bytes, None, Field("/total/kernel_bytes")),
    ("kernel.bytes_per_client", Bytes, None, Ratio("/total/kernel_bytes", "/total/active")),
    ("server.bytes", Bytes, SERVER, Field("/total/server/pss_bytes")),
    ("server.bytes_per_client", Bytes, SERVER, Field("/total/server/bytes_per_client")),
    ("server.cpu", Seconds, SERVER, Field("/total/server/cpu_s")),
    ("server.cpu_per_delivery", Microseconds, SERVER, Field("/total/server/cpu_us_per_delivery")),
    ("server.cores", Plain, SERVER, Ratio("/total/server/cpu_s", "/seconds")),
    ("generator.bytes", Bytes, None, Field("/total/generator/pss_bytes")),
    ("generator.bytes_per_client", Bytes, None, Field("/total/generator/bytes_per_client")),
    ("generator.cpu", Seconds, None, Field("/total/generator/cpu_s")),
    ("generator.cpu_per_delivery", Microseconds, PUBLISHING,
        Field("/total/generator/cpu_us_per_delivery")),
    ("generator.cores", Plain, None, Ratio("/total/generator/cpu_s", "/seconds")),
    ("machine.cpu", Seconds, None, Field("/total/machine/cpu_s")),
    ("machine.cpu_per_delivery", Microseconds, PUBLISHING,
        Field("/total/machine/cpu_us_per_delivery")),
    ("storm.recovered", Seconds, STORM, Storms("/recovered_s", Fold::MaxOfAll)),
    ("storm.told", Plain, STORM, Storms("/totals/told", Fold::Sum)),
    ("storm.connect.p99", Milliseconds, STORM, Storms("/totals/connect/p99", Fold::Max)),
    ("storm.failures", Plain, STORM, Storms("/totals/failures", Fold::Sum)),
    ("lost_share", Plain, PUBLISHING, Ratio("/total/lost", "/total/expected")),
    ("received_share", Plain, PUBLISHING, Ratio("/total/received", "/total/expected")),
];

/// Distributions; those of a publish (its first, median … last delivery) are over all publishes.
const DISTRIBUTIONS: [(&str, Option<Requirement>, &str); 10] = [
    ("delivery", PUBLISHING, "/total/delivery"),
    ("connect", None, "/total/connect"),
    ("tls", None, "/total/tls/handshake"),
    ("first", PUBLISHING, "/total/first"),
    ("median", PUBLISHING, "/total/median"),
    ("each_p99", PUBLISHING, "/total/p99"),
    ("each_p999", PUBLISHING, "/total/p999"),
    ("last", PUBLISHING, "/total/last"),
    ("publish_answer", PUBLISHING, "/total/publish_answer"),
    ("publish_lateness", PUBLISHING, "/total/publish_lateness"),
];

/// The fields of a distribution.
const POINTS: [&str; 7] = ["min", "mean", "p50", "p90", "p99", "p999", "max"];

impl Metric {
    /// The metric with this name. A percentile alone is one of all deliveries.
    pub(crate) fn named(name: &str) -> Option<Metric> {
        let name = name.replace('-', "_").replace("p99.9", "p999");
        if let Some((_, unit, requirement, source)) =
            METRICS.into_iter().find(|(known, ..)| *known == name)
        {
            return Some(Metric { unit, requirement, source });
        }
        let (spread, point) = name.rsplit_once('.').unwrap_or(("delivery", &name));
        let (_, requirement, path) =
            DISTRIBUTIONS.into_iter().find(|(known, ..)| *known == spread)?;
        let point = POINTS.into_iter().find(|known| *known == point)?;
        Some(Metric { unit: Milliseconds, requirement, source: MetricSource::Point(path, point) })
    }

    pub(super) fn unit(self) -> MetricUnit {
        self.unit
    }

    pub(crate) fn requirement(self) -> Option<Requirement> {
        self.requirement
    }

    /// The [value](Self::find) in a unit of reports.
    pub(crate) fn in_unit(self, unit: Unit, report: &Value) -> Option<f64> {
        let factor = match (self.unit, unit) {
            (Microseconds, Unit::Milliseconds) => 1e-3,
            (Seconds, Unit::Milliseconds) => 1e3,
            _ => 1.0,
        };
        Some(self.find(report)? * factor)
    }

    /// The value in the JSON of a report; `None` where it was not measured.
    pub(crate) fn find(self, report: &Value) -> Option<f64> {
        match self.source {
            Field(path) => number(report, path),
            Ratio(path, of) => {
                let of = number(report, of).filter(|of| *of > 0.0)?;
                Some(number(report, path)? / of)
            }
            Storms(path, fold) => {
                let is_storm = |phase: &&Value| {
                    phase["name"].as_str().is_some_and(|it| it.starts_with("storm"))
                };
                let storms = report["phases"].as_array()?.iter().filter(is_storm);
                let mut numbers = storms.map(|storm| number(storm, path));
                match fold {
                    Fold::Sum => Some(numbers.flatten().sum()),
                    Fold::Max => numbers.flatten().reduce(f64::max),
                    Fold::MaxOfAll => numbers.try_fold(None, |max: Option<f64>, found| {
                        found.map(|found| Some(max.map_or(found, |max| max.max(found))))
                    })?,
                }
            }
            MetricSource::Point(path, point) => {
                let distribution = report.pointer(path)?;
                distribution["count"].as_u64().filter(|count| *count > 0)?;
                distribution[point].as_f64()
            }
        }
    }
}

fn number(report: &Value, path: &str) -> Option<f64> {
    match report.pointer(path)? {
        Value::Array(list) => Some(list.len() as f64),
        Value::Object(counts) => Some(counts.values().filter_map(Value::as_f64).sum()),
        other => other.as_f64(),
    }
}

/// Every name, for suggestions.
pub(super) fn names() -> Vec<String> {
    let singles = METRICS.iter().map(|(name, ..)| (*name).to_owned());
    let spreads = DISTRIBUTIONS
        .iter()
        .flat_map(|(spread, ..)| POINTS.iter().map(move |point| format!("{spread}.{point}")));
    singles.chain(POINTS.map(str::to_owned)).chain(spreads).collect()
}
