//! Two million WebSockets and one message to all of them.

use super::broadcast;
use crate::benchmark::{Benchmark, Figure, Scope};

pub static EXPERIMENT: Benchmark = Benchmark {
    name: "two-million",
    title: "Two million WebSockets",
    story: "Two million WebSockets were held by one machine, and one message went to all of them \
            in a second. It is the record that web frameworks are measured by, set on forty cores \
            with the help of forty-five machines full of clients.",
    source: broadcast::SOURCE,
    year: broadcast::YEAR,
    hardware: broadcast::HARDWARE,
    setup: "All clients are WebSockets in one channel. One message is published, and each client \
            checks that it got it, once. Memory is written down by its parts: server, clients, the \
            kernel's slabs, and what waits in socket buffers at the worst moment.",
    differences: &[
        "Clients and server share one machine, with as many cores as it has.",
        "Who joined a channel of the original also had heartbeats of its own protocol.",
    ],
    figures: &broadcast::figures(Figure::KERNEL),
    scope: Scope::of(2_000_000).held_s(60).big().broadcasting(),
    run: broadcast::run,
};
