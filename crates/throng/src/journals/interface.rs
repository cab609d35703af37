//! The interface of a journal to the rest of the program.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Result;
use throng_access::revocation::PassedFile;
use throng_control::{Control, MetricSource, OtherMetric, OtherValue};
use throng_core::events::EventSink;
use throng_core::records::Records;
use throng_core::{Channels, Epoch, MemoryEngine, MemoryThaw, Rules, WorkerQueue};
use throng_handover::channel::Channel;
use throng_handover::message::DescriptorKind;

use super::backup::Backups;
use crate::access::ServerAccess;
use crate::memory::MemoryPlan;
use crate::settings::{Settings, SettingsError};
use crate::watch::Turns;

/// How a journal is opened.
pub(super) struct Kind {
    /// Checks the files that its settings name, and returns warnings about them.
    pub(super) check: fn(&Settings) -> Result<Vec<String>, SettingsError>,
    /// Opens it, if the settings name it.
    pub(super) open: fn(&JournalSetup<'_>) -> Result<Option<Opened>>,
    /// The descriptor by which a process passes it to another one.
    pub(super) passed_by: DescriptorKind,
    /// Begins to take it over from the running server. The descriptor and the settings have to
    /// agree on whether there is one.
    pub(super) succeed: fn(&JournalSetup<'_>, Option<OwnedFd>) -> Result<Succeeding>,
}

/// The journal of a running server, if it has one of this kind.
pub(super) type Succeeding = Option<Box<dyn Successor>>;

/// The parts of a server that its channels and their journal are made of.
pub(crate) struct JournalSetup<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) plan: MemoryPlan,
    pub(crate) access: &'a ServerAccess,
    pub(crate) events: Option<Arc<dyn EventSink>>,
    pub(crate) rules: Arc<Rules>,
    /// The queues of the workers.
    pub(crate) queues: Vec<Arc<WorkerQueue>>,
}

/// Channels, and the journal beneath them.
pub(crate) struct Opened {
    pub(crate) channels: Arc<Channels>,
    pub(crate) journal: Arc<dyn ServerJournal>,
}

/// A journal in use. The defaults are those of a server without one.
pub(crate) trait ServerJournal: MetricSource {
    /// The store of tables that it has for the control plane.
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
    fn pass(&self) -> Result<Option<(DescriptorKind, OwnedFd)>> {
        Ok(None)
    }

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

/// A journal of the running server, in the process that takes over.
pub(crate) trait Successor {
    /// Waits until it can be used, while the running server goes on.
    fn wait(&self) -> Result<()> {
        Ok(())
    }

    /// True if several processes share it: then [`ServerJournal::send`] has records, and it has the
    /// subscriptions of users, so that those of the running server are not needed.
    fn is_shared(&self) -> bool {
        false
    }

    /// Reads a record of [`ServerJournal::send`].
    fn record(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Opens it over the memory that was taken over. Nothing is written before
    /// [`ServerJournal::begin`].
    fn take_over(self: Box<Self>, memory: MemoryEngine, setup: &JournalSetup<'_>)
    -> Result<Opened>;
}

impl JournalSetup<'_> {
    /// Empty logs in memory.
    pub(super) fn memory(&self, events: Option<Arc<dyn EventSink>>) -> MemoryEngine {
        let (rules, queues) = (Arc::clone(&self.rules), self.queues.clone());
        MemoryEngine::new(Epoch::random(), rules, queues, self.max_bytes()).with_events(events)
    }

    /// Logs in memory that another process has frozen.
    pub(crate) fn thaw(&self) -> MemoryThaw {
        MemoryThaw::new(Arc::clone(&self.rules), self.queues.clone(), self.max_bytes())
    }

    /// Opens the file of revocations, unless there is none or the journal has them. It is `passed`
    /// if another process has it.
    pub(crate) fn open_revocations(&self, passed: Option<PassedFile>) -> Result<()> {
        let ServerAccess { control, revocations, .. } = self.access;
        let alone = revocations.as_ref().filter(|_| control.shared_revocations.get().is_none());
        alone.map_or(Ok(()), |file| file.clone().open(passed, control))
    }

    /// The room for all logs in memory.
    pub(super) fn max_bytes(&self) -> usize {
        self.settings.history.total_bytes.0.min(self.plan.logs)
    }
}

impl Opened {
    pub(super) fn new(channels: Channels, journal: impl ServerJournal + 'static) -> Opened {
        Opened { channels: Arc::new(channels), journal: Arc::new(journal) }
    }
}

pub(super) fn gauge(name: &'static str, help: &'static str, value: u64) -> OtherMetric {
    OtherMetric { name, help, value: OtherValue::Gauge(value) }
}
