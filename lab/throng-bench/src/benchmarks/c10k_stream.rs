//! Ten thousand chunked streams, each with lines of its own.

use throng_flood::plan::{Pattern, Publishing, Streams, Transport};
use throng_report::Unit;
use throng_units::format::count;

use crate::context::{Abort, Benchmark, Context, Load};
use crate::definition::{Definition, KIB, Measurement, Scope, Size};
use crate::flood::{bytes_per_client, hold, kernel_bytes_per_client, ramp, server_pss};
use crate::plot::{level, samples};
use crate::results::Plot;

/// Interval between the lines of a client.
const LINE_S: f64 = 10.0;

/// Size of a line's payload.
const LINE_BYTES: usize = 50;

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "c10k-stream",
    title: "C10K stream",
    story: "Ten thousand clients each hold a chunked response and get a welcome, then a numbered \
            line every ten seconds. It showed that one machine can hold as many live connections \
            as a site has visitors, and it counted what each of them costs.",
    source: "R. Jones, A Million-user Comet Application with Mochiweb, parts 1 and 2",
    year: 2008,
    hardware: "one Linux machine, the clients on it too",
    setup: "Each client follows a channel of its own as a chunked stream; the server greets it, \
            and every ten seconds a line is published to its channel. Each line carries the \
            client's number and its own, and each client checks that every line is there, once, in \
            order, and its own.",
    differences: &[
        "The lines are published from outside, over HTTP, instead of being made in the server.",
        "Clients connect as fast as they can, not ten a second.",
    ],
    measurements: &[
        Measurement::MEMORY.published(
            45.0 * KIB,
            10_000,
            "resident memory of the server, 450 MB, over its connections (part 1)",
        ),
        Measurement::less(
            "memory_hibernating",
            "the same, with idle clients put to sleep",
            Unit::Bytes,
        )
        .per_connection()
        .published(
            8.0 * KIB,
            10_000,
            "resident memory over connections once processes hibernated, 78 MB (part 2)",
        ),
        Measurement::KERNEL,
        Measurement::less("server_cores", "processor of the server while held", Unit::Cores),
        Measurement::of("welcomes", "welcomes received", Unit::Count),
        Measurement::of("lines", "lines received", Unit::Count),
        Measurement::of("expected", "lines expected", Unit::Count),
        Measurement::less("p99", "latency of a line, p99", Unit::Milliseconds),
    ],
    scope: Scope::of(10_000).held_s(60),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let Size { connections: clients, time } = context.size;
    // In a short run, each client still gets two lines.
    let every_s = LINE_S.min(time.as_secs_f64() / 2.0).max(0.1);
    context.serve(&["--welcome", "--heartbeat", "0", "--history-messages", "0"])?;
    let load = Load {
        streams: Streams::Own,
        body: Some("line for client {stream}: {payload}"),
        publishers: 2,
        ..Load::of(Transport::Stream)
    };
    let lines = Publishing {
        rate: clients as f64 / every_s,
        count: None,
        size: LINE_BYTES,
        to: Pattern::InTurn,
    };
    let report = context.flood(&load, vec![ramp(clients), hold(time, Some(lines))])?;
    let total = &report.total;
    let memory = report.phases.last().and_then(bytes_per_client);
    let held = report.phases.last().filter(|held| held.to_s > held.from_s);
    let cores =
        held.and_then(|held| Some(held.totals.server.as_ref()?.cpu_s / (held.to_s - held.from_s)));
    context.record_all(
        [
            ("memory", memory),
            ("memory_hibernating", memory),
            ("kernel", report.phases.first().and_then(kernel_bytes_per_client)),
            ("welcomes", Some(total.unmarked as f64)),
            ("lines", Some(total.received as f64)),
            ("expected", Some(total.expected as f64)),
            ("p99", total.delivery.as_ref().map(|delivery| delivery.p99)),
            ("server_cores", cores),
        ],
        clients,
    );
    if total.unmarked != clients as u64 {
        let (welcomes, clients) = (count(total.unmarked), count(clients as u64));
        context.outcome.fail(format!("{clients} clients got {welcomes} welcomes"));
    }
    context.outcome.plots.push(
        Plot::over_time("c10k-stream-memory", "Memory of the server", Unit::Bytes)
            .note("Proportional set size (Pss); published: resident memory.")
            .log()
            .line("server", samples(&report, server_pss))
            .line("published, part 1", level(&report, 45.0 * KIB * 10_000.0))
            .line("published, part 2", level(&report, 8.0 * KIB * 10_000.0)),
    );
    Ok(())
}
