//! One message to millions of WebSockets: shared by benchmarks of different sizes and networks.

use std::time::Duration;

use throng_flood::plan::{Phase, Transport};
use throng_flood::report::{Report, Sample};
use throng_report::Unit;

use crate::context::{Abort, Context, Load, QUIET, WITH_TLS};
use crate::definition::{GIB, Measurement, Size};
use crate::flood::{
    bytes_per_client, connect_rate, hold, kernel_bytes_per_client, ramp, server_pss, slab_growth,
    to_all,
};
use crate::plot::samples;
use crate::results::Plot;

/// Size of the message.
const MESSAGE_BYTES: usize = 128;

/// The time in which the server returns what handshakes have left to the kernel.
const SETTLING: Duration = Duration::from_secs(5);

/// The original of these benchmarks.
pub(crate) const SOURCE: &str = "Phoenix: The Road to 2 Million Websocket Connections";
pub(crate) const YEAR: u16 = 2015;
pub(crate) const HARDWARE: &str = "40 cores, 128 GB; 45 machines with the clients";
/// Size of the original.
const CONNECTIONS: usize = 2_000_000;

/// The measurements; `kernel` names the ends of connections that the kernel holds.
pub(crate) const fn measurements(kernel: Measurement) -> [Measurement; 15] {
    [
        Measurement::less("last", "one message until all clients have it", Unit::Milliseconds)
            .published(1_000.0, CONNECTIONS, "a broadcast to all, about one second"),
        Measurement::less("first", "until the first client has it", Unit::Milliseconds),
        Measurement::less("p50", "until half of the clients have it", Unit::Milliseconds),
        Measurement::more("delivery_rate", "deliveries per second", Unit::PerSecond).published(
            2_000_000.0,
            CONNECTIONS,
            "all of them in about one second, on forty cores",
        ),
        Measurement::more(
            "core_rate",
            "deliveries per second and core of the machine",
            Unit::PerSecond,
        )
        .published(50_000.0, CONNECTIONS, "two million in a second over forty cores"),
        Measurement::less("connected", "until all clients are connected", Unit::Milliseconds),
        Measurement::CONNECT_RATE.published(
            10_000.0,
            CONNECTIONS,
            "connects per second, as paced by the load generators",
        ),
        Measurement::MEMORY.published(
            16.0 * GIB / 450_000.0,
            450_000,
            "a machine of 16 GB was full with 450,000 on the way to the record",
        ),
        kernel,
        Measurement::of("server", "memory of the server", Unit::Bytes),
        Measurement::of("generator", "memory of the clients' process", Unit::Bytes),
        Measurement::of("slabs", "growth of the kernel's slabs", Unit::Bytes),
        Measurement::of("buffers", "peak of socket buffers", Unit::Bytes),
        Measurement::DELIVERED,
        Measurement::EXPECTED,
    ]
}

/// The same measurements, without the values of the original.
pub(crate) const fn unpublished(kernel: Measurement) -> [Measurement; 15] {
    let mut all = measurements(kernel);
    let mut nth = 0;
    while nth < all.len() {
        all[nth].published = None;
        nth += 1;
    }
    all
}

/// Connects all clients, and publishes one message.
pub(crate) fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    run_with(context, QUIET, &Load::of(Transport::WebSocket), None)
}

/// [`run`] with clients that speak TLS.
pub(crate) fn run_over_tls(context: &mut Context<'_>) -> Result<(), Abort> {
    let flags = [&["--history-messages", "0"], WITH_TLS].concat();
    let load = Load { is_tls: true, ..Load::of(Transport::WebSocket) };
    run_with(context, &flags, &load, Some(hold(SETTLING, None)))
}

/// `settling` is the phase after whose end memory is read, if it is not that of the connects.
fn run_with(
    context: &mut Context<'_>,
    flags: &[&str],
    load: &Load<'_>,
    settling: Option<Phase>,
) -> Result<(), Abort> {
    let Size { connections: clients, time } = context.size;
    context.serve(flags)?;
    let last = hold(time, Some(to_all(1, MESSAGE_BYTES, time)));
    let phases = [Some(ramp(clients)), settling, Some(last)].into_iter().flatten().collect();
    let report = context.flood(load, phases)?;
    record(context, &report);
    let name = context.outcome.name.as_str();
    let memory = Plot::over_time(format!("{name}-memory"), "Memory by its parts", Unit::Bytes)
        .note("Pss of the processes; growth of the kernel's slabs; all socket buffers.")
        .line("server", samples(&report, server_pss))
        .line("clients", samples(&report, generator))
        .line("slabs", samples(&report, slab_growth(&report)))
        .line("socket buffers", samples(&report, buffers));
    let connections = Plot::over_time(format!("{name}-connections"), "Connections", Unit::Count)
        .line("active", samples(&report, |sample| Some(sample.active as f64)));
    context.outcome.plots.extend([memory, connections]);
    Ok(())
}

fn generator(sample: &Sample) -> Option<f64> {
    sample.generator_pss_bytes.map(|bytes| bytes as f64)
}

fn buffers(sample: &Sample) -> Option<f64> {
    sample.socket_buffer_bytes.map(|bytes| bytes as f64)
}

fn record(context: &mut Context<'_>, report: &Report) {
    let [ramp, .., hold] = &report.phases[..] else { return };
    let settled = &report.phases[report.phases.len() - 2];
    let totals = &hold.totals;
    let last_ms = totals.last.as_ref().map(|last| last.max);
    let rate = last_ms.filter(|&ms| ms > 0.0).map(|ms| totals.received as f64 / ms * 1e3);
    let cores = report.environment.cores.max(1) as f64;
    let server = totals.server.as_ref().and_then(|server| server.pss_bytes);
    let slabs = report.series.iter().filter_map(slab_growth(report)).reduce(f64::max);
    context.record_all(
        [
            ("last", last_ms),
            ("first", totals.first.as_ref().map(|first| first.min)),
            ("p50", totals.median.as_ref().map(|median| median.p50)),
            ("delivery_rate", rate),
            ("core_rate", rate.map(|rate| rate / cores)),
            ("connected", ramp.totals.connected_s.map(|seconds| seconds * 1e3)),
            ("connect_rate", connect_rate(ramp)),
            ("memory", bytes_per_client(settled)),
            ("kernel", kernel_bytes_per_client(ramp)),
            ("server", server.map(|bytes| bytes as f64)),
            ("generator", totals.generator.pss_bytes.map(|bytes| bytes as f64)),
            ("slabs", slabs),
            ("buffers", report.series.iter().filter_map(buffers).reduce(f64::max)),
            ("delivered", Some(totals.received as f64)),
            ("expected", Some(totals.expected as f64)),
        ],
        context.size.connections,
    );
}
