//! Upgrades of a server with WebSockets: how long nothing is delivered, and what memory they take.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use throng_flood::plan::{Pattern, Publishing, Streams, Transport};
use throng_flood::report::Report;
use throng_report::Unit;
use ureq::Agent;

use super::values::{Deliveries, median};
use crate::context::{Abort, Benchmark, Context, Load};
use crate::definition::{Definition, Measurement, Scope, Size};
use crate::flood::{hold, ramp};
use crate::server::upgrades::{Upgrade, Upgrades};

/// Upgrades of each server.
const UPGRADES: u32 = 5;

/// Clients that follow a channel together.
const CLIENTS_OF_CHANNEL: usize = 100;

/// Messages a second: a pause is seen to about ten milliseconds.
const RATE: f64 = 100.0;

const MESSAGE_BYTES: usize = 128;

/// The logs, which nobody follows: 60 MB.
const LOGS: usize = 60;
const LOG_MESSAGES: usize = 1_000;
const LOG_MESSAGE_BYTES: usize = 1_000;

/// Messages of a batch.
const BATCH: usize = 1_000;

const BATCH_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "upgrade",
    title: "Upgrades",
    story: "A deploy of a push server disconnects all clients, which come back at once. Throng \
            hands its connections and logs over to a new process instead. What remains is a \
            pause, and the memory of two processes.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "WebSockets follow channels, a hundred each, and a hundred messages a second are \
            published to these in turn, while the server is upgraded five times with `throng \
            upgrade`. Each client checks that every message arrives exactly once. The same once \
            more with 60 MB of logs. The pause is what the server says; the delay is that of the \
            latest message, from the moment at which it was to be published: requests wait before \
            the pause, too. Memory is the highest sum of both processes, with shared memory that \
            none of them maps, in proportion to that of the server before.",
    differences: &["This is the original."],
    measurements: &[
        Measurement::less("pause", "pause of delivery, median", Unit::Milliseconds),
        Measurement::less("pause_max", "the longest one", Unit::Milliseconds),
        Measurement::less("delay", "longest delay of a message", Unit::Milliseconds),
        Measurement::less("memory", "memory of both processes, relative to one", Unit::Share),
        Measurement::of("server", "memory of the server", Unit::Bytes),
        Measurement::less("pause_logs", "with logs: pause of delivery, median", Unit::Milliseconds),
        Measurement::less("pause_logs_max", "with logs: the longest one", Unit::Milliseconds),
        Measurement::less(
            "delay_logs",
            "with logs: longest delay of a message",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "memory_logs",
            "with logs: memory of both processes, relative to one",
            Unit::Share,
        ),
        Measurement::of("server_logs", "with logs: memory of the server", Unit::Bytes),
        Measurement::of("upgrades", "upgrades", Unit::Count),
        Measurement::DELIVERED,
        Measurement::EXPECTED,
    ],
    scope: Scope::of(15_000).held_s(30).in_rounds(2),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let mut deliveries = Deliveries::default();
    let keys = ["pause", "pause_max", "delay", "memory", "server"];
    let columns = ["pause, ms", "memory before, bytes", "memory of both processes, bytes"];
    let row = |it: &Upgrade| vec![Some(it.pause_ms), it.before_bytes, it.during_bytes];
    let (plain, report) =
        measure(context, &["--heartbeat", "0", "--history-messages", "0"], false)?;
    deliveries.add(&report);
    record(context, keys, &plain, &report);
    context.table("Each upgrade", &columns, plain.iter().map(row).collect());
    let flags = ["--heartbeat", "0", "--history-messages", "1000", "--history-bytes", "64MiB"];
    let (logs, report) = measure(context, &flags, true)?;
    deliveries.add(&report);
    let keys = ["pause_logs", "pause_logs_max", "delay_logs", "memory_logs", "server_logs"];
    record(context, keys, &logs, &report);
    context.table("Each upgrade, with logs", &columns, logs.iter().map(row).collect());
    context.record_all(
        [
            ("upgrades", Some((plain.len() + logs.len()) as f64)),
            ("delivered", Some(deliveries.received as f64)),
            ("expected", Some(deliveries.expected as f64)),
        ],
        context.size.connections,
    );
    Ok(())
}

