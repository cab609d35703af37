//! Fan-out, burst and connect rate: Throng against the raw loop, in the same runs.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::session::{BURST_MESSAGES, Publish, Server, Session, websocket};
use crate::ledger::{Ledger, Side};
use crate::machine::{Machine, Used};
use crate::settings::{Settings, progress};
use crate::stats;

/// The payloads of a fan-out, and the figures each fills.
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

/// How long the machine is watched with all subscribers parked, before a series.
const IDLE_WINDOW: Duration = Duration::from_secs(2);

/// Other programs that use more than this part of a series' processor time are named.
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

/// Which of the three measurements to make.
pub struct Parts {
    /// Latency of single messages.
    pub has_fanout: bool,
    /// Ten messages at once.
    pub has_burst: bool,
    /// Rate of connecting.
    pub has_connect: bool,
}

/// Medians over the rounds of one run.
struct Series {
    rate: f64,
    cpu_us: f64,
    client_cpu_us: f64,
    /// `None` where the kernel does not tell.
    machine_cpu_us: Option<f64>,
    p50_ms: f64,
    p99_ms: f64,
    last_ms: f64,
    /// What else was running, if it was much.
    note: Option<String>,
}

/// Measures `settings.repeats` times.
pub fn measure(settings: &Settings, parts: &Parts, ledger: &mut Ledger) -> Result<()> {
    for run in 0..settings.repeats {
        for side in settings.sides(run) {
            progress(&format!("fan-out {} of {}, {side:?}", run + 1, settings.repeats));
            measure_side(settings, parts, side, ledger)?;
        }
    }
    Ok(())
}

fn measure_side(settings: &Settings, parts: &Parts, side: Side, ledger: &mut Ledger) -> Result<()> {
    let mut session = Session::start(settings, side, "0")?;
    let took = session.connect(&websocket(), settings.connections)?;
    if parts.has_connect {
        let rate = settings.connections as f64 / took.as_secs_f64();
        ledger.add("connect_rate", side, rate);
    }
    if parts.has_fanout {
        for (payload_bytes, keys) in &FANOUTS {
            let series = series(settings, &mut session, Publish::Single, *payload_bytes)?;
            ledger.add(keys.rate, side, series.rate);
            ledger.add(keys.cpu, side, series.cpu_us);
            ledger.add(keys.client_cpu, side, series.client_cpu_us);
            if let Some(machine_cpu_us) = series.machine_cpu_us {
                ledger.add(keys.machine_cpu, side, machine_cpu_us);
            }
            ledger.notes.extend(series.note);
            ledger.add(keys.p50, side, series.p50_ms);
            ledger.add(keys.p99, side, series.p99_ms);
            ledger.add(keys.last, side, series.last_ms);
        }
    }
    if parts.has_burst {
        measure_bursts(settings, &mut session, side, ledger)?;
    }
    if let Server::Raw(raw) = &session.server
        && raw.blocked > 0
    {
        ledger.notes.push(format!("The raw loop found {} sockets full.", raw.blocked));
    }
    Ok(())
}

/// The raw loop knows no bursts: each is compared with its single messages.
fn measure_bursts(
    settings: &Settings,
    session: &mut Session,
    side: Side,
    ledger: &mut Ledger,
) -> Result<()> {
    if side == Side::Raw {
        let single = series(settings, session, Publish::Single, BURST_PAYLOAD_BYTES)?;
        for (_, key) in BURSTS {
            ledger.add(key, side, single.rate);
        }
        return Ok(());
    }
    for (publish, key) in BURSTS {
        let burst = series(settings, session, publish, BURST_PAYLOAD_BYTES)?;
        ledger.add(key, side, burst.rate);
    }
    Ok(())
}

/// One publish to warm up, then `settings.rounds` that count.
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
        // Also lets the server's threads sleep, which makes the reading of their time exact.
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

/// Names other programs that used much of the processors.
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
