//! A graph of friends: an event of one reaches all who follow them.

use throng_flood::plan::{Pattern, Publishing, Streams, Transport};
use throng_report::Unit;

use crate::benchmark::{Benchmark, Figure, KIB, Scope, Size};
use crate::course::samples;
use crate::measures::{bytes_per_client, hold, kernel_bytes_per_client, ramp};
use crate::results::Course;
use crate::stage::{Cut, Load, QUIET, Stage};

/// Whom each user follows, on average, as in the original.
const EDGES: u32 = 15;

/// In the original each user had an event in about a minute: 16,666 a second of a million.
const EVENT_EVERY_S: f64 = 60.0;

/// Bytes of an event: a mark, and some text.
const EVENT_BYTES: usize = 64;

pub static EXPERIMENT: Benchmark = Benchmark {
    name: "friends",
    title: "Friends graph",
    story: "A million users follow each other as in a real network, fifteen each and few of them \
            very popular, and what happens to one is told to all who follow. Memory and events \
            were published, but never how many of them arrived.",
    source: "R. Jones, A Million-user Comet Application with Mochiweb, part 3",
    year: 2008,
    hardware: "two quad-core processors of 2.8 GHz, 32 GB; the clients on another machine",
    setup: "The graph has a power law of followers and fifteen edges a user. Each user's \
            connection follows the channels of its friends, an event is published to its user's \
            channel, and each client checks that it got every event of each of its friends.",
    differences: &[
        "Ten thousand users unless --connections says otherwise, not a million.",
        "The graph is drawn with a density by popularity, not grown edge by edge.",
        "Who follows whom is kept by the server's channels, not by a database beside it.",
    ],
    figures: &[
        Figure::of("event_rate", "events a second", Unit::PerSecond).published(
            16_666.0,
            1_000_000,
            "events a second that were published among a million users",
        ),
        Figure::of("events", "events published", Unit::Count),
        Figure::DELIVERED.named("events delivered to followers"),
        Figure::EXPECTED.named("deliveries due by the graph"),
        Figure::of("delivery_rate", "deliveries a second", Unit::PerSecond),
        Figure::less("memory", "memory a user with 15 friends, in the server", Unit::Bytes)
            .each()
            .published(
                25.0 * KIB,
                1_000_000,
                "resident memory over connections, idle, with subscriptions kept elsewhere",
            ),
        Figure::less("memory_c", "the same, against connections held in C", Unit::Bytes)
            .each()
            .published(
                1.92 * KIB,
                1_000_000,
                "resident memory of the server with a C program for its connections, idle",
            ),
        Figure::KERNEL,
        Figure::less("p99", "an event's way to a follower, p99", Unit::Milliseconds),
        Figure::less("last_p50", "until an event's last follower has it, p50", Unit::Milliseconds),
    ],
    scope: Scope::of(10_000).held_s(60),
    run,
};

fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    let Size { connections: clients, time } = stage.size;
    stage.serve(QUIET)?;
    let load = Load {
        streams: Streams::Friends { edges: EDGES },
        publishers: 2,
        ..Load::of(Transport::Stream)
    };
    let events = Publishing {
        rate: (clients as f64 / EVENT_EVERY_S).max(2.0),
        count: None,
        size: EVENT_BYTES,
        to: Pattern::Random,
    };
    let report = stage.flood(&load, vec![ramp(clients), hold(time, Some(events))])?;
    let total = &report.total;
    let memory = report.phases.first().and_then(bytes_per_client);
    stage.figures(
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
    let title = "Events and deliveries a second";
    stage.outcome.courses.push(
        Course::over_time("friends-deliveries", title, Unit::PerSecond)
            .noted("An event of somebody popular has hundreds of deliveries.")
            .line("deliveries", samples(&report, |sample| Some(sample.received as f64)))
            .line("events", samples(&report, |sample| Some(sample.published as f64))),
    );
    Ok(())
}
