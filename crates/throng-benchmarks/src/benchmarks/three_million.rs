//! Three million WebSockets and one message to all of them, with clients that have no sockets.

use throng_flood::plan::Network;

use super::broadcast;
use crate::benchmark::{Benchmark, Figure, Scope};

pub static EXPERIMENT: Benchmark = Benchmark {
    name: "three-million",
    title: "Three million WebSockets",
    story: "Half as many again as the two million that web frameworks are measured by, still \
            beside their clients on one machine. What it cannot hold is both ends of so many \
            connections, so that the clients go without the kernel's.",
    source: broadcast::SOURCE,
    year: broadcast::YEAR,
    hardware: broadcast::HARDWARE,
    setup: "All clients are WebSockets in one channel. They have no sockets: the load generator \
            speaks TCP of its own over a network device (throng flood --network tunnel, which \
            needs root or CAP_NET_ADMIN), and the kernel holds the server's half only. One \
            message is published, and each client checks that it got it, once. Memory is written \
            down by its parts: server, clients, the kernel's slabs, and what waits in socket \
            buffers at the worst moment.",
    differences: &[
        "The original had two million, and no more have been published of it.",
        "Clients and server share one machine, with as many cores as it has.",
        "The kernel's memory is that of the server's half; the clients' half is in the memory of \
         their process.",
        "A packet goes to a device and not through the kernel's TCP a second time, which costs \
         less: figures of benchmarks over sockets cannot be compared with these.",
    ],
    figures: &broadcast::figures(
        Figure::KERNEL.named("memory a connection, in the kernel, the server's end"),
    ),
    scope: Scope::of(3_000_000).held_s(75).big().broadcasting().over(Network::Tunnel),
    run: broadcast::run,
};
