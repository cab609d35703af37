//! The interface of a journal to the rest of the program.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Result;
use throng_access::revocation::PassedFile;
use throng_control::{Control, MetricSource, OtherMetric, OtherValue};
use throng_core::events::EventSink;
use throng_core::journal::Journal;
use throng_core::records::Records;
use throng_core::{
    ChannelLimits, Channels, Epoch, JournalId, MemoryEngine, MemoryThaw, Retention, Rules, Tallies,
    Watchlists, WorkerQueue, clock,
};
use throng_handover::channel::Channel;
use throng_handover::message::DescriptorKind;

use super::backup::Backups;
use crate::access::ServerAccess;
use crate::memory::MemoryPlan;
use crate::settings::{LogPlace, Settings, SettingsError};
use crate::watch::Turns;

/// How a journal is opened.
pub(super) struct Kind {
    /// Its name in the settings.
    pub(super) place: LogPlace,
    /// Servers without it and with it have this.
    pub(super) states: [&'static str; 2],
    /// Checks the files that its settings name, and returns warnings about them.
    pub(super) check: fn(&Settings) -> Result<Vec<String>, SettingsError>,
    /// The descriptor by which a process passes it to another one.
    pub(super) passed_by: DescriptorKind,
    /// Begins to open it, or to take it over from the running server that has passed it. Rules name
    /// it by this id.
    pub(super) prepare: fn(&JournalSetup<'_>, JournalId, Option<OwnedFd>) -> Preparing,
}

pub(super) type Preparing = Result<Box<dyn Prepared>>;

/// The parts of a server that its channels and their journals are made of.
pub(crate) struct JournalSetup<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) plan: MemoryPlan,
    pub(crate) access: &'a ServerAccess,
    pub(crate) events: Events,
    pub(crate) rules: Arc<Rules>,
    /// The queues of the workers.
    pub(crate) queues: Vec<Arc<WorkerQueue>>,
}

/// Who is told what happens.
#[derive(Clone)]
pub(crate) struct Events {
    pub(crate) sink: Option<Arc<dyn EventSink>>,
    /// What several nodes count together. Stands before the sink's.
    pub(crate) tallies: Option<Arc<Tallies>>,
    /// Of users who are told whether others are online; part of the sink.
    pub(crate) watchlists: Option<Arc<Watchlists>>,
    /// Likewise.
    pub(crate) channel_limits: Option<Arc<ChannelLimits>>,
}

impl Events {
    /// The memory, which tells what happens.
    pub(crate) fn of(&self, memory: MemoryEngine) -> MemoryEngine {
        let memory = memory.with_events(self.sink.clone());
        let memory = memory.with_channel_limits(self.channel_limits.clone());
        memory.with_watchlists(clock::now_ms(), self.watchlists.clone())
    }
}

/// A journal that is about to be used. One that another process still uses is only read from then.
pub(super) trait Prepared {
    /// Waits until it can be used, while the running server goes on.
    fn wait(&self) -> Result<()> {
        Ok(())
    }

    /// True if [`ServerJournal::send`] of the running server sends records.
    fn has_records(&self) -> bool {
        false
    }

    /// Reads a record of [`ServerJournal::send`].
    fn record(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }

