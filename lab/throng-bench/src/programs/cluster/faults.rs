//! Kills while messages flow: of a node, of a nats-server, of the one that leads the stream.
//!
//! Figure: `back`, the milliseconds until all goes on: until the clients of the node are at the
//! others, until something can be published again.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_units::format::count;

use super::nats::NatsServer;
use super::nodes::{BROKERS, Cluster, NODES, address};
use super::prober::Prober;
use crate::context::{Abort, Context, HELD, Watch};
use crate::expression::Figure;
use crate::file::Run;
use crate::server::NO_SETTINGS;

/// When the fault comes, after the clients are held. Each has had messages by then.
const FAULT_AFTER: Duration = Duration::from_secs(4);

/// How long a nats-server is away.
const AWAY: Duration = Duration::from_secs(2);

/// Subscribers of a node whose clients are event streams.
const SUBSCRIBED: &str = "throng_subscribed_connections{transport=\"sse\"}";

/// How often the other nodes are asked how many clients they have.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Since when clients are held; `None` before.
#[derive(Debug, Default)]
struct Held(Option<Instant>);

impl Held {
    fn on_second(&mut self, phase: usize) {
        if phase >= HELD {
            self.0.get_or_insert_with(Instant::now);
        }
    }

    /// True if the time of the fault has come.
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
    fn on_second(&mut self, phase: usize) {
        self.held.on_second(phase);
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
pub(crate) fn node_killed(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let clients = context.size.connections;
    let mut cluster = Cluster::start(context, run, 1)?;
    let mut target = cluster.target()?;
    target.may_fail = true;
    target.failover = cluster.nodes.iter().take(NODES - 1).map(address).collect();
    let mut watch = NodeKilled {
        cluster: &mut cluster,
        clients,
        held: Held::default(),
        killed: None,
        looked: None,
        back: None,
    };
    let report = context.load_watched(run, &target, &mut watch)?;
    let back = watch.back.map(|back| back.as_secs_f64() * 1e3);
    if report.total.active < clients as u64 {
        let (found, all) = (count(report.total.active), count(clients as u64));
        context
            .outcome
            .fail(format!("{found} of {all} clients were there after a node was killed"));
    }
    context.give_one("back", Figure::of(back, clients / NODES));
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
    fn on_second(&mut self, phase: usize) {
        self.held.on_second(phase);
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
pub(crate) fn broker_killed(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let cluster = Cluster::start(context, run, 1)?;
    outage(context, run, cluster, 0)
}

/// The nats-server that leads the stream is killed and stays away.
pub(crate) fn leader_killed(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    if context.choice.is_single {
        return Ok(());
    }
    let cluster = Cluster::start(context, run, BROKERS)?;
    let leader = leader_of(context, &cluster)?;
    outage(context, run, cluster, leader)
}

fn outage(
    context: &mut Context<'_>,
    run: &Run,
    mut cluster: Cluster,
    broker: usize,
) -> Result<(), Abort> {
    let mut target = cluster.target()?;
    target.may_fail = true;
    let comes_back = cluster.brokers.len() == 1;
    let mut watch = BrokerKilled {
        cluster: &mut cluster,
        broker,
        comes_back,
        prober: Prober::start(&target.url),
        held: Held::default(),
        killed: None,
        returned: None,
    };
    context.load_watched(run, &target, &mut watch)?;
    let since = if comes_back { watch.returned } else { watch.killed };
    let back = since.and_then(|since| watch.prober.works_after(since));
    if back.is_none() {
        context.outcome.fail("nothing could be published after a nats-server was killed");
    }
    context.give([("back", back.map(|back| back.as_secs_f64() * 1e3))]);
    Ok(())
}

/// The number of the nats-server that leads the stream.
fn leader_of(context: &Context<'_>, cluster: &Cluster) -> Result<usize, String> {
    let urls: Vec<_> = cluster.brokers.iter().map(NatsServer::url).collect();
    let mut command = Command::new(&context.choice.server);
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