/// Upgrades a server while its clients get messages.
fn measure(
    context: &mut Context<'_>,
    flags: &[&str],
    has_logs: bool,
) -> Result<(Vec<Upgrade>, Report), Abort> {
    let Size { connections: clients, time } = context.size;
    context.serve(flags)?;
    if has_logs {
        fill(&context.url()).map_err(|error| Abort::Failed(format!("the logs: {error}")))?;
    }
    let channels = u32::try_from(clients.div_ceil(CLIENTS_OF_CHANNEL)).unwrap_or(u32::MAX);
    let load = Load { streams: Streams::Spread(channels), ..Load::of(Transport::WebSocket) };
    let publishing =
        Publishing { rate: RATE, count: None, size: MESSAGE_BYTES, to: Pattern::InTurn };
    let upgrades = context.upgrades();
    let upgrades = upgrades.ok_or_else(|| Abort::Failed("there is no server".to_owned()))?;
    let (begin, begun) = mpsc::channel::<()>();
    let (mut begin, is_over) = (Some(begin), Arc::new(AtomicBool::new(false)));
    let (between, ends) = (time / (2 * UPGRADES), Arc::clone(&is_over));
    let upgrading = thread::spawn(move || {
        // Nothing is sent: it begins when the other end is closed.
        let _ = begun.recv();
        run_upgrades(&upgrades, &ends, between)
    });
    let report = context.flood_with(
        &load,
        vec![ramp(clients), hold(time, Some(publishing))],
        // The second phase holds the clients.
        &mut |moment| begin = begin.take().filter(|_| moment.place.0 < 2),
    );
    is_over.store(true, Ordering::Relaxed);
    drop(begin);
    let upgraded = upgrading.join().unwrap_or_else(|_| Err("the thread has panicked".to_owned()));
    let (upgraded, report) = (upgraded.map_err(Abort::Failed)?, report?);
    let done = upgraded.len();
    let few = || format!("{done} of {UPGRADES} upgrades in the time: give more with --time");
    match done {
        0 => context.outcome.fail(few()),
        _ if done < UPGRADES as usize => context.outcome.warnings.push(few()),
        _ => {}
    }
    Ok((upgraded, report))
}

/// Upgrades the server some times, while its clients are held.
fn run_upgrades(
    upgrades: &Upgrades,
    is_over: &AtomicBool,
    between: Duration,
) -> Result<Vec<Upgrade>, String> {
    let mut done = Vec::new();
    for _ in 0..UPGRADES {
        thread::sleep(between);
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        done.push(upgrades.upgrade()?);
    }
    Ok(done)
}

fn record(context: &mut Context<'_>, keys: [&str; 5], upgrades: &[Upgrade], report: &Report) {
    let [pause, pause_max, delay, memory, server] = keys;
    let pauses = || upgrades.iter().map(|upgrade| upgrade.pause_ms);
    let ratios = upgrades.iter().map(|it| Some(it.during_bytes? / it.before_bytes?));
    let held = report.phases.last().and_then(|held| held.totals.delivery.as_ref());
    context.record_all(
        [
            (pause, median(pauses().map(Some))),
            (pause_max, pauses().reduce(f64::max)),
            (delay, held.map(|delivery| delivery.max)),
            (memory, median(ratios)),
            (server, median(upgrades.iter().map(|upgrade| upgrade.before_bytes))),
        ],
        context.size.connections,
    );
}

/// Publishes to channels that nobody follows.
fn fill(url: &str) -> Result<(), ureq::Error> {
    let config = Agent::config_builder().proxy(None).timeout_global(Some(BATCH_TIMEOUT));
    let agent: Agent = config.build().into();
    let data = "x".repeat(LOG_MESSAGE_BYTES);
    for from in (0..LOGS * LOG_MESSAGES).step_by(BATCH) {
        let line = |n: usize| format!("{{\"channel\":\"log-{}\",\"data\":\"{data}\"}}\n", n % LOGS);
        let batch: String = (from..from + BATCH).map(line).collect();
        agent.post(format!("{url}/publish")).send(batch)?;
    }
    Ok(())
}
