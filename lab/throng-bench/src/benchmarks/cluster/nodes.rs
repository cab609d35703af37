//! Three nodes over one nats-server or three, all on this machine.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_flood::plan::{Node, Phase};
use throng_flood::report::Report;
use ureq::Agent;

use crate::context::{Abort, Context, Load, Nodes, Watch};
use crate::nats::NatsServer;
use crate::program::NATS_SERVER;
use crate::server::Server;

/// Nodes of a cluster.
pub(super) const NODES: usize = 3;

/// Flags of all servers here: those that are compared differ in their engine alone.
pub(super) const FLAGS: &[&str] = &["--heartbeat", "0"];

/// How long nodes may take until they can use the stream: three servers elect leaders first.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// The time limit of a request to a node.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// See the module. All ends on drop.
pub(super) struct Cluster {
    /// Dropped first: nodes say farewell to others through NATS.
    pub(super) nodes: Vec<Server>,
    pub(super) brokers: Vec<NatsServer>,
    agent: Agent,
}

impl Cluster {
    /// Starts `brokers` nats-servers and the nodes, and waits until they can use the stream, which
    /// is then on all of these servers.
    pub(super) fn start(context: &mut Context<'_>, brokers: usize) -> Result<Cluster, Abort> {
        let program = NATS_SERVER.find(context.choice().nats_server.as_deref());
        let program = program.map_err(Abort::Failed)?;
        let brokers = NatsServer::start(&program, brokers);
        let config = Agent::config_builder().proxy(None).http_status_as_error(false);
        let agent = config.timeout_global(Some(REQUEST_TIMEOUT)).build().into();
        let mut cluster =
            Cluster { nodes: Vec::new(), brokers: brokers.map_err(Abort::Failed)?, agent };
        for _ in 0..NODES {
            cluster.add_node(context)?;
        }
        cluster.await_ready(context)?;
        Ok(cluster)
    }

    /// Starts another node, which may not be ready yet.
    pub(super) fn add_node(&mut self, context: &mut Context<'_>) -> Result<(), Abort> {
        let replicas = self.brokers.len().to_string();
        // Each node has a server of its own, as long as that is there.
        let mut urls = self.brokers.iter().map(NatsServer::url).collect::<Vec<_>>();
        urls.rotate_left(self.nodes.len() % self.brokers.len());
        let urls = urls.join(",");
        let own = ["--engine", "nats", "--nats", &urls, "--nats-replicas", &replicas];
        let server = context.serve_beside(&[FLAGS, &own].concat())?;
        self.nodes.push(server);
        Ok(())
    }

    /// Waits until all nodes can use the stream.
    pub(super) fn await_ready(&mut self, context: &mut Context<'_>) -> Result<(), Abort> {
        let deadline = Instant::now() + READY_DEADLINE;
        while !self.nodes.iter().all(|node| self.is_ready(node)) {
            context.check()?;
            if let Some(how) = self.ended() {
                return Err(Abort::Failed(how));
            }
            if Instant::now() > deadline {
                let sentence = format!("the nodes could not use NATS within {READY_DEADLINE:?}");
                return Err(Abort::Failed(sentence));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn is_ready(&self, node: &Server) -> bool {
        let answer = self.agent.get(format!("{}/health/ready", node.url())).call();
        let text = answer.and_then(|mut answer| answer.body_mut().read_to_string());
        let Ok(Ok(found)) = text.map(|text| serde_json::from_str::<Value>(&text)) else {
            return false;
        };
        let Some(reasons) = found["reasons"].as_array() else { return false };
        let is_about_nats = |reason: &Value| {
            reason["reason"].as_str().is_none_or(|reason| reason.starts_with("nats_"))
        };
        !reasons.iter().any(is_about_nats)
    }

    /// A metric of a node; `None` if it does not answer or has none.
    pub(super) fn metric(&self, node: &Server, name: &str) -> Option<f64> {
        let answer = self.agent.get(format!("{}/metrics", node.url())).call();
        let text = answer.and_then(|mut answer| answer.body_mut().read_to_string()).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value?.trim().parse().ok()
    }

    /// What a server or node of it ended with, in a sentence.
    pub(super) fn ended(&mut self) -> Option<String> {
        if let Some(how) = self.brokers.iter_mut().find_map(NatsServer::ended) {
            return Some(format!("a nats-server is gone: {how}"));
        }
        let how = self.nodes.iter_mut().find_map(Server::ended)?;
        Some(format!("a node is gone: it {how}"))
    }

    /// Runs phases against all nodes.
    pub(super) fn flood(
        &mut self,
        context: &mut Context<'_>,
        load: &Load<'_>,
        phases: Vec<Phase>,
    ) -> Result<Report, Abort> {
        let addresses = self.addresses()?;
        let load = Load { nodes: Some(addresses.nodes(&[])), ..*load };
        context.flood_watched(&load, phases, self)
    }

    /// Where the nodes are.
    pub(super) fn addresses(&self) -> Result<Addresses, Abort> {
        let Some(first) = self.nodes.first() else {
            return Err(Abort::Failed("there are no nodes".to_owned()));
        };
        Ok(Addresses {
            url: first.url().to_owned(),
            others: self.nodes[1..].iter().filter_map(address).collect(),
            pids: self.nodes.iter().map(Server::pid).collect(),
        })
    }
}

impl Watch for Cluster {
    fn step(&mut self) -> Option<String> {
        self.ended()
    }
}

/// Where the nodes of a cluster are.
pub(super) struct Addresses {
    pub(super) url: String,
    pub(super) others: Vec<Node>,
    pub(super) pids: Vec<u32>,
}

impl Addresses {
    /// The nodes as a target; clients that lose theirs come back to `failover`, if there are any.
    pub(super) fn nodes<'a>(&'a self, failover: &'a [Node]) -> Nodes<'a> {
        Nodes { url: &self.url, others: &self.others, failover, pids: &self.pids }
    }
}

/// Host and port of a server.
pub(super) fn address(server: &Server) -> Option<Node> {
    server.url().split_once("://")?.1.parse().ok()
}
