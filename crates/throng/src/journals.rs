//! The journals that a server can have beneath its channels. The rest of the program knows each
//! only by [`ServerJournal`], and one of the running server by [`Successor`].
//!
//! | module | contents |
//! |---|---|
//! | `interface` | these two, and what they are made of |
//! | `disk` | the logs of durable channels are in a data directory |
//! | `backup` | backups of it |
//! | [`nats`] | all logs are in a stream, which several nodes share |
//! | this file | the table of journals, and none: all logs are in memory |

mod backup;
mod disk;
mod interface;
pub(crate) mod nats;

use std::os::fd::OwnedFd;

use anyhow::Result;
use throng_access::session::Tagger;
use throng_control::{MetricSource, OtherMetric};
use throng_core::{Channels, MemoryEngine};
use throng_handover::message::DescriptorKind;
use tokio::runtime::Runtime;

use crate::settings::{Settings, SettingsError};
use interface::Kind;

pub(crate) use backup::Backups;
pub(crate) use interface::{JournalSetup, Opened, ServerJournal, Successor};

/// The journals that settings can name. At most one of them is in use.
static KINDS: [Kind; 2] = [disk::KIND, nats::KIND];

/// Checks the files that the settings name, and returns warnings about them.
pub(crate) fn check(settings: &Settings) -> Result<Vec<String>, SettingsError> {
    let warnings = KINDS.iter().map(|kind| (kind.check)(settings));
    Ok(warnings.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Makes the tags and keys that all processes have which share the journal; `None` if they need not
/// be the same. It may ask others, for some seconds.
pub(crate) fn tagger(runtime: &Runtime, settings: &Settings) -> Option<Tagger> {
    nats::tagger(runtime, settings)
}

/// Opens the journal that the settings name, with what it keeps for users.
pub(crate) fn open(setup: &JournalSetup<'_>) -> Result<Opened> {
    for kind in &KINDS {
        if let Some(opened) = (kind.open)(setup)? {
            return Ok(opened);
        }
    }
    let memory = setup.memory(setup.events.clone());
    Ok(Opened::new(Channels::from(memory), InMemory))
}

/// Begins to take over the journal of the running server, which has passed what `take` takes.
///
/// # Errors
///
/// It is another one than that of the settings, or cannot be used.
pub(crate) fn succeed(
    setup: &JournalSetup<'_>,
    mut take: impl FnMut(DescriptorKind) -> Option<OwnedFd>,
) -> Result<Box<dyn Successor>> {
    let mut found = None;
    for kind in &KINDS {
        found = found.or((kind.succeed)(setup, take(kind.passed_by))?);
    }
    Ok(found.unwrap_or_else(|| Box::new(InMemory)))
}

/// A server without a journal.
struct InMemory;

impl MetricSource for InMemory {
    fn metrics(&self) -> Vec<OtherMetric> {
        Vec::new()
    }
}

impl ServerJournal for InMemory {}

impl Successor for InMemory {
    fn take_over(self: Box<Self>, memory: MemoryEngine, _: &JournalSetup<'_>) -> Result<Opened> {
        Ok(Opened::new(Channels::from(memory), InMemory))
    }
}
