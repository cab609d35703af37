//! A million WebSockets on a server with its default settings, beside one that is silent.

use std::time::Duration;

use throng_flood::plan::Transport;
use throng_flood::report::{PhaseReport, Report};
use throng_report::Unit;

use crate::benchmark::{Benchmark, Figure, Scope, Size};
use crate::measures::{connect_rate, hold, ramp, to_all};
use crate::stage::{Cut, Load, Stage};

/// Messages to all of each run. The first comes while heartbeats are under way.
const MESSAGES: u64 = 2;
/// From one message to the next. By then the last one has come, and heartbeats are under way again.
const MESSAGE_INTERVAL_S: u64 = 30;
const MESSAGE_BYTES: usize = 64;

pub static EXPERIMENT: Benchmark = Benchmark {
    name: "million-default",
    title: "A million with the defaults",
    story: "Published figures are often those of a server that is told to keep quiet. In earnest \
            each of a million connections wants a sign of life every 25 s, so that proxies keep it \
            open and the dead are found: that is 40,000 a second, beside everything else.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "WebSockets connect, are held idle, and get two messages, again and again with a new \
            server: one without heartbeats, one with the defaults, and both the other way round \
            with clients that speak throng.v1 and send nothing, as the JavaScript client does.",
    differences: &["The original is this."],
    figures: &[
        Figure::more("connect_quiet", "connects a second, without heartbeats", Unit::PerSecond),
        Figure::more("connect_default", "connects a second, with the defaults", Unit::PerSecond),
        Figure::more("connect_share", "the defaults' share of it", Unit::Share),
        Figure::more("deliver_quiet", "deliveries a second, without heartbeats", Unit::PerSecond),
        Figure::more("deliver_default", "deliveries a second, with the defaults", Unit::PerSecond),
        Figure::more("deliver_share", "the defaults' share of it", Unit::Share),
        Figure::less("idle_default", "processor time while idle, with the defaults", Unit::Cores),
        Figure::of("heartbeat_rate", "heartbeats a second while idle", Unit::PerSecond),
        Figure::more("v1_connect_share", "throng.v1: the defaults' share of connects", Unit::Share),
        Figure::more(
            "v1_deliver_share",
            "throng.v1: the defaults' share of deliveries",
            Unit::Share,
        ),
        Figure::less(
            "v1_idle_default",
            "throng.v1: processor time while idle, with the defaults",
            Unit::Cores,
        ),
        Figure::DELIVERED,
        Figure::EXPECTED,
    ],
    scope: Scope::of(1_000_000).held_s(60).big().broadcasting(),
    run,
};

/// One of the runs.
struct Case {
    is_quiet: bool,
    is_v1: bool,
}

/// What a run came to.
#[derive(Default)]
struct Found {
    connect_rate: Option<f64>,
    deliver_rate: Option<f64>,
    idle_cores: Option<f64>,
    heartbeat_rate: Option<f64>,
    received: u64,
    expected: u64,
}

/// Pairs, each in the other order than the one before.
const CASES: [Case; 4] = [
    Case { is_quiet: true, is_v1: false },
    Case { is_quiet: false, is_v1: false },
    Case { is_quiet: false, is_v1: true },
    Case { is_quiet: true, is_v1: true },
];

fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    let mut found = Vec::new();
    for case in &CASES {
        found.push(measure(stage, case)?);
    }
    tell(stage, &found);
    Ok(())
}

fn measure(stage: &mut Stage<'_>, case: &Case) -> Result<Found, Cut> {
    let Size { connections: clients, time } = stage.size;
    let quiet = ["--heartbeat", "0"];
    stage.serve(if case.is_quiet { &quiet } else { &[] })?;
    let load =
        Load { subprotocol: case.is_v1.then_some("throng.v1"), ..Load::of(Transport::WebSocket) };
    // A short run has its messages in the time that it has.
    let messages_time = Duration::from_secs(MESSAGE_INTERVAL_S * MESSAGES).min(time);
    let phases = vec![
        ramp(clients),
        hold(time, None),
        hold(messages_time, Some(to_all(MESSAGES, MESSAGE_BYTES, messages_time))),
    ];
    let report = stage.flood(&load, phases)?;
    Ok(read(&report, clients))
}

fn read(report: &Report, clients: usize) -> Found {
    let Some([came, idle, held]) = report.phases.first_chunk::<3>() else {
        return Found::default();
    };
    let last_ms = held.totals.last.as_ref().map(|last| last.p50).filter(|&ms| ms > 0.0);
    let seconds = idle.to_s - idle.from_s;
    let cores = |idle: &PhaseReport| Some(idle.totals.server.as_ref()?.cpu_s / seconds);
    Found {
        connect_rate: connect_rate(came),
        deliver_rate: last_ms.map(|ms| clients as f64 / ms * 1e3),
        idle_cores: cores(idle),
        heartbeat_rate: Some(idle.totals.heartbeats as f64 / seconds),
        received: held.totals.received,
        expected: held.totals.expected,
    }
}

fn tell(stage: &mut Stage<'_>, found: &[Found]) {
    let [quiet, default, v1_default, v1_quiet] = found else { return };
    let share = |part: Option<f64>, whole: Option<f64>| Some(part? / whole.filter(|&it| it > 0.0)?);
    let sum = |count: fn(&Found) -> u64| Some(found.iter().map(count).sum::<u64>() as f64);
    stage.figures(
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
        stage.size.connections,
    );
    let columns = [
        "heartbeats (1) or none (0)",
        "throng.v1 (1) or plain (0)",
        "connects a second",
        "deliveries a second",
        "server while idle, cores",
        "heartbeats a second",
    ];
    let row = |(case, found): (&Case, &Found)| {
        vec![
            Some(f64::from(u8::from(!case.is_quiet))),
            Some(f64::from(u8::from(case.is_v1))),
            found.connect_rate,
            found.deliver_rate,
            found.idle_cores,
            found.heartbeat_rate,
        ]
    };
    stage.table("Each run", &columns, CASES.iter().zip(found).map(row).collect());
}
