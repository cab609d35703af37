//! A WebSocket chat of a quarter of a million clients, and then twice as many.

use throng_flood::plan::Transport;
use throng_flood::report::{Distribution, PhaseReport, Report};
use throng_report::Unit;

use crate::context::{Abort, Benchmark, Context, Load, QUIET};
use crate::definition::{Definition, GIB, Measurement, Scope};
use crate::flood::{bytes_per_client, connect_rate, hold, ramp, server_bytes, to_all};
use crate::plot::samples;
use crate::results::Plot;

/// Clients of the last step, and of each step, with the original's memory in GiB where published.
const WHOLE: usize = 512_000;
const STEPS: [(usize, Option<f64>); 4] =
    [(119_748, Some(2.656)), (256_000, Some(4.714)), (384_000, None), (WHOLE, Some(9.395))];

/// Index of the step whose latencies are reported.
const BROADCAST_STEP: usize = 1;

/// Messages per step.
const MESSAGES: u64 = 3;
const MESSAGE_BYTES: usize = 128;

const MEMORY: &str = "resident memory of the server over its connections";

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "websocket-chat",
    title: "WebSocket chat",
    story: "Every message goes to all clients in a chat of 256,000 WebSockets, on a machine that \
            costs cents an hour. Then the number climbs beyond half a million, where the load \
            generator ran out of memory before the server did.",
    source: "WeAreWizards, A lot of websockets in Haskell",
    year: 2015,
    hardware: "m4.xlarge (4 virtual cores, 16 GB); the clients on another one",
    setup: "All clients are WebSockets in one channel. Three messages are published at each step, \
            over a WebSocket; each client measures the time from the intended publish to the \
            delivery, and checks that all messages arrive once and in order.",
    differences: &[
        "Clients and server share one machine.",
        "The publisher has a connection of its own, which is not counted.",
        "Clients connect as fast as the server accepts them, up to a thousand at once, so that \
         each waits for others; the original connected at a fixed rate.",
        "The published latency is a range, 10 to 50 ms, which its authors call unscientific; its \
         upper end is used.",
    ],
    measurements: &[
        Measurement::less(
            "first",
            "one message to half of the clients: until the first has it",
            Unit::Milliseconds,
        ),
        Measurement::less("p50", "until half of them have it", Unit::Milliseconds),
        Measurement::less("p99", "until 99 % have it", Unit::Milliseconds),
        Measurement::less("last", "until all have it", Unit::Milliseconds).published(
            50.0,
            256_000,
            "propagating a message to all, 10 to 50 ms, unscientific",
        ),
        Measurement::less(
            "memory_1",
            "memory per connection, in the server, first step",
            Unit::Bytes,
        )
        .per_connection()
        .published(2.656 * GIB / 119_748.0, 119_748, MEMORY),
        Measurement::less("memory_2", "the same, second step", Unit::Bytes)
            .per_connection()
            .published(4.714 * GIB / 256_000.0, 256_000, MEMORY),
        Measurement::less("memory_4", "the same, last step", Unit::Bytes)
            .per_connection()
            .published(9.395 * GIB / WHOLE as f64, WHOLE, MEMORY),
        Measurement::less("server", "memory of the server, all clients", Unit::Bytes),
        Measurement::CONNECT_RATE.named("connects per second, last step").published(
            1_150.0,
            WHOLE,
            "connects per second, as paced by the load generator",
        ),
        Measurement::less("connect_mean", "time to connect, mean", Unit::Milliseconds).published(
            0.68,
            WHOLE,
            "mean time to connect, as logged by the load generator (0.63 to 0.68 ms)",
        ),
        Measurement::DELIVERED.named("messages delivered, all steps"),
        Measurement::EXPECTED.named("messages expected, all steps"),
    ],
    scope: Scope::of(WHOLE).held_s(45).big().broadcasting(),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    context.serve(QUIET)?;
    let load = Load { by_websocket: true, ..Load::of(Transport::WebSocket) };
    let time = context.size.time;
    let messages = to_all(MESSAGES, MESSAGE_BYTES, time);
    let clients = STEPS.map(|(original, _)| context.size.part(original, WHOLE));
    let phases =
        clients.iter().flat_map(|&to| [ramp(to), hold(time, Some(messages.clone()))]).collect();
    let report = context.flood(&load, phases)?;
    record_steps(context, &report, clients);
    let total = &report.total;
    context.record_all(
        [
            ("delivered", Some(total.received as f64)),
            ("expected", Some(total.expected as f64)),
            ("connect_mean", total.connect.as_ref().map(|connect| connect.mean)),
        ],
        context.size.connections,
    );
    context.outcome.plots.push(
        Plot::over_time("websocket-chat-connections", "Connections", Unit::Count)
            .line("active", samples(&report, |sample| Some(sample.active as f64))),
    );
    Ok(())
}

/// A step: a ramp phase and a hold phase with messages.
struct Step<'a> {
    clients: usize,
    connect_rate: Option<f64>,
    hold: &'a PhaseReport,
}

fn record_steps(context: &mut Context<'_>, report: &Report, clients: [usize; STEPS.len()]) {
    let steps = report.phases.chunks(2).zip(clients).filter_map(|(phases, clients)| {
        let [ramp, hold] = phases else { return None };
        Some(Step { clients, connect_rate: connect_rate(ramp), hold })
    });
    let steps: Vec<Step<'_>> = steps.collect();
    let p50 = |of: &Option<Distribution>| of.as_ref().map(|found| found.p50);
    let mut rows = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let totals = &step.hold.totals;
        let (first, middle) = (p50(&totals.first), p50(&totals.median));
        let (p99, last) = (p50(&totals.p99), p50(&totals.last));
        if index == BROADCAST_STEP {
            let times = [("first", first), ("p50", middle), ("p99", p99), ("last", last)];
            context.record_all(times, step.clients);
        }
        if STEPS[index].1.is_some() {
            let key = format!("memory_{}", index + 1);
            context.record(&key, bytes_per_client(step.hold), step.clients);
        }
        if index + 1 == STEPS.len() {
            context.record("server", server_bytes(step.hold), step.clients);
            context.record("connect_rate", step.connect_rate, step.clients);
        }
        rows.push(vec![
            Some(step.clients as f64),
            step.connect_rate,
            server_bytes(step.hold),
            bytes_per_client(step.hold),
            first,
            middle,
            p99,
            last,
        ]);
    }
    let columns = [
        "clients",
        "connects per second",
        "memory of the server, bytes",
        "per connection, bytes",
        "first, ms",
        "p50, ms",
        "p99, ms",
        "last, ms",
    ];
    context.table("Each step of the climb", &columns, rows);
    let ours = steps.iter().map(|step| (step.clients as f64, server_bytes(step.hold)));
    let theirs = STEPS
        .iter()
        .filter_map(|(clients, memory)| Some((*clients as f64, Some((*memory)? * GIB))));
    context.outcome.plots.push(
        Plot::by_clients("websocket-chat-memory", "Memory of the server", Unit::Bytes)
            .note("At each step.")
            .log()
            .line("here", ours.collect())
            .line("published", theirs.collect()),
    );
}
