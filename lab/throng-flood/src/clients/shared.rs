//! The state that the threads of a pool share: the settings of the plan, and the accumulator of
//! their measurements.
//!
//! Histograms are large, hundreds of kilobytes when latencies spread, and there may be fifty
//! threads. So a thread collects raw values, and adds them to the accumulator when it has [`BATCH`]
//! of them or is asked. That is also faster: the histograms stay in the cache of the core that
//! writes many values at once.

use std::mem::size_of;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_tunnel::Targets;
use throng_wire::websocket::{Opcode, write_masked_frame};

use super::activity;
use super::compact;
use super::deliveries::PendingDeliveries;
use super::error::ClientPoolError;
use super::graph::Graph;
use super::outbox::Publisher;
use super::request::{MASK, Requests, look_up, resolve};
use super::share::ClientShare;
use super::sources::SourceAddresses;
use crate::counts::ClientCounts;
use crate::marker::Mark;
use crate::plan::{Network, Plan, PublishBy, Streams, Target, Transport};
use crate::publish::PublisherSettings;
use crate::streams::StreamCounters;
use crate::template::TemplateValues;
use crate::tls::TlsTarget;

/// Throng's sub-protocol, and its heartbeat message.
const V1: &str = "throng.v1";
const V1_HEARTBEAT: &[u8] = br#"{"type":"heartbeat"}"#;

/// The pause before a failed client reconnects: short compared with a storm, and long enough not
/// to be a flood of its own.
const RETRY_NS: u64 = 1_000_000_000;

/// The same for a publishing connection, of which there are few, and which has messages to send.
const PUBLISHER_RETRY_NS: u64 = 100_000_000;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) share: ClientShare,
    pub(super) threads: usize,
    pub(super) transport: Transport,
    /// The nodes of the target, each with its addresses; see [`target`](Self::target).
    nodes: Vec<Vec<SocketAddr>>,
    /// The addresses of clients that have come back from another one.
    failover: Vec<SocketAddr>,
    /// The addresses of the nodes for clients of a tunnel; `None` for sockets.
    tunnel_targets: Option<Vec<SocketAddrV4>>,
    /// How clients shake hands; `None` without TLS.
    pub(super) tls: Option<Arc<TlsTarget>>,
    pub(super) sources: SourceAddresses,
    pub(super) requests: Requests,
    /// What connections publish; `None` for subscribers.
    pub(super) publisher: Option<Publisher>,
    /// True if clients that fail reconnect.
    pub(super) keeps: bool,
    /// The pause before they do, unless the server says when.
    pub(super) retry_ns: u64,
    /// A message that is exactly this is a heartbeat.
    pub(super) heartbeat: Option<&'static [u8]>,
    /// The frame that acknowledges one of `throng.v1`, if clients speak it.
    pub(super) acknowledgement: Option<Arc<[u8]>>,
    /// True if clients ping, as their server demands.
    pub(super) pings_itself: bool,
    pub(super) handshake_timeout_ns: u64,
    pub(super) counters: Arc<StreamCounters>,
    pub(super) accumulator: Accumulator,
    stream_count: u32,
    streams_each: u32,
    graph: Option<Graph>,
}

impl Shared {
    /// For a part of a plan's clients.
    pub(super) fn new(
        plan: &Plan,
        share: ClientShare,
        threads: usize,
    ) -> Result<Shared, ClientPoolError> {
        let target = &plan.target;
        let url = target.url.rendered(&TemplateValues { run: share.run, ..Default::default() });
        let mut nodes = resolve(&url, &target.ports, &target.nodes)?;
        // Sources and tunnels are chosen for addresses of one kind.
        nodes.iter_mut().for_each(|addresses| addresses.truncate(1));
        let counters = StreamCounters::new(target.stream_count(share.total));
        let mut shared = Shared::of(target, &url, nodes, share, threads, Arc::new(counters))?;
        let targets = shared.targets();
        shared.sources = SourceAddresses::new(&plan.sources, targets[0].ip(), targets.len());
        if plan.network == Network::Tunnel {
            shared.tunnel_targets = Some(throng_tunnel::reachable(&targets)?);
        }
        for node in &target.failover {
            shared.failover.push(look_up(&node.host, node.port)?[0]);
        }
        if let Streams::Friends { edges } = target.streams {
            // `of` has checked the number.
            shared.graph = Some(Graph::new(share.total as u32, edges, plan.seed));
        }
        shared.keeps = plan.keep;
        Ok(shared)
    }

