//! A node that joins and follows many inboxes, and what each takes in it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use throng_flood::plan::{Phase, Transport};
use throng_flood::report::Report;
use throng_flood::report::live::Moment;
use throng_units::format::count;

use super::super::values::more;
use super::nodes::{Cluster, FLAGS};
use super::sizes::{INBOXES, WHOLE};
use crate::context::{Abort, Context, Load, Nodes, Watch};
use crate::flood::{bytes_per_client, hold, ramp};

/// Channels that a connection follows: few connections, so that following is what takes long.
const CHANNELS_OF_CLIENT: usize = 100;

/// The time until buffers of the beginning are given back.
const SETTLING: Duration = Duration::from_secs(5);

/// The channels that a node follows in NATS.
const FOLLOWED: &str = "throng_nats_followed_channels";

pub(super) fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    // More than connections: each follows many.
    let channels = INBOXES * context.size.connections / WHOLE;
    let clients = channels.div_ceil(CHANNELS_OF_CLIENT).max(1);
    let channels = clients * CHANNELS_OF_CLIENT;
    let path = path();
    let load = Load { path: Some(&path), ..Load::of(Transport::WebSocket) };
    let phases = || -> Vec<Phase> { vec![ramp(clients), hold(SETTLING, None)] };

    context.serve(FLAGS)?;
    let alone = context.flood(&load, phases())?;
    context.stop_server();

    let mut cluster = Cluster::start(context, 1)?;
    let began = Instant::now();
    cluster.add_node(context)?;
    cluster.await_ready(context)?;
    let ready_ms = began.elapsed().as_secs_f64() * 1e3;
    let Some(node) = cluster.nodes.last() else { return Ok(()) };
    let (url, pids) = (node.url().to_owned(), [node.pid()]);
    let nodes = Nodes { url: &url, others: &[], failover: &[], pids: &pids };
    let load = Load { nodes: Some(nodes), ..load };
    let mut follower = Follower { cluster: &mut cluster, followed: 0.0 };
    let joined = context.flood_watched(&load, phases(), &mut follower)?;
    let followed = follower.followed as u64;
    if followed != channels as u64 {
        let (found, all) = (count(followed), count(channels as u64));
        context.outcome.fail(format!("the node followed {found} of {all} channels"));
    }

    let bytes = |report: &Report| {
        let each = bytes_per_client(report.phases.last()?)?;
        Some(each * clients as f64 / channels as f64)
    };
    let connected_ms = |report: &Report| Some(report.phases.first()?.totals.connected_s? * 1e3);
    let (bytes_alone, bytes_joined) = (bytes(&alone), bytes(&joined));
    context.record_all(
        [
            ("join_memory", connected_ms(&alone)),
            ("join", connected_ms(&joined).map(|ms| ready_ms + ms)),
            ("join_ready", Some(ready_ms)),
            ("followed_memory", bytes_alone),
            ("followed", bytes_joined),
            ("followed_more", more(bytes_joined, bytes_alone)),
        ],
        channels,
    );
    Ok(())
}

/// Sees how many channels the last node follows while the clients are held.
struct Follower<'a> {
    cluster: &'a mut Cluster,
    followed: f64,
}

impl Watch for Follower<'_> {
    fn on_moment(&mut self, moment: &Moment<'_>) {
        let node = self.cluster.nodes.last().filter(|_| moment.place.0 >= 2);
        let found = node.and_then(|node| self.cluster.metric(node, FOLLOWED));
        self.followed = found.unwrap_or(self.followed);
    }

    fn step(&mut self) -> Option<String> {
        self.cluster.ended()
    }
}

/// The subscription of a client to channels of its own.
fn path() -> String {
    let mut path = "/subscribe?".to_owned();
    for nth in 0..CHANNELS_OF_CLIENT {
        let and = if nth == 0 { "" } else { "&" };
        let _ = write!(path, "{and}channel=inbox-{{i}}-{nth}");
    }
    path
}
