//! A graph of friends: an event of a user is delivered to all followers.

use throng_flood::plan::{Pattern, Publishing, Streams, Transport};
use throng_report::Unit;

use super::users;
use super::values::more;
use crate::context::{Abort, Benchmark, Context, Load, QUIET};
use crate::definition::{Definition, KIB, Measurement, Scope, Size};
use crate::flood::{bytes_per_client, hold, kernel_bytes_per_client, ramp};
use crate::plot::samples;
use crate::results::Plot;

/// Average number of friends of a user, as in the original.
const EDGES: u32 = 15;

/// Interval between the events of a user. The original had 16,666 per second for a million users.
const EVENT_EVERY_S: f64 = 60.0;

/// A request header that says which channels a client expects messages of. The server, which keeps
/// that, ignores it.
const FOLLOWS: &str = "Bench-Follows: {streams:,}";

/// Size of an event: a mark and some text.
const EVENT_BYTES: usize = 64;

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "friends",
    title: "Friends graph",
    story: "A million users follow each other as in a real network, fifteen each and few of them \
            very popular, and an event of a user goes to all followers. Memory and event rates \
            were published, but never how many events arrived.",
    source: "R. Jones, A Million-user Comet Application with Mochiweb, part 3",
    year: 2008,
    hardware: "two quad-core processors of 2.8 GHz, 32 GB; the clients on another machine",
    setup: "The graph has a power law of followers and fifteen edges per user. The server keeps \
            it: each user's connection asks for the user alone, and follows the channels of the \
            user's friends. An event is published to its user's channel, and each client checks \
            that it got every event of each of its friends.",
    differences: &[
        "Ten thousand users unless --connections says otherwise, not a million.",
        "The graph is drawn with a density by popularity, not grown edge by edge.",
        "The server keeps the graph, not a separate database.",
    ],
    measurements: &[
        Measurement::of("event_rate", "events per second", Unit::PerSecond).published(
            16_666.0,
            1_000_000,
            "events per second published among a million users",
        ),
        Measurement::of("events", "events published", Unit::Count),
        Measurement::DELIVERED.named("events delivered to followers"),
        Measurement::EXPECTED.named("deliveries expected by the graph"),
        Measurement::of("delivery_rate", "deliveries per second", Unit::PerSecond),
        Measurement::less("memory", "memory per user with 15 friends, in the server", Unit::Bytes)
            .per_connection()
            .published(
                25.0 * KIB,
                1_000_000,
                "resident memory over connections, idle, with subscriptions kept elsewhere",
            ),
        Measurement::less("memory_c", "the same, against connections held in C", Unit::Bytes)
            .per_connection()
            .published(
                1.92 * KIB,
                1_000_000,
                "resident memory of the server with a C program for its connections, idle",
            ),
        Measurement::KERNEL,
        Measurement::less("p99", "latency of an event to a follower, p99", Unit::Milliseconds),
        Measurement::less(
            "last_p50",
            "until an event's last follower has it, p50",
            Unit::Milliseconds,
        ),
    ],
    scope: Scope::of(10_000).held_s(60),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let Size { connections: clients, time } = context.size;
    context.serve(QUIET)?;
    let before = context.memory();
    users::keep(&context.url(), 0..clients, |user| users::friends(clients, user, EDGES))?;
    let graph = more(context.memory(), before).map(|bytes| bytes / clients as f64);
    let load = Load {
        streams: Streams::Friends { edges: EDGES },
        path: Some("/users/user-{i}"),
        follows: Some(FOLLOWS),
        publish: Some("/channels/{stream}"),
        publishers: 2,
        ..Load::of(Transport::Stream)
    };
    let events = Publishing {
        rate: (clients as f64 / EVENT_EVERY_S).max(2.0),
        count: None,
        size: EVENT_BYTES,
        to: Pattern::Random,
    };
    let report = context.flood(&load, vec![ramp(clients), hold(time, Some(events))])?;
    let total = &report.total;
    let connection = report.phases.first().and_then(bytes_per_client);
    // With what the server keeps of a user who is away.
    let memory = connection.map(|bytes| bytes + graph.unwrap_or(0.0).max(0.0));
    context.record_all(
        [
            ("event_rate", total.publish_rate),
            ("events", Some(total.published as f64)),
            ("delivered", Some(total.received as f64)),
            ("expected", Some(total.expected as f64)),
            ("delivery_rate", Some(total.received as f64 / time.as_secs_f64())),
            ("memory", memory),
            ("memory_c", memory),
            ("kernel", report.phases.first().and_then(kernel_bytes_per_client)),
            ("p99", total.delivery.as_ref().map(|delivery| delivery.p99)),
            ("last_p50", total.last.as_ref().map(|last| last.p50)),
        ],
        clients,
    );
    let title = "Events and deliveries per second";
    context.outcome.plots.push(
        Plot::over_time("friends-deliveries", title, Unit::PerSecond)
            .note("An event of a popular user has hundreds of deliveries.")
            .line("deliveries", samples(&report, |sample| Some(sample.received as f64)))
            .line("events", samples(&report, |sample| Some(sample.published as f64))),
    );
    Ok(())
}
