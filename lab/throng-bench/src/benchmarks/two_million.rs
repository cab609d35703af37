//! Two million WebSockets and one message to all of them.

use super::broadcast;
use crate::context::Benchmark;
use crate::definition::{Definition, Measurement, Scope};

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run: broadcast::run };

static DEFINITION: Definition = Definition {
    name: "two-million",
    title: "Two million WebSockets",
    story: "Two million WebSockets were held by one machine, and one message went to all of them \
            in a second. It is the record that web frameworks are measured by, set on forty cores \
            with the help of forty-five machines full of clients.",
    source: broadcast::SOURCE,
    year: broadcast::YEAR,
    hardware: broadcast::HARDWARE,
    setup: "All clients are WebSockets in one channel. One message is published, and each client \
            checks that it arrives exactly once. Memory is reported by part: server, clients, the \
            kernel's slabs, and the peak of socket buffers.",
    differences: &[
        "Clients and server share one machine, with as many cores as it has.",
        "In the original, clients of a channel also had heartbeats of its protocol.",
    ],
    measurements: &broadcast::measurements(Measurement::KERNEL),
    scope: Scope::of(2_000_000).held_s(60).big().broadcasting(),
};
