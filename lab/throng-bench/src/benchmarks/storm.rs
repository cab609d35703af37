//! All clients lose their connections at once, and come back.

use std::time::Duration;

use throng_flood::plan::{Phase, Transport};
use throng_flood::report::{PhaseReport, Report, Totals};
use throng_report::Unit;

use super::values::median;
use crate::context::{Abort, Benchmark, Context, Load, QUIET};
use crate::definition::{Definition, Measurement, Scope};
use crate::flood::{hold, ramp};

/// Storms of the same clients.
const STORMS: usize = 3;

/// How long the clients are held before each storm: the machine comes to rest.
const HOLD: Duration = Duration::from_secs(3);

/// How long it may take until all are back.
const RETURN_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "storm",
    title: "Storm",
    story: "When a network comes back, all clients connect at once. A server that serves each of \
            them as fast as it can, and makes nobody wait for so long that it gives up and tries \
            again, has them all back in little more than the time that they took the first time.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "WebSockets connect as fast as they can, a thousand at a time. Three times, all of them \
            then lose their connections at once and connect again in the same way. The time until \
            all are back begins before the first connection is closed, so both ends of all \
            connections are closed within it: the first connecting has nothing of that.",
    differences: &["This is the original."],
    measurements: &[
        Measurement::less("first", "until all have connected", Unit::Milliseconds),
        Measurement::less("back", "until all are back, median", Unit::Milliseconds),
        Measurement::less("ratio", "the same, relative to the first connecting", Unit::Share),
        Measurement::less("ratio_max", "the highest one", Unit::Share),
        Measurement::less(
            "reconnect",
            "from the first that connects again to the last, relative to the first connecting",
            Unit::Share,
        ),
        Measurement::less("connect", "99th percentile of connecting in storms", Unit::Milliseconds),
        Measurement::less("told", "clients told to come back later", Unit::Count),
        Measurement::less("server_cpu", "processor time of the server in a storm", Unit::Share),
        Measurement::of("returned", "clients that are back", Unit::Count),
    ],
    scope: Scope::of(200_000).big().in_rounds(1 + STORMS as u32),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let clients = context.size.connections;
    context.serve(QUIET)?;
    let storm = || [hold(HOLD, None), Phase::Storm { timeout: RETURN_TIMEOUT, publish: None }];
    let mut phases = vec![ramp(clients)];
    phases.extend((0..STORMS).flat_map(|_| storm()));
    let report = context.flood(&Load::of(Transport::WebSocket), phases)?;
    record(context, &report);
    Ok(())
}

fn record(context: &mut Context<'_>, report: &Report) {
    let Some((ramp, others)) = report.phases.split_first() else { return };
    let storms: Vec<&PhaseReport> = others.iter().skip(1).step_by(2).collect();
    let first_s = ramp.totals.connected_s;
    let cpu_s = |phase: &PhaseReport| Some(phase.totals.server.as_ref()?.cpu_s);
    let relative = |value: Option<f64>, to: Option<f64>| Some(value? / to.filter(|it| *it > 0.0)?);
    let ratios = || storms.iter().map(|storm| relative(storm.recovered_s, first_s));
    let reconnects = storms.iter().map(|storm| relative(storm.totals.connected_s, first_s));
    let connects = storms.iter().filter_map(|storm| Some(storm.totals.connect.as_ref()?.p99));
    let returned = storms.iter().map(|storm| storm.totals.active).min();
    let ms = |seconds: Option<f64>| seconds.map(|seconds| seconds * 1e3);
    let values = [
        ("first", ms(first_s)),
        ("back", ms(median(storms.iter().map(|storm| storm.recovered_s)))),
        ("ratio", median(ratios())),
        ("ratio_max", ratios().flatten().reduce(f64::max)),
        ("reconnect", median(reconnects)),
        ("connect", connects.reduce(f64::max)),
        ("told", Some(storms.iter().map(|storm| storm.totals.told).sum::<u64>() as f64)),
        ("server_cpu", median(storms.iter().map(|storm| relative(cpu_s(storm), cpu_s(ramp))))),
        ("returned", returned.map(|count| count as f64)),
    ];
    context.record_all(values, context.size.connections);
    let columns = ["until all are back, ms", "connect p99, ms", "told", "server, s", "clients, s"];
    let row = |phase: &&PhaseReport| {
        let Totals { connect, told, generator, .. } = &phase.totals;
        vec![
            ms(phase.recovered_s.or(phase.totals.connected_s)),
            connect.as_ref().map(|connect| connect.p99),
            Some(*told as f64),
            cpu_s(phase),
            Some(generator.cpu_s),
        ]
    };
    let rows = std::iter::once(&ramp).chain(&storms).map(row).collect();
    context.table("The first connecting, and each storm", &columns, rows);
    if storms.iter().any(|storm| storm.recovered_s.is_none()) {
        context.outcome.fail("some clients did not come back in time");
    }
}
