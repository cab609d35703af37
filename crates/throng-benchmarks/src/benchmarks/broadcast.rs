//! One message to millions of WebSockets: what the benchmarks have in common that differ in how
//! many there are, and in what carries the clients' connections.

use throng_flood::plan::Transport;
use throng_flood::report::{Report, Sample};
use throng_report::Unit;

use crate::benchmark::{Figure, GIB, Size};
use crate::course::samples;
use crate::measures::{
    bytes_per_client, connect_rate, hold, kernel_bytes_per_client, ramp, server_pss, slab_growth,
    to_all,
};
use crate::results::Course;
use crate::stage::{Cut, Load, QUIET, Stage};

/// Bytes of the message.
const MESSAGE_BYTES: usize = 128;

/// Whose record they are measured by: its source, its year, its machines, …
pub const SOURCE: &str = "Phoenix: The Road to 2 Million Websocket Connections";
pub const YEAR: u16 = 2015;
pub const HARDWARE: &str = "40 cores, 128 GB; 45 machines with the clients";
/// … and its size.
const CONNECTIONS: usize = 2_000_000;

/// What is measured; `kernel` says which ends of the connections the kernel has.
pub const fn figures(kernel: Figure) -> [Figure; 15] {
    [
        Figure::less("last", "one message until all have it", Unit::Milliseconds).published(
            1_000.0,
            CONNECTIONS,
            "a broadcast to all, about one second",
        ),
        Figure::less("first", "until the first has it", Unit::Milliseconds),
        Figure::less("p50", "until half of them have it", Unit::Milliseconds),
        Figure::more("delivery_rate", "deliveries a second", Unit::PerSecond).published(
            2_000_000.0,
            CONNECTIONS,
            "all of them in about one second, on forty cores",
        ),
        Figure::more(
            "core_rate",
            "deliveries a second for each core of the machine",
            Unit::PerSecond,
        )
        .published(50_000.0, CONNECTIONS, "two million in a second over forty cores"),
        Figure::less("connected", "until all are connected", Unit::Milliseconds),
        Figure::CONNECT_RATE.published(
            10_000.0,
            CONNECTIONS,
            "clients that came a second, as the load generators sent them",
        ),
        Figure::MEMORY.published(
            16.0 * GIB / 450_000.0,
            450_000,
            "a machine of 16 GB was full with 450,000 on the way to the record",
        ),
        kernel,
        Figure::of("server", "memory of the server", Unit::Bytes),
        Figure::of("generator", "memory of the clients' process", Unit::Bytes),
        Figure::of("slabs", "growth of the kernel's slabs", Unit::Bytes),
        Figure::of("buffers", "socket buffers, at the most", Unit::Bytes),
        Figure::DELIVERED,
        Figure::EXPECTED,
    ]
}

/// Connects all, and sends them one message.
pub fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    let Size { connections: clients, time } = stage.size;
    stage.serve(QUIET)?;
    let phases = vec![ramp(clients), hold(time, Some(to_all(1, MESSAGE_BYTES, time)))];
    let report = stage.flood(&Load::of(Transport::WebSocket), phases)?;
    tell(stage, &report);
    let name = stage.outcome.name.as_str();
    let memory = Course::over_time(format!("{name}-memory"), "Memory by its parts", Unit::Bytes)
        .noted("Pss of the processes; growth of the kernel's slabs; all socket buffers.")
        .line("server", samples(&report, server_pss))
        .line("clients", samples(&report, generator))
        .line("slabs", samples(&report, slab_growth(&report)))
        .line("socket buffers", samples(&report, buffers));
    let connections = Course::over_time(format!("{name}-connections"), "Connections", Unit::Count)
        .line("active", samples(&report, |sample| Some(sample.active as f64)));
    stage.outcome.courses.extend([memory, connections]);
    Ok(())
}

fn generator(sample: &Sample) -> Option<f64> {
    sample.generator_pss_bytes.map(|bytes| bytes as f64)
}

fn buffers(sample: &Sample) -> Option<f64> {
    sample.socket_buffer_bytes.map(|bytes| bytes as f64)
}

fn tell(stage: &mut Stage<'_>, report: &Report) {
    let (Some(came), Some(held)) = (report.phases.first(), report.phases.last()) else { return };
    let totals = &held.totals;
    let last_ms = totals.last.as_ref().map(|last| last.max);
    let rate = last_ms.filter(|&ms| ms > 0.0).map(|ms| totals.received as f64 / ms * 1e3);
    let cores = report.environment.cores.max(1) as f64;
    let server = totals.server.as_ref().and_then(|server| server.pss_bytes);
    let slabs = report.series.iter().filter_map(slab_growth(report)).reduce(f64::max);
    stage.figures(
        [
            ("last", last_ms),
            ("first", totals.first.as_ref().map(|first| first.min)),
            ("p50", totals.median.as_ref().map(|median| median.p50)),
            ("delivery_rate", rate),
            ("core_rate", rate.map(|rate| rate / cores)),
            ("connected", came.totals.connected_s.map(|seconds| seconds * 1e3)),
            ("connect_rate", connect_rate(came)),
            ("memory", bytes_per_client(came)),
            ("kernel", kernel_bytes_per_client(came)),
            ("server", server.map(|bytes| bytes as f64)),
            ("generator", totals.generator.pss_bytes.map(|bytes| bytes as f64)),
            ("slabs", slabs),
            ("buffers", report.series.iter().filter_map(buffers).reduce(f64::max)),
            ("delivered", Some(totals.received as f64)),
            ("expected", Some(totals.expected as f64)),
        ],
        stage.size.connections,
    );
}
