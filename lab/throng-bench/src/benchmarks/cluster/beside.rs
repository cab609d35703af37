//! The same load on a server with the memory engine, on nodes over one nats-server, and perhaps on
//! nodes over three, in turn: a chat, messages to all, delays, and many channels.

use std::time::Duration;

use throng_flood::plan::{Pattern, Phase, Publishing, Streams, Transport};
use throng_flood::report::Report;

use super::super::values::{Deliveries, median, more, share};
use super::nodes::{Cluster, FLAGS, NODES};
use super::sizes::{BROKERS, CHANNELS, CHAT_CLIENTS, WHOLE};
use crate::context::{Abort, Context, Load, Watch};
use crate::flood::{hold, ramp, to_all};

/// Rounds of each part: in every other one the servers come in the opposite order.
const ROUNDS: usize = 3;

const MESSAGE_BYTES: usize = 128;

/// Messages a second: each is delivered before the next one is due.
const CHAT_RATE: u64 = 4;
const FAN_OUT_RATE: u64 = 2;

/// Clients and messages a second at which nothing waits for anything else.
const DELAY_CLIENTS: usize = 60;
const DELAY_RATE: u64 = 20;

/// Publishing connections where many channels get messages: each has one request under way at a
/// time, however many it sends.
const PUBLISHERS_MAX: usize = 300;
const CHANNELS_OF_PUBLISHER: usize = 30;
const PIPELINE: usize = 8;

/// The first messages find caches empty.
const WARM_UP: Duration = Duration::from_millis(500);

/// The servers that are compared.
struct Sides {
    /// By number: `None` is the server of the context.
    all: Vec<Option<Cluster>>,
}

/// Index of a side.
const MEMORY: usize = 0;
const ONE: usize = 1;
const THREE: usize = 2;

/// The values of each round: one a side, by its index.
type Rounds = Vec<Vec<Option<f64>>>;

impl Sides {
    fn start(context: &mut Context<'_>, with_three: bool) -> Result<Sides, Abort> {
        context.serve(FLAGS)?;
        let mut all = vec![None, Some(Cluster::start(context, 1)?)];
        if with_three && !context.choice().is_single {
            all.push(Some(Cluster::start(context, BROKERS)?));
        }
        Ok(Sides { all })
    }

    /// Runs phases against each in turn, several times.
    fn rounds(
        &mut self,
        context: &mut Context<'_>,
        (load, phases): (&Load<'_>, &[Phase]),
        deliveries: &mut Deliveries,
    ) -> Result<Vec<Vec<Report>>, Abort> {
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let mut reports: Vec<Report> = Vec::new();
            let count = self.all.len();
            let is_turned = round % 2 == 1;
            for nth in 0..count {
                let side = if is_turned { count - 1 - nth } else { nth };
                let report = match &mut self.all[side] {
                    None => context.flood_watched(load, phases.to_vec(), self)?,
                    Some(cluster) => cluster.flood(context, load, phases.to_vec())?,
                };
                deliveries.add(&report);
                reports.push(report);
            }
            if is_turned {
                reports.reverse();
            }
            rounds.push(reports);
        }
        context.stop_server();
        Ok(rounds)
    }
}

impl Watch for Sides {
    fn step(&mut self) -> Option<String> {
        self.all.iter_mut().flatten().find_map(Cluster::ended)
    }
}

fn values(rounds: &[Vec<Report>], value: impl Fn(&Report) -> Option<f64>) -> Rounds {
    rounds.iter().map(|reports| reports.iter().map(&value).collect()).collect()
}

/// The median of a side.
fn of(rounds: &Rounds, side: usize) -> Option<f64> {
    median(rounds.iter().map(|sides| sides.get(side).copied().flatten()))
}

/// The median of how the sides of each round compare.
fn compared(
    rounds: &Rounds,
    side: usize,
    how: fn(Option<f64>, Option<f64>) -> Option<f64>,
) -> Option<f64> {
    let values = |sides: &Vec<Option<f64>>| how(sides.get(side).copied().flatten(), sides[MEMORY]);
    median(rounds.iter().map(values))
}

/// The latency of the last delivery of a message in the last phase, at the median.
fn last(report: &Report) -> Option<f64> {
    Some(report.phases.last()?.totals.last.as_ref()?.p50)
}

/// The same of the first delivery.
fn first(report: &Report) -> Option<f64> {
    Some(report.phases.last()?.totals.first.as_ref()?.p50)
}

fn p99(report: &Report) -> Option<f64> {
    Some(report.phases.last()?.totals.delivery.as_ref()?.p99)
}

fn messages(rate: u64, time: Duration) -> Publishing {
    to_all((rate * time.as_secs()).max(2), MESSAGE_BYTES, time)
}

