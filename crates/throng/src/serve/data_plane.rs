//! Journals, channels and workers.

use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use throng_access::AccessControl;
use throng_control::{Control, MetricSource, Site};
use throng_core::{Channels, MemoryPressure, PresenceEvents};
use throng_edge::{Arrivals, Edge, EdgeContext, EdgePlan, StartError};

use crate::journals::{JournalSetup, Journals, PreparedJournals};
use crate::planes::Workers;
use crate::presence_events::{self, PresenceShared};
use crate::settings::LogPlace;
use crate::upgrade::Arrival;

/// The state of a server that begins: empty or kept by its journal, or a running server's.
pub(super) struct StartState {
    pub(super) channels: Arc<Channels>,
    pub(super) journals: Journals,
    /// If any channel has such events.
    pub(super) presence_events: Option<PresenceShared>,
    /// The counters of the running server's control plane, if there is one.
    counted: Option<Vec<Vec<u8>>>,
    /// The workers that come from the running server.
    arrivals: Option<Arrivals>,
}

impl StartState {
    /// Opens the journals and the file of revocations, or takes them over from the running server
    /// with all logs and subscriptions that it keeps for users. If this fails, that one goes on.
    pub(super) fn new(
        plan: &EdgePlan,
        setup: &JournalSetup<'_>,
        arrival: Option<&mut Arrival>,
    ) -> Result<StartState> {
        let events = presence_events::settings(setup.settings);
        let shared = |events: Option<_>| events.map(|events| Arc::new(Mutex::new(events)));
        let Some(arrival) = arrival else {
            let prepared = PreparedJournals::new(setup, None)?;
            let (channels, journals) = prepared.open(setup.memory(), setup)?;
            setup.open_revocations(None)?;
            let presence_events = shared(events.map(PresenceEvents::new));
            let (counted, arrivals) = (None, None);
            return Ok(StartState { channels, journals, presence_events, counted, arrivals });
        };
        // Before the workers' threads, whose tables need the descriptor that wakes its own thread.
        let mut prepared = PreparedJournals::new(setup, Some(&mut |kind| arrival.take(kind)))?;
        // Before this process has what the running server sends: the threads' tables would keep
        // it open.
        let arrivals = plan.receive_ahead()?.context("no workers come")?;
        // While the running server goes on, whatever comes of it.
        prepared.wait()?;
        // NATS has them.
        let kept = (!setup.has_records(LogPlace::Nats)).then_some(&*setup.access.control.kept);
        let memory = arrival.memory(setup.thaw(), &mut prepared, kept, &arrivals)?;
        let memory = setup.events.of(memory);
        let (channels, journals) = prepared.open(memory, setup)?;
        // In the order in which the running server sends them.
        let events = arrival.presence_events(events, &channels.presence_cache().watched)?;
        setup.open_revocations(arrival.revocations()?)?;
        let (counted, arrivals) = (Some(arrival.counted()?), Some(arrivals));
        let presence_events = shared(events);
        Ok(StartState { channels, journals, presence_events, counted, arrivals })
    }
}

/// See the module.
pub(super) struct DataPlane {
    pub(super) state: StartState,
    pub(super) pressure: Arc<MemoryPressure>,
    pub(super) edge: Edge,
    /// The workers, as the control plane reaches them.
    pub(super) workers: Arc<Workers>,
}

impl DataPlane {
    /// Starts the workers. Those that come from the running server act after
    /// [`take_over`](crate::upgrade::start::take_over); if this fails, that one goes on.
    pub(super) fn start(
        plan: EdgePlan,
        setup: &JournalSetup<'_>,
        mut state: StartState,
    ) -> Result<DataPlane, StartError> {
        let queues = plan.queues();
        let pressure = Arc::<MemoryPressure>::default();
        let context = EdgeContext {
            engine: Arc::clone(&state.channels),
            access: Arc::clone(&setup.access.control),
            rules: Arc::clone(&setup.rules),
            events: setup.events.sink.clone(),
            pressure: Arc::clone(&pressure),
        };
        let edge = plan.start(&context, state.arrivals.take())?;
        let (handoffs, metrics) = (edge.to_workers.clone(), edge.metrics.clone());
        let admission = Arc::clone(&edge.admission);
        let workers = Arc::new(Workers { handoffs, queues, metrics, admission });
        Ok(DataPlane { state, pressure, edge, workers })
    }

    /// The control plane for it, which shows the metrics of `others`, too, and goes on with what
    /// the running server has counted.
    pub(super) fn control(
        &self,
        access: &Arc<AccessControl>,
        settings: throng_control::Settings,
        others: Vec<Arc<dyn MetricSource>>,
        site: Option<Site>,
    ) -> Arc<Control> {
        let (channels, workers) = (Arc::clone(&self.state.channels), Arc::clone(&self.workers));
        let control = Control::new(channels, Arc::clone(access), workers, settings)
            .with_pressure(Arc::clone(&self.pressure))
            .with_records(self.state.journals.iter().find_map(|journal| journal.records()))
            .with_site(site);
        let journals =
            self.state.journals.iter().map(|own| Arc::clone(own) as Arc<dyn MetricSource>);
        let control = others.into_iter().chain(journals).fold(control, Control::with_metrics);
        self.state.counted.iter().for_each(|records| control.resume(records));
        Arc::new(control)
    }
}
