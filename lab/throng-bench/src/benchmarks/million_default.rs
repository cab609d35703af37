//! A million WebSockets on a server with default settings, compared with one without heartbeats.

use std::time::Duration;

use throng_flood::plan::Transport;
use throng_flood::report::{PhaseReport, Report};
use throng_report::Unit;

use crate::context::{Abort, Benchmark, Context, Load};
use crate::definition::{Definition, Measurement, Scope, Size};
use crate::flood::{connect_rate, hold, ramp, to_all};

/// Messages per run. The first one is published while heartbeats are being sent.
const MESSAGES: u64 = 2;
/// Interval between messages: long enough for the last delivery and a new round of heartbeats.
const MESSAGE_INTERVAL_S: u64 = 30;
const MESSAGE_BYTES: usize = 64;

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "million-default",
    title: "A million with the defaults",
    story: "Published values are often those of a server without heartbeats. In production each of \
            a million connections gets one every 25 s, so that proxies keep it open and dead \
            clients are found: 40,000 per second, on top of everything else.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "WebSockets connect, idle, and get two messages. Four runs, each with a new server: \
            without heartbeats, with the defaults, and both in the other order with clients that \
            speak throng.v1 and send nothing, as the JavaScript client does.",
    differences: &["This is the original."],
    measurements: &[
        Measurement::more(
            "connect_quiet",
            "connects per second, without heartbeats",
            Unit::PerSecond,
        ),
        Measurement::more(
            "connect_default",
            "connects per second, with the defaults",
            Unit::PerSecond,
        ),
        Measurement::more("connect_share", "defaults relative to no heartbeats", Unit::Share),
        Measurement::more(
            "deliver_quiet",
            "deliveries per second, without heartbeats",
            Unit::PerSecond,
        ),
        Measurement::more(
            "deliver_default",
            "deliveries per second, with the defaults",
            Unit::PerSecond,
        ),
        Measurement::more("deliver_share", "defaults relative to no heartbeats", Unit::Share),
        Measurement::less(
            "idle_default",
            "processor time while idle, with the defaults",
            Unit::Cores,
        ),
        Measurement::of("heartbeat_rate", "heartbeats per second while idle", Unit::PerSecond),
        Measurement::more(
            "v1_connect_share",
            "throng.v1: connects, defaults relative to no heartbeats",
            Unit::Share,
        ),
        Measurement::more(
            "v1_deliver_share",
            "throng.v1: deliveries, defaults relative to no heartbeats",
            Unit::Share,
        ),
        Measurement::less(
            "v1_idle_default",
            "throng.v1: processor time while idle, with the defaults",
            Unit::Cores,
        ),
        Measurement::DELIVERED,
        Measurement::EXPECTED,
    ],
    scope: Scope::of(1_000_000).held_s(60).big().broadcasting(),
};

/// Server and clients of a run.
struct Case {
    is_quiet: bool,
    is_v1: bool,
}

/// Results of a run.
#[derive(Default)]
struct Values {
    connect_rate: Option<f64>,
    deliver_rate: Option<f64>,
    idle_cores: Option<f64>,
    heartbeat_rate: Option<f64>,
    received: u64,
    expected: u64,
}

/// Two pairs in opposite order, so that a drift of the machine cancels.
const CASES: [Case; 4] = [
    Case { is_quiet: true, is_v1: false },
    Case { is_quiet: false, is_v1: false },
    Case { is_quiet: false, is_v1: true },
    Case { is_quiet: true, is_v1: true },
];

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let mut found = Vec::new();
    for case in &CASES {
        found.push(measure(context, case)?);
    }
    record(context, &found);
    Ok(())
}

fn measure(context: &mut Context<'_>, case: &Case) -> Result<Values, Abort> {
    let Size { connections: clients, time } = context.size;
    let quiet = ["--heartbeat", "0"];
    context.serve(if case.is_quiet { &quiet } else { &[] })?;
    let load =
        Load { subprotocol: case.is_v1.then_some("throng.v1"), ..Load::of(Transport::WebSocket) };
    // A short run spreads its messages over its hold time.
    let messages_time = Duration::from_secs(MESSAGE_INTERVAL_S * MESSAGES).min(time);
    let phases = vec![
        ramp(clients),
        hold(time, None),
        hold(messages_time, Some(to_all(MESSAGES, MESSAGE_BYTES, messages_time))),
    ];
    let report = context.flood(&load, phases)?;
    Ok(read(&report, clients))
}

fn read(report: &Report, clients: usize) -> Values {
    let Some([ramp, idle, hold]) = report.phases.first_chunk::<3>() else {
        return Values::default();
    };
    let last_ms = hold.totals.last.as_ref().map(|last| last.p50).filter(|&ms| ms > 0.0);
    let seconds = idle.to_s - idle.from_s;
    let cores = |idle: &PhaseReport| Some(idle.totals.server.as_ref()?.cpu_s / seconds);
    Values {
        connect_rate: connect_rate(ramp),
        deliver_rate: last_ms.map(|ms| clients as f64 / ms * 1e3),
        idle_cores: cores(idle),
        heartbeat_rate: Some(idle.totals.heartbeats as f64 / seconds),
        received: hold.totals.received,
        expected: hold.totals.expected,
    }
}

fn record(context: &mut Context<'_>, found: &[Values]) {
    let [quiet, default, v1_default, v1_quiet] = found else { return };
    let share =
        |part: Option<f64>, whole: Option<f64>| Some(part? / whole.filter(|&whole| whole > 0.0)?);
    let sum = |count: fn(&Values) -> u64| Some(found.iter().map(count).sum::<u64>() as f64);
    context.record_all(
        [
            ("connect_quiet", quiet.connect_rate),
            ("connect_default", default.connect_rate),
            ("connect_share", share(default.connect_rate, quiet.connect_rate)),
            ("deliver_quiet", quiet.deliver_rate),
            ("deliver_default", default.deliver_rate),
            ("deliver_share", share(default.deliver_rate, quiet.deliver_rate)),
            ("idle_default", default.idle_cores),
            ("heartbeat_rate", default.heartbeat_rate),
            ("v1_connect_share", share(v1_default.connect_rate, v1_quiet.connect_rate)),
            ("v1_deliver_share", share(v1_default.deliver_rate, v1_quiet.deliver_rate)),
            ("v1_idle_default", v1_default.idle_cores),
            ("delivered", sum(|found| found.received)),
            ("expected", sum(|found| found.expected)),
        ],
        context.size.connections,
    );
    let columns = [
        "heartbeats (1) or none (0)",
        "throng.v1 (1) or plain (0)",
        "connects per second",
        "deliveries per second",
        "server while idle, cores",
        "heartbeats per second",
    ];
    let row = |(case, found): (&Case, &Values)| {
        vec![
            Some(f64::from(u8::from(!case.is_quiet))),
            Some(f64::from(u8::from(case.is_v1))),
            found.connect_rate,
            found.deliver_rate,
            found.idle_cores,
            found.heartbeat_rate,
        ]
    };
    context.table("Each run", &columns, CASES.iter().zip(found).map(row).collect());
}
