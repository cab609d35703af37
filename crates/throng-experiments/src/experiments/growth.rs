//! What a connection and a delivery cost as there are more and more of them.

use std::time::Duration;

use throng_flood::plan::{Pattern, Publishing, Transport};
use throng_flood::report::chart::scale::Unit;
use throng_flood::report::{PhaseReport, Report};

use crate::experiment::{Experiment, Figure, Size};
use crate::measures::{bytes_per_client, hold, kernel_bytes_per_client, ramp};
use crate::results::{Course, CourseLine};
use crate::stage::{Cut, Load, Stage};

/// Clients of the last step, and of all steps on the way.
const WHOLE: usize = 1_000_000;
const STEPS: [usize; 7] = [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, WHOLE];

/// Messages of a step, at the most, and the time between two, at the least.
const MESSAGES_MAX: u64 = 40;
const INTERVAL_MIN: Duration = Duration::from_millis(250);

/// A message has reached everybody before the next one at half of this many deliveries a second.
const DELIVERIES_PER_S: f64 = 50_000.0;

const MESSAGE_BYTES: usize = 64;

pub static EXPERIMENT: Experiment = Experiment {
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
        Figure::more("connect_rate", "connects a second, last step", Unit::PerSecond),
        Figure::more("delivery_rate", "deliveries a second, last step", Unit::PerSecond),
        Figure::less("delivery_cpu", "processor time of a delivery, last step", Unit::Milliseconds)
            .each(),
        Figure::less("memory", "memory a connection, in the server, last step", Unit::Bytes).each(),
        Figure::less(
            "kernel",
            "memory a connection, in the kernel, both ends, last step",
            Unit::Bytes,
        )
        .each(),
        Figure::more(
            "delivery_share",
            "deliveries a second at the last step, of those at the best one",
            Unit::Share,
        ),
        Figure::of("delivered", "messages delivered, all steps", Unit::Count),
        Figure::of("expected", "messages due, all steps", Unit::Count),
    ],
    size: Size { connections: WHOLE, time: Duration::from_secs(45) },
    has_time: true,
    is_big: true,
    broadcasts: true,
    run,
};

/// What a step came to.
struct Step {
    clients: usize,
    connect_rate: Option<f64>,
    delivery_rate: Option<f64>,
    delivery_cpu_ms: Option<f64>,
    server_bytes: Option<f64>,
    kernel_bytes: Option<f64>,
    last_ms: Option<f64>,
    received: u64,
    expected: u64,
}

fn run(stage: &mut Stage<'_>) -> Result<(), Cut> {
    let whole = stage.size;
    let mut steps = Vec::new();
    for original in STEPS {
        let clients = whole.part(original, WHOLE);
        // A server has room for what is asked of it, and workers for that.
        stage.size.connections = clients;
        stage.serve(&["--heartbeat", "0", "--history-messages", "0"])?;
        let (time, messages) = messages(clients, whole.time);
        let phases = vec![ramp(clients), hold(time, Some(messages))];
        let report = stage.flood(&Load::of(Transport::WebSocket), phases)?;
        steps.extend(step(clients, &report));
    }
    stage.size = whole;
    tell(stage, &steps);
    Ok(())
}

/// How long a step is held, and what is published meanwhile.
fn messages(clients: usize, time_max: Duration) -> (Duration, Publishing) {
    let interval = (clients as f64 / DELIVERIES_PER_S * 2.0).max(INTERVAL_MIN.as_secs_f64());
    let fitting = (time_max.as_secs_f64() / interval) as u64;
    let count = fitting.clamp(1, MESSAGES_MAX);
    let time = Duration::from_secs_f64(interval * count as f64).min(time_max);
    let to_all = Publishing {
        rate: count as f64 / time.as_secs_f64(),
        count: Some(count),
        size: MESSAGE_BYTES,
        to: Pattern::One,
    };
    (time, to_all)
}

