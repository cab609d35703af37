//! The cost of a connection and of a delivery, from a thousand to a million connections.

use std::time::Duration;

use throng_flood::plan::{Publishing, Transport};
use throng_flood::report::{PhaseReport, Report};
use throng_report::Unit;

use crate::context::{Abort, Benchmark, Context, Load, QUIET};
use crate::definition::{Definition, Measurement, Scope, Size};
use crate::flood::{bytes_per_client, connect_rate, hold, kernel_bytes_per_client, ramp, to_all};
use crate::results::Plot;

/// Clients of the last step, and of each step.
const WHOLE: usize = 1_000_000;
const STEPS: [usize; 7] = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, WHOLE];

/// Maximum number of messages of a step, and minimum interval between them.
const MESSAGES_MAX: u64 = 40;
const INTERVAL_MIN: Duration = Duration::from_millis(250);

/// Assumed delivery rate. Intervals are twice the time it needs, so that messages do not overlap.
const DELIVERIES_PER_S: f64 = 50_000.0;

const MESSAGE_BYTES: usize = 64;

/// Appended to the note of each chart.
const X_AXIS: &str = "Horizontal: connections, logarithmic.";

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "growth",
    title: "From a thousand to a million",
    story: "A server that scales pays the same for each connection and each delivery, however many \
            there are. That is seldom shown: published values are those of one size.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "Each step starts a new server with capacity for just its clients. All clients connect \
            as WebSockets in one channel, and messages are published, each after the one before \
            has reached all clients.",
    differences: &[
        "This is the original.",
        "Beyond the descriptor limit of one table there are more workers, and more threads of \
         clients, than cores.",
    ],
    measurements: &[
        Measurement::CONNECT_RATE.named("connects per second, last step"),
        Measurement::more("delivery_rate", "deliveries per second, last step", Unit::PerSecond),
        Measurement::less(
            "delivery_cpu",
            "processor time per delivery, last step",
            Unit::Milliseconds,
        )
        .per_connection(),
        Measurement::MEMORY.named("memory per connection, in the server, last step"),
        Measurement::KERNEL.named("memory per connection, in the kernel, both ends, last step"),
        Measurement::more(
            "delivery_share",
            "deliveries per second at the last step, as a share of the best step",
            Unit::Share,
        ),
        Measurement::DELIVERED.named("messages delivered, all steps"),
        Measurement::EXPECTED.named("messages expected, all steps"),
    ],
    scope: Scope::of(WHOLE).held_s(45).big().broadcasting(),
};

/// Results of a step.
struct Step {
    clients: usize,
    connect_rate: Option<f64>,
    delivery_rate: Option<f64>,
    delivery_cpu_us: Option<f64>,
    server_bytes: Option<f64>,
    kernel_bytes: Option<f64>,
    last_ms: Option<f64>,
    received: u64,
    expected: u64,
}

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let Size { connections: whole, time: max_time } = context.size;
    let mut steps = Vec::new();
    for original in STEPS {
        let clients = context.size.part(original, WHOLE);
        let (time, messages) = messages(clients, max_time);
        let report = context.step(clients, |context| {
            context.serve(QUIET)?;
            let phases = vec![ramp(clients), hold(time, Some(messages))];
            context.flood(&Load::of(Transport::WebSocket), phases)
        })?;
        steps.extend(step(clients, &report));
    }
    record(context, &steps, whole);
    draw(context, &steps);
    Ok(())
}

/// Hold time of a step, and its messages.
fn messages(clients: usize, max_time: Duration) -> (Duration, Publishing) {
    let interval = (clients as f64 / DELIVERIES_PER_S * 2.0).max(INTERVAL_MIN.as_secs_f64());
    let fitting = (max_time.as_secs_f64() / interval) as u64;
    let count = fitting.clamp(1, MESSAGES_MAX);
    let time = Duration::from_secs_f64(interval * count as f64).min(max_time);
    (time, to_all(count, MESSAGE_BYTES, time))
}

