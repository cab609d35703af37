//! A million WebSockets over TLS and one message to all of them.

use super::broadcast;
use crate::context::{Abort, Benchmark, Context};
use crate::definition::{Definition, Measurement, Scope};

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "million-tls",
    title: "A million over TLS",
    story: "Push servers that speak TLS hold 5 to 150 KB for each parked connection; with a proxy \
            in front, the proxy does. A million of them would fill a large machine with nothing \
            but buffers and keys.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "All clients are WebSockets over TLS in one channel. Each shakes hands in full, with a \
            certificate on P-256 that it does not check. Memory is read some seconds after the \
            last handshake. Then one message is published, and each client checks that it arrives \
            exactly once.",
    differences: &["This is the original."],
    measurements: &broadcast::unpublished(Measurement::KERNEL),
    scope: Scope::of(1_000_000).held_s(60).big().broadcasting(),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    broadcast::run_over_tls(context)
}
