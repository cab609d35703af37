//! What is killed while messages flow: a node, a nats-server, the one that leads the stream.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_flood::plan::{Node, Pattern, Publishing, Streams, Transport};
use throng_flood::report::Report;
use throng_flood::report::live::Moment;
use throng_units::format::count;

use super::super::values::Deliveries;
use super::nodes::{Cluster, NODES, address};
use super::prober::Prober;
use super::sizes::{BROKERS, OUTAGE_CLIENTS, WHOLE};
use crate::context::{Abort, Context, Load, Watch};
use crate::flood::{hold, ramp};
use crate::nats::NatsServer;
use crate::server::NO_SETTINGS;

/// When the fault comes, after the clients are held. Each has had messages by then.
const FAULT_AFTER: Duration = Duration::from_secs(4);

/// How long a nats-server is away.
const AWAY: Duration = Duration::from_secs(2);

/// How long clients are held: an outage and what comes after it.
const HELD: Duration = Duration::from_secs(20);
const HELD_WITHOUT_NODE: Duration = Duration::from_secs(14);

const MESSAGE_BYTES: usize = 128;

/// Clients of a channel, and messages a second to all of these.
const CLIENTS_OF_CHANNEL: usize = 50;
const RATE: f64 = 150.0;

/// Publishing connections: several for each node.
const PUBLISHERS: usize = 12;

/// Requests under way on each: they go on while earlier ones wait for the stream.
const PIPELINE: usize = 4;

/// Subscribers of a node whose clients are event streams.
const SUBSCRIBED: &str = "throng_subscribed_connections{transport=\"sse\"}";

/// How often the other nodes are asked how many clients they have.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

fn load(clients: usize) -> Load<'static> {
    let channels = clients.div_ceil(CLIENTS_OF_CHANNEL).max(NODES);
    Load {
        streams: Streams::Spread(u32::try_from(channels).unwrap_or(u32::MAX)),
        publishers: PUBLISHERS,
        pipeline: PIPELINE,
        may_fail: true,
        // They resume after the last message that they have.
        ..Load::of(Transport::Sse)
    }
}

fn messages() -> Publishing {
    Publishing { rate: RATE, count: None, size: MESSAGE_BYTES, to: Pattern::InTurn }
}

/// Since when clients are held; `None` before.
#[derive(Debug, Default)]
struct Held(Option<Instant>);

impl Held {
    fn look(&mut self, moment: &Moment<'_>) {
        if moment.place.0 >= 2 {
            self.0.get_or_insert_with(Instant::now);
        }
    }

    /// Whether the time of the fault has come.
    fn is_due(&self) -> bool {
        self.0.is_some_and(|since| since.elapsed() >= FAULT_AFTER)
    }
}

/// Kills a node, and waits for its clients at the others.
struct NodeKilled<'a> {
    cluster: &'a mut Cluster,
    clients: usize,
    held: Held,
    killed: Option<Instant>,
    looked: Option<Instant>,
    /// How long it took until all clients were at the other nodes.
    back: Option<Duration>,
}

impl Watch for NodeKilled<'_> {
    fn on_moment(&mut self, moment: &Moment<'_>) {
        self.held.look(moment);
    }

    fn step(&mut self) -> Option<String> {
        let Some(killed) = self.killed else {
            if self.held.is_due() {
                if let Some(mut node) = self.cluster.nodes.pop() {
                    node.kill();
                }
                self.killed = Some(Instant::now());
            }
            return self.cluster.ended();
        };
        let is_time = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_INTERVAL);
        if self.back.is_none() && is_time {
            self.looked = Some(Instant::now());
            let nodes = self.cluster.nodes.iter();
            let found: f64 = nodes.filter_map(|node| self.cluster.metric(node, SUBSCRIBED)).sum();
            self.back = (found >= self.clients as f64).then(|| killed.elapsed());
        }
        self.cluster.ended()
    }
}

