//! What all threads of a fleet share: what the plan says, and where they tell what they see.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;

use memchr::memmem::Finder;
use throng_wire::websocket::{Opcode, write_masked_frame};

use super::board::{Board, stream_count};
use super::ledger::Ledger;
use super::request::{MASK, Requests, resolve};
use super::sources::Sources;
use super::{FleetError, Share};
use crate::plan::{Network, Plan, Streams, Subscribed, Transport};
use crate::publish::graph::Graph;
use crate::template::Values;
use throng_tunnel::Targets;

/// Throng's sub-protocol, and what it sends as a heartbeat.
const V1: &str = "throng.v1";
const V1_HEARTBEAT: &[u8] = br#"{"type":"heartbeat"}"#;

/// See the module.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) share: Share,
    pub(super) threads: usize,
    pub(super) transport: Transport,
    /// See [`target`](Self::target).
    pub(super) targets: Vec<SocketAddr>,
    /// The same for clients of a tunnel, if they are that.
    tunnel_targets: Option<Vec<SocketAddrV4>>,
    pub(super) sources: Sources,
    pub(super) requests: Requests,
    /// What the message must contain that says that a client is subscribed; `None` if the response
    /// head says it.
    pub(super) joined_by: Option<Finder<'static>>,
    /// What a message without a mark contains if the server refuses the client.
    pub(super) refused_by: Vec<String>,
    /// Whether clients that fail come back.
    pub(super) keeps: bool,
    /// A message that is exactly this is a sign of life, and nothing else.
    pub(super) heartbeat: Option<&'static [u8]>,
    /// What a message must be to be answered, and the frame that answers it.
    pub(super) pings: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) handshake_timeout_ns: u64,
    pub(super) board: Arc<Board>,
    pub(super) ledger: Ledger,
    streams: Streams,
    graph: Option<Graph>,
}

impl Setting {
    pub(super) fn new(plan: &Plan, share: Share, threads: usize) -> Result<Setting, FleetError> {
        let target = &plan.target;
        let total = u32::try_from(share.total).map_err(|_| FleetError::TooMany(share.total))?;
        let first = Values { run: share.run, ..Values::default() };
        let targets = resolve(&target.url.rendered(&first), &target.ports)?;
        let tunnel_targets = match plan.network {
            Network::Sockets => None,
            Network::Tunnel => Some(throng_tunnel::reachable(&targets)?),
        };
        let graph = match target.streams {
            Streams::Friends { edges } => Some(Graph::new(total, edges, plan.seed)),
            Streams::One | Streams::Spread(_) | Streams::Own => None,
        };
        let joined_by = match &target.subscribed {
            Subscribed::Handshake => None,
            Subscribed::Message(text) => Some(Finder::new(text).into_owned()),
        };
        let pings = target.pings.iter().map(|ping| {
            let mut frame = Vec::new();
            write_masked_frame(&mut frame, Opcode::Text, ping.answer.as_bytes(), MASK);
            (ping.ask.clone().into_bytes(), frame)
        });
        let timeout = target.handshake_timeout.as_nanos();
        Ok(Setting {
            share,
            threads,
            transport: target.transport,
            sources: Sources::new(&plan.sources, targets[0].ip(), targets.len()),
            targets,
            tunnel_targets,
            requests: Requests::new(target),
            joined_by,
            refused_by: target.refused.clone(),
            keeps: plan.keep,
            heartbeat: (target.subprotocol.as_deref() == Some(V1)).then_some(V1_HEARTBEAT),
            pings: pings.collect(),
            handshake_timeout_ns: u64::try_from(timeout).unwrap_or(u64::MAX),
            board: Arc::new(Board::new(stream_count(target.streams, share.total))),
            ledger: Ledger::default(),
            streams: target.streams,
            graph,
        })
    }

    /// The number of a client of a thread.
    pub(super) fn number(&self, thread: usize, position: usize) -> usize {
        self.share.first + self.own_number(thread, position) * self.share.step
    }

    /// Its number among the clients of this machine.
    fn own_number(&self, thread: usize, position: usize) -> usize {
        position * self.threads + thread
    }

    /// Where a client connects to.
    pub(super) fn target(&self, number: usize) -> &SocketAddr {
        &self.targets[number % self.targets.len()]
    }

    /// Where the clients of a thread connect to, if they have a tunnel.
    pub(super) fn tunnel_targets(&self, thread: usize) -> Option<Targets> {
        let first = self.number(thread, 0);
        let step = self.number(thread, 1) - first;
        self.tunnel_targets.clone().map(|addresses| Targets { addresses, first, step })
    }

    /// What a client's source is chosen by.
    pub(super) fn source_number(&self, thread: usize, position: usize) -> usize {
        // Addresses of this machine are taken in turn, which a step may not skip; those that all
        // fleets take by themselves on loopback are dealt out by the number in the run.
        match self.sources.are_shared() {
            true => self.number(thread, position),
            false => self.own_number(thread, position),
        }
    }

    /// From a publish's intended time to `now` of this machine.
    pub(super) fn latency_ns(&self, intended_ns: u64, now: u64) -> u64 {
        let ahead_ns = self.share.clock_ahead_ns;
        now.saturating_add_signed(ahead_ns.saturating_neg()).saturating_sub(intended_ns)
    }

    /// The stream that a client follows, if it is one.
    pub(super) fn stream(&self, number: usize) -> Option<u32> {
        // Numbers are below `share.total`, which fits.
        match self.streams {
            Streams::One => Some(0),
            Streams::Spread(count) => Some(number as u32 % count.max(1)),
            Streams::Own => Some(number as u32),
            Streams::Friends { .. } => None,
        }
    }

    /// All streams that a client follows.
    pub(super) fn streams(&self, number: usize) -> Vec<u32> {
        match (&self.graph, self.stream(number)) {
            (Some(graph), _) => graph.friends(number as u32),
            (None, stream) => stream.into_iter().collect(),
        }
    }
}
