//! Three million WebSockets and one message to all of them, with clients that have no sockets.

use throng_flood::plan::Network;

use super::broadcast;
use crate::context::Benchmark;
use crate::definition::{Definition, Measurement, Scope};

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run: broadcast::run };

static DEFINITION: Definition = Definition {
    name: "three-million",
    title: "Three million WebSockets",
    story: "Half as many again as the two million that web frameworks are measured by, with the \
            clients on the same machine. Its kernel cannot hold both ends of three million \
            connections, so the clients have no sockets.",
    source: broadcast::SOURCE,
    year: broadcast::YEAR,
    hardware: broadcast::HARDWARE,
    setup: "All clients are WebSockets in one channel. They have no sockets: the load generator \
            speaks TCP of its own over a network device (throng flood --network tunnel, which \
            needs root or CAP_NET_ADMIN), and the kernel holds the server's half only. One \
            message is published, and each client checks that it arrives exactly once. Memory is \
            reported by part: server, clients, the kernel's slabs, and the peak of socket buffers.",
    differences: &[
        "The original had two million; no larger number was published.",
        "Clients and server share one machine, with as many cores as it has.",
        "The kernel's memory is that of the server's half; the clients' half is in the memory of \
         their process.",
        "A packet goes to a device and not through the kernel's TCP a second time, which costs \
         less: these values cannot be compared with those of benchmarks over sockets.",
    ],
    measurements: &broadcast::measurements(
        Measurement::KERNEL.named("memory per connection, in the kernel, the server's end"),
    ),
    scope: Scope::of(3_000_000).held_s(75).big().broadcasting().over(Network::Tunnel),
};
