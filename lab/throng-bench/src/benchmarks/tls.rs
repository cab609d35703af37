//! TLS beside plain connections, under the same load in turn.

mod fan_out;
mod handshakes;
mod pages;

use throng_report::Unit;

use super::values::Deliveries;
use crate::context::{Abort, Benchmark, Context};
use crate::definition::{Definition, Measurement, Scope};

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "tls",
    title: "TLS at the price of a plain connection",
    story: "Browsers speak TLS, so that in front of most push servers a proxy holds every \
            connection a second time. A server that speaks it itself needs keys for each \
            connection, and seals each message for each of them.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "WebSockets of one channel, plain and over TLS in turn, each time to a new server: \
            memory, connects, messages of 64 B and of 1 KiB to all, and bursts of ten. Each ratio \
            is that of two runs next to each other; values are medians. Then plain clients ask \
            for /health, each on a new connection, while connections arrive: plain ones, then as \
            many over TLS. At last a monitor asks for /status, /status.json and /metrics once a \
            second while messages go to all, by turns with nobody who asks.",
    differences: &["This is the original. Clients accept any certificate."],
    measurements: &[
        Measurement::less("memory_plain", "memory per connection, plain", Unit::Bytes)
            .per_connection(),
        Measurement::less("memory_tls", "memory per connection, TLS (260 B at most)", Unit::Bytes)
            .per_connection(),
        Measurement::more("connect_plain", "connects per second, plain", Unit::PerSecond),
        Measurement::more(
            "connect_tls",
            "connects per second, TLS (4,500 at least)",
            Unit::PerSecond,
        ),
        Measurement::less(
            "connect_cpu",
            "server's processor time per connect, TLS",
            Unit::Milliseconds,
        ),
        Measurement::more("rate_64", "deliveries per second, 64 B, plain", Unit::PerSecond),
        Measurement::more("rate_64_share", "TLS, of that (0.85 at least)", Unit::Share),
        Measurement::less(
            "cpu_64",
            "server's processor time each, 64 B, plain",
            Unit::Milliseconds,
        ),
        Measurement::less("cpu_64_share", "TLS, of that (1.15 at most)", Unit::Share),
        Measurement::more("rate_1024", "deliveries per second, 1 KiB, plain", Unit::PerSecond),
        Measurement::more("rate_1024_share", "TLS, of that (0.8 at least)", Unit::Share),
        Measurement::less(
            "cpu_1024",
            "server's processor time each, 1 KiB, plain",
            Unit::Milliseconds,
        ),
        Measurement::less("cpu_1024_share", "TLS, of that", Unit::Share),
        Measurement::more("burst", "deliveries per second, bursts of ten, plain", Unit::PerSecond),
        Measurement::more("burst_share", "TLS, of that (0.85 at least)", Unit::Share),
        Measurement::less("burst_cpu_share", "server's processor time each, TLS", Unit::Share),
        Measurement::less(
            "health_plain",
            "99 % of GET /health while plain connections arrive",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "health_tls",
            "99 % of GET /health while TLS connections arrive (50 ms at most)",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "scrape",
            "server's processor time per scrape of its pages",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "scrape_cpu_share",
            "of the machine, once a second (0.03 at most)",
            Unit::Share,
        ),
        Measurement::more(
            "scrape_rate_share",
            "deliveries per second meanwhile, of those without (0.97 at least)",
            Unit::Share,
        ),
        Measurement::DELIVERED,
        Measurement::EXPECTED,
    ],
    scope: Scope::of(15_000).held_s(8).big().broadcasting().in_rounds(fan_out::ROUNDS + 3),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let mut deliveries = Deliveries::default();
    fan_out::run(context, &mut deliveries)?;
    handshakes::run(context)?;
    pages::run(context, &mut deliveries)?;
    context.record_all(
        [
            ("delivered", Some(deliveries.received as f64)),
            ("expected", Some(deliveries.expected as f64)),
        ],
        context.size.connections,
    );
    Ok(())
}
