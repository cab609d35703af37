//! Threads and descriptors that the server needs once it serves, and that the system may refuse.
//!
//! A process that takes over makes them before the last word. If they cannot be had, the running
//! server goes on.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use throng_control::Health;
use throng_host::limits::MemoryMeter;
use tokio::runtime::Runtime;

use super::data_plane::DataPlane;
use crate::memory;
use crate::planes::HandoffEvents;
use crate::watch::{self, Rest, Turns};

pub(super) struct Reserves {
    /// The turns of the control plane, which the thread compares.
    pub(super) turns: Turns,
    /// The thread that watches the event loops.
    pub(super) watch: watch::WaitingLoop,
    /// Whether it expects the workers to stand still.
    pub(super) rest: Rest,
    /// Those of what the workers hand off.
    pub(super) events: HandoffEvents,
}

impl Reserves {
    /// Requires that `runtime` is entered.
    ///
    /// # Errors
    ///
    /// The resource that the process is short of.
    pub(super) fn make(
        runtime: &Runtime,
        planes: &DataPlane,
        meter: Option<MemoryMeter>,
        health: &Arc<Health>,
    ) -> Result<Reserves> {
        let DataPlane { state, pressure, edge, workers } = planes;
        memory::watch(meter, pressure, &state.channels, workers)?;
        let (turns, rest) = (Turns::default(), Rest::default());
        let own = [("control", Arc::clone(&turns))];
        let of_journals = state.journals.iter().filter_map(|journal| journal.turns());
        let watched = (own.into_iter().chain(of_journals).collect(), rest.clone());
        let watch = watch::start(edge.metrics.clone(), watched, Arc::clone(health))
            .context("cannot start the thread that watches the event loops")?;
        let events = HandoffEvents::of(edge).context("cannot wait for connections")?;
        // The runtime starts such threads when it needs them, and is content with fewer, but not
        // without any.
        runtime.block_on(runtime.spawn_blocking(|| ())).context("cannot start a thread")?;
        Ok(Reserves { turns, watch, rest, events })
    }
}
