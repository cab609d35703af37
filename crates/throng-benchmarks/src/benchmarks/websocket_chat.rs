//! A WebSocket chat with a quarter of a million people in it, and then twice as many.

use throng_flood::plan::Transport;
use throng_flood::report::{Distribution, PhaseReport, Report};
use throng_report::Unit;

use crate::benchmark::{Benchmark, Figure, GIB, Scope};
use crate::course::samples;
use crate::measures::{bytes_per_client, connect_rate, hold, ramp, server_bytes, to_all};
use crate::results::Course;
use crate::stage::{Cut, Load, QUIET, Stage};

/// People that the original ended with, and all steps on the way; with its memory, where it was
/// read, in GiB.
const WHOLE: usize = 512_000;
const STEPS: [(usize, Option<f64>); 4] =
    [(119_748, Some(2.656)), (256_000, Some(4.714)), (384_000, None), (WHOLE, Some(9.395))];

/// The step that has the figures of one message to all.
const BROADCAST_STEP: usize = 1;

/// At each step so many things are said, one after the other.
const SAID: u64 = 3;
const SAID_BYTES: usize = 128;

const MEMORY: &str = "resident memory of the server over its connections";

pub static EXPERIMENT: Benchmark = Benchmark {
    name: "websocket-chat",
    title: "WebSocket chat",
    story: "Everything that anybody says goes to everybody in a chat of 256,000 WebSockets, on a \
            machine that costs cents an hour. Then the number climbs beyond half a million, where \
            the load generator ran out of memory before the server did.",
    source: "WeAreWizards, A lot of websockets in Haskell",
    year: 2015,
    hardware: "m4.xlarge (4 virtual cores, 16 GB); the clients on another one",
    setup: "All clients are WebSockets in one channel, and one of them says something, three times \
            at each step; each client takes the time from when it was to be said to when it \
            comes, and checks that it got all of it, once and in order.",
    differences: &[
        "Clients and server share one machine.",
        "Whoever speaks has a connection of its own, which is not counted.",
        "Clients connect as fast as they are taken, up to a thousand at once, so that each waits \
         for others; in the original they came at a set rate.",
        "Published is a range, 10 to 50 ms, called unscientific by its authors; its upper end \
         stands for it.",
    ],
    figures: &[
        Figure::less(
            "first",
            "one message to half of the clients: the first has it",
            Unit::Milliseconds,
        ),
        Figure::less("p50", "half of them have it", Unit::Milliseconds),
        Figure::less("p99", "99 % have it", Unit::Milliseconds),
        Figure::less("last", "all have it", Unit::Milliseconds).published(
            50.0,
            256_000,
            "propagating a message to all, 10 to 50 ms, unscientific",
        ),
        Figure::less("memory_1", "memory a connection, in the server, first step", Unit::Bytes)
            .each()
            .published(2.656 * GIB / 119_748.0, 119_748, MEMORY),
        Figure::less("memory_2", "the same, second step", Unit::Bytes).each().published(
            4.714 * GIB / 256_000.0,
            256_000,
            MEMORY,
        ),
        Figure::less("memory_4", "the same, last step", Unit::Bytes).each().published(
            9.395 * GIB / WHOLE as f64,
            WHOLE,
            MEMORY,
        ),
        Figure::less("server", "memory of the server, all clients", Unit::Bytes),
        Figure::CONNECT_RATE.named("connects a second, last step").published(
            1_150.0,
            WHOLE,
            "clients that came a second, as the load generator sent them",
        ),
        Figure::less("connect_mean", "a connect, average", Unit::Milliseconds).published(
            0.68,
            WHOLE,
            "average of a connect, as the load generator logged it (0.63 to 0.68 ms)",
        ),
        Figure::DELIVERED.named("messages delivered, all steps"),
        Figure::EXPECTED.named("messages due, all steps"),
    ],
    scope: Scope::of(WHOLE).held_s(45).big().broadcasting(),
    run,
};

fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    stage.serve(QUIET)?;
    let load = Load { by_websocket: true, ..Load::of(Transport::WebSocket) };
    let time = stage.size.time;
    let said = to_all(SAID, SAID_BYTES, time);
    let clients = STEPS.map(|(original, _)| stage.size.part(original, WHOLE));
    let phases =
        clients.iter().flat_map(|&to| [ramp(to), hold(time, Some(said.clone()))]).collect();
    let report = stage.flood(&load, phases)?;
    tell_steps(stage, &report, clients);
    let total = &report.total;
    stage.figures(
        [
            ("delivered", Some(total.received as f64)),
            ("expected", Some(total.expected as f64)),
            ("connect_mean", total.connect.as_ref().map(|connect| connect.mean)),
        ],
        stage.size.connections,
    );
    stage.outcome.courses.push(
        Course::over_time("websocket-chat-connections", "Connections", Unit::Count)
            .line("active", samples(&report, |sample| Some(sample.active as f64))),
    );
    Ok(())
}

/// A step: its clients came in one phase and were spoken to in the next.
struct Step<'a> {
    clients: usize,
    connect_rate: Option<f64>,
    held: &'a PhaseReport,
}

fn tell_steps(stage: &mut Stage<'_>, report: &Report, clients: [usize; STEPS.len()]) {
    let steps = report.phases.chunks(2).zip(clients).filter_map(|(phases, clients)| {
        let [came, held] = phases else { return None };
        Some(Step { clients, connect_rate: connect_rate(came), held })
    });
    let steps: Vec<Step<'_>> = steps.collect();
    let p50 = |of: &Option<Distribution>| of.as_ref().map(|found| found.p50);
    let mut rows = Vec::new();
    for (nth, step) in steps.iter().enumerate() {
        let totals = &step.held.totals;
        let (first, middle) = (p50(&totals.first), p50(&totals.median));
        let (p99, last) = (p50(&totals.p99), p50(&totals.last));
        if nth == BROADCAST_STEP {
            let times = [("first", first), ("p50", middle), ("p99", p99), ("last", last)];
            stage.figures(times, step.clients);
        }
        if STEPS[nth].1.is_some() {
            let key = format!("memory_{}", nth + 1);
            stage.figure(&key, bytes_per_client(step.held), step.clients);
        }
        if nth + 1 == STEPS.len() {
            stage.figure("server", server_bytes(step.held), step.clients);
            stage.figure("connect_rate", step.connect_rate, step.clients);
        }
        rows.push(vec![
            Some(step.clients as f64),
            step.connect_rate,
            server_bytes(step.held),
            bytes_per_client(step.held),
            first,
            middle,
            p99,
            last,
        ]);
    }
    let columns = [
        "clients",
        "connects a second",
        "memory of the server, bytes",
        "a connection, bytes",
        "first, ms",
        "p50, ms",
        "p99, ms",
        "last, ms",
    ];
    stage.table("Each step of the climb", &columns, rows);
    let ours = steps.iter().map(|step| (step.clients as f64, server_bytes(step.held)));
    let theirs = STEPS
        .iter()
        .filter_map(|(clients, memory)| Some((*clients as f64, Some((*memory)? * GIB))));
    stage.outcome.courses.push(
        Course::by_clients("websocket-chat-memory", "Memory of the server", Unit::Bytes)
            .noted("At each step of clients.")
            .log()
            .line("here", ours.collect())
            .line("published", theirs.collect()),
    );
}
