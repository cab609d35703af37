//! A data directory: inboxes at rest, starts, connected inboxes, kept subscriptions.

mod at_rest;
mod connected;
mod directory;
mod edges;

use throng_report::Unit;

use crate::context::{Abort, Benchmark, Context};
use crate::definition::{Definition, Measurement, Scope};

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "durable",
    title: "A data directory",
    story: "A server that keeps the inboxes of all users on a disk holds memory only for those who \
            are there. The others are files, however many they are, and a start reads few of them.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "A message of 100 bytes is published to each of a hundred times as many inboxes as \
            there are clients, with sync = never. Then the server is killed, started, stopped and \
            started again, until it answers with a message. All starts and memory are compared \
            with a server on an empty directory. Then WebSockets follow an inbox each: without a \
            data directory, and with durable inboxes that have a message. At last users come \
            with channels: none but the inbox, some that the server keeps for them, and the same \
            that they name themselves; and all lose their connections at once. Everything about \
            connections is measured twice, the second time in the opposite order, and what is \
            timed once more in between; the figures are medians. After that, \
            ten times as many users as there are clients follow fifteen channels each.",
    differences: &["This is the original."],
    measurements: &[
        Measurement::of("inboxes", "durable inboxes", Unit::Count),
        Measurement::more("filled", "messages written per second, not synced", Unit::PerSecond),
        Measurement::of("disk", "disk per inbox", Unit::Bytes),
        Measurement::less("rest_written", "memory for all of them once written", Unit::Bytes),
        Measurement::less("rest_read", "… after a start and some reads", Unit::Bytes),
        Measurement::less(
            "start_killed",
            "start until the first answer after kill -9 (5 s at most)",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "start_clean",
            "start until the first answer after a clean end (5 s at most)",
            Unit::Milliseconds,
        ),
        Measurement::less("inbox", "memory per connected inbox, in memory", Unit::Bytes)
            .per_connection(),
        Measurement::less(
            "inbox_durable_more",
            "more if it is durable (60 B at most)",
            Unit::Bytes,
        )
        .per_connection(),
        Measurement::less("named", "memory per channel that a client names", Unit::Bytes)
            .per_connection(),
        Measurement::less("kept", "memory per channel that the server keeps", Unit::Bytes)
            .per_connection(),
        Measurement::less("return", "until all are back, with their inboxes", Unit::Milliseconds),
        Measurement::less(
            "return_kept_share",
            "with 15 kept channels each, of that (1.5 at most)",
            Unit::Share,
        ),
        Measurement::less(
            "return_named_share",
            "with 15 channels that they name, of that",
            Unit::Share,
        ),
        Measurement::of("edges", "kept subscriptions of all users", Unit::Count),
        Measurement::less(
            "edges_import",
            "time to import them (2 min at most for 15,000,000)",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "edges_memory",
            "their memory (1 GiB at most for 15,000,000)",
            Unit::Bytes,
        ),
        Measurement::less("edges_memory_restarted", "… after a restart", Unit::Bytes),
        Measurement::less("edges_start", "start with them", Unit::Milliseconds),
    ],
    scope: Scope::of(100_000).big().in_rounds(connected::ROUNDS),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    at_rest::run(context)?;
    connected::run(context)?;
    edges::run(context)
}
