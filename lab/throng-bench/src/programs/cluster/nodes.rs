//! Three nodes over one nats-server or three, all on this machine.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::nats::NatsServer;
use crate::context::{Abort, Context, Watch};
use crate::executables::NATS_SERVER;
use crate::file::Run;
use crate::http::Http;
use crate::plan::Target;
use crate::server::Server;

/// Nodes of a cluster.
pub(super) const NODES: usize = 3;

/// The nats-servers of a cluster of them.
pub(super) const BROKERS: usize = 3;

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
    http: Http,
}

impl Cluster {
    /// Starts `brokers` nats-servers and the nodes, and waits until they can use the stream, which
    /// is then on all of these servers. Nodes have the flags of the run's server.
    pub(super) fn start(
        context: &mut Context<'_>,
        run: &Run,
        brokers: usize,
    ) -> Result<Cluster, Abort> {
        let program = NATS_SERVER.find(context.choice.nats_server.as_deref())?;
        let brokers = NatsServer::start(&program, brokers)?;
        let mut cluster = Cluster { nodes: Vec::new(), brokers, http: Http::new(REQUEST_TIMEOUT) };
        for _ in 0..NODES {
            cluster.add_node(context, run)?;
        }
        cluster.await_ready(context)?;
        Ok(cluster)
    }

    /// Starts another node, which may not be ready yet.
    pub(super) fn add_node(&mut self, context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
        let replicas = self.brokers.len().to_string();
        // Each node has a server of its own, as long as that is there.
        let mut urls = self.brokers.iter().map(NatsServer::url).collect::<Vec<_>>();
        urls.rotate_left(self.nodes.len() % self.brokers.len());
        let urls = urls.join(",");
        let own = ["--engine", "nats", "--nats", &urls, "--nats-replicas", &replicas];
        let own = own.map(str::to_owned);
        self.nodes.push(context.serve_beside(&[context.benchmark.flags(run), &own].concat())?);
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
        // A node that is not ready says why.
        let text = self.http.get_any(&format!("{}/health/ready", node.url()));
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
        let text = self.http.get(&format!("{}/metrics", node.url())).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value?.trim().parse().ok()
    }

    /// How a nats-server or node has ended, in a sentence; `None` while all run.
    pub(super) fn ended(&mut self) -> Option<String> {
        if let Some(how) = self.brokers.iter_mut().find_map(NatsServer::ended) {
            return Some(format!("a nats-server is gone: {how}"));
        }
        let how = self.nodes.iter_mut().find_map(Server::ended)?;
        Some(format!("a node is gone: it {how}"))
    }

    /// All nodes together.
    pub(super) fn target(&self) -> Result<Target, Abort> {
        let Some((first, others)) = self.nodes.split_first() else {
            return Err(Abort::Failed("there are no nodes".to_owned()));
        };
        Ok(Target {
            url: first.url().to_owned(),
            nodes: others.iter().map(address).collect(),
            processes: self.nodes.iter().map(Server::pid).collect(),
            ..Target::default()
        })
    }
}

impl Watch for Cluster {
    fn step(&mut self) -> Option<String> {
        self.ended()
    }
}

/// Host and port of a server.
pub(super) fn address(server: &Server) -> String {
    server.url().trim_start_matches("http://").to_owned()
}
