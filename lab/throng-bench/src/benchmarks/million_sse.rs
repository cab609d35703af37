//! A million event streams with heartbeats, while the server also answers plain requests.

use std::time::Duration;

use throng_flood::plan::Transport;
use throng_flood::report::{PhaseReport, Report};
use throng_report::Unit;
use throng_units::format::{bytes, count};

use crate::context::{Abort, Benchmark, Context, Load};
use crate::definition::{Definition, GIB, KIB, Measurement, Scope, Size};
use crate::flood::{
    bytes_per_client, hold, kernel_bytes_per_client, ramp, server_pss, slab_growth,
};
use crate::plot::{level, samples};
use crate::requests::{Requests, Response};
use crate::results::Plot;
use crate::status::{Reader, Updates};

/// Heartbeat interval; shorter in a short run, so that each client gets some.
const HEARTBEAT_S: u64 = 15;

/// Rate of plain requests.
const REQUESTS_PER_S: f64 = 100.0;

/// Share of the expected heartbeats that must arrive.
const HEARTBEATS_SHARE_MIN: f64 = 0.9;

/// Longest acceptable pause between updates of the status page, which has one per second.
const UPDATE_PAUSE_MAX_S: f64 = 5.0;

/// Acceptable growth of memory while idle: a share of it, or what an allocator takes at once.
const GROWTH_SHARE_MAX: f64 = 0.05;
const GROWTH_BYTES_MIN: f64 = 4.0 * 1024.0 * 1024.0;

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "million-sse",
    title: "A million SSE clients",
    story: "A million event streams get a byte every fifteen seconds for an hour, from a server \
            that meanwhile answers plain requests and shows a live status page. The goals were a \
            hundred requests per second, 15 GB, a load below ten, no disconnects and no growth, \
            and all of them were met.",
    source: "V. Nguyen, Handle 1 Million Concurrent Connections using Ruby",
    year: 2013,
    hardware: "8 cores, 16 GB; fifty rented machines with 20,000 clients each",
    setup: "All clients are event streams; the server's heartbeat is that byte, and every client \
            counts its heartbeats. Meanwhile a hundred plain requests per second are sent in an \
            open loop, and a reader follows the status page.",
    differences: &[
        "Clients and server share one machine.",
        "A heartbeat is a comment line of two bytes in a chunk of its own, not one zero byte.",
        "Five minutes unless --time says otherwise; --time 1h is the long form.",
    ],
    measurements: &[
        Measurement::MEMORY.published(
            8.0 * 1_321.5 * KIB * KIB / 1_001_535.0,
            1_001_535,
            "resident memory of all eight worker processes over their connections",
        ),
        Measurement::less("memory_all", "memory per connection, server and kernel", Unit::Bytes)
            .per_connection()
            .published(
                14.2 * GIB / 1_001_535.0,
                1_001_535,
                "memory in use of the whole machine over connections; ours includes both ends",
            ),
        Measurement::less("server_cores", "processor use of the server while held", Unit::Cores)
            .published(8.0, 1_001_535, "all eight cores busy, at a load of 8.8"),
        Measurement::of("request_rate", "plain requests per second", Unit::PerSecond).published(
            100.0,
            1_001_535,
            "goal: at least this many plain requests per second",
        ),
        Measurement::less("response_mean", "latency of a plain request, mean", Unit::Milliseconds)
            .published(177.0, 1_001_535, "response time of a plain request, as the browser saw it"),
        Measurement::less("response_p99", "latency of a plain request, p99", Unit::Milliseconds),
        Measurement::of("heartbeats", "heartbeats received while held", Unit::Count),
        Measurement::of("heartbeat_rate", "heartbeats per second", Unit::PerSecond).published(
            66_769.0,
            1_001_535,
            "a byte to each connection every fifteen seconds",
        ),
        Measurement::of("disconnects", "connections lost or refused", Unit::Count),
        Measurement::of("growth", "growth of the server while held", Unit::Bytes),
        Measurement::of("updates", "updates of the status page read", Unit::Count),
        Measurement::of("shown", "clients shown by the status page", Unit::Count),
    ],
    scope: Scope::of(1_000_000).held_s(300).big(),
};

/// Activity alongside the load, from the start of the hold phase.
struct Background {
    requests: Requests,
    status: Reader,
}

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let Size { connections: clients, time } = context.size;
    let heartbeat_s = HEARTBEAT_S.min(time.as_secs() / 4).max(1);
    context.serve(&["--heartbeat", &format!("{heartbeat_s}s")])?;
    let url = context.url();
    let mut background = None;
    let mut begin = |phase: &str| {
        if background.is_none() && phase.starts_with("hold") {
            // The phase began up to a second ago.
            let time = time.saturating_sub(Duration::from_secs(1)).max(Duration::from_millis(500));
            background = Some(Background {
                requests: Requests::start(&format!("{url}/health"), REQUESTS_PER_S, time),
                status: Reader::start(&url, time),
            });
        }
    };
    let load = Load::of(Transport::Sse);
    let phases = vec![ramp(clients), hold(time, None)];
    let report = context.flood_with(&load, phases, &mut |moment| begin(moment.phase));
    if let (Err(_), Some(background)) = (&report, &background) {
        background.requests.cut_short();
        background.status.cut_short();
    }
    let (response, updates) = match background {
        Some(Background { requests, status }) => (Some(requests.end()), status.end()),
        None => (None, None),
    };
    let report = report?;
    let Some(held) = report.phases.last() else { return Ok(()) };
    record_cost(context, &report, held);
    record_heartbeats(context, held, heartbeat_s, time);
    record_background(context, response, updates);
    record_growth(context, &report, held);
    record_plots(context, &report);
    Ok(())
}

