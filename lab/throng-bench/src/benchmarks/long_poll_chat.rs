//! A chat room of long-polls, from ten to two thousand clients.

use throng_host::proc;
use throng_report::Unit;

use crate::context::{Abort, Benchmark, Context};
use crate::definition::{Definition, KIB, Measurement, Scope};
use crate::pollers::Pollers;
use crate::results::Plot;

/// Sizes of the original: clients, and the time from the first to the last response in
/// milliseconds.
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

/// Rounds per size; the median of their times is reported.
const ROUNDS: usize = 3;

/// Size of a chat message.
const MESSAGE_BYTES: usize = 64;

/// The kernel retransmits a dropped handshake after a second; a connection attempt that took this
/// long was probably dropped.
const DROPPED_MS: f64 = 900.0;

const SPAN: &str = "from the first response received to the last";

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "long-poll-chat",
    title: "Long-poll chat",
    story: "All clients of a chat room wait for the next message with a long-poll, from ten \
            clients to two thousand. It was the first to measure the time from the first response \
            to the last, and it found a cliff where the listen queue was full.",
    source: "Comet chat with POE, and how far it scales",
    year: 2006,
    hardware: "Fedora Core 5, the clients on the same machine",
    setup: "For each size all clients connect at once. When the server counts them all, one \
            message is published, and each client times its response. The median of three rounds \
            is reported. The kernel's counters tell whether its queues overflowed.",
    differences: &["The message has 64 bytes, including a mark for the audit of each client."],
    measurements: &[
        Measurement::less(
            "span_500",
            "first to last response, a quarter of the clients",
            Unit::Milliseconds,
        )
        .published(1_180.0, 500, SPAN),
        Measurement::less(
            "span_1000",
            "first to last response, half of the clients",
            Unit::Milliseconds,
        )
        .published(4_650.0, 1_000, SPAN),
        Measurement::less("span_2000", "first to last response, all clients", Unit::Milliseconds)
            .published(9_480.0, 2_000, SPAN),
        Measurement::less(
            "connect_300",
            "to connect all clients, at the original's cliff",
            Unit::Milliseconds,
        )
        .published(3_310.0, 300, "to connect all, with a queue of 128"),
        Measurement::less(
            "connect_500",
            "to connect all, a quarter of the clients",
            Unit::Milliseconds,
        )
        .published(600.0, 500, "to connect all, with a longer queue"),
        Measurement::less("slowest", "slowest connection, all sizes", Unit::Milliseconds),
        Measurement::less("jump", "largest jump from one size to the next", Unit::Milliseconds),
        Measurement::of("overflows", "connections that met a full listen queue", Unit::Count),
        Measurement::of("retransmits", "retransmitted handshakes", Unit::Count),
        Measurement::MEMORY.published(
            5.62 * KIB,
            2_000,
            "growth of the server's virtual memory over its connections",
        ),
    ],
    scope: Scope::of(2_000).broadcasting(),
};

/// Results of a round.
#[derive(Debug, Clone, Copy)]
struct Round {
    connect_ms: f64,
    slowest_ms: f64,
    span_ms: f64,
    memory: Option<f64>,
}

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let whole = SIZES[SIZES.len() - 1].0;
    context.serve(&["--heartbeat", "0"])?;
    let mut pollers = Pollers::new(context, context.size.connections)?;
    // The first round makes the server allocate what it allocates only once.
    round(context, &mut pollers, 1, None)?;
    let base = memory(context);
    let before = proc::handshakes();
    let mut rounds = Vec::new();
    for (original, published) in SIZES {
        let clients = context.size.part(original, whole);
        let mut all = Vec::new();
        for _ in 0..ROUNDS {
            all.push(round(context, &mut pollers, clients, base)?);
        }
        rounds.push((original, published, clients, median(&all)));
    }
    for fault in pollers.audit() {
        context.outcome.fail(fault);
    }
    pollers.stop();
    let after = proc::handshakes();
    let (slowest, jump) = record(context, &rounds);
    context.record("slowest", Some(slowest), context.size.connections);
    context.record("jump", Some(jump), context.size.connections);
    // Counters of the whole machine; unreadable in some containers.
    let mut may_be_dropped = true;
    if let Some((before, after)) = before.zip(after) {
        let overflows = after.listen_overflows.saturating_sub(before.listen_overflows);
        let retransmits = after.syn_retransmits.saturating_sub(before.syn_retransmits);
        context.record("overflows", Some(overflows as f64), context.size.connections);
        context.record("retransmits", Some(retransmits as f64), context.size.connections);
        may_be_dropped = retransmits > 0;
    }
    if slowest >= DROPPED_MS && may_be_dropped {
        context.outcome.fail(format!(
            "a client took {slowest:.0} ms to connect: its handshake was dropped and retransmitted"
        ));
    }
    Ok(())
}

