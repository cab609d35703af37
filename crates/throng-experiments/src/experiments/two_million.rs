//! Two million WebSockets and one message to all of them.

use std::time::Duration;

use throng_flood::plan::{Pattern, Publishing, Transport};
use throng_flood::report::chart::scale::Unit;
use throng_flood::report::{Report, Sample};

use crate::experiment::{Experiment, Figure, GIB, Size};
use crate::measures::{
    OverTime, bytes_per_client, hold, kernel_bytes_per_client, line, ramp, server_pss, slab_growth,
};
use crate::stage::{Cut, Load, Stage};

/// Bytes of the message.
const MESSAGE_BYTES: usize = 128;

pub static EXPERIMENT: Experiment = Experiment {
    name: "two-million",
    title: "Two million WebSockets",
    story: "Two million WebSockets were held by one machine, and one message went to all of them \
            in a second. It is the record that web frameworks are measured by, set on forty cores \
            with the help of forty-five machines full of clients.",
    source: "Phoenix: The Road to 2 Million Websocket Connections",
    year: 2015,
    hardware: "40 cores, 128 GB; 45 machines with the clients",
    setup: "All clients are WebSockets in one channel. One message is published, and each client \
            checks that it got it, once. Memory is written down by its parts: server, clients, the \
            kernel's slabs, and what waits in socket buffers at the worst moment.",
    differences: &[
        "Clients and server share one machine, with as many cores as it has.",
        "Who joined a channel of the original also had heartbeats of its own protocol.",
    ],
    figures: &[
        Figure::less("last", "one message until all have it", Unit::Milliseconds).published(
            1_000.0,
            2_000_000,
            "a broadcast to all, about one second",
        ),
        Figure::less("first", "until the first has it", Unit::Milliseconds),
        Figure::less("p50", "until half of them have it", Unit::Milliseconds),
        Figure::more("delivery_rate", "deliveries a second", Unit::PerSecond).published(
            2_000_000.0,
            2_000_000,
            "all of them in about one second, on forty cores",
        ),
        Figure::more(
            "core_rate",
            "deliveries a second for each core of the machine",
            Unit::PerSecond,
        )
        .published(50_000.0, 2_000_000, "two million in a second over forty cores"),
        Figure::more("connect_rate", "connects a second", Unit::PerSecond).published(
            10_000.0,
            2_000_000,
            "clients that came a second, as the load generators sent them",
        ),
        Figure::less("memory", "memory a connection, in the server", Unit::Bytes).each().published(
            16.0 * GIB / 450_000.0,
            450_000,
            "a machine of 16 GB was full with 450,000 on the way to the record",
        ),
        Figure::less("kernel", "memory a connection, in the kernel, both ends", Unit::Bytes).each(),
        Figure::of("server", "memory of the server", Unit::Bytes),
        Figure::of("generator", "memory of the clients' process", Unit::Bytes),
        Figure::of("slabs", "growth of the kernel's slabs", Unit::Bytes),
        Figure::of("buffers", "socket buffers, at the most", Unit::Bytes),
        Figure::of("delivered", "messages delivered", Unit::Count),
        Figure::of("expected", "messages due", Unit::Count),
    ],
    size: Size { connections: 2_000_000, time: Duration::from_secs(60) },
    has_time: true,
    is_big: true,
    broadcasts: true,
    run,
};

fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    let Size { connections: clients, time } = stage.size;
    stage.serve(&["--heartbeat", "0", "--history-messages", "0"])?;
    let message = Publishing {
        rate: 1.0 / time.as_secs_f64().max(0.1),
        count: Some(1),
        size: MESSAGE_BYTES,
        to: Pattern::One,
    };
    let phases = vec![ramp(clients), hold(time, Some(message))];
    let report = stage.flood(&Load::of(Transport::WebSocket), phases)?;
    tell(stage, &report);
    let bytes = |id, title, note, lines| OverTime {
        id,
        title,
        note,
        unit: Unit::Bytes,
        is_log: false,
        lines,
        published: Vec::new(),
    };
    stage.course(
        &bytes(
            "two-million-memory",
            "Memory by its parts",
            "Pss of the processes; growth of the kernel's slabs; all socket buffers.",
            vec![
                line("server", server_pss),
                line("clients", |sample| sample.generator_pss_bytes.map(|bytes| bytes as f64)),
                line("slabs", slab_growth(&report)),
                line("socket buffers", buffers),
            ],
        ),
        &report,
    );
    let connections = OverTime {
        id: "two-million-connections",
        title: "Connections",
        note: "",
        unit: Unit::Count,
        is_log: false,
        lines: vec![line("active", |sample| Some(sample.active as f64))],
        published: Vec::new(),
    };
    stage.course(&connections, &report);
    Ok(())
}

fn buffers(sample: &Sample) -> Option<f64> {
    sample.socket_buffer_bytes.map(|bytes| bytes as f64)
}

fn tell(stage: &mut Stage<'_>, report: &Report) {
    let clients = stage.size.connections;
    let (Some(came), Some(held)) = (report.phases.first(), report.phases.last()) else { return };
    let totals = &held.totals;
    let last_ms = totals.last.as_ref().map(|last| last.max);
    stage.figure("last", last_ms, clients);
    stage.figure("first", totals.first.as_ref().map(|first| first.min), clients);
    stage.figure("p50", totals.median.as_ref().map(|median| median.p50), clients);
    let rate = last_ms.filter(|&ms| ms > 0.0).map(|ms| totals.received as f64 / ms * 1e3);
    stage.figure("delivery_rate", rate, clients);
    let cores = report.environment.cores.max(1) as f64;
    stage.figure("core_rate", rate.map(|rate| rate / cores), clients);
    let seconds = came.totals.connected_s.filter(|&seconds| seconds > 0.0);
    let connect_rate = seconds.map(|seconds| came.totals.subscribed as f64 / seconds);
    stage.figure("connect_rate", connect_rate, clients);
    stage.figure("memory", bytes_per_client(came), clients);
    stage.figure("kernel", kernel_bytes_per_client(came), clients);
    let server = totals.server.as_ref().and_then(|server| server.pss_bytes);
    stage.figure("server", server.map(|bytes| bytes as f64), clients);
    stage.figure("generator", totals.generator.pss_bytes.map(|bytes| bytes as f64), clients);
    let slabs = report.series.iter().filter_map(slab_growth(report)).reduce(f64::max);
    let most_buffers = report.series.iter().filter_map(buffers).reduce(f64::max);
    stage.figure("slabs", slabs, clients);
    stage.figure("buffers", most_buffers, clients);
    stage.figure("delivered", Some(totals.received as f64), clients);
    stage.figure("expected", Some(totals.expected as f64), clients);
}
