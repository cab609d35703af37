//! Fan-outs, bursts and the connect rate, in the same runs.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::session::{BURST_MESSAGES, Publish, Server, Session, websocket};
use crate::machine::{Machine, Used};
use crate::results::{Results, Side};
use crate::settings::{Settings, progress};
use crate::stats;

/// The payloads of the fan-outs, in bytes, and the keys of their measurements.
const FANOUTS: [(usize, Keys); 2] = [
    (
        64,
        Keys {
            rate: "fanout_64_rate",
            cpu: "fanout_64_cpu",
            client_cpu: "fanout_64_client_cpu",
            machine_cpu: "fanout_64_machine_cpu",
            p50: "fanout_64_p50",
            p99: "fanout_64_p99",
            last: "fanout_64_last",
        },
    ),
    (
        1024,
        Keys {
            rate: "fanout_1024_rate",
            cpu: "fanout_1024_cpu",
            client_cpu: "fanout_1024_client_cpu",
            machine_cpu: "fanout_1024_machine_cpu",
            p50: "fanout_1024_p50",
            p99: "fanout_1024_p99",
            last: "fanout_1024_last",
        },
    ),
];

const BURSTS: [(Publish, &str); 2] =
    [(Publish::Batch, "burst_batch_rate"), (Publish::Pipelined, "burst_pipelined_rate")];

/// The time for which the idle machine is measured before a series, with all subscribers parked.
const IDLE_WINDOW: Duration = Duration::from_secs(2);

/// If other programs use more than this share of a series' processor time, a note names them.
const OTHERS_SHARE: f64 = 0.05;

const BURST_PAYLOAD_BYTES: usize = 64;

struct Keys {
    rate: &'static str,
    cpu: &'static str,
    client_cpu: &'static str,
    machine_cpu: &'static str,
    p50: &'static str,
    p99: &'static str,
    last: &'static str,
}

/// The measurements to make.
pub(crate) struct Parts {
    /// Fan-outs of single messages.
    pub(crate) has_fanout: bool,
    /// Bursts of ten messages.
    pub(crate) has_burst: bool,
    /// The connect rate.
    pub(crate) has_connect: bool,
}

/// The rounds of one run: medians, and processor time for each delivery.
struct Series {
    rate: f64,
    cpu_us: f64,
    client_cpu_us: f64,
    /// `None` if `/proc` does not have it.
    machine_cpu_us: Option<f64>,
    p50_ms: f64,
    p99_ms: f64,
    last_ms: f64,
    /// Other programs that used much processor time.
    note: Option<String>,
}

/// Measures `settings.repeats` times.
pub(crate) fn measure(settings: &Settings, parts: &Parts, results: &mut Results) -> Result<()> {
    for run in 0..settings.repeats {
        for side in settings.sides(run) {
            progress(&format!("fan-out {} of {}, {side:?}", run + 1, settings.repeats));
            measure_side(settings, parts, side, results)?;
        }
    }
    Ok(())
}

fn measure_side(
    settings: &Settings,
    parts: &Parts,
    side: Side,
    results: &mut Results,
) -> Result<()> {
    let mut session = Session::start(settings, side, "0")?;
    let took = session.connect(&websocket(), settings.connections)?;
    if parts.has_connect {
        let rate = settings.connections as f64 / took.as_secs_f64();
        results.add("connect_rate", side, rate);
    }
    if parts.has_fanout {
        for (payload_bytes, keys) in &FANOUTS {
            let series = series(settings, &mut session, Publish::Single, *payload_bytes)?;
            results.add(keys.rate, side, series.rate);
            results.add(keys.cpu, side, series.cpu_us);
            results.add(keys.client_cpu, side, series.client_cpu_us);
            if let Some(machine_cpu_us) = series.machine_cpu_us {
                results.add(keys.machine_cpu, side, machine_cpu_us);
            }
            results.notes.extend(series.note);
            results.add(keys.p50, side, series.p50_ms);
            results.add(keys.p99, side, series.p99_ms);
            results.add(keys.last, side, series.last_ms);
        }
    }
    if parts.has_burst {
        measure_bursts(settings, &mut session, side, results)?;
    }
    if let Server::Raw(raw) = &session.server
        && raw.blocked > 0
    {
        results.notes.push(format!("In the raw loop, {} sockets were full.", raw.blocked));
    }
    Ok(())
}

