//! Several nodes over NATS beside one server: what they cost, and what happens when one is killed.

mod beside;
mod faults;
mod join;
mod nodes;
mod prober;
mod sizes;

use throng_report::Unit;

use super::values::Deliveries;
use crate::context::{Abort, Benchmark, Context};
use crate::definition::{Definition, Measurement, Scope};

/// About how many times clients connect; a part that waits for a fault counts several times.
const ROUNDS: u32 = 50;

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

/// A part of the benchmark.
type Part = fn(&mut Context<'_>, &mut Deliveries) -> Result<(), Abort>;

/// All parts, in their order.
const PARTS: [(&str, Part); 8] = [
    ("chat", beside::chat),
    ("fan-out", beside::fan_out),
    ("delay", beside::delay),
    ("publish", beside::publish),
    ("join", |context, _| join::run(context)),
    ("node-killed", faults::node),
    ("broker-killed", faults::broker),
    ("leader-killed", faults::leader),
];

static DEFINITION: Definition = Definition {
    name: "cluster",
    title: "Several nodes",
    story: "A chat of long-polls in Perl was to get several servers some day, in 2006. With \
            several, a message takes the way over a broker that stores it, and what may break is \
            more: a server, the broker, the one that leads its stream.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "Three nodes over one nats-server with a stream in a file, and three over three \
            nats-servers with a copy each, beside a server with the memory engine; they get the \
            same load in turn, three times, and the values of a round are compared with each \
            other. A chat of long-polls; messages to all; single messages, from their publication \
            to the last delivery; and a message a second to each of many channels. Then a node \
            joins and follows many channels, which connections ask for a hundred each. At last a \
            node, the nats-server and the one that leads the stream are killed while messages \
            flow: clients resume at other nodes, and every message that was accepted has to reach \
            each of its subscribers once and in order.",
    differences: &["This is the original. All nodes, nats-servers and clients share this machine."],
    measurements: &[
        Measurement::less(
            "chat_first_memory",
            "chat of long-polls: first response, one server",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "chat_last_memory",
            "the same: last response, one server",
            Unit::Milliseconds,
        ),
        Measurement::less("chat_first", "first response, three nodes", Unit::Milliseconds),
        Measurement::less("chat_last", "last response, three nodes", Unit::Milliseconds),
        Measurement::more("fan_out_memory", "deliveries per second, one server", Unit::PerSecond),
        Measurement::more("fan_out_share", "three nodes, of that (0.8 at least)", Unit::Share),
        Measurement::less(
            "delay_memory",
            "publish to last delivery, one server",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "delay_one",
            "one nats-server, later by (1 ms at most)",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "delay_three",
            "three nats-servers, later by (2 ms at most)",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "publish_memory",
            "a message a second to each channel: 99 % of deliveries, one server",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "publish_one",
            "the same, one nats-server (50 ms at most)",
            Unit::Milliseconds,
        ),
        Measurement::less("publish_three", "the same, three nats-servers", Unit::Milliseconds),
        Measurement::more(
            "publish_rate",
            "publications per second, one nats-server",
            Unit::PerSecond,
        ),
        Measurement::more(
            "publish_rate_three",
            "publications per second, three nats-servers",
            Unit::PerSecond,
        ),
        Measurement::less(
            "publish_cpu_memory",
            "processor time per message, one server",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "publish_cpu",
            "processor time per message, of the three nodes",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "join_memory",
            "until many channels are followed, one server",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "join",
            "the same from the start of a node that joins (3 s at most)",
            Unit::Milliseconds,
        ),
        Measurement::less("join_ready", "its start alone", Unit::Milliseconds),
        Measurement::less("followed_memory", "a followed channel, one server", Unit::Bytes)
            .per_connection(),
        Measurement::less("followed", "a followed channel in a node", Unit::Bytes).per_connection(),
        Measurement::less("followed_more", "what NATS adds to it (400 B at most)", Unit::Bytes)
            .per_connection(),
        Measurement::less(
            "node_back",
            "a node killed: its clients are at the others (5 s at most)",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "broker_back",
            "nats-server killed: publishing after its return (3 s at most)",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "leader_back",
            "leader of three killed: publishing after that (10 s at most)",
            Unit::Milliseconds,
        ),
        Measurement::DELIVERED,
        Measurement::EXPECTED,
    ],
    scope: Scope::of(sizes::WHOLE).held_s(5).big().broadcasting().in_rounds(ROUNDS).with_nats(),
};

/// The names of the parts.
pub(crate) fn parts() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|(name, _)| *name)
}

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let mut deliveries = Deliveries::default();
    let wanted = context.choice().parts.clone();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| part == name);
    for (name, part) in PARTS.iter().filter(|(name, _)| is_wanted(name)) {
        context.labelled(name, |context| part(context, &mut deliveries))?;
        context.stop_server();
    }
    context.record_all(
        [
            ("delivered", Some(deliveries.received as f64)),
            ("expected", Some(deliveries.expected as f64)),
        ],
        context.size.connections,
    );
    Ok(())
}
