//! The server from the moment it serves to its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use throng_control::{AdminListener, Control};
use throng_core::{Channels, clock};
use throng_edge::{Counter, Edge, Metrics};
use throng_units::format::count;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::MissedTickBehavior;

use super::reserves::Reserves;
use crate::beside::Beside;
use crate::departure::{Departure, DrainStage};
use crate::free_memory::FreeMemory;
use crate::log_writer::LogWriter;
use crate::planes::Handover;
use crate::service::{Signals, notify};
use crate::upgrade::{self, Ending, Running, Upgrader};
use crate::watch::Turns;

/// Interval of `Channels::tick`. Each call expires a part of the old messages.
const TICK: Duration = Duration::from_millis(100);

/// Time between the stop of accepting and the first rejected publication. Requests that arrived
/// before the signal are still served.
const ACCEPT_GRACE: Duration = Duration::from_millis(100);

/// A server that serves from now on.
pub(super) struct Serving {
    pub(super) control: Arc<Control>,
    pub(super) edge: Edge,
    pub(super) reserves: Reserves,
    pub(super) admin: Option<AdminListener>,
}

/// When the server shuts down.
pub(super) struct Leaving {
    pub(super) signals: Signals,
    /// The drain that an operator may ask for.
    pub(super) departure: Arc<Departure>,
    /// The time from the signal to the drain, in which the server is not ready and serves.
    pub(super) delay: Duration,
    /// They end before the connections do: nobody is told that everybody leaves.
    pub(super) ending_events: Option<AbortHandle>,
    pub(super) log: LogWriter,
    /// Requests for a new process that takes over, and what it gets.
    pub(super) upgrades: upgrade::Requests,
    pub(super) running: Running,
    pub(super) beside: Beside,
}

impl Serving {
    /// Serves until a signal has arrived and the shutdown is complete: also the workers and the
    /// last events have ended, and everything is in the journals.
    pub(super) fn run(self, runtime: &Runtime, leaving: Leaving) -> Result<()> {
        let journals = Arc::clone(&leaving.running.journals);
        let (edge, beside) = runtime.block_on(self.serve(leaving))?;
        let metrics = edge.metrics.clone();
        edge.join();
        runtime.block_on(beside.finish());
        log_outcome(&metrics);
        journals.iter().for_each(|journal| journal.end());
        Ok(())
    }

    /// Runs the control plane. Returns the data plane, whose workers are ending.
    async fn serve(self, leaving: Leaving) -> Result<(Edge, Beside)> {
        let Serving { control, edge, reserves, admin } = self;
        let channels = Arc::clone(&leaving.running.channels);
        let edge = Arc::new(edge);
        let Reserves { turns, watch, rest: _, events } = reserves;
        let handover = Handover::new(Arc::clone(&edge), events);
        let ticks = spawn_ticks(channels, edge.metrics.clone(), turns);
        watch.begin();
        notify("READY=1");
        let (kept, keeps) = oneshot::channel();
        let drain = leaving.await_drain(Arc::clone(&control), Arc::clone(&edge), kept);
        let draining = Arc::clone(&edge);
        throng_control::serve(control, handover, admin, drain, move || draining.drain()).await;
        ticks.abort();
        let edge = Arc::into_inner(edge).context("the control plane still uses the data plane")?;
        Ok((edge, keeps.await.context("a thread beside the planes is lost")?))
    }
}

impl Leaving {
    /// Upgrades when that is asked for. Returns when the planes are to drain, and not at all when
    /// another process has taken over. `keeper` gets what ends after the planes.
    async fn await_drain(
        self,
        control: Arc<Control>,
        edge: Arc<Edge>,
        keeper: oneshot::Sender<Beside>,
    ) {
        let Leaving { mut signals, departure, delay, ending_events, log, .. } = self;
        let Leaving { mut upgrades, running, beside, .. } = self;
        let ending = Ending { control: Arc::clone(&control), beside, log: log.clone() };
        let upgrader = Arc::new(Upgrader::new(running, control, Arc::clone(&edge)));
        let (name, beside) = upgrades.serve(upgrader, (&mut signals, &departure), ending).await;
        // Its receiver waits until the server has drained.
        let _ = keeper.send(beside);
        // First, so that balancers know before anything is refused.
        let was_serving = departure.end() == DrainStage::Serving;
        notify("STOPPING=1");
        tracing::info!("{name}: stopping; a second signal ends the server at once");
        tokio::spawn(async move {
            let name = signals.next().await;
            tracing::warn!("{name} again: ending at once");
            log.flush();
            std::process::exit(1);
        });
        if was_serving {
            tokio::time::sleep(delay).await;
        }
        ending_events.iter().for_each(AbortHandle::abort);
        edge.stop_accepting();
        tokio::time::sleep(ACCEPT_GRACE).await;
    }
}

/// Lets the channels expire messages, and counts the turns of the runtime.
fn spawn_ticks(channels: Arc<Channels>, workers: Metrics, turns: Turns) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut memory = FreeMemory::default();
        loop {
            ticks.tick().await;
            clock::follow(clock::machine_ms);
            channels.tick(clock::now_ms());
            // Behind the channels: a lock that is never released stops them, too.
            turns.fetch_add(1, Ordering::Relaxed);
            memory.look(&channels, &workers);
        }
    })
}

/// One line about what was done.
fn log_outcome(metrics: &Metrics) {
    let sum = |counter| count(metrics.sum(counter));
    tracing::info!(
        "stopped: {} connections accepted, {} messages delivered, {} clients told to reconnect",
        sum(Counter::Accepted),
        sum(Counter::Deliveries),
        sum(Counter::ClosedDraining),
    );
}