/// The raw loop has no bursts: they are compared with its single messages.
fn measure_bursts(
    settings: &Settings,
    session: &mut Session,
    side: Side,
    results: &mut Results,
) -> Result<()> {
    if side == Side::Raw {
        let single = series(settings, session, Publish::Single, BURST_PAYLOAD_BYTES)?;
        for (_, key) in BURSTS {
            results.add(key, side, single.rate);
        }
        return Ok(());
    }
    for (publish, key) in BURSTS {
        let burst = series(settings, session, publish, BURST_PAYLOAD_BYTES)?;
        results.add(key, side, burst.rate);
    }
    Ok(())
}

/// One round to warm up, then `settings.rounds` that are measured.
fn series(
    settings: &Settings,
    session: &mut Session,
    publish: Publish,
    payload_bytes: usize,
) -> Result<Series> {
    session.round(publish, payload_bytes)?;
    thread::sleep(settings.gap);
    let server = session.server.id();
    let parked = Machine::read(server);
    thread::sleep(IDLE_WINDOW);
    let before = Machine::read(server);
    let before_ns = session.server.cpu_ns()?;
    let is_burst = publish != Publish::Single;
    let messages = if is_burst { BURST_MESSAGES } else { 1 };
    let per_round = (settings.connections * messages) as f64;
    let (mut rates, mut p50s, mut p99s, mut lasts) = (vec![], vec![], vec![], vec![]);
    let mut client_cpu_ns = 0;
    for _ in 0..settings.rounds {
        let deliveries = session.round(publish, payload_bytes)?;
        let last_ms = stats::percentile(&deliveries.latencies_ms, 100);
        rates.push(per_round / last_ms * 1e3);
        p50s.push(stats::percentile(&deliveries.latencies_ms, 50));
        p99s.push(stats::percentile(&deliveries.latencies_ms, 99));
        lasts.push(last_ms);
        client_cpu_ns += deliveries.cpu_ns;
        // The server's threads sleep meanwhile, and then their processor time is exact.
        thread::sleep(settings.gap);
    }
    let cpu = Duration::from_nanos(session.server.cpu_ns()?.saturating_sub(before_ns));
    let delivered = per_round * settings.rounds as f64;
    let after = Machine::read(server);
    let since = |to: &Option<Machine>, from: &Option<Machine>| to.as_ref()?.since(from.as_ref()?);
    let used = since(&after, &before).zip(since(&before, &parked));
    Ok(Series {
        rate: stats::median(&rates),
        cpu_us: cpu.as_secs_f64() * 1e6 / delivered,
        client_cpu_us: client_cpu_ns as f64 / 1e3 / delivered,
        machine_cpu_us: used
            .as_ref()
            .map(|(work, idle)| work.without_idle(idle).as_secs_f64() * 1e6 / delivered),
        note: used.and_then(|(work, _)| note(&work)),
        p50_ms: stats::median(&p50s),
        p99_ms: stats::median(&p99s),
        last_ms: stats::median(&lasts),
    })
}

/// A sentence about other programs that used much processor time.
fn note(work: &Used) -> Option<String> {
    let is_much = work.others > work.ours.mul_f64(OTHERS_SHARE);
    is_much.then(|| {
        format!(
            "Other programs used {:.1} s of processor time beside {:.1} s of a series: {}.",
            work.others.as_secs_f64(),
            work.ours.as_secs_f64(),
            work.names.iter().take(3).cloned().collect::<Vec<_>>().join(", "),
        )
    })
}
