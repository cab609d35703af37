//! Memory, connects and messages to all, plain and over TLS in turn.

use std::time::Duration;

use throng_flood::plan::{Pattern, Phase, Publishing, Transport};
use throng_flood::report::{PhaseReport, Report};

use super::super::values::{Deliveries, median, share};
use crate::context::{Abort, Context, Load, WITH_TLS};
use crate::flood::{hold, server_bytes, to_all};

/// Whether clients speak TLS: pairs, in both orders, so that a drift of the machine cancels.
const RUNS: [bool; 6] = [false, true, true, false, false, true];

/// How many times all clients connect.
pub(super) const ROUNDS: u32 = RUNS.len() as u32;

/// Memory is the slope from this part of the clients to all of them.
const BASE_PART: usize = 15;

/// The pause before memory is read. Meanwhile the server returns the memory of handshakes to the
/// kernel.
const PAUSE: Duration = Duration::from_secs(4);

/// Messages per second to all clients: each is delivered before the next one is due.
const RATE: u64 = 2;

const SIZES: [usize; 2] = [64, 1024];

const BURSTS: usize = 3;

const BURST_MESSAGES: u64 = 10;

/// The messages of a burst are published one right after the other.
const BURST_RATE: f64 = 10_000.0;

/// The time until the next burst is this part of the time for single messages.
const BURST_TIME_PART: u32 = 8;

/// Connects in progress: more would make each of them slower, and none of them more frequent.
const IN_FLIGHT: usize = 256;

/// Results of one run; the index of an array is that of [`SIZES`].
#[derive(Debug, Clone, Copy, Default)]
struct Values {
    memory: Option<f64>,
    connect_rate: Option<f64>,
    connect_cpu_ms: Option<f64>,
    rate: [Option<f64>; 2],
    cpu_ms: [Option<f64>; 2],
    burst_rate: Option<f64>,
    burst_cpu_ms: Option<f64>,
}

pub(super) fn run(context: &mut Context<'_>, deliveries: &mut Deliveries) -> Result<(), Abort> {
    let mut found = Vec::new();
    for is_tls in RUNS {
        context.serve(WITH_TLS)?;
        let load =
            Load { is_tls, pipeline: BURST_MESSAGES as usize, ..Load::of(Transport::WebSocket) };
        let report = context.flood(&load, phases(context))?;
        deliveries.add(&report);
        found.push((is_tls, read(&report)));
    }
    record(context, &found);
    Ok(())
}

fn phases(context: &Context<'_>) -> Vec<Phase> {
    let (clients, time) = (context.size.connections, context.size.time);
    let base = (clients / BASE_PART).max(1);
    let ramp = |to| Phase::Ramp { to, rate: None, in_flight: IN_FLIGHT };
    let mut phases = vec![ramp(base), hold(PAUSE, None), ramp(clients), hold(PAUSE, None)];
    // The first message warms up.
    phases.push(hold(PAUSE, Some(to_all(1, SIZES[0], PAUSE))));
    let messages = (RATE * time.as_secs()).max(1);
    phases.extend(SIZES.map(|bytes| hold(time, Some(to_all(messages, bytes, time)))));
    let burst = Publishing {
        rate: BURST_RATE,
        count: Some(BURST_MESSAGES),
        size: SIZES[0],
        to: Pattern::One,
    };
    phases.extend((0..BURSTS).map(|_| hold(time / BURST_TIME_PART, Some(burst.clone()))));
    phases
}

fn read(report: &Report) -> Values {
    let Some(([_, few, ramp, many, _, small, large], bursts)) =
        report.phases.split_first_chunk::<7>()
    else {
        return Values::default();
    };
    let more = (many.totals.active - few.totals.active) as f64;
    let grown = server_bytes(many).zip(server_bytes(few)).map(|(many, few)| many - few);
    let cpu_ms =
        |phase: &PhaseReport| Some(phase.totals.server.as_ref()?.cpu_us_per_delivery? / 1e3);
    // A message or burst is complete with its last delivery.
    let rate = |phase: &PhaseReport| {
        Some(many.totals.active as f64 / phase.totals.last.as_ref()?.p50 * 1e3)
    };
    let burst_rate = |phase: &PhaseReport| {
        let last = phase.totals.last.as_ref()?;
        Some((many.totals.active * phase.totals.published) as f64 / last.max * 1e3)
    };
    Values {
        memory: share(grown, Some(more)),
        connect_rate: Some(more / (ramp.to_s - ramp.from_s)),
        connect_cpu_ms: ramp.totals.server.as_ref().map(|server| server.cpu_s * 1e3 / more),
        rate: [rate(small), rate(large)],
        cpu_ms: [cpu_ms(small), cpu_ms(large)],
        burst_rate: median(bursts.iter().map(burst_rate)),
        burst_cpu_ms: median(bursts.iter().map(cpu_ms)),
    }
}

fn record(context: &mut Context<'_>, found: &[(bool, Values)]) {
    let of = |is_tls: bool, value: &dyn Fn(&Values) -> Option<f64>| {
        median(found.iter().filter(|run| run.0 == is_tls).map(|run| value(&run.1)))
    };
    // The ratio of the two runs of each pair.
    let ratio = |value: &dyn Fn(&Values) -> Option<f64>| {
        median(found.chunks_exact(2).map(|pair| {
            let (tls, plain) =
                if pair[0].0 { (pair[0].1, pair[1].1) } else { (pair[1].1, pair[0].1) };
            share(value(&tls), value(&plain))
        }))
    };
    context.record_all(
        [
            ("memory_plain", of(false, &|values| values.memory)),
            ("memory_tls", of(true, &|values| values.memory)),
            ("connect_plain", of(false, &|values| values.connect_rate)),
            ("connect_tls", of(true, &|values| values.connect_rate)),
            ("connect_cpu", of(true, &|values| values.connect_cpu_ms)),
            ("rate_64", of(false, &|values| values.rate[0])),
            ("rate_64_share", ratio(&|values| values.rate[0])),
            ("cpu_64", of(false, &|values| values.cpu_ms[0])),
            ("cpu_64_share", ratio(&|values| values.cpu_ms[0])),
            ("rate_1024", of(false, &|values| values.rate[1])),
            ("rate_1024_share", ratio(&|values| values.rate[1])),
            ("cpu_1024", of(false, &|values| values.cpu_ms[1])),
            ("cpu_1024_share", ratio(&|values| values.cpu_ms[1])),
            ("burst", of(false, &|values| values.burst_rate)),
            ("burst_share", ratio(&|values| values.burst_rate)),
            ("burst_cpu_share", ratio(&|values| values.burst_cpu_ms)),
        ],
        context.size.connections,
    );
    let columns = [
        "TLS (1)",
        "memory per connection",
        "connects/s",
        "CPU per connect, ms",
        "64 B: deliveries/s",
        "CPU each, ms",
        "1 KiB: deliveries/s",
        "CPU each, ms",
        "bursts: deliveries/s",
        "CPU each, ms",
    ];
    let row = |(is_tls, values): &(bool, Values)| {
        vec![
            Some(f64::from(u8::from(*is_tls))),
            values.memory,
            values.connect_rate,
            values.connect_cpu_ms,
            values.rate[0],
            values.cpu_ms[0],
            values.rate[1],
            values.cpu_ms[1],
            values.burst_rate,
            values.burst_cpu_ms,
        ]
    };
    context.table("Plain and TLS, each run", &columns, found.iter().map(row).collect());
}
