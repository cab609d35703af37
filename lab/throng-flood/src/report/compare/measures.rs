//! What is compared between runs.

use throng_report::Distribution;
use throng_report::compare::{Better, Measure, Range, quartiles};
use throng_units::format;

use crate::report::{Report, Sample};

/// The slabs of the whole machine grow and shrink by this much with unrelated activity.
const KERNEL_NOISE_BYTES: f64 = 8e6;

/// An allocator takes and returns memory in steps of about this size.
const PROCESS_NOISE_BYTES: f64 = 512e3;

/// All measurements, in the order of the table.
pub(super) const ALL: [Measure<Report>; 23] = [
    Measure {
        name: "connections",
        show: whole,
        better: Better::Neither,
        value: |run| Some(run.total.active as f64),
        range: Range::Exact,
    },
    Measure {
        name: "connect rate",
        show: format::rate,
        better: Better::More,
        value: |run| run.total.connect_rate,
        range: Range::Quartiles(|run| {
            seconds(run, |second| (second.subscribed > 0).then_some(second.subscribed as f64))
        }),
    },
    latency("connect p50", |run| Some(run.total.connect.as_ref()?.p50), Range::Unknown),
    latency("connect p99", |run| Some(run.total.connect.as_ref()?.p99), Range::Unknown),
    fault("client failures", |run| counted(run.total.failures.values().copied())),
    fault("failed publishes", |run| counted(run.total.publish_failures.values().copied())),
    fault("lost", |run| counted([run.total.lost])),
    fault("missed", |run| counted([run.total.missed])),
    fault("duplicated", |run| counted([run.total.duplicated])),
    fault("reordered", |run| counted([run.total.reordered])),
    Measure {
        name: "delivery rate",
        show: format::rate,
        better: Better::Neither,
        value: |run| run.total.delivery_rate,
        range: Range::Quartiles(|run| {
            seconds(run, |second| (second.received > 0).then_some(second.received as f64))
        }),
    },
    latency(
        "delivery p50",
        |run| Some(run.total.delivery.as_ref()?.p50),
        Range::Quartiles(|run| seconds(run, |second| Some(second.delivery.as_ref()?.p50))),
    ),
    latency(
        "delivery p99",
        |run| Some(run.total.delivery.as_ref()?.p99),
        Range::Quartiles(|run| seconds(run, |second| Some(second.delivery.as_ref()?.p99))),
    ),
    latency(
        "delivery p99.9",
        |run| Some(run.total.delivery.as_ref()?.p999),
        Range::Quartiles(|run| seconds(run, |second| Some(second.delivery.as_ref()?.p999))),
    ),
    latency(
        "delivery max",
        |run| Some(run.total.delivery.as_ref()?.max),
        Range::Quartiles(|run| seconds(run, |second| Some(second.delivery.as_ref()?.max))),
    ),
    latency(
        "first of a publish",
        |run| Some(run.total.first.as_ref()?.p50),
        Range::Quartiles(|run| publishes(run.total.first.as_ref())),
    ),
    latency(
        "last of a publish",
        |run| Some(run.total.last.as_ref()?.p50),
        Range::Quartiles(|run| publishes(run.total.last.as_ref())),
    ),
    Measure {
        name: "back after a storm",
        show: format::seconds,
        better: Better::Less,
        value: |run| run.phases.iter().filter_map(|phase| phase.recovered_s).reduce(f64::max),
        range: Range::Unknown,
    },
    Measure {
        name: "server memory per client",
        show: format::bytes,
        better: Better::Less,
        value: |run| run.total.server.as_ref()?.bytes_per_client,
        range: Range::Noise(|run| PROCESS_NOISE_BYTES / clients(run)),
    },
    Measure {
        name: "kernel memory per client",
        show: format::bytes,
        better: Better::Less,
        value: |run| {
            let clients = (run.total.active > 0).then_some(run.total.active as f64)?;
            Some(run.total.kernel_bytes? as f64 / clients)
        },
        range: Range::Noise(|run| KERNEL_NOISE_BYTES / clients(run)),
    },
    latency(
        "server CPU per delivery",
        |run| Some(run.total.server.as_ref()?.cpu_us_per_delivery? / 1e3),
        Range::Unknown,
    ),
    latency(
        "machine CPU per delivery",
        |run| Some(run.total.machine.as_ref()?.cpu_us_per_delivery? / 1e3),
        Range::Unknown,
    ),
    Measure {
        name: "generator CPU per delivery",
        show: format::milliseconds,
        better: Better::Neither,
        value: |run| Some(run.total.generator.cpu_us_per_delivery? / 1e3),
        range: Range::Unknown,
    },
];

const fn latency(
    name: &'static str,
    value: fn(&Report) -> Option<f64>,
    range: Range<Report>,
) -> Measure<Report> {
    Measure { name, show: format::milliseconds, better: Better::Less, value, range }
}

/// A count that should be zero.
const fn fault(name: &'static str, value: fn(&Report) -> Option<f64>) -> Measure<Report> {
    Measure { name, show: whole, better: Better::Less, value, range: Range::Exact }
}

fn whole(number: f64) -> String {
    format::count(number as u64)
}

fn counted(numbers: impl IntoIterator<Item = u64>) -> Option<f64> {
    Some(numbers.into_iter().sum::<u64>() as f64)
}

fn clients(run: &Report) -> f64 {
    run.total.active.max(1) as f64
}

/// Quartiles over the seconds of a run.
fn seconds(run: &Report, value: fn(&Sample) -> Option<f64>) -> Option<(f64, f64)> {
    quartiles(run.series.iter().filter_map(value))
}

/// Quartiles over the publishes of a run.
fn publishes(found: Option<&Distribution>) -> Option<(f64, f64)> {
    let found = found?;
    Some((found.quantile(0.25)?, found.quantile(0.75)?))
}
