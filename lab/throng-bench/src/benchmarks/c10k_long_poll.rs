//! Ten thousand long-polls, answered by one message.

use throng_host::proc;
use throng_report::Unit;

use crate::context::{Abort, Benchmark, Context};
use crate::definition::{Definition, KIB, Measurement, Scope};
use crate::flood::IN_FLIGHT;
use crate::pollers::Pollers;
use crate::results::Plot;

/// Steps of the original: clients, and memory per client in KiB.
const STEPS: [(usize, f64); 4] = [(100, 10.34), (1_000, 7.17), (5_000, 6.88), (10_000, 6.84)];

/// The message of the original.
const MESSAGE: &[u8] = b"hello";

/// Messages per step; the median of their times is reported.
const ROUNDS: usize = 3;

/// Size of the audited message, which carries a mark.
const MARKED_BYTES: usize = 50;

const WHAT: &str = "growth of the server's resident memory over its connections, less 170 kB for \
                    the channel";

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "c10k-long-poll",
    title: "C10K long-poll",
    story: "Up to ten thousand clients wait for one message, and memory is read at each step. Then \
            five bytes are published once, and the time until all are answered is measured.",
    source: "The nginx HTTP push module and 10,000 comet connections",
    year: 2009,
    hardware: "a Debian machine with one worker; the clients on another one",
    setup: "All clients poll one channel. When the server's presence counts them all, its memory \
            is read, a message of five bytes is published, and each client times its response. \
            At the end a marked message is audited for each client.",
    differences: &[
        "Clients and server share one machine.",
        "Connections stay open, and poll again when all are answered; the original closed them.",
    ],
    measurements: &[
        Measurement::less(
            "memory_1",
            "memory per connection, in the server, first step",
            Unit::Bytes,
        )
        .per_connection()
        .published(STEPS[0].1 * KIB, STEPS[0].0, WHAT),
        Measurement::less("memory_2", "the same, second step", Unit::Bytes)
            .per_connection()
            .published(STEPS[1].1 * KIB, STEPS[1].0, WHAT),
        Measurement::less("memory_3", "the same, third step", Unit::Bytes)
            .per_connection()
            .published(STEPS[2].1 * KIB, STEPS[2].0, WHAT),
        Measurement::less("memory_4", "the same, last step", Unit::Bytes)
            .per_connection()
            .published(STEPS[3].1 * KIB, STEPS[3].0, WHAT),
        Measurement::less(
            "answer_all",
            "one message of 5 bytes until all are answered",
            Unit::Milliseconds,
        )
        .published(
            100.0,
            10_000,
            "about a tenth of a second for all, according to the article",
        ),
        Measurement::less("answer_first", "until the first one is answered", Unit::Milliseconds),
        Measurement::of("answered", "clients answered by each message", Unit::Count),
    ],
    scope: Scope::of(10_000).broadcasting(),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let whole = STEPS[STEPS.len() - 1].0;
    context.serve(&["--heartbeat", "0"])?;
    let mut pollers = Pollers::new(context, context.size.connections)?;
    // The first client makes the server allocate what it allocates only once.
    pollers.connect(context, 1, 1)?;
    pollers.publish(context, MESSAGE, 1)?;
    pollers.connect(context, 0, 1)?;
    let memory =
        |context: &Context<'_>| context.pid().and_then(proc::pss_bytes).map(|bytes| bytes as f64);
    let base = memory(context);
    let (mut rows, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for (index, (original, published)) in STEPS.into_iter().enumerate() {
        let clients = context.size.part(original, whole);
        let connected = pollers.connect(context, clients, IN_FLIGHT.min(clients))?;
        let each = base.zip(memory(context)).map(|(base, now)| (now - base) / clients as f64);
        context.record(&format!("memory_{}", index + 1), each, clients);
        let mut answers = Vec::new();
        for _ in 0..ROUNDS {
            answers.push(pollers.publish(context, MESSAGE, clients)?);
        }
        answers.sort_by(|one, other| one.last_ms.total_cmp(&other.last_ms));
        let median = answers[ROUNDS / 2];
        if index + 1 == STEPS.len() {
            context.record("answer_all", Some(median.last_ms), clients);
            context.record("answer_first", Some(median.first_ms), clients);
            context.record("answered", Some(clients as f64), clients);
        }
        rows.push(vec![
            Some(clients as f64),
            each,
            Some(connected.seconds),
            Some(median.first_ms),
            Some(median.last_ms),
        ]);
        ours.push((clients as f64, each));
        theirs.push((original as f64, Some(published * KIB)));
    }
    pollers.publish_marked(context, MARKED_BYTES, context.size.connections)?;
    for fault in pollers.audit() {
        context.outcome.fail(fault);
    }
    pollers.stop();
    context.table(
        "Each step",
        &[
            "clients",
            "memory per connection, bytes",
            "connected in, s",
            "first response, ms",
            "all answered, ms",
        ],
        rows,
    );
    let title = "Memory per connection, in the server";
    context.outcome.plots.push(
        Plot::by_clients("c10k-long-poll-memory", title, Unit::Bytes)
            .note("At each step; what the server allocates once weighs less with more clients.")
            .log()
            .line("here", ours)
            .line("published", theirs),
    );
    Ok(())
}
