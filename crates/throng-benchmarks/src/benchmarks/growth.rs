//! What a connection and a delivery cost as there are more and more of them.

use std::time::Duration;

use throng_flood::plan::{Publishing, Transport};
use throng_flood::report::{PhaseReport, Report};
use throng_report::Unit;

use crate::benchmark::{Benchmark, Figure, Scope, Size};
use crate::measures::{
    bytes_per_client, connect_rate, hold, kernel_bytes_per_client, ramp, to_all,
};
use crate::results::Course;
use crate::stage::{Cut, Load, QUIET, Stage};

/// Clients of the last step, and of all steps on the way.
const WHOLE: usize = 1_000_000;
const STEPS: [usize; 7] = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, WHOLE];

/// Messages of a step, at the most, and the time between two, at the least.
const MESSAGES_MAX: u64 = 40;
const INTERVAL_MIN: Duration = Duration::from_millis(250);

/// A message has reached everybody before the next one at half of this many deliveries a second.
const DELIVERIES_PER_S: f64 = 50_000.0;

const MESSAGE_BYTES: usize = 64;

/// What one should know of the axis across.
const ACROSS: &str = "Across: connections at once, on a logarithmic axis.";

pub static EXPERIMENT: Benchmark = Benchmark {
    name: "growth",
    title: "From a thousand to a million",
    story: "A server that scales pays the same for each connection and each delivery, however many \
            there are. That is seldom shown: published figures are those of one size.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "At each step a server with room for just as many is started anew, all clients connect \
            as WebSockets in one channel, and messages are published, each when the one before has \
            reached everybody.",
    differences: &[
        "The original is this.",
        "Beyond the descriptor limit of one table there are more workers, and more threads of \
         clients, than cores.",
    ],
    figures: &[
        Figure::CONNECT_RATE.named("connects a second, last step"),
        Figure::more("delivery_rate", "deliveries a second, last step", Unit::PerSecond),
        Figure::less("delivery_cpu", "processor time of a delivery, last step", Unit::Milliseconds)
            .each(),
        Figure::MEMORY.named("memory a connection, in the server, last step"),
        Figure::KERNEL.named("memory a connection, in the kernel, both ends, last step"),
        Figure::more(
            "delivery_share",
            "deliveries a second at the last step, of those at the best one",
            Unit::Share,
        ),
        Figure::DELIVERED.named("messages delivered, all steps"),
        Figure::EXPECTED.named("messages due, all steps"),
    ],
    scope: Scope::of(WHOLE).held_s(45).big().broadcasting(),
    run,
};

/// What a step came to.
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

fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    let Size { connections: whole, time: time_max } = stage.size;
    let mut steps = Vec::new();
    for original in STEPS {
        let clients = stage.size.part(original, WHOLE);
        let (time, messages) = messages(clients, time_max);
        let report = stage.step(clients, |stage| {
            stage.serve(QUIET)?;
            let phases = vec![ramp(clients), hold(time, Some(messages))];
            stage.flood(&Load::of(Transport::WebSocket), phases)
        })?;
        steps.extend(step(clients, &report));
    }
    tell(stage, &steps, whole);
    draw(stage, &steps);
    Ok(())
}

/// How long a step is held, and what is published meanwhile.
fn messages(clients: usize, time_max: Duration) -> (Duration, Publishing) {
    let interval = (clients as f64 / DELIVERIES_PER_S * 2.0).max(INTERVAL_MIN.as_secs_f64());
    let fitting = (time_max.as_secs_f64() / interval) as u64;
    let count = fitting.clamp(1, MESSAGES_MAX);
    let time = Duration::from_secs_f64(interval * count as f64).min(time_max);
    (time, to_all(count, MESSAGE_BYTES, time))
}

fn step(clients: usize, report: &Report) -> Option<Step> {
    let [came, held] = report.phases.first_chunk::<2>()?;
    let last_ms = held.totals.last.as_ref().map(|last| last.p50);
    let cpu_us = |held: &PhaseReport| held.totals.server.as_ref()?.cpu_us_per_delivery;
    Some(Step {
        clients,
        connect_rate: connect_rate(came),
        delivery_rate: last_ms.filter(|&ms| ms > 0.0).map(|ms| clients as f64 / ms * 1e3),
        delivery_cpu_us: cpu_us(held),
        server_bytes: bytes_per_client(came),
        kernel_bytes: kernel_bytes_per_client(came),
        last_ms,
        received: held.totals.received,
        expected: held.totals.expected,
    })
}

fn tell(stage: &mut Stage<'_>, steps: &[Step], whole: usize) {
    let Some(last) = steps.last() else { return };
    let best = steps.iter().filter_map(|step| step.delivery_rate).reduce(f64::max);
    let share = last.delivery_rate.zip(best).map(|(last, best)| last / best);
    stage.figures(
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
        "connects a second",
        "deliveries a second",
        "server's processor time a delivery, µs",
        "server, bytes a connection",
        "kernel, bytes a connection",
        "all have a message, ms",
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
    stage.table("Each step", &columns, steps.iter().map(row).collect());
}

/// A chart for each measure, all from zero: `bench/draw-growth` finds the first three by their ids
/// and the names of their lines.
fn draw(stage: &mut Stage<'_>, steps: &[Step]) {
    let course = |id, title, unit, note: &str, name, measure: fn(&Step) -> Option<f64>| {
        let points = steps.iter().map(|step| (step.clients as f64, measure(step)));
        Course::by_clients(id, title, unit)
            .noted(&format!("{note} {ACROSS}"))
            .log_across()
            .line(name, points.collect())
    };
    stage.outcome.courses.extend([
        course(
            "growth-processor",
            "Processor time of the server for each delivery",
            Unit::Milliseconds,
            "A delivery is one message that reaches one connection. A level line: however many \
             there are, a delivery costs the same.",
            "server",
            |step| step.delivery_cpu_us.map(|us| us / 1e3),
        ),
        course(
            "growth-memory",
            "Memory of the server for each connection",
            Unit::Bytes,
            "Of the server's process, above what it had before the first connection. With few \
             connections, what it allocates once weighs on each.",
            "server",
            |step| step.server_bytes,
        ),
        course(
            "growth-rates",
            "Deliveries a second",
            Unit::PerSecond,
            "One message to all connections: their number, over the time from the publish until \
             the last one has it.",
            "deliveries a second",
            |step| step.delivery_rate,
        ),
        course(
            "growth-connects",
            "Connects a second",
            Unit::PerSecond,
            "From the first connect until all connections are made and subscribed.",
            "connects a second",
            |step| step.connect_rate,
        ),
        course(
            "growth-kernel",
            "Memory of the kernel for each connection",
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
    fn messages_wait_for_one_another() {
        let (time, few) = messages(1_000_000, Duration::from_secs(45));
        assert_eq!((few.count, time), (Some(1), Duration::from_secs(40)));
        let (time, many) = messages(1_000, Duration::from_secs(45));
        assert_eq!((many.count, time), (Some(40), Duration::from_secs(10)));
        assert_eq!(many.rate, 4.0);
        let (time, short) = messages(1_000_000, Duration::from_secs(2));
        assert_eq!((short.count, time), (Some(1), Duration::from_secs(2)));
    }
}
