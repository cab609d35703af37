//! A message router: a thousand messages a second to users at random.

use throng_flood::plan::{Pattern, Publishing, Streams, Transport};
use throng_flood::report::Report;
use throng_report::Unit;

use crate::benchmark::{Benchmark, Figure, KIB, Scope, Size};
use crate::course::{level, samples};
use crate::measures::{bytes_per_client, hold, ramp, server_pss};
use crate::results::Course;
use crate::stage::{Cut, Load, QUIET, Stage};

/// Messages a second to ten thousand users.
const MESSAGES_PER_S: f64 = 1_000.0;
const USERS: f64 = 10_000.0;

/// Bytes of a message: a mark, and as much text as in the original.
const MESSAGE_BYTES: usize = 64;

/// Of the original, in KiB: before the first user, with all, and ten minutes of messages later.
const BEFORE_KIB: f64 = 40_388.0;
const CONNECTED_KIB: f64 = 90_964.0;
const TEN_MINUTES_KIB: f64 = 125_360.0;

pub static EXPERIMENT: Benchmark = Benchmark {
    name: "router",
    title: "Million-user router",
    story: "A thousand messages a second go to random users among ten thousand, for a day, while \
            the server's memory is watched. It grew for hours, until each process was put to sleep \
            after its message, which brought it down to a third.",
    source: "R. Jones, A Million-user Comet Application with Mochiweb, part 2",
    year: 2008,
    hardware: "one Linux machine, the clients on it too",
    setup: "Each client follows the inbox of a user of its own as a chunked stream. Messages are \
            published to users drawn at random, a tenth of their number each second, and each \
            client checks that it got all of its own and nobody else's.",
    differences: &[
        "Messages come in over HTTP, not from a process within the server.",
        "Ten minutes unless --time says otherwise, not a day.",
    ],
    figures: &[
        Figure::less("memory_connected", "memory a connection, when all are there", Unit::Bytes)
            .each()
            .published(
                (CONNECTED_KIB - BEFORE_KIB) / USERS * KIB,
                10_000,
                "growth of resident memory from the first to the last connection",
            ),
        Figure::less("memory", "memory a connection, at the end", Unit::Bytes).each().published(
            (TEN_MINUTES_KIB - BEFORE_KIB) / USERS * KIB,
            10_000,
            "growth of resident memory, after ten minutes of messages",
        ),
        Figure::less("memory_day", "the same, against a day of messages", Unit::Bytes)
            .each()
            .published(25.0 * KIB, 10_000, "resident memory over connections after a day, 250 MB"),
        Figure::less("memory_hibernating", "the same, with idle clients put to sleep", Unit::Bytes)
            .each()
            .published(
                8.0 * KIB,
                10_000,
                "resident memory over connections after a day of hibernating, 78 MB",
            ),
        Figure::less("growth", "growth of the server while messages flow", Unit::Bytes).published(
            (TEN_MINUTES_KIB - CONNECTED_KIB) * KIB,
            10_000,
            "growth of resident memory in the first ten minutes of messages",
        ),
        Figure::of("message_rate", "messages a second", Unit::PerSecond).published(
            MESSAGES_PER_S,
            10_000,
            "messages a second that were sent to random users",
        ),
        Figure::DELIVERED,
        Figure::EXPECTED,
        Figure::less("p99", "a message's way, p99", Unit::Milliseconds),
    ],
    scope: Scope::of(10_000).held_s(600),
    run,
};

fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    let Size { connections: clients, time } = stage.size;
    stage.serve(QUIET)?;
    let load = Load {
        streams: Streams::Own,
        path: Some("/users/{stream}"),
        publishers: 2,
        ..Load::of(Transport::Stream)
    };
    let messages = Publishing {
        rate: (MESSAGES_PER_S * clients as f64 / USERS).max(1.0),
        count: None,
        size: MESSAGE_BYTES,
        to: Pattern::Random,
    };
    let report = stage.flood(&load, vec![ramp(clients), hold(time, Some(messages))])?;
    tell(stage, &report);
    stage.outcome.courses.push(
        Course::over_time("router-memory", "Memory of the server", Unit::Bytes)
            .noted("Proportional share (Pss); published: resident memory with ten thousand users.")
            .log()
            .line("server", samples(&report, server_pss))
            .line("published, all connected", level(&report, CONNECTED_KIB * KIB))
            .line("published, ten minutes later", level(&report, TEN_MINUTES_KIB * KIB))
            .line("published, a day later", level(&report, 250.0 * KIB * KIB))
            .line("published, a day with hibernating", level(&report, 78.0 * KIB * KIB)),
    );
    Ok(())
}

fn tell(stage: &mut Stage<'_>, report: &Report) {
    let (clients, total) = (stage.size.connections, &report.total);
    let connected = report.phases.first().and_then(bytes_per_client);
    let end = report.phases.last().and_then(bytes_per_client);
    let growth = connected.zip(end).map(|(before, after)| (after - before) * clients as f64);
    stage.figures(
        [
            ("memory_connected", connected),
            ("memory", end),
            ("memory_day", end),
            ("memory_hibernating", end),
            ("growth", growth),
            ("message_rate", total.publish_rate),
            ("delivered", Some(total.received as f64)),
            ("expected", Some(total.expected as f64)),
            ("p99", total.delivery.as_ref().map(|delivery| delivery.p99)),
        ],
        clients,
    );
}