/// A node is killed, and its clients come back to the others.
pub(super) fn node(context: &mut Context<'_>, deliveries: &mut Deliveries) -> Result<(), Abort> {
    let clients = context.size.connections.max(NODES);
    let mut cluster = Cluster::start(context, 1)?;
    let addresses = cluster.addresses()?;
    let survivors: Vec<Node> = cluster.nodes.iter().take(NODES - 1).filter_map(address).collect();
    let load = Load { nodes: Some(addresses.nodes(&survivors)), ..load(clients) };
    let mut watch = NodeKilled {
        cluster: &mut cluster,
        clients,
        held: Held::default(),
        killed: None,
        looked: None,
        back: None,
    };
    let phases = vec![ramp(clients), hold(HELD_WITHOUT_NODE, Some(messages()))];
    let report = context.flood_watched(&load, phases, &mut watch)?;
    let back = watch.back;
    deliveries.add(&report);
    if report.total.active < clients as u64 {
        let (found, all) = (count(report.total.active), count(clients as u64));
        context
            .outcome
            .fail(format!("{found} of {all} clients were there after a node was killed"));
    }
    let moved = clients / NODES;
    context.record_all([("node_back", back.map(|back| back.as_secs_f64() * 1e3))], moved);
    Ok(())
}

/// Kills a nats-server, and perhaps starts it again.
struct BrokerKilled<'a> {
    cluster: &'a mut Cluster,
    /// Its number among all of the cluster.
    broker: usize,
    comes_back: bool,
    prober: Prober,
    held: Held,
    killed: Option<Instant>,
    returned: Option<Instant>,
}

impl Watch for BrokerKilled<'_> {
    fn on_moment(&mut self, moment: &Moment<'_>) {
        self.held.look(moment);
    }

    fn step(&mut self) -> Option<String> {
        let broker = self.cluster.brokers.get_mut(self.broker)?;
        match self.killed {
            None if self.held.is_due() => {
                broker.kill();
                self.killed = Some(Instant::now());
            }
            Some(killed)
                if self.comes_back && self.returned.is_none() && killed.elapsed() >= AWAY =>
            {
                if let Err(reason) = broker.restart() {
                    return Some(reason);
                }
                self.returned = Some(Instant::now());
            }
            _ => {}
        }
        self.cluster.ended()
    }
}

/// The only nats-server is killed and comes back.
pub(super) fn broker(context: &mut Context<'_>, deliveries: &mut Deliveries) -> Result<(), Abort> {
    let cluster = Cluster::start(context, 1)?;
    outage(context, deliveries, (cluster, 0), "broker_back")
}

/// The nats-server that leads the stream is killed and stays away.
pub(super) fn leader(context: &mut Context<'_>, deliveries: &mut Deliveries) -> Result<(), Abort> {
    if context.choice().is_single {
        return Ok(());
    }
    let cluster = Cluster::start(context, BROKERS)?;
    let leader = leader_of(context, &cluster).map_err(Abort::Failed)?;
    outage(context, deliveries, (cluster, leader), "leader_back")
}

fn outage(
    context: &mut Context<'_>,
    deliveries: &mut Deliveries,
    (mut cluster, broker): (Cluster, usize),
    key: &str,
) -> Result<(), Abort> {
    let clients = context.size.part(OUTAGE_CLIENTS, WHOLE).max(NODES);
    let addresses = cluster.addresses()?;
    let load = Load { nodes: Some(addresses.nodes(&[])), ..load(clients) };
    let comes_back = cluster.brokers.len() == 1;
    let mut watch = BrokerKilled {
        cluster: &mut cluster,
        broker,
        comes_back,
        prober: Prober::start(&addresses.url),
        held: Held::default(),
        killed: None,
        returned: None,
    };
    let phases = vec![ramp(clients), hold(HELD, Some(messages()))];
    let report: Report = context.flood_watched(&load, phases, &mut watch)?;
    deliveries.add(&report);
    let since = if comes_back { watch.returned } else { watch.killed };
    let back = since.and_then(|since| watch.prober.works_after(since));
    if back.is_none() {
        context.outcome.fail("nothing could be published after a nats-server was killed");
    }
    context.record(key, back.map(|back| back.as_secs_f64() * 1e3), clients);
    Ok(())
}

/// The number of the nats-server that leads the stream.
fn leader_of(context: &Context<'_>, cluster: &Cluster) -> Result<usize, String> {
    let urls: Vec<_> = cluster.brokers.iter().map(NatsServer::url).collect();
    let mut command = Command::new(context.program());
    command.args(["cluster", "--json", "--config", NO_SETTINGS]);
    command.args(["--nats", &urls.join(",")]);
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let found: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        format!("throng cluster: {error}: {}", String::from_utf8_lossy(&output.stderr).trim())
    })?;
    let leader = found["stream"]["leader"].as_str();
    let is_it = |broker: &NatsServer| Some(broker.name()) == leader;
    cluster.brokers.iter().position(is_it).ok_or_else(|| "nobody leads the stream".to_owned())
}
