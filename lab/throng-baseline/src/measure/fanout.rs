//! Fan-outs, bursts and the connect rate, in the same runs.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::session::{BURST_MESSAGES, Publish, Server, Session, websocket};
use crate::machine::{Machine, Used};
use crate::results::{Results, Side};
use crate::settings::{Settings, progress};
use crate::stats;

/// The payloads of the fan-outs, in bytes.
const FANOUTS: [usize; 2] = [64, 1024];

const BURSTS: [(Publish, &str); 2] =
    [(Publish::Batch, "burst_batch_rate"), (Publish::Pipelined, "burst_pipelined_rate")];

/// The time for which the idle machine is measured before a series, with all subscribers parked.
const IDLE_WINDOW: Duration = Duration::from_secs(2);

/// If other programs use more than this share of a series' processor time, a note names them.
const OTHERS_SHARE: f64 = 0.05;

const BURST_PAYLOAD_BYTES: usize = 64;

/// The measurements to make.
pub(crate) struct Parts {
    /// Fan-outs of single messages.
    pub(crate) has_fanout: bool,
    /// Bursts of ten messages.
    pub(crate) has_burst: bool,
    /// The connect rate.
    pub(crate) has_connect: bool,
}

/// The rounds of one run.
struct Series {
    /// Deliveries per second.
    rate: f64,
    /// The same and others: medians, and processor time for each delivery. Names are the ends of
    /// keys.
    values: Vec<(&'static str, f64)>,
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
        for payload_bytes in FANOUTS {
            let series = series(settings, &mut session, Publish::Single, payload_bytes)?;
            for (name, value) in series.values {
                results.add(&format!("fanout_{payload_bytes}_{name}"), side, value);
            }
            results.notes.extend(series.note);
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
    let rate = stats::median(&rates);
    let mut values = vec![
        ("rate", rate),
        ("cpu", cpu.as_secs_f64() * 1e6 / delivered),
        ("client_cpu", client_cpu_ns as f64 / 1e3 / delivered),
        ("p50", stats::median(&p50s)),
        ("p99", stats::median(&p99s)),
        ("last", stats::median(&lasts)),
    ];
    // `None` if `/proc` does not have it.
    values.extend(used.as_ref().map(|(work, idle)| {
        ("machine_cpu", work.without_idle(idle).as_secs_f64() * 1e6 / delivered)
    }));
    Ok(Series { rate, values, note: used.and_then(|(work, _)| note(&work)) })
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
