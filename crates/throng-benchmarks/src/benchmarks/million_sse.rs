//! A million event streams, a heartbeat to each, and a server that still answers.

use std::time::Duration;

use throng_flood::plan::Transport;
use throng_flood::report::{PhaseReport, Report};
use throng_report::Unit;
use throng_units::format::{bytes, count};

use crate::benchmark::{Benchmark, Figure, GIB, KIB, Scope, Size};
use crate::course::{level, samples};
use crate::measures::{
    bytes_per_client, hold, kernel_bytes_per_client, ramp, server_pss, slab_growth,
};
use crate::requests::{Requests, Response};
use crate::results::Course;
use crate::stage::{Cut, Load, Stage};
use crate::status::{Reader, Updates};

/// A heartbeat to each so often; less in a short run, so that there are some.
const BEAT_S: u64 = 15;

/// Plain requests a second, beside.
const REQUESTS_PER_S: f64 = 100.0;

/// So many of the heartbeats that fit must have come.
const BEATS_SHARE_MIN: f64 = 0.9;

/// After so long there must have been an update of the status page, which has one a second.
const UPDATES_DUE_S: f64 = 5.0;

/// What memory may grow by while nothing changes: a part of what it is, and what an allocator
/// takes at once.
const GROWTH_SHARE_MAX: f64 = 0.05;
const GROWTH_BYTES_MIN: f64 = 4.0 * 1024.0 * 1024.0;

pub static EXPERIMENT: Benchmark = Benchmark {
    name: "million-sse",
    title: "A million SSE clients",
    story: "A million event streams get a byte every fifteen seconds for an hour, from a server \
            that meanwhile answers plain requests and shows a live status page. The aims were a \
            hundred requests a second, 15 GB, a load below ten, no disconnects and no growth, and \
            all of them were met.",
    source: "V. Nguyen, Handle 1 Million Concurrent Connections using Ruby",
    year: 2013,
    hardware: "8 cores, 16 GB; fifty rented machines with 20,000 clients each",
    setup: "All clients are event streams; the server's heartbeat is that byte, and every \
            client counts those that it gets. Beside them plain requests come at fixed times, a \
            hundred a second, and count from those; a reader follows the status page.",
    differences: &[
        "Clients and server share one machine.",
        "A heartbeat is a comment line of two bytes in a chunk of its own, not one zero byte.",
        "Five minutes unless --time says otherwise; --time 1h is the long form.",
    ],
    figures: &[
        Figure::MEMORY.published(
            8.0 * 1_321.5 * KIB * KIB / 1_001_535.0,
            1_001_535,
            "resident memory of all eight worker processes over their connections",
        ),
        Figure::less("memory_all", "memory a connection, server and kernel", Unit::Bytes)
            .each()
            .published(
                14.2 * GIB / 1_001_535.0,
                1_001_535,
                "memory in use of the whole machine over connections; ours has both ends of each",
            ),
        Figure::less("server_cores", "processor of the server while held", Unit::Cores).published(
            8.0,
            1_001_535,
            "all eight cores busy, at a load of 8.8",
        ),
        Figure::of("request_rate", "plain requests a second, beside", Unit::PerSecond).published(
            100.0,
            1_001_535,
            "aim of the benchmark: at least so many plain requests a second",
        ),
        Figure::less("response_mean", "a plain request, average", Unit::Milliseconds).published(
            177.0,
            1_001_535,
            "response time of a plain request, as the browser saw it",
        ),
        Figure::less("response_p99", "a plain request, p99", Unit::Milliseconds),
        Figure::of("heartbeats", "heartbeats received while held", Unit::Count),
        Figure::of("heartbeat_rate", "heartbeats a second", Unit::PerSecond).published(
            66_769.0,
            1_001_535,
            "a byte to each connection every fifteen seconds",
        ),
        Figure::of("disconnects", "connections lost or refused", Unit::Count),
        Figure::of("growth", "growth of the server while held", Unit::Bytes),
        Figure::of("updates", "updates of the status page read", Unit::Count),
        Figure::of("shown", "clients that the status page showed", Unit::Count),
    ],
    scope: Scope::of(1_000_000).held_s(300).big(),
    run,
};

/// What goes on beside the load, as soon as it is held.
struct Beside {
    requests: Requests,
    status: Reader,
}

fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    let Size { connections: clients, time } = stage.size;
    let beat_s = BEAT_S.min(time.as_secs() / 4).max(1);
    stage.serve(&["--heartbeat", &format!("{beat_s}s")])?;
    let url = stage.url();
    let mut beside = None;
    let mut begin = |phase: &str| {
        if beside.is_none() && phase.starts_with("hold") {
            // A second has passed of it.
            let time = time.saturating_sub(Duration::from_secs(1)).max(Duration::from_millis(500));
            beside = Some(Beside {
                requests: Requests::start(&format!("{url}/health"), REQUESTS_PER_S, time),
                status: Reader::start(&url, time),
            });
        }
    };
    let load = Load::of(Transport::Sse);
    let phases = vec![ramp(clients), hold(time, None)];
    let report = stage.flood_with(&load, phases, &mut |moment| begin(moment.phase));
    if let (Err(_), Some(beside)) = (&report, &beside) {
        beside.requests.cut_short();
        beside.status.cut_short();
    }
    let (response, updates) = match beside {
        Some(Beside { requests, status }) => (Some(requests.end()), status.end()),
        None => (None, None),
    };
    let report = report?;
    let Some(held) = report.phases.last() else { return Ok(()) };
    tell_cost(stage, &report, held);
    tell_beats(stage, held, beat_s, time);
    tell_beside(stage, response, updates);
    tell_growth(stage, &report, held);
    courses(stage, &report);
    Ok(())
}

