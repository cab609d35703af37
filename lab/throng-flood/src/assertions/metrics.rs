//! The metrics of a report that an assertion can name.

use crate::report::{Cost, Distribution, PhaseReport, Report, Totals};

/// What a metric counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricUnit {
    Plain,
    Rate,
    Bytes,
    Milliseconds,
    Microseconds,
    Seconds,
}

/// What a plan must have for a metric to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requirement {
    /// Something is published.
    Publishing,
    /// The server's process is known.
    Server,
    /// There is a storm.
    Storm,
}

/// A metric, by its name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Metric {
    unit: MetricUnit,
    requirement: Option<Requirement>,
    of: MetricSource,
}

type Point = fn(&Distribution) -> f64;

#[derive(Debug, Clone, Copy, PartialEq)]
enum MetricSource {
    Single(usize),
    Percentile { of: usize, point: usize },
}

type SingleMetric = (&'static str, MetricUnit, Option<Requirement>, fn(&Report) -> Option<f64>);

const PUBLISHING: Option<Requirement> = Some(Requirement::Publishing);
const SERVER: Option<Requirement> = Some(Requirement::Server);

const SINGLE_METRICS: [SingleMetric; 36] = [
    ("lost", MetricUnit::Plain, PUBLISHING, |report| Some(report.total.lost as f64)),
    ("missed", MetricUnit::Plain, PUBLISHING, |report| Some(report.total.missed as f64)),
    ("duplicated", MetricUnit::Plain, PUBLISHING, |report| Some(report.total.duplicated as f64)),
    ("reordered", MetricUnit::Plain, PUBLISHING, |report| Some(report.total.reordered as f64)),
    ("expected", MetricUnit::Plain, PUBLISHING, |report| Some(report.total.expected as f64)),
    ("received", MetricUnit::Plain, PUBLISHING, |report| Some(report.total.received as f64)),
    ("published", MetricUnit::Plain, PUBLISHING, |report| Some(report.total.published as f64)),
    ("failures", MetricUnit::Plain, None, |report| {
        Some(report.total.failures.values().sum::<u64>() as f64)
    }),
    ("publish_failures", MetricUnit::Plain, PUBLISHING, |report| {
        Some(report.total.publish_failures.values().sum::<u64>() as f64)
    }),
    ("active", MetricUnit::Plain, None, |report| Some(report.total.active as f64)),
    ("attempts", MetricUnit::Plain, None, |report| Some(report.total.attempts as f64)),
    ("subscribed", MetricUnit::Plain, None, |report| Some(report.total.subscribed as f64)),
    ("warnings", MetricUnit::Plain, None, |report| Some(report.warnings.len() as f64)),
    ("connect_rate", MetricUnit::Rate, None, |report| report.total.connect_rate),
    ("publish_rate", MetricUnit::Rate, PUBLISHING, |report| report.total.publish_rate),
    ("delivery_rate", MetricUnit::Rate, PUBLISHING, |report| report.total.delivery_rate),
    ("seconds", MetricUnit::Seconds, None, |report| Some(report.seconds)),
    ("kernel.bytes", MetricUnit::Bytes, None, |report| {
        report.total.kernel_bytes.map(|bytes| bytes as f64)
    }),
    ("server.bytes", MetricUnit::Bytes, SERVER, |report| bytes(server(&report.total)?)),
    ("server.bytes_per_client", MetricUnit::Bytes, SERVER, |report| {
        server(&report.total)?.bytes_per_client
    }),
    ("server.cpu", MetricUnit::Seconds, SERVER, |report| Some(server(&report.total)?.cpu_s)),
    ("server.cpu_per_delivery", MetricUnit::Microseconds, SERVER, |report| {
        server(&report.total)?.cpu_us_per_delivery
    }),
    ("server.cores", MetricUnit::Plain, SERVER, |report| cores(server(&report.total)?, report)),
    ("generator.bytes", MetricUnit::Bytes, None, |report| bytes(&report.total.generator)),
    ("generator.bytes_per_client", MetricUnit::Bytes, None, |report| {
        report.total.generator.bytes_per_client
    }),
    ("generator.cpu", MetricUnit::Seconds, None, |report| Some(report.total.generator.cpu_s)),
    ("generator.cpu_per_delivery", MetricUnit::Microseconds, PUBLISHING, |report| {
        report.total.generator.cpu_us_per_delivery
    }),
    ("generator.cores", MetricUnit::Plain, None, |report| cores(&report.total.generator, report)),
    ("machine.cpu", MetricUnit::Seconds, None, |report| Some(report.total.machine.as_ref()?.cpu_s)),
    ("machine.cpu_per_delivery", MetricUnit::Microseconds, PUBLISHING, |report| {
        report.total.machine.as_ref()?.cpu_us_per_delivery
    }),
    ("storm.recovered", MetricUnit::Seconds, Some(Requirement::Storm), recovered),
    ("storm.told", MetricUnit::Plain, Some(Requirement::Storm), |report| {
        let told =
            report.phases.iter().filter(|phase| is_storm(phase)).map(|phase| phase.totals.told);
        Some(told.sum::<u64>() as f64)
    }),
    ("storm.connect.p99", MetricUnit::Milliseconds, Some(Requirement::Storm), |report| {
        let connects = report.phases.iter().filter(|phase| is_storm(phase));
        let p99s = connects.map(|phase| phase.totals.connect.as_ref().map(|found| found.p99));
        p99s.flatten().reduce(f64::max)
    }),
    ("storm.failures", MetricUnit::Plain, Some(Requirement::Storm), |report| {
        let of_storm = |phase: &&PhaseReport| is_storm(phase);
        let count = |phase: &PhaseReport| phase.totals.failures.values().sum::<u64>();
        Some(report.phases.iter().filter(of_storm).map(count).sum::<u64>() as f64)
    }),
    ("lost_share", MetricUnit::Plain, PUBLISHING, |report| {
        (report.total.expected > 0).then(|| report.total.lost as f64 / report.total.expected as f64)
    }),
    ("received_share", MetricUnit::Plain, PUBLISHING, |report| {
        (report.total.expected > 0)
            .then(|| report.total.received as f64 / report.total.expected as f64)
    }),
];

type DistributionMetric = (&'static str, Option<Requirement>, fn(&Totals) -> Option<&Distribution>);

/// Distributions; those of a publish (its first, median … last delivery) are over all publishes.
const DISTRIBUTIONS: [DistributionMetric; 10] = [
    ("delivery", PUBLISHING, |totals| totals.delivery.as_ref()),
    ("connect", None, |totals| totals.connect.as_ref()),
    ("tls", None, |totals| totals.tls.as_ref()?.handshake.as_ref()),
    ("first", PUBLISHING, |totals| totals.first.as_ref()),
    ("median", PUBLISHING, |totals| totals.median.as_ref()),
    ("each_p99", PUBLISHING, |totals| totals.p99.as_ref()),
    ("each_p999", PUBLISHING, |totals| totals.p999.as_ref()),
    ("last", PUBLISHING, |totals| totals.last.as_ref()),
    ("publish_answer", PUBLISHING, |totals| totals.publish_answer.as_ref()),
    ("publish_lateness", PUBLISHING, |totals| totals.publish_lateness.as_ref()),
];

const POINTS: [(&str, Point); 7] = [
    ("min", |found| found.min),
    ("mean", |found| found.mean),
    ("p50", |found| found.p50),
    ("p90", |found| found.p90),
    ("p99", |found| found.p99),
    ("p999", |found| found.p999),
    ("max", |found| found.max),
];

impl Metric {
    /// The metric with this name. A percentile alone is one of all deliveries.
    pub(crate) fn named(name: &str) -> Option<Metric> {
        let name = name.replace('-', "_").replace("p99.9", "p999");
        if let Some(single) = SINGLE_METRICS.iter().position(|(single, ..)| *single == name) {
            let (_, unit, requirement, _) = SINGLE_METRICS[single];
            return Some(Metric { unit, requirement, of: MetricSource::Single(single) });
        }
        let (spread, point) = name.rsplit_once('.').unwrap_or(("delivery", &name));
        let of = DISTRIBUTIONS.iter().position(|(known, ..)| *known == spread)?;
        let point = POINTS.iter().position(|(known, _)| *known == point)?;
        let of = MetricSource::Percentile { of, point };
        let requirement = DISTRIBUTIONS.iter().find(|(known, ..)| *known == spread)?.1;
        Some(Metric { unit: MetricUnit::Milliseconds, requirement, of })
    }

    pub(super) fn unit(self) -> MetricUnit {
        self.unit
    }

    /// What a plan must have for it to be measured.
    pub(crate) fn requirement(self) -> Option<Requirement> {
        self.requirement
    }

    /// What the report says; nothing where it was not measured.
    pub(crate) fn find(self, report: &Report) -> Option<f64> {
        match self.of {
            MetricSource::Single(single) => SINGLE_METRICS[single].3(report),
            MetricSource::Percentile { of, point } => {
                let distribution = DISTRIBUTIONS[of].2(&report.total)?;
                (distribution.count > 0).then(|| POINTS[point].1(distribution))
            }
        }
    }
}

/// Every name, for suggestions.
pub(super) fn names() -> Vec<String> {
    let singles = SINGLE_METRICS.iter().map(|(name, ..)| (*name).to_owned());
    let points = POINTS.iter().map(|(point, _)| (*point).to_owned());
    let of =
        |spread: &'static str| POINTS.iter().map(move |(point, _)| format!("{spread}.{point}"));
    let spreads = DISTRIBUTIONS.iter().flat_map(|(spread, ..)| of(spread));
    singles.chain(points).chain(spreads).collect()
}

fn server(totals: &Totals) -> Option<&Cost> {
    totals.server.as_ref()
}

fn bytes(cost: &Cost) -> Option<f64> {
    cost.pss_bytes.map(|bytes| bytes as f64)
}

fn cores(cost: &Cost, report: &Report) -> Option<f64> {
    (report.seconds > 0.0).then(|| cost.cpu_s / report.seconds)
}

fn is_storm(phase: &PhaseReport) -> bool {
    phase.name.starts_with("storm")
}

/// The slowest storm's recovery; nothing if one was not recovered from.
fn recovered(report: &Report) -> Option<f64> {
    let storms = report.phases.iter().filter(|phase| is_storm(phase));
    let times: Option<Vec<f64>> = storms.map(|phase| phase.recovered_s).collect();
    times?.into_iter().reduce(f64::max)
}