/// Connects all clients, publishes one message, and closes all clients.
fn round(
    context: &mut Context<'_>,
    pollers: &mut Pollers,
    clients: usize,
    base: Option<f64>,
) -> Result<Round, Abort> {
    let connected = pollers.connect(context, clients, clients)?;
    let each = base.zip(memory(context)).map(|(base, now)| (now - base) / clients as f64);
    let answered = pollers.publish_marked(context, MESSAGE_BYTES, clients)?;
    pollers.connect(context, 0, clients)?;
    Ok(Round {
        connect_ms: connected.seconds * 1e3,
        slowest_ms: connected.slowest_ms,
        span_ms: answered.span_ms,
        memory: each,
    })
}

fn memory(context: &Context<'_>) -> Option<f64> {
    context.pid().and_then(proc::pss_bytes).map(|bytes| bytes as f64)
}

/// The median of each measurement; the maximum of the slowest connections.
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
        // The maximum: the server grows in the first round and may shrink later.
        memory: rounds.iter().filter_map(|round| round.memory).reduce(f64::max),
    }
}

/// Records measurements, table and charts of all sizes. Returns the slowest connection and the
/// largest jump between sizes, in milliseconds.
fn record(context: &mut Context<'_>, rounds: &[(usize, f64, usize, Round)]) -> (f64, f64) {
    let mut rows = Vec::new();
    for (original, _, clients, round) in rounds {
        let values = [
            (format!("span_{original}"), round.span_ms),
            (format!("connect_{original}"), round.connect_ms),
        ];
        for (key, value) in values {
            if context.outcome.measurements.iter().any(|measurement| measurement.key == key) {
                context.record(&key, Some(value), *clients);
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
        "per client, ms",
        "slowest connection, ms",
        "first to last response, ms",
        "per client, ms",
    ];
    context.table("Connecting and answering", &columns, rows);
    let last = rounds.last().and_then(|(_, _, clients, round)| Some((*clients, round.memory?)));
    if let Some((clients, memory)) = last {
        context.record("memory", Some(memory), clients);
    }
    let ours = |of: fn(&Round) -> f64| {
        rounds.iter().map(|(_, _, clients, round)| (*clients as f64, Some(of(round)))).collect()
    };
    let theirs = rounds.iter().map(|(original, span, ..)| (*original as f64, Some(*span)));
    let plot = |id, title| Plot::by_clients(id, title, Unit::Milliseconds).log();
    let spans = plot("long-poll-chat-span", "From the first response to the last")
        .line("here", ours(|round| round.span_ms))
        .line("published", theirs.collect());
    let connects = plot("long-poll-chat-connect", "Connecting")
        .line("to connect all", ours(|round| round.connect_ms))
        .line("slowest connection", ours(|round| round.slowest_ms));
    context.outcome.plots.extend([spans, connects]);
    let slowest = rounds.iter().map(|(.., round)| round.slowest_ms).fold(0.0, f64::max);
    let jumps = rounds.windows(2).map(|two| two[1].3.connect_ms - two[0].3.connect_ms);
    (slowest, jumps.fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_three_rounds_is_reported() {
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
