//! What is compared, and how sure each value is.

use super::{Better, Side, Spread};
use crate::report::{Distribution, Report, Sample};
use throng_units::format;

/// No measurement of ours repeats itself better than this, whatever its seconds say.
pub(super) const NOISE: f64 = 0.025;

/// A single run that does not show its own spread may as well have come out so differently.
const NOISE_UNKNOWN: f64 = 0.1;

/// Slabs of the whole machine grow and shrink by so much with whatever else it does.
const KERNEL_NOISE_BYTES: f64 = 8e6;

/// An allocator takes and gives back memory of a process in steps of about this size.
const PROCESS_NOISE_BYTES: f64 = 512e3;

/// Something that is compared.
pub(super) struct Measure {
    /// As it is called.
    pub(super) name: &'static str,
    /// Its value in words.
    pub(super) show: fn(f64) -> String,
    /// Which way is better.
    pub(super) better: Better,
    value: fn(&Report) -> Option<f64>,
    spread: Within,
}

/// Where the spread of a single run comes from.
enum Within {
    /// It is counted, and exact.
    Exact,
    /// It is the same each time but for [`NOISE`], and for so many bytes in all that have nothing
    /// to do with the clients: memory a client.
    Memory(f64),
    /// A single run does not show it: [`NOISE_UNKNOWN`].
    Unknown,
    /// The quartiles of its seconds.
    Seconds(fn(&Sample) -> Option<f64>),
    /// The quartiles of its publishes.
    Publishes(fn(&Report) -> Option<&Distribution>),
}

impl Measure {
    /// What a side has, if any of its runs has it.
    pub(super) fn of(&self, side: &Side) -> Option<Spread> {
        let mut values: Vec<f64> = side.runs.iter().filter_map(self.value).collect();
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let middle = quantile(&values, 0.5)?;
        let (low, high) = match (values.as_slice(), &self.spread) {
            (_, Within::Exact) => {
                return Some(Spread { middle, low: values[0], high: *values.last()? });
            }
            ([_], within) => within.quartiles(&side.runs[0]).unwrap_or((middle, middle)),
            ([low, .., high], _) => (*low, *high),
            ([], _) => return None,
        };
        let noise = match (values.len(), &self.spread) {
            (1, Within::Unknown) => NOISE_UNKNOWN,
            _ => NOISE,
        };
        let of_bytes = match self.spread {
            Within::Memory(bytes) => bytes / side.runs[0].total.active.max(1) as f64,
            _ => 0.0,
        };
        let noise = middle.abs() * noise + of_bytes;
        Some(Spread { middle, low: low.min(middle - noise), high: high.max(middle + noise) })
    }
}

impl Within {
    fn quartiles(&self, run: &Report) -> Option<(f64, f64)> {
        match self {
            Within::Exact | Within::Memory(_) | Within::Unknown => None,
            Within::Seconds(value) => {
                let mut values: Vec<f64> = run.series.iter().filter_map(value).collect();
                values.sort_by(f64::total_cmp);
                Some((quantile(&values, 0.25)?, quantile(&values, 0.75)?))
            }
            Within::Publishes(of) => {
                let found = of(run)?;
                Some((found.quantile(0.25)?, found.quantile(0.75)?))
            }
        }
    }
}

fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = last as f64 * share;
    let (below, above) = (sorted[place as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

/// Everything, in the order of the table.
pub(super) const ALL: [Measure; 23] = [
    Measure {
        name: "connections",
        show: whole,
        better: Better::Neither,
        value: |run| Some(run.total.active as f64),
        spread: Within::Exact,
    },
    Measure {
        name: "connect rate",
        show: format::rate,
        better: Better::More,
        value: |run| run.total.connect_rate,
        spread: Within::Seconds(|sample| {
            (sample.subscribed > 0).then_some(sample.subscribed as f64)
        }),
    },
    latency("connect p50", |run| Some(run.total.connect.as_ref()?.p50), Within::Unknown),
    latency("connect p99", |run| Some(run.total.connect.as_ref()?.p99), Within::Unknown),
    bad("client failures", |run| counted(run.total.failures.values().copied())),
    bad("failed publishes", |run| counted(run.total.publish_failures.values().copied())),
    bad("lost", |run| counted([run.total.lost])),
    bad("missed", |run| counted([run.total.missed])),
    bad("duplicated", |run| counted([run.total.duplicated])),
    bad("reordered", |run| counted([run.total.reordered])),
    Measure {
        name: "delivery rate",
        show: format::rate,
        better: Better::Neither,
        value: |run| run.total.delivery_rate,
        spread: Within::Seconds(|sample| (sample.received > 0).then_some(sample.received as f64)),
    },
    latency(
        "delivery p50",
        |run| Some(run.total.delivery.as_ref()?.p50),
        Within::Seconds(|sample| Some(sample.delivery.as_ref()?.p50)),
    ),
    latency(
        "delivery p99",
        |run| Some(run.total.delivery.as_ref()?.p99),
        Within::Seconds(|sample| Some(sample.delivery.as_ref()?.p99)),
    ),
    latency(
        "delivery p99.9",
        |run| Some(run.total.delivery.as_ref()?.p999),
        Within::Seconds(|sample| Some(sample.delivery.as_ref()?.p999)),
    ),
    latency(
        "delivery max",
        |run| Some(run.total.delivery.as_ref()?.max),
        Within::Seconds(|sample| Some(sample.delivery.as_ref()?.max)),
    ),
    latency(
        "first of a publish",
        |run| Some(run.total.first.as_ref()?.p50),
        Within::Publishes(|run| run.total.first.as_ref()),
    ),
    latency(
        "last of a publish",
        |run| Some(run.total.last.as_ref()?.p50),
        Within::Publishes(|run| run.total.last.as_ref()),
    ),
    Measure {
        name: "back after a storm",
        show: format::seconds,
        better: Better::Less,
        value: |run| run.phases.iter().filter_map(|phase| phase.recovered_s).reduce(f64::max),
        spread: Within::Unknown,
    },
    Measure {
        name: "server memory a client",
        show: format::bytes,
        better: Better::Less,
        value: |run| run.total.server.as_ref()?.bytes_per_client,
        spread: Within::Memory(PROCESS_NOISE_BYTES),
    },
    Measure {
        name: "kernel memory a client",
        show: format::bytes,
        better: Better::Less,
        value: |run| {
            let clients = (run.total.active > 0).then_some(run.total.active as f64)?;
            Some(run.total.kernel_bytes? as f64 / clients)
        },
        spread: Within::Memory(KERNEL_NOISE_BYTES),
    },
    latency(
        "server CPU a delivery",
        |run| Some(run.total.server.as_ref()?.cpu_us_per_delivery? / 1e3),
        Within::Unknown,
    ),
    latency(
        "machine CPU a delivery",
        |run| Some(run.total.machine.as_ref()?.cpu_us_per_delivery? / 1e3),
        Within::Unknown,
    ),
    Measure {
        name: "generator CPU a delivery",
        show: format::milliseconds,
        better: Better::Neither,
        value: |run| Some(run.total.generator.cpu_us_per_delivery? / 1e3),
        spread: Within::Unknown,
    },
];

const fn latency(name: &'static str, value: fn(&Report) -> Option<f64>, spread: Within) -> Measure {
    Measure { name, show: format::milliseconds, better: Better::Less, value, spread }
}

/// A count that should be zero.
const fn bad(name: &'static str, value: fn(&Report) -> Option<f64>) -> Measure {
    Measure { name, show: whole, better: Better::Less, value, spread: Within::Exact }
}

fn whole(number: f64) -> String {
    format::count(number as u64)
}

fn counted(numbers: impl IntoIterator<Item = u64>) -> Option<f64> {
    Some(numbers.into_iter().sum::<u64>() as f64)
}
