//! A message router: a thousand messages per second to random users.

use throng_flood::plan::{Pattern, Publishing, Streams, Transport};
use throng_flood::report::Report;
use throng_report::Unit;

use crate::context::{Abort, Benchmark, Context, Load, QUIET};
use crate::definition::{Definition, KIB, Measurement, Scope, Size};
use crate::flood::{bytes_per_client, hold, ramp, server_pss};
use crate::plot::{level, samples};
use crate::results::Plot;

/// Message rate and users of the original.
const MESSAGES_PER_S: f64 = 1_000.0;
const USERS: f64 = 10_000.0;

/// Size of a message: a mark, and as much text as in the original.
const MESSAGE_BYTES: usize = 64;

/// Memory of the original: before the first user, with all users, and after ten minutes of
/// messages.
const BEFORE_KIB: f64 = 40_388.0;
const CONNECTED_KIB: f64 = 90_964.0;
const TEN_MINUTES_KIB: f64 = 125_360.0;

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "router",
    title: "Million-user router",
    story: "A thousand messages per second go to random users among ten thousand, for a day, while \
            the server's memory is watched. It grew for hours, until each process was put to sleep \
            after its message, which brought it down to a third.",
    source: "R. Jones, A Million-user Comet Application with Mochiweb, part 2",
    year: 2008,
    hardware: "one Linux machine, the clients on it too",
    setup: "Each client follows the inbox of a user of its own as a chunked stream. Messages are \
            published to random users, at a rate of a tenth of their number per second, and each \
            client checks that it gets all of its own messages and no others.",
    differences: &[
        "Messages are published over HTTP, not by a process within the server.",
        "Ten minutes unless --time says otherwise, not a day.",
    ],
    measurements: &[
        Measurement::less(
            "memory_connected",
            "memory per connection, when all are connected",
            Unit::Bytes,
        )
        .per_connection()
        .published(
            (CONNECTED_KIB - BEFORE_KIB) / USERS * KIB,
            10_000,
            "growth of resident memory from the first to the last connection",
        ),
        Measurement::less("memory", "memory per connection, at the end", Unit::Bytes)
            .per_connection()
            .published(
                (TEN_MINUTES_KIB - BEFORE_KIB) / USERS * KIB,
                10_000,
                "growth of resident memory, after ten minutes of messages",
            ),
        Measurement::less("memory_day", "the same, against a day of messages", Unit::Bytes)
            .per_connection()
            .published(25.0 * KIB, 10_000, "resident memory over connections after a day, 250 MB"),
        Measurement::less(
            "memory_hibernating",
            "the same, with idle clients put to sleep",
            Unit::Bytes,
        )
        .per_connection()
        .published(
            8.0 * KIB,
            10_000,
            "resident memory over connections after a day of hibernating, 78 MB",
        ),
        Measurement::less("growth", "growth of the server while messages flow", Unit::Bytes)
            .published(
                (TEN_MINUTES_KIB - CONNECTED_KIB) * KIB,
                10_000,
                "growth of resident memory in the first ten minutes of messages",
            ),
        Measurement::of("message_rate", "messages per second", Unit::PerSecond).published(
            MESSAGES_PER_S,
            10_000,
            "messages per second to random users",
        ),
        Measurement::DELIVERED,
        Measurement::EXPECTED,
        Measurement::less("p99", "latency of a message, p99", Unit::Milliseconds),
    ],
    scope: Scope::of(10_000).held_s(600),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let Size { connections: clients, time } = context.size;
    context.serve(QUIET)?;
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
    let report = context.flood(&load, vec![ramp(clients), hold(time, Some(messages))])?;
    record(context, &report);
    context.outcome.plots.push(
        Plot::over_time("router-memory", "Memory of the server", Unit::Bytes)
            .note(
                "Proportional set size (Pss); published: resident memory with ten thousand users.",
            )
            .log()
            .line("server", samples(&report, server_pss))
            .line("published, all connected", level(&report, CONNECTED_KIB * KIB))
            .line("published, ten minutes later", level(&report, TEN_MINUTES_KIB * KIB))
            .line("published, a day later", level(&report, 250.0 * KIB * KIB))
            .line("published, a day with hibernating", level(&report, 78.0 * KIB * KIB)),
    );
    Ok(())
}

fn record(context: &mut Context<'_>, report: &Report) {
    let (clients, total) = (context.size.connections, &report.total);
    let connected = report.phases.first().and_then(bytes_per_client);
    let end = report.phases.last().and_then(bytes_per_client);
    let growth = connected.zip(end).map(|(before, after)| (after - before) * clients as f64);
    context.record_all(
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
