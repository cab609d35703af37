//! A message router: a thousand messages a second to users at random.

use std::time::Duration;

use throng_flood::plan::{Pattern, Publishing, Streams, Transport};
use throng_flood::report::Report;
use throng_flood::report::chart::scale::Unit;

use crate::experiment::{Experiment, Figure, KIB, Size};
use crate::measures::{OverTime, bytes_per_client, hold, line, ramp, server_pss};
use crate::stage::{Cut, Load, Stage};

/// Messages a second to ten thousand users.
const MESSAGES_PER_S: f64 = 1_000.0;
const USERS: f64 = 10_000.0;

/// Bytes of a message: a mark, and as much text as in the original.
const MESSAGE_BYTES: usize = 64;

/// Of the original, in KiB: before the first user, with all, and ten minutes of messages later.
const BEFORE_KIB: f64 = 40_388.0;
const CONNECTED_KIB: f64 = 90_964.0;
const TEN_MINUTES_KIB: f64 = 125_360.0;

pub static EXPERIMENT: Experiment = Experiment {
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
        Figure::of("delivered", "messages delivered", Unit::Count),
        Figure::of("expected", "messages due", Unit::Count),
        Figure::less("p99", "a message's way, p99", Unit::Milliseconds),
    ],
    size: Size { connections: 10_000, time: Duration::from_secs(600) },
    has_time: true,
    is_big: false,
    broadcasts: false,
    run,
};

fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    let Size { connections: clients, time } = stage.size;
    stage.serve(&["--heartbeat", "0", "--history-messages", "0"])?;
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
    stage.course(
        &OverTime {
            id: "router-memory",
            title: "Memory of the server",
            note: "Proportional share (Pss); published: resident memory with ten thousand users.",
            unit: Unit::Bytes,
            is_log: true,
            lines: vec![line("server", server_pss)],
            published: vec![
                ("published, all connected", CONNECTED_KIB * KIB),
                ("published, ten minutes later", TEN_MINUTES_KIB * KIB),
                ("published, a day later", 250.0 * KIB * KIB),
                ("published, a day with hibernating", 78.0 * KIB * KIB),
            ],
        },
        &report,
    );
    Ok(())
}

fn tell(stage: &mut Stage<'_>, report: &Report) {
    let (clients, total) = (stage.size.connections, &report.total);
    let connected = report.phases.first().and_then(bytes_per_client);
    let end = report.phases.last().and_then(bytes_per_client);
    stage.figure("memory_connected", connected, clients);
    for key in ["memory", "memory_day", "memory_hibernating"] {
        stage.figure(key, end, clients);
    }
    let growth = connected.zip(end).map(|(before, after)| (after - before) * clients as f64);
    stage.figure("growth", growth, clients);
    stage.figure("message_rate", total.publish_rate, clients);
    stage.figure("delivered", Some(total.received as f64), clients);
    stage.figure("expected", Some(total.expected as f64), clients);
    stage.figure("p99", total.delivery.as_ref().map(|delivery| delivery.p99), clients);
}