fn record_cost(context: &mut Context<'_>, report: &Report, held: &PhaseReport) {
    let clients = context.size.connections;
    let memory = bytes_per_client(held);
    let kernel = report.phases.first().and_then(kernel_bytes_per_client);
    let both = memory.zip(kernel).map(|(server, kernel)| server + kernel);
    context.record("memory", memory, clients);
    context.record("memory_all", both, clients);
    let seconds = held.to_s - held.from_s;
    let cpu_s = held.totals.server.as_ref().map(|server| server.cpu_s);
    context.record("server_cores", cpu_s.map(|cpu_s| cpu_s / seconds), clients);
    let lost: u64 = report.total.failures.values().sum();
    context.record("disconnects", Some(lost as f64), clients);
}

fn record_heartbeats(
    context: &mut Context<'_>,
    held: &PhaseReport,
    heartbeat_s: u64,
    time: Duration,
) {
    let clients = context.size.connections;
    let heartbeats = held.totals.heartbeats;
    context.record("heartbeats", Some(heartbeats as f64), clients);
    let seconds = held.to_s - held.from_s;
    context.record("heartbeat_rate", Some(heartbeats as f64 / seconds), clients);
    // Clients have different phases, so that one heartbeat fewer may fit, and the server's timer
    // has a resolution of a second.
    let fitting = time.as_secs_f64() / heartbeat_s as f64 - 1.0;
    let expected = (fitting * HEARTBEATS_SHARE_MIN).max(0.0) as u64 * clients as u64;
    if heartbeats < expected {
        let (heartbeats, expected) = (count(heartbeats), count(expected));
        context.outcome.fail(format!(
            "{heartbeats} heartbeats arrived, and at least {expected} were expected"
        ));
    }
}

fn record_background(
    context: &mut Context<'_>,
    response: Option<Response>,
    updates: Option<Updates>,
) {
    let clients = context.size.connections;
    match response {
        Some(response) => {
            context.record("request_rate", Some(response.rate), clients);
            context.record("response_mean", Some(response.mean_ms), clients);
            context.record("response_p99", Some(response.p99_ms), clients);
            if response.failed > 0 {
                let failed = count(response.failed);
                context.outcome.fail(format!("{failed} plain requests failed"));
            }
        }
        None => context.outcome.fail("the clients were not held long enough for plain requests"),
    }
    match updates {
        Some(updates) => {
            context.record("updates", Some(updates.count as f64), clients);
            context.record("shown", Some(updates.max_sse as f64), clients);
            // In a very short run there may be none.
            let is_due = updates.count > 0 || updates.seconds >= UPDATE_PAUSE_MAX_S;
            if is_due && updates.max_sse < clients as u64 {
                let shown = count(updates.max_sse);
                context.outcome.fail(format!("the status page showed {shown} clients at the most"));
            }
        }
        None => context.outcome.warnings.push("the server has no live status page".to_owned()),
    }
}

fn record_growth(context: &mut Context<'_>, report: &Report, held: &PhaseReport) {
    let end = held.totals.server.as_ref().and_then(|server| server.pss_bytes);
    let before = report.phases.first().and_then(|ramp| ramp.totals.server.as_ref()?.pss_bytes);
    let Some((before, end)) = before.zip(end) else { return };
    let growth = end as f64 - before as f64;
    context.record("growth", Some(growth), context.size.connections);
    if growth > (before as f64 * GROWTH_SHARE_MAX).max(GROWTH_BYTES_MIN) {
        let (growth, before) = (bytes(growth), bytes(before as f64));
        context.outcome.fail(format!("the server grew by {growth} from {before} while held"));
    }
}

fn record_plots(context: &mut Context<'_>, report: &Report) {
    let memory = Plot::over_time("million-sse-memory", "Memory", Unit::Bytes)
        .note("The server (Pss), and growth of the kernel's slabs, both ends.")
        .line("server", samples(report, server_pss))
        .line("kernel", samples(report, slab_growth(report)))
        .line("published, the whole machine", level(report, 14.2 * GIB));
    let heartbeats =
        Plot::over_time("million-sse-heartbeats", "Heartbeats per second", Unit::PerSecond)
            .line("received", samples(report, |sample| Some(sample.heartbeats as f64)));
    let title = "Processor use, in cores";
    let processor = Plot::over_time("million-sse-processor", title, Unit::Cores)
        .note("Published: eight cores, all busy.")
        .line("server", samples(report, |sample| sample.server_cores))
        .line("generator", samples(report, |sample| Some(sample.generator_cores)))
        .line("published, server", level(report, 8.0));
    context.outcome.plots.extend([memory, heartbeats, processor]);
}