fn step(clients: usize, report: &Report) -> Option<Step> {
    let [came, held] = report.phases.first_chunk::<2>()?;
    let seconds = came.totals.connected_s.filter(|&seconds| seconds > 0.0);
    let last_ms = held.totals.last.as_ref().map(|last| last.p50);
    let cpu_us = |held: &PhaseReport| held.totals.server.as_ref()?.cpu_us_per_delivery;
    Some(Step {
        clients,
        connect_rate: seconds.map(|seconds| came.totals.subscribed as f64 / seconds),
        delivery_rate: last_ms.filter(|&ms| ms > 0.0).map(|ms| clients as f64 / ms * 1e3),
        delivery_cpu_ms: cpu_us(held).map(|us| us / 1e3),
        server_bytes: bytes_per_client(came),
        kernel_bytes: kernel_bytes_per_client(came),
        last_ms,
        received: held.totals.received,
        expected: held.totals.expected,
    })
}

fn tell(stage: &mut Stage<'_>, steps: &[Step]) {
    let Some(last) = steps.last() else { return };
    let clients = last.clients;
    let best = steps.iter().filter_map(|step| step.delivery_rate).reduce(f64::max);
    let share = last.delivery_rate.zip(best).map(|(last, best)| last / best);
    for (key, value) in [
        ("connect_rate", last.connect_rate),
        ("delivery_rate", last.delivery_rate),
        ("delivery_cpu", last.delivery_cpu_ms),
        ("memory", last.server_bytes),
        ("kernel", last.kernel_bytes),
        ("delivery_share", share),
        ("delivered", Some(steps.iter().map(|step| step.received).sum::<u64>() as f64)),
        ("expected", Some(steps.iter().map(|step| step.expected).sum::<u64>() as f64)),
    ] {
        stage.figure(key, value, clients);
    }
    let columns = [
        "clients",
        "connects a second",
        "deliveries a second",
        "processor time a delivery, ms",
        "server, bytes a connection",
        "kernel, bytes a connection",
        "all have a message, ms",
    ];
    let row = |step: &Step| {
        vec![
            Some(step.clients as f64),
            step.connect_rate,
            step.delivery_rate,
            step.delivery_cpu_ms,
            step.server_bytes,
            step.kernel_bytes,
            step.last_ms,
        ]
    };
    stage.table("Each step", &columns, steps.iter().map(row).collect());
    draw(stage, steps);
}

/// What is read off a step.
type Measure = fn(&Step) -> Option<f64>;

fn draw(stage: &mut Stage<'_>, steps: &[Step]) {
    let rates: [(&str, Measure); 2] = [
        ("connects a second", |step| step.connect_rate),
        ("deliveries a second", |step| step.delivery_rate),
    ];
    let processor: [(&str, Measure); 1] = [("server", |step| step.delivery_cpu_ms)];
    let memory: [(&str, Measure); 2] =
        [("server", |step| step.server_bytes), ("kernel, both ends", |step| step.kernel_bytes)];
    let cpu_title = "Processor time of a delivery";
    let courses = [
        ("growth-rates", "Rates", Unit::PerSecond, false, &rates[..]),
        ("growth-processor", cpu_title, Unit::Milliseconds, false, &processor),
        ("growth-memory", "Memory a connection", Unit::Bytes, true, &memory),
    ];
    for (id, title, unit, is_log, lines) in courses {
        let line = |&(name, measure): &(&str, Measure)| CourseLine {
            name: name.to_owned(),
            points: steps.iter().map(|step| (step.clients as f64, measure(step))).collect(),
        };
        stage.outcome.courses.push(Course {
            id: id.to_owned(),
            title: title.to_owned(),
            note: "At each step of clients.".to_owned(),
            unit: crate::results::unit_name(unit).to_owned(),
            across: "clients".to_owned(),
            is_log,
            lines: lines.iter().map(line).collect(),
        });
    }
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