/// The long-poll chat of 2008, whose authors announced several servers.
pub(super) fn chat(context: &mut Context<'_>, deliveries: &mut Deliveries) -> Result<(), Abort> {
    let clients = context.size.part(CHAT_CLIENTS, WHOLE).max(NODES);
    let time = context.size.time;
    let mut sides = Sides::start(context, false)?;
    let phases = [
        ramp(clients),
        hold(WARM_UP, Some(messages(CHAT_RATE, WARM_UP))),
        hold(time, Some(messages(CHAT_RATE, time))),
    ];
    let load = Load::of(Transport::LongPoll);
    let rounds = sides.rounds(context, (&load, &phases), deliveries)?;
    let (firsts, lasts) = (values(&rounds, first), values(&rounds, last));
    context.record_all(
        [
            ("chat_first_memory", of(&firsts, MEMORY)),
            ("chat_last_memory", of(&lasts, MEMORY)),
            ("chat_first", of(&firsts, ONE)),
            ("chat_last", of(&lasts, ONE)),
        ],
        clients,
    );
    Ok(())
}

/// One message to all.
pub(super) fn fan_out(context: &mut Context<'_>, deliveries: &mut Deliveries) -> Result<(), Abort> {
    let clients = context.size.connections.max(NODES);
    let time = context.size.time;
    let mut sides = Sides::start(context, false)?;
    let phases = [
        ramp(clients),
        hold(WARM_UP, Some(messages(FAN_OUT_RATE, WARM_UP))),
        hold(time, Some(messages(FAN_OUT_RATE, time))),
    ];
    let load = Load::of(Transport::WebSocket);
    let rounds = sides.rounds(context, (&load, &phases), deliveries)?;
    let rates = values(&rounds, |report| Some(clients as f64 / last(report)? * 1e3));
    context.record_all(
        [("fan_out_memory", of(&rates, MEMORY)), ("fan_out_share", compared(&rates, ONE, share))],
        clients,
    );
    context.table("One message to all", &["memory, deliveries/s", "nodes, deliveries/s"], rates);
    Ok(())
}

/// Single messages to few.
pub(super) fn delay(context: &mut Context<'_>, deliveries: &mut Deliveries) -> Result<(), Abort> {
    let clients = context.size.part(DELAY_CLIENTS, WHOLE).max(NODES);
    let time = context.size.time;
    let mut sides = Sides::start(context, true)?;
    let phases = [
        ramp(clients),
        hold(WARM_UP, Some(messages(DELAY_RATE, WARM_UP))),
        hold(time, Some(messages(DELAY_RATE, time))),
    ];
    let load = Load::of(Transport::WebSocket);
    let rounds = sides.rounds(context, (&load, &phases), deliveries)?;
    let lasts = values(&rounds, last);
    context.record_all(
        [
            ("delay_memory", of(&lasts, MEMORY)),
            ("delay_one", compared(&lasts, ONE, more)),
            ("delay_three", compared(&lasts, THREE, more)),
        ],
        clients,
    );
    let columns = ["memory, ms", "one nats-server, ms", "three, ms"];
    context.table("Publish to last delivery", &columns[..sides.all.len()], lasts);
    Ok(())
}

/// A message a second to each of many channels, which have a client each.
pub(super) fn publish(context: &mut Context<'_>, deliveries: &mut Deliveries) -> Result<(), Abort> {
    let clients = context.size.part(CHANNELS, WHOLE).max(NODES);
    let time = context.size.time;
    let mut sides = Sides::start(context, true)?;
    let publishing =
        Publishing { rate: clients as f64, count: None, size: MESSAGE_BYTES, to: Pattern::InTurn };
    let phases = [
        ramp(clients),
        hold(Duration::from_secs(1), Some(publishing.clone())),
        hold(time, Some(publishing)),
    ];
    let load = Load {
        streams: Streams::Own,
        publishers: (clients / CHANNELS_OF_PUBLISHER).clamp(NODES, PUBLISHERS_MAX),
        pipeline: PIPELINE,
        ..Load::of(Transport::WebSocket)
    };
    let rounds = sides.rounds(context, (&load, &phases), deliveries)?;
    let delays = values(&rounds, p99);
    let rates = values(&rounds, |report| report.phases.last()?.totals.publish_rate);
    let cpu = values(&rounds, |report| {
        let totals = &report.phases.last()?.totals;
        Some(totals.server.as_ref()?.cpu_s * 1e3 / totals.published as f64)
    });
    context.record_all(
        [
            ("publish_memory", of(&delays, MEMORY)),
            ("publish_one", of(&delays, ONE)),
            ("publish_three", of(&delays, THREE)),
            ("publish_rate", of(&rates, ONE)),
            ("publish_rate_three", of(&rates, THREE)),
            ("publish_cpu_memory", of(&cpu, MEMORY)),
            ("publish_cpu", of(&cpu, ONE)),
        ],
        clients,
    );
    let columns = ["memory, p99 ms", "one nats-server, p99 ms", "three, p99 ms"];
    context.table("Many channels", &columns[..sides.all.len()], delays);
    Ok(())
}