fn step(clients: usize, report: &Report) -> Option<Step> {
    let [ramp, hold] = report.phases.first_chunk::<2>()?;
    let last_ms = hold.totals.last.as_ref().map(|last| last.p50);
    let cpu_us = |hold: &PhaseReport| hold.totals.server.as_ref()?.cpu_us_per_delivery;
    Some(Step {
        clients,
        connect_rate: connect_rate(ramp),
        delivery_rate: last_ms.filter(|&ms| ms > 0.0).map(|ms| clients as f64 / ms * 1e3),
        delivery_cpu_us: cpu_us(hold),
        server_bytes: bytes_per_client(ramp),
        kernel_bytes: kernel_bytes_per_client(ramp),
        last_ms,
        received: hold.totals.received,
        expected: hold.totals.expected,
    })
}

fn record(context: &mut Context<'_>, steps: &[Step], whole: usize) {
    let Some(last) = steps.last() else { return };
    let best = steps.iter().filter_map(|step| step.delivery_rate).reduce(f64::max);
    let share = last.delivery_rate.zip(best).map(|(last, best)| last / best);
    context.record_all(
        [
            ("connect_rate", last.connect_rate),
            ("delivery_rate", last.delivery_rate),
            ("delivery_cpu", last.delivery_cpu_us.map(|us| us / 1e3)),
            ("memory", last.server_bytes),
            ("kernel", last.kernel_bytes),
            ("delivery_share", share),
            ("delivered", Some(steps.iter().map(|step| step.received).sum::<u64>() as f64)),
            ("expected", Some(steps.iter().map(|step| step.expected).sum::<u64>() as f64)),
        ],
        whole,
    );
    let columns = [
        "connections",
        "connects per second",
        "deliveries per second",
        "server's processor time per delivery, µs",
        "server, bytes per connection",
        "kernel, bytes per connection",
        "until all have a message, ms",
    ];
    let row = |step: &Step| {
        vec![
            Some(step.clients as f64),
            step.connect_rate,
            step.delivery_rate,
            step.delivery_cpu_us,
            step.server_bytes,
            step.kernel_bytes,
            step.last_ms,
        ]
    };
    context.table("Each step", &columns, steps.iter().map(row).collect());
}

/// One chart per measurement. `bench/draw-growth` finds the first three by their ids and the names
/// of their lines.
fn draw(context: &mut Context<'_>, steps: &[Step]) {
    let plot = |id, title, unit, note: &str, name, value: fn(&Step) -> Option<f64>| {
        let points = steps.iter().map(|step| (step.clients as f64, value(step)));
        Plot::by_clients(id, title, unit)
            .note(&format!("{note} {X_AXIS}"))
            .log_x()
            .line(name, points.collect())
    };
    context.outcome.plots.extend([
        plot(
            "growth-processor",
            "Processor time of the server per delivery",
            Unit::Milliseconds,
            "A delivery is one message to one connection. A horizontal line means that its cost \
             does not depend on the number of connections.",
            "server",
            |step| step.delivery_cpu_us.map(|us| us / 1e3),
        ),
        plot(
            "growth-memory",
            "Memory of the server per connection",
            Unit::Bytes,
            "Growth of the server's process since before the first connection. With few \
             connections, what it allocates once dominates.",
            "server",
            |step| step.server_bytes,
        ),
        plot(
            "growth-rates",
            "Deliveries per second",
            Unit::PerSecond,
            "One message to all connections: their number divided by the time from the publish to \
             the last delivery.",
            "deliveries per second",
            |step| step.delivery_rate,
        ),
        plot(
            "growth-connects",
            "Connects per second",
            Unit::PerSecond,
            "From the first connection attempt to the last subscription.",
            "connects per second",
            |step| step.connect_rate,
        ),
        plot(
            "growth-kernel",
            "Memory of the kernel per connection",
            Unit::Bytes,
            "Growth of the kernel's slabs: the server's end and the client's.",
            "kernel, both ends",
            |step| step.kernel_bytes,
        ),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_do_not_overlap() {
        let (time, few) = messages(1_000_000, Duration::from_secs(45));
        assert_eq!((few.count, time), (Some(1), Duration::from_secs(40)));
        let (time, many) = messages(1_000, Duration::from_secs(45));
        assert_eq!((many.count, time), (Some(40), Duration::from_secs(10)));
        assert_eq!(many.rate, 4.0);
        let (time, short) = messages(1_000_000, Duration::from_secs(2));
        assert_eq!((short.count, time), (Some(1), Duration::from_secs(2)));
    }
}