fn tell_cost(stage: &mut Stage<'_>, report: &Report, held: &PhaseReport) {
    let clients = stage.size.connections;
    let memory = bytes_per_client(held);
    let kernel = report.phases.first().and_then(kernel_bytes_per_client);
    let both = memory.zip(kernel).map(|(server, kernel)| server + kernel);
    stage.figure("memory", memory, clients);
    stage.figure("memory_all", both, clients);
    let seconds = held.to_s - held.from_s;
    let cpu_s = held.totals.server.as_ref().map(|server| server.cpu_s);
    stage.figure("server_cores", cpu_s.map(|cpu_s| cpu_s / seconds), clients);
    let lost: u64 = report.total.failures.values().sum();
    stage.figure("disconnects", Some(lost as f64), clients);
}

fn tell_beats(stage: &mut Stage<'_>, held: &PhaseReport, beat_s: u64, time: Duration) {
    let clients = stage.size.connections;
    let beats = held.totals.heartbeats;
    stage.figure("heartbeats", Some(beats as f64), clients);
    let seconds = held.to_s - held.from_s;
    stage.figure("heartbeat_rate", Some(beats as f64 / seconds), clients);
    // Each has its beat at a moment of its own, so that there may be one less than fits; and the
    // server looks for who is due once a second.
    let fitting = time.as_secs_f64() / beat_s as f64 - 1.0;
    let due = (fitting * BEATS_SHARE_MIN).max(0.0) as u64 * clients as u64;
    if beats < due {
        let (beats, due) = (count(beats), count(due));
        stage.outcome.fail(format!("{beats} heartbeats came, and {due} were due at least"));
    }
}

fn tell_beside(stage: &mut Stage<'_>, response: Option<Response>, updates: Option<Updates>) {
    let clients = stage.size.connections;
    match response {
        Some(response) => {
            stage.figure("request_rate", Some(response.rate), clients);
            stage.figure("response_mean", Some(response.mean_ms), clients);
            stage.figure("response_p99", Some(response.p99_ms), clients);
            if response.failed > 0 {
                let failed = count(response.failed);
                stage.outcome.fail(format!("{failed} plain requests were not answered"));
            }
        }
        None => stage.outcome.fail("the clients were not held long enough for plain requests"),
    }
    match updates {
        Some(updates) => {
            stage.figure("updates", Some(updates.count as f64), clients);
            stage.figure("shown", Some(updates.sse_most as f64), clients);
            // In a very short run there may be none.
            let is_due = updates.count > 0 || updates.seconds >= UPDATES_DUE_S;
            if is_due && updates.sse_most < clients as u64 {
                let shown = count(updates.sse_most);
                stage.outcome.fail(format!("the status page showed {shown} clients at the most"));
            }
        }
        None => stage.outcome.warnings.push("the server has no live status page".to_owned()),
    }
}

fn tell_growth(stage: &mut Stage<'_>, report: &Report, held: &PhaseReport) {
    let end = held.totals.server.as_ref().and_then(|server| server.pss_bytes);
    let before = report.phases.first().and_then(|came| came.totals.server.as_ref()?.pss_bytes);
    let Some((before, end)) = before.zip(end) else { return };
    let growth = end as f64 - before as f64;
    stage.figure("growth", Some(growth), stage.size.connections);
    if growth > (before as f64 * GROWTH_SHARE_MAX).max(GROWTH_BYTES_MIN) {
        let (growth, before) = (bytes(growth), bytes(before as f64));
        stage.outcome.fail(format!("the server grew by {growth} from {before} while held"));
    }
}

fn courses(stage: &mut Stage<'_>, report: &Report) {
    let memory = Course::over_time("million-sse-memory", "Memory", Unit::Bytes)
        .noted("Of the server (Pss), and growth of the kernel's slabs, both ends.")
        .line("server", samples(report, server_pss))
        .line("kernel", samples(report, slab_growth(report)))
        .line("published, the whole machine", level(report, 14.2 * GIB));
    let beats = Course::over_time("million-sse-beats", "Heartbeats a second", Unit::PerSecond)
        .line("received", samples(report, |sample| Some(sample.heartbeats as f64)));
    let title = "Processor time, in cores";
    let processor = Course::over_time("million-sse-processor", title, Unit::Cores)
        .noted("Published: eight cores, all busy.")
        .line("server", samples(report, |sample| sample.server_cores))
        .line("generator", samples(report, |sample| Some(sample.generator_cores)))
        .line("published, server", level(report, 8.0));
    stage.outcome.courses.extend([memory, beats, processor]);
}
