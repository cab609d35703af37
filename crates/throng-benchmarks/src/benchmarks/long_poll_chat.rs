//! A chat room of long-polls, from ten clients to two thousand.

use throng_host::proc;
use throng_report::Unit;

use crate::benchmark::{Benchmark, Figure, KIB, Scope};
use crate::pollers::Pollers;
use crate::results::Course;
use crate::stage::{Cut, Stage};

/// Clients of the original, and from the first response to the last in milliseconds.
const SIZES: [(usize, f64); 8] = [
    (10, 0.8),
    (50, 28.0),
    (100, 73.0),
    (200, 234.0),
    (300, 528.0),
    (500, 1_180.0),
    (1_000, 4_650.0),
    (2_000, 9_480.0),
];

/// Each size is done so often; the median counts.
const ROUNDS: usize = 3;

/// Bytes of what is said in the chat.
const SAID_BYTES: usize = 64;

/// A connect that was turned away is tried again by the kernel after a second.
const TURNED_AWAY_MS: f64 = 900.0;

const SPAN: &str = "from the first response received to the last";

pub static EXPERIMENT: Benchmark = Benchmark {
    name: "long-poll-chat",
    title: "Long-poll chat",
    story: "Everybody in a chat room waits for the next word with a long-poll, from ten clients to \
            two thousand. It was the first to measure from the first response to the last, and it \
            found a cliff where the queue of waiting connections was full.",
    source: "Comet chat with POE, and how far it scales",
    year: 2006,
    hardware: "Fedora Core 5, the clients on the same machine",
    setup: "For each size all clients connect at once; when the server knows them all, one message \
            is said, and each client takes the time of its answer. Three rounds each, of which the \
            median counts. The kernel's counters tell whether its queues ran over meanwhile.",
    differences: &[
        "The message has 64 bytes, with a mark by which each client's answer is audited.",
    ],
    figures: &[
        Figure::less(
            "span_500",
            "first to last response, a quarter of the clients",
            Unit::Milliseconds,
        )
        .published(1_180.0, 500, SPAN),
        Figure::less(
            "span_1000",
            "first to last response, half of the clients",
            Unit::Milliseconds,
        )
        .published(4_650.0, 1_000, SPAN),
        Figure::less("span_2000", "first to last response, all clients", Unit::Milliseconds)
            .published(9_480.0, 2_000, SPAN),
        Figure::less("connect_300", "to connect all, where the cliff was", Unit::Milliseconds)
            .published(3_310.0, 300, "to connect all, with a queue of 128"),
        Figure::less("connect_500", "to connect all, a quarter of the clients", Unit::Milliseconds)
            .published(600.0, 500, "to connect all, with a longer queue"),
        Figure::less("slowest", "the slowest single connect of all sizes", Unit::Milliseconds),
        Figure::less("jump", "the largest jump from one size to the next", Unit::Milliseconds),
        Figure::of("overflows", "connections that found the queue full", Unit::Count),
        Figure::of("retransmits", "handshakes that had to be repeated", Unit::Count),
        Figure::MEMORY.published(
            5.62 * KIB,
            2_000,
            "growth of the server's virtual memory over its connections",
        ),
    ],
    scope: Scope::of(2_000).broadcasting(),
    run,
};

/// Of one size.
#[derive(Debug, Clone, Copy)]
struct Round {
    connect_ms: f64,
    slowest_ms: f64,
    span_ms: f64,
    memory: Option<f64>,
}

fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    let whole = SIZES[SIZES.len() - 1].0;
    stage.serve(&["--heartbeat", "0"])?;
    let mut pollers = Pollers::new(stage, stage.size.connections)?;
    // What the server opens once.
    round(stage, &mut pollers, 1, None)?;
    let base = memory(stage);
    let before = proc::handshakes();
    let mut rounds = Vec::new();
    for (original, published) in SIZES {
        let clients = stage.size.part(original, whole);
        let mut all = Vec::new();
        for _ in 0..ROUNDS {
            all.push(round(stage, &mut pollers, clients, base)?);
        }
        rounds.push((original, published, clients, median(&all)));
    }
    for fault in pollers.audit() {
        stage.outcome.fail(fault);
    }
    pollers.end();
    let after = proc::handshakes();
    let (slowest, jump) = tell(stage, &rounds);
    stage.figure("slowest", Some(slowest), stage.size.connections);
    stage.figure("jump", Some(jump), stage.size.connections);
    // Those of everything on this machine, where they can be read.
    let mut may_be_turned_away = true;
    if let Some((before, after)) = before.zip(after) {
        let overflows = after.listen_overflows.saturating_sub(before.listen_overflows);
        let retransmits = after.syn_retransmits.saturating_sub(before.syn_retransmits);
        stage.figure("overflows", Some(overflows as f64), stage.size.connections);
        stage.figure("retransmits", Some(retransmits as f64), stage.size.connections);
        may_be_turned_away = retransmits > 0;
    }
    if slowest >= TURNED_AWAY_MS && may_be_turned_away {
        stage.outcome.fail(format!(
            "a client took {slowest:.0} ms to connect: it was turned away and tried again"
        ));
    }
    Ok(())
}