    /// For publishing connections, which have numbers above the clients'.
    pub(super) fn of_publishers(
        settings: &PublisherSettings<'_>,
        threads: usize,
    ) -> Result<Shared, ClientPoolError> {
        let publish =
            settings.target.publish.as_ref().ok_or_else(ClientPoolError::no_publish_target)?;
        let (run, client) = (settings.run, settings.max_clients);
        let values = TemplateValues { run, client, ..TemplateValues::default() };
        // Messages to publishers are dropped, compressed or not.
        let mut target = Target { deflate: false, ..settings.target.clone() };
        let url = match &publish.by {
            PublishBy::Http { url, .. } => {
                // Responses to publishes are read as those to polls.
                target.transport = Transport::LongPoll;
                url.rendered(&values)
            }
            PublishBy::WebSocket { .. } => {
                target.transport = Transport::WebSocket;
                target.url.rendered(&values)
            }
        };
        if target.streams_each > 1 || matches!(target.streams, Streams::Friends { .. }) {
            // A stream above the subscribers', so that none is taken from them.
            (target.streams, target.streams_each) = (Streams::Own, 1);
        }
        let nodes = resolve(&url, &[], &target.nodes)?;
        // The first connection goes to the first node.
        let first = settings.max_clients.next_multiple_of(nodes.len());
        let total = first + publish.connections;
        let share = ClientShare { first, ..ClientShare::whole(run, total) };
        let counters = Arc::clone(&settings.counters);
        let mut shared = Shared::of(&target, &url, nodes, share, threads, counters)?;
        shared.publisher = Some(Publisher::new(publish));
        (shared.keeps, shared.retry_ns) = (true, PUBLISHER_RETRY_NS);
        Ok(shared)
    }

    fn of(
        target: &Target,
        url: &str,
        nodes: Vec<Vec<SocketAddr>>,
        share: ClientShare,
        threads: usize,
        counters: Arc<StreamCounters>,
    ) -> Result<Shared, ClientPoolError> {
        u32::try_from(share.total).map_err(|_| ClientPoolError::too_many(share.total))?;
        let timeout = target.handshake_timeout.as_nanos();
        Ok(Shared {
            share,
            threads,
            transport: target.transport,
            nodes,
            failover: Vec::new(),
            tunnel_targets: None,
            tls: TlsTarget::of(url, &target.tls)
                .map_err(|error| ClientPoolError(error.to_string()))?,
            sources: SourceAddresses::of_kernel(),
            requests: Requests::new(target),
            publisher: None,
            keeps: false,
            retry_ns: RETRY_NS,
            heartbeat: speaks_v1(target).then_some(V1_HEARTBEAT),
            acknowledgement: speaks_v1(target).then(acknowledgement),
            pings_itself: activity::is_asked_for(target),
            handshake_timeout_ns: u64::try_from(timeout).unwrap_or(u64::MAX),
            counters,
            accumulator: Accumulator::default(),
            stream_count: target.stream_count(share.total),
            streams_each: target.streams_each,
            graph: None,
        })
    }

    /// All addresses that clients connect to first.
    fn targets(&self) -> Vec<SocketAddr> {
        self.nodes.concat()
    }

    /// All addresses that clients may connect to.
    pub(super) fn all_targets(&self) -> Vec<SocketAddr> {
        [self.targets(), self.failover.clone()].concat()
    }

    /// The number of a client in the run.
    pub(super) fn number(&self, thread: usize, position: usize) -> usize {
        self.share.first + self.own_number(thread, position) * self.share.step
    }

    /// The number of a client on this machine.
    fn own_number(&self, thread: usize, position: usize) -> usize {
        position * self.threads + thread
    }

    /// The address that a client connects to after so many failures. Clients of a node come back
    /// to the failover servers in turn, or else try the next address of their node.
    pub(super) fn target(&self, number: usize, failures: usize) -> &SocketAddr {
        let node = &self.nodes[number % self.nodes.len()];
        if failures > 0 && !self.failover.is_empty() {
            &self.failover[number / self.nodes.len() % self.failover.len()]
        } else {
            &node[failures % node.len()]
        }
    }

    /// True if clients go elsewhere after a failure.
    pub(super) fn has_others(&self) -> bool {
        !self.failover.is_empty() || self.nodes.iter().any(|addresses| addresses.len() > 1)
    }

