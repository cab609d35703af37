//! A node that joins and follows many channels.

use std::time::Instant;

use throng_units::format::count;

use super::nodes::Cluster;
use crate::context::{Abort, Context, HELD, Watch};
use crate::expression::Figure;
use crate::file::Run;
use crate::plan::Target;

/// The channels that a node follows in NATS.
const FOLLOWED: &str = "throng_nats_followed_channels";

/// Puts the load on one server first, as the run `join_memory`, then on a node that joins a
/// cluster. Clients follow as many channels each as `channels` in the file says. Figures: `ready`,
/// the milliseconds that the node takes to start, and `channels`, the number that it has to follow.
pub(crate) fn join(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let channels = context.size.connections * run.given("channels").unwrap_or(1.0) as usize;
    context.serve(run)?;
    context.begin("join_memory");
    context.load(run)?;
    context.stop_server();

    let mut cluster = Cluster::start(context, run, 1)?;
    let began = Instant::now();
    cluster.add_node(context, run)?;
    cluster.await_ready(context)?;
    let ready_ms = began.elapsed().as_secs_f64() * 1e3;
    let Some(node) = cluster.nodes.last() else { return Ok(()) };
    let (url, processes) = (node.url().to_owned(), vec![node.pid()]);
    let target = Target { url, processes, ..Target::default() };
    context.begin("joined");
    let mut follower = Follower { cluster: &mut cluster, followed: 0.0 };
    context.load_watched(run, &target, &mut follower)?;
    let followed = follower.followed as u64;
    if followed != channels as u64 {
        let (found, all) = (count(followed), count(channels as u64));
        context.outcome.fail(format!("the node followed {found} of {all} channels"));
    }
    context.give_one("ready", Figure::of(Some(ready_ms), channels));
    context.give_one("channels", Figure::of(Some(channels as f64), channels));
    Ok(())
}

/// Sees how many channels the last node follows while the clients are held.
struct Follower<'a> {
    cluster: &'a mut Cluster,
    followed: f64,
}

impl Watch for Follower<'_> {
    fn on_second(&mut self, phase: usize) {
        let node = self.cluster.nodes.last().filter(|_| phase >= HELD);
        let found = node.and_then(|node| self.cluster.metric(node, FOLLOWED));
        self.followed = found.unwrap_or(self.followed);
    }

    fn step(&mut self) -> Option<String> {
        self.cluster.ended()
    }
}