/// All connect, one word is said, all leave.
fn round(
    stage: &mut Stage<'_>,
    pollers: &mut Pollers,
    clients: usize,
    base: Option<f64>,
) -> Result<Round, Cut> {
    let connected = pollers.connect(stage, clients, clients)?;
    let each = base.zip(memory(stage)).map(|(base, now)| (now - base) / clients as f64);
    let answered = pollers.say_marked(stage, SAID_BYTES, clients)?;
    pollers.connect(stage, 0, clients)?;
    Ok(Round {
        connect_ms: connected.seconds * 1e3,
        slowest_ms: connected.slowest_ms,
        span_ms: answered.span_ms,
        memory: each,
    })
}

fn memory(stage: &Stage<'_>) -> Option<f64> {
    stage.pid().and_then(proc::pss_bytes).map(|bytes| bytes as f64)
}

/// The median of each measure; of single connects the slowest.
fn median(rounds: &[Round]) -> Round {
    let middle = |of: fn(&Round) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Round {
        connect_ms: middle(|round| round.connect_ms),
        slowest_ms: rounds.iter().map(|round| round.slowest_ms).fold(0.0, f64::max),
        span_ms: middle(|round| round.span_ms),
        // With the first round the server grows; it shrinks when it likes.
        memory: rounds.iter().filter_map(|round| round.memory).reduce(f64::max),
    }
}

/// Figures, table and charts of all sizes; the slowest connect, and the largest jump.
fn tell(stage: &mut Stage<'_>, rounds: &[(usize, f64, usize, Round)]) -> (f64, f64) {
    let mut rows = Vec::new();
    for (original, _, clients, round) in rounds {
        let measures = [
            (format!("span_{original}"), round.span_ms),
            (format!("connect_{original}"), round.connect_ms),
        ];
        for (key, value) in measures {
            if stage.outcome.figures.iter().any(|figure| figure.key == key) {
                stage.figure(&key, Some(value), *clients);
            }
        }
        rows.push(vec![
            Some(*clients as f64),
            Some(round.connect_ms),
            Some(round.connect_ms / *clients as f64),
            Some(round.slowest_ms),
            Some(round.span_ms),
            Some(round.span_ms / *clients as f64),
        ]);
    }
    let columns = [
        "clients",
        "to connect all, ms",
        "a client, ms",
        "slowest connect, ms",
        "first to last response, ms",
        "a client, ms",
    ];
    stage.table("Connecting and answering", &columns, rows);
    let last = rounds.last().and_then(|(_, _, clients, round)| Some((*clients, round.memory?)));
    if let Some((clients, memory)) = last {
        stage.figure("memory", Some(memory), clients);
    }
    let ours = |of: fn(&Round) -> f64| {
        rounds.iter().map(|(_, _, clients, round)| (*clients as f64, Some(of(round)))).collect()
    };
    let theirs = rounds.iter().map(|(original, span, ..)| (*original as f64, Some(*span)));
    let course = |id, title| Course::by_clients(id, title, Unit::Milliseconds).log();
    let spans = course("long-poll-chat-span", "From the first response to the last")
        .line("here", ours(|round| round.span_ms))
        .line("published", theirs.collect());
    let connects = course("long-poll-chat-connect", "Connecting")
        .line("to connect all", ours(|round| round.connect_ms))
        .line("the slowest one", ours(|round| round.slowest_ms));
    stage.outcome.courses.extend([spans, connects]);
    let slowest = rounds.iter().map(|(.., round)| round.slowest_ms).fold(0.0, f64::max);
    let jumps = rounds.windows(2).map(|two| two[1].3.connect_ms - two[0].3.connect_ms);
    (slowest, jumps.fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_three_rounds() {
        let round = |ms: f64| Round {
            connect_ms: ms,
            slowest_ms: ms,
            span_ms: 10.0 - ms,
            memory: Some(ms),
        };
        let found = median(&[round(3.0), round(1.0), round(2.0)]);
        assert_eq!((found.connect_ms, found.slowest_ms, found.span_ms), (2.0, 3.0, 8.0));
        assert_eq!(found.memory, Some(3.0));
    }
}
