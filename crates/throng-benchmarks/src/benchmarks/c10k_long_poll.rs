//! Ten thousand long-polls, answered by one message.

use throng_host::proc;
use throng_report::Unit;

use crate::benchmark::{Benchmark, Figure, KIB, Scope};
use crate::measures::IN_FLIGHT;
use crate::pollers::Pollers;
use crate::results::Course;
use crate::stage::{Cut, Stage};

/// Clients of the original's steps, with the memory that each took in KiB.
const STEPS: [(usize, f64); 4] = [(100, 10.34), (1_000, 7.17), (5_000, 6.88), (10_000, 6.84)];

/// As many bytes as in the original.
const MESSAGE: &[u8] = b"hello";

/// All are answered so often; the median counts.
const ROUNDS: usize = 3;

/// A message that is audited at the end has a mark, which is longer.
const MARKED_BYTES: usize = 50;

const WHAT: &str = "growth of the server's resident memory over its connections, less 170 kB for \
                    the channel";

pub static EXPERIMENT: Benchmark = Benchmark {
    name: "c10k-long-poll",
    title: "C10K long-poll",
    story: "Up to ten thousand clients wait for one message, and memory is read at each step. Then \
            five bytes are published once, and the time is taken until everybody is answered.",
    source: "The nginx HTTP push module and 10,000 comet connections",
    year: 2009,
    hardware: "a Debian machine with one worker; the clients on another one",
    setup: "All clients poll one channel. When the server's presence counts them all, its memory \
            is read, a message of five bytes is published, and each client takes the time of its \
            answer. At the end a message with a mark is audited for each client.",
    differences: &[
        "Clients and server share one machine.",
        "Connections stay open, and ask again when all are answered; in the original they were \
         closed.",
    ],
    figures: &[
        Figure::less("memory_1", "memory a connection, in the server, first step", Unit::Bytes)
            .each()
            .published(STEPS[0].1 * KIB, STEPS[0].0, WHAT),
        Figure::less("memory_2", "the same, second step", Unit::Bytes).each().published(
            STEPS[1].1 * KIB,
            STEPS[1].0,
            WHAT,
        ),
        Figure::less("memory_3", "the same, third step", Unit::Bytes).each().published(
            STEPS[2].1 * KIB,
            STEPS[2].0,
            WHAT,
        ),
        Figure::less("memory_4", "the same, last step", Unit::Bytes).each().published(
            STEPS[3].1 * KIB,
            STEPS[3].0,
            WHAT,
        ),
        Figure::less(
            "answer_all",
            "one message of 5 bytes until all are answered",
            Unit::Milliseconds,
        )
        .published(
            100.0,
            10_000,
            "about a tenth of a second for all, as told in the article",
        ),
        Figure::less("answer_first", "until the first one is answered", Unit::Milliseconds),
        Figure::of("answered", "clients answered by each message", Unit::Count),
    ],
    scope: Scope::of(10_000).broadcasting(),
    run,
};

fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    let whole = STEPS[STEPS.len() - 1].0;
    stage.serve(&["--heartbeat", "0"])?;
    let mut pollers = Pollers::new(stage, stage.size.connections)?;
    // The first client opens what the server opens once: channel, connections of its own.
    pollers.connect(stage, 1, 1)?;
    pollers.say(stage, MESSAGE, 1)?;
    pollers.connect(stage, 0, 1)?;
    let memory = |stage: &Stage<'_>| stage.pid().and_then(proc::pss_bytes).map(|it| it as f64);
    let base = memory(stage);
    let (mut rows, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for (nth, (original, published)) in STEPS.into_iter().enumerate() {
        let clients = stage.size.part(original, whole);
        let connected = pollers.connect(stage, clients, IN_FLIGHT.min(clients))?;
        let each = base.zip(memory(stage)).map(|(base, now)| (now - base) / clients as f64);
        stage.figure(&format!("memory_{}", nth + 1), each, clients);
        let mut answers = Vec::new();
        for _ in 0..ROUNDS {
            answers.push(pollers.say(stage, MESSAGE, clients)?);
        }
        answers.sort_by(|one, other| one.last_ms.total_cmp(&other.last_ms));
        let median = answers[ROUNDS / 2];
        if nth + 1 == STEPS.len() {
            stage.figure("answer_all", Some(median.last_ms), clients);
            stage.figure("answer_first", Some(median.first_ms), clients);
            stage.figure("answered", Some(clients as f64), clients);
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
    pollers.say_marked(stage, MARKED_BYTES, stage.size.connections)?;
    for fault in pollers.audit() {
        stage.outcome.fail(fault);
    }
    pollers.end();
    stage.table(
        "Each step",
        &[
            "clients",
            "memory a connection, bytes",
            "connected in, s",
            "first answer, ms",
            "all answered, ms",
        ],
        rows,
    );
    let title = "Memory a connection, in the server";
    stage.outcome.courses.push(
        Course::by_clients("c10k-long-poll-memory", title, Unit::Bytes)
            .noted("At each step of clients; what a server opens once weighs less with each step.")
            .log()
            .line("here", ours)
            .line("published", theirs),
    );
    Ok(())
}