    /// The targets of a thread's clients, if they use a tunnel.
    pub(super) fn tunnel_targets(&self, thread: usize) -> Option<Targets> {
        let first = self.number(thread, 0);
        let step = self.number(thread, 1) - first;
        self.tunnel_targets.clone().map(|addresses| Targets { addresses, first, step })
    }

    /// The number that a client's source address is chosen by.
    pub(super) fn source_number(&self, thread: usize, position: usize) -> usize {
        // Given addresses belong to this machine and are used in turn, without gaps. Loopback
        // addresses, which all pools on the machine choose from, are dealt out by the number in
        // the run.
        if self.sources.are_shared() {
            self.number(thread, position)
        } else {
            self.own_number(thread, position)
        }
    }

    /// The time from a message's scheduled time to `now` on this machine.
    pub(super) fn latency_ns(&self, intended_ns: u64, now: u64) -> u64 {
        let ahead_ns = self.share.clock_ahead_ns;
        now.saturating_add_signed(ahead_ns.saturating_neg()).saturating_sub(intended_ns)
    }

    /// The stream that a client follows; `None` if it follows several.
    pub(super) fn stream(&self, number: usize) -> Option<u32> {
        let is_one = self.graph.is_none() && !self.measures_readers();
        // Numbers are below `share.total`, which fits.
        is_one.then(|| number as u32 % self.stream_count)
    }

    /// All streams that a client follows, sorted.
    pub(super) fn streams(&self, number: usize) -> Vec<u32> {
        if let Some(graph) = &self.graph {
            return graph.friends(number as u32);
        }
        let (each, count) = (u64::from(self.streams_each), u64::from(self.stream_count));
        let first = number as u64 * each;
        let mut streams: Vec<_> = (first..first + each).map(|at| (at % count) as u32).collect();
        streams.sort_unstable();
        streams
    }

    /// True if clients follow several streams by `--channels-per-client`: each is measured by
    /// itself.
    pub(super) fn measures_readers(&self) -> bool {
        self.streams_each > 1
    }
}

fn acknowledgement() -> Arc<[u8]> {
    let mut frame = Vec::new();
    write_masked_frame(&mut frame, Opcode::Text, compact::ACKNOWLEDGEMENT, MASK);
    frame.into()
}

/// True if clients offer Throng's sub-protocol first; a token may follow.
fn speaks_v1(target: &Target) -> bool {
    let offered = target.subprotocol.as_ref().and_then(|offered| offered.text().split(',').next());
    offered == Some(V1)
}

/// Values that a thread collects before it takes the lock: 24 KiB, little more than a byte per
/// client, and one lock for a thousand deliveries.
pub(super) const BATCH: usize = 1024;

const _: () = assert!(size_of::<(Mark, u64)>() * BATCH <= 32 * 1024);

/// The measurements of all threads since they were last taken.
#[derive(Debug, Default)]
pub(super) struct Accumulator(Mutex<Accumulated>);

/// The contents of the [`Accumulator`].
#[derive(Debug, Default)]
pub(super) struct Accumulated {
    pub(super) counts: ClientCounts,
    pub(super) deliveries: PendingDeliveries,
}

/// Measurements of one thread since it last added to the accumulator, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct LatencyBatch {
    connects: Vec<u64>,
    deliveries: Vec<(Mark, u64)>,
}

impl Accumulator {
    /// A panic with the lock held leaves the counts consistent.
    pub(super) fn lock(&self) -> MutexGuard<'_, Accumulated> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LatencyBatch {
    /// Records the latency of a subscription.
    pub(super) fn connect(&mut self, latency_ns: u64, accumulator: &Accumulator) {
        self.connects.push(latency_ns);
        if self.connects.len() >= BATCH {
            self.add_to(&mut accumulator.lock());
        }
    }

    /// Records the latency of a delivery.
    pub(super) fn delivery(&mut self, mark: &Mark, latency_ns: u64, accumulator: &Accumulator) {
        self.deliveries.push((*mark, latency_ns));
        if self.deliveries.len() >= BATCH {
            self.add_to(&mut accumulator.lock());
        }
    }

    /// Adds everything to the accumulator.
    pub(super) fn add_to(&mut self, accumulator: &mut Accumulated) {
        for latency_ns in self.connects.drain(..) {
            accumulator.counts.connect.record(latency_ns);
        }
        for (mark, latency_ns) in self.deliveries.drain(..) {
            accumulator.counts.delivery.record(latency_ns);
            accumulator.deliveries.record(&mark, latency_ns);
        }
    }
}
