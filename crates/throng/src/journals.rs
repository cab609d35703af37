//! The journals that a server can have beneath its channels. The rest of the program knows those
//! of the running server by [`Journals`], and one that starts by [`PreparedJournals`].
//!
//! | module | contents |
//! |---|---|
//! | `interface` | a journal to the rest of the program |
//! | `disk` | the logs of durable channels are in a data directory |
//! | `backup` | backups of it |
//! | [`nats`] | logs are in a stream, which several nodes share |
//! | this file | the table of journals, and all that the settings name together |

mod backup;
mod disk;
mod interface;
pub(crate) mod nats;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Result, bail};
use throng_access::session::Tagger;
use throng_core::{Channels, JournalId, MemoryEngine};
use throng_handover::message::DescriptorKind;
use tokio::runtime::Runtime;

use crate::settings::{LogPlace, Settings, SettingsError};
use interface::{Kind, Prepared};

pub(crate) use backup::Backups;
pub(crate) use interface::{Events, JournalSetup, ServerJournal};

/// The journals that settings can name, in the order of their ids.
static KINDS: [Kind; 2] = [disk::KIND, nats::KIND];

/// The journals of a server; none if all logs are in memory.
pub(crate) type Journals = Arc<[Arc<dyn ServerJournal>]>;

/// Checks the files that the settings name, and returns warnings about them.
pub(crate) fn check(settings: &Settings) -> Result<Vec<String>, SettingsError> {
    let warnings = KINDS.iter().map(|kind| (kind.check)(settings));
    Ok(warnings.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Makes the tags and keys that all processes have which share the journal; `None` if they need not
/// be the same. A process that takes over goes on with those that have `arrived`. It may ask
/// others, for some seconds.
pub(crate) fn tagger(
    runtime: &Runtime,
    settings: &Settings,
    arrived: Option<Tagger>,
) -> Option<Tagger> {
    nats::tagger(runtime, settings, arrived)
}

/// The journals of a server that starts.
pub(crate) struct PreparedJournals(Vec<Box<dyn Prepared>>);

impl PreparedJournals {
    /// Begins to open the journals that the settings name. If a running server is taken over,
    /// `passed` takes what it has passed.
    ///
    /// # Errors
    ///
    /// The running server has others, or one cannot be used.
    pub(crate) fn new(
        setup: &JournalSetup<'_>,
        mut passed: Option<&mut dyn FnMut(DescriptorKind) -> Option<OwnedFd>>,
    ) -> Result<PreparedJournals> {
        let mut all = Vec::new();
        for kind in &KINDS {
            let own = setup.settings.journal_id(kind.place);
            let descriptor = passed.as_mut().map(|take| take(kind.passed_by));
            if let Some(descriptor) = &descriptor
                && descriptor.is_some() != own.is_some()
            {
                let state = |has_it: bool| kind.states[usize::from(has_it)];
                let (running, own) = (state(descriptor.is_some()), state(own.is_some()));
                bail!("the running server has {running}, and this one {own}; restart instead");
            }
            if let Some(id) = own {
                debug_assert_eq!(id, JournalId(all.len() as u8));
                all.push((kind.prepare)(setup, id, descriptor.flatten())?);
            }
        }
        Ok(PreparedJournals(all))
    }

    /// Waits until they can be used, while the running server goes on.
    pub(crate) fn wait(&self) -> Result<()> {
        self.0.iter().try_for_each(|journal| journal.wait())
    }

    /// For each journal of which the running server sends records, in their order: reads one.
    pub(crate) fn readers(
        &mut self,
    ) -> impl Iterator<Item = impl FnMut(&[u8]) -> Result<()> + use<'_>> {
        let with_records = self.0.iter_mut().filter(|journal| journal.has_records());
        with_records.map(|journal| |record: &[u8]| journal.record(record))
    }

    /// Opens them over this memory, which may be a running server's.
    pub(crate) fn open(
        mut self,
        mut memory: MemoryEngine,
        setup: &JournalSetup<'_>,
    ) -> Result<(Arc<Channels>, Journals)> {
        for journal in &mut self.0 {
            memory = journal.beneath(memory, setup)?;
        }
        let memory = Arc::new(memory);
        let (mut journals, mut servers, mut finish) = (Vec::new(), Vec::new(), Vec::new());
        for journal in self.0 {
            let opened = journal.open(&memory, setup)?;
            journals.push(opened.journal);
            servers.push(opened.server);
            finish.push(opened.finish);
        }
        let channels = Channels::new(memory, journals);
        let channels = match setup.settings.records_journal() {
            LogPlace::Nats => channels,
            // Positions are about what is kept for users.
            LogPlace::Memory | LogPlace::Disk => channels.with_order_of_memory(),
        };
        let channels = Arc::new(channels);
        finish.into_iter().try_for_each(|finish| finish(&channels, setup))?;
        Ok((channels, servers.into()))
    }
}