    /// The memory as the journal needs it, which delivers to it.
    fn beneath(&mut self, memory: MemoryEngine, setup: &JournalSetup<'_>) -> Result<MemoryEngine>;

    /// Opens it over this memory. One that was taken over writes nothing before
    /// [`ServerJournal::begin`].
    fn open(
        self: Box<Self>,
        memory: &Arc<MemoryEngine>,
        setup: &JournalSetup<'_>,
    ) -> Result<Opened>;
}

/// A journal that is open.
pub(super) struct Opened {
    pub(super) journal: Arc<dyn Journal>,
    pub(super) server: Arc<dyn ServerJournal>,
    /// The last step, once there are channels.
    pub(super) finish: Finish,
}

pub(super) type Finish = Box<dyn FnOnce(&Arc<Channels>, &JournalSetup<'_>) -> Result<()>>;

/// A journal in use.
pub(crate) trait ServerJournal: MetricSource {
    /// The store of tables for the control plane, if it has the server's.
    fn records(&self) -> Option<Arc<dyn Records>> {
        None
    }

    /// Makes backups of it.
    fn backups(&self) -> Option<Arc<Backups>> {
        None
    }

    /// The event loop of its own, by its name.
    fn turns(&self) -> Option<(&'static str, Turns)> {
        None
    }

    /// Tells other processes that share it how this server is, whose public port this is.
    fn describe(&self, _: &Arc<Control>, _port: u16) {}

    /// Ends with the server. Call it when nobody publishes any more.
    fn end(&self) {}

    /// Why no process can take over now.
    fn obstacle(&self) -> Option<String> {
        None
    }

    /// The descriptor from which another process can take it over.
    fn pass(&self) -> Result<(DescriptorKind, OwnedFd)>;

    /// Has what is in memory written before it is given up, while the server goes on.
    fn write_ahead(&self) {}

    /// Comes to rest: delivers nothing before [`ServerJournal::go_on`].
    fn hold(&self) -> Result<()> {
        Ok(())
    }

    /// Delivers again, after [`ServerJournal::hold`].
    fn go_on(&self) {}

    /// Closes what only one process can have open. Call it when nobody publishes or reads any more,
    /// and [`ServerJournal::take_back`] if no process takes over, also after an error.
    fn give_up(&self) -> Result<()> {
        Ok(())
    }

    /// Opens again what was given up.
    fn take_back(&self) {}

    /// Sends its state, if it has any besides what is in memory and in the journal.
    fn send(&self, _: &Channel) -> Result<()> {
        Ok(())
    }

    /// Ends, as another process serves.
    fn cede(&self) {}

    /// Begins to write: this process serves, which has taken over.
    fn begin(&self) {}
}

impl JournalSetup<'_> {
    /// Empty logs in memory.
    pub(crate) fn memory(&self) -> MemoryEngine {
        let (rules, queues) = (Arc::clone(&self.rules), self.queues.clone());
        self.events.of(MemoryEngine::new(Epoch::random(), rules, queues, self.max_bytes()))
    }

    /// Logs in memory that another process has frozen.
    pub(crate) fn thaw(&self) -> MemoryThaw {
        MemoryThaw::new(Arc::clone(&self.rules), self.queues.clone(), self.max_bytes())
    }

    /// True if the server keeps the subscriptions of users, and revocations, in this journal.
    pub(crate) fn has_records(&self, place: LogPlace) -> bool {
        self.settings.records_journal() == place
    }

    /// Opens the file of revocations, unless there is none or the journal has them. It is `passed`
    /// if another process has it.
    pub(crate) fn open_revocations(&self, passed: Option<PassedFile>) -> Result<()> {
        let ServerAccess { control, revocations, .. } = self.access;
        let alone = revocations.as_ref().filter(|_| control.shared_revocations.get().is_none());
        alone.map_or(Ok(()), |file| file.clone().open(passed, control))
    }

    /// The room for the logs in memory, and for those that a journal has there: if the rules have
    /// logs in both, half of the room for each.
    pub(super) fn max_bytes(&self) -> usize {
        let all = self.settings.history.total_bytes.0.min(self.plan.logs);
        let nats = self.settings.journal_id(LogPlace::Nats);
        let keeps = |retention: Retention| !retention.is_none();
        let has_both = nats.is_some() && self.rules.retentions(None).any(keeps);
        if has_both { all / 2 } else { all }
    }
}

pub(super) fn gauge(name: &'static str, help: &'static str, value: u64) -> OtherMetric {
    OtherMetric { name, help, value: OtherValue::Gauge(value) }
}
