//! The data directory: what the server keeps over a restart.
//!
//! When one process takes over from another, both have the lock of the directory. The store itself
//! is open in one process at a time, and only the one that serves writes to it.

mod kept;
mod metrics;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::fs::Mode;
use rustix::process::umask;
use throng_core::records::Records;
use throng_core::{Channels, MemoryEngine};
use throng_data::directory::{Directory, DirectoryError};
use throng_data::engine::{AnswerDelivery, DurableLogs};
use throng_data::journal::{Answering, DiskJournal, JournalRefused, JournalSetup as Writer};
use throng_data::logs::{Logs, OpenedLogs};
use throng_data::records::JournalRecords;
use throng_data::storage::disk::DiskStorage;
use throng_handover::message::DescriptorKind;
use throng_units::format::seconds;
use tokio::runtime::Handle;

use super::backup::Backups;
use super::interface::{JournalSetup, Kind, Opened, ServerJournal, Succeeding, Successor};
use crate::memory::MemoryPlan;
use crate::settings::SettingsError;
use kept::KeptReader;

pub(super) const KIND: Kind =
    Kind { check: |_| Ok(Vec::new()), open, passed_by: DescriptorKind::Data, succeed };

/// Names the time since the machine was started.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// How often the log looks whether the disk takes messages.
const LOOK: Duration = Duration::from_secs(1);

struct Store {
    storage: Arc<DiskStorage>,
    logs: Arc<Logs>,
    opened: OpenedLogs,
    directory: Directory,
}

/// The directory in use. When it is dropped, everything is on the disk, and another server may have
/// the directory.
struct DataDirectory {
    records: Arc<JournalRecords>,
    journal: Arc<DiskJournal>,
    logs: Arc<DurableLogs>,
    storage: Arc<DiskStorage>,
    backups: Arc<Backups>,
    kept: KeptReader,
    /// True if another process may have the store.
    is_given_up: AtomicBool,
    // Behind what writes to it.
    directory: Directory,
}

/// Opens the directory that the settings name, and begins to read which channels users follow.
fn open(setup: &JournalSetup<'_>) -> Result<Option<Opened>> {
    let Some(path) = &setup.settings.data.0 else { return Ok(None) };
    let store = Store::open(path, directory(path, Directory::open(path))?, setup.plan)?;
    store.directory.note_format().context("cannot write to the data directory")?;
    let memory = setup.memory(setup.events.clone());
    let memory = memory.with_positions(store.opened.epoch, store.opened.stamps);
    let (channels, data) = store.start(setup, memory, DiskJournal::start)?;
    data.kept.begin(&data.records)?;
    Ok(Some(Opened::new(channels, data)))
}

/// Takes the directory of another process, of which this is the lock, if it is the one that the
/// settings name.
///
/// # Errors
///
/// Only one of the two has a directory, or each has another one.
fn succeed(setup: &JournalSetup<'_>, lock: Option<OwnedFd>) -> Result<Succeeding> {
    match (&setup.settings.data.0, lock) {
        (None, None) => Ok(None),
        (Some(path), Some(lock)) => {
            let taken = directory(path, Directory::take_over(path, lock))?;
            Ok(Some(Box::new(TakenDirectory(taken))))
        }
        (Some(path), None) => {
            let path = path.display();
            bail!("the running server has no data directory, and this one {path}; restart instead")
        }
        (None, Some(_)) => {
            bail!("the running server has a data directory, and this one none; restart instead")
        }
    }
}

/// The directory of another process, which has yet to give up what is in it.
struct TakenDirectory(Directory);

impl Successor for TakenDirectory {
    fn take_over(
        self: Box<Self>,
        memory: MemoryEngine,
        setup: &JournalSetup<'_>,
    ) -> Result<Opened> {
        let path = setup.settings.data.0.as_deref().context("there is no data directory")?;
        let store = Store::open(path, self.0, setup.plan)?;
        let memory = memory.with_epoch_of_positions(store.opened.epoch);
        let (channels, data) = store.start(setup, memory, DiskJournal::start_paused)?;
        Ok(Opened::new(channels, data))
    }
}

impl ServerJournal for DataDirectory {
    fn records(&self) -> Option<Arc<dyn Records>> {
        Some(Arc::clone(&self.records) as _)
    }

    fn backups(&self) -> Option<Arc<Backups>> {
        Some(Arc::clone(&self.backups))
    }

    fn obstacle(&self) -> Option<String> {
        self.kept.obstacle()
    }

    fn end(&self) {
        self.kept.end();
        self.backups.stop();
        // First: the disk of a backup may hang, and what was acknowledged must not wait for it.
        self.journal.end();
        self.backups.join();
    }

    fn pass(&self) -> Result<Option<(DescriptorKind, OwnedFd)>> {
        let lock = self.directory.pass().context("cannot pass the lock of the data directory")?;
        Ok(Some((DescriptorKind::Data, lock)))
    }

    fn write_ahead(&self) {
        self.storage.write_ahead();
    }

    fn give_up(&self) -> Result<()> {
        self.journal.pause().map_err(|refused| match refused {
            JournalRefused::Busy => anyhow!(
                "the disk of the data directory is too slow: what was in memory was not written in \
                 time; try again"
            ),
            _ => anyhow!("the disk of the data directory fails"),
        })?;
        self.is_given_up.store(true, Ordering::Relaxed);
        self.storage.close().context("the data directory cannot be closed")
    }

    /// If it cannot be opened, durable channels refuse messages until it can.
    fn take_back(&self) {
        let was_given_up = self.is_given_up.swap(false, Ordering::Relaxed);
        if was_given_up && let Err(error) = self.storage.open_again() {
            tracing::error!("the data directory cannot be opened again: {error}");
        }
        self.begin();
    }

    fn begin(&self) {
        // The process before had it until now, and might have gone on with it.
        if let Err(error) = self.directory.note_format() {
            tracing::error!("cannot note the format of the data directory: {error}");
        }
        self.journal.go_on();
    }
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        self.end();
    }
}

/// Logs when the disk begins to refuse messages, and when it takes them again.
async fn log_state(journal: Weak<DiskJournal>) {
    let mut looks = tokio::time::interval(LOOK);
    let mut known = None;
    loop {
        looks.tick().await;
        let Some(journal) = journal.upgrade() else { return };
        let state = journal.state();
        if state != known {
            match state {
                Some(JournalRefused::Full) => tracing::error!(
                    "the data directory is full: durable channels refuse messages until there is \
                     room"
                ),
                Some(JournalRefused::OverLimit) => tracing::error!(
                    "the data directory is beyond `data-max-bytes`: durable channels refuse \
                     messages until it is smaller"
                ),
                Some(_) => tracing::error!(
                    "the disk of the data directory fails: durable channels refuse messages \
                     until it works ({})",
                    journal.failure()
                ),
                None => tracing::info!("durable channels accept messages again"),
            }
            known = state;
        }
    }
}

/// The directory, or why it cannot be used.
fn directory(path: &Path, taken: Result<Directory, DirectoryError>) -> Result<Directory> {
    let shown = path.display();
    let error = |error| SettingsError(format!("the data directory {shown} {error}"));
    Ok(taken.map_err(error)?)
}

impl Store {
    fn open(path: &Path, directory: Directory, plan: MemoryPlan) -> Result<Store> {
        // The library that stores makes files for everybody to read.
        umask(Mode::RWXG | Mode::RWXO);
        let shown = path.display();
        let boot = fs::read_to_string(BOOT).with_context(|| format!("cannot read {BOOT}"))?;
        let broken = || format!("cannot open the data directory {shown}");
        tracing::info!("opening the data directory {shown}");
        let begin = Instant::now();
        let storage = DiskStorage::open(&directory.store(), plan.blocks).with_context(broken)?;
        let storage = Arc::new(storage.holding_at_most(plan.memtables));
        let (logs, opened) =
            Logs::open(Arc::clone(&storage) as _, boot.trim()).with_context(broken)?;
        tracing::info!("opened the data directory in {}", seconds(begin.elapsed().as_secs_f64()));
        if opened.is_restored {
            tracing::warn!(
                "the data directory is an older copy that was put back: ids from before mean \
                 nothing now"
            );
        } else if opened.may_have_lost {
            tracing::warn!(
                "the machine ended before all of the data directory was on the disk: the newest \
                 changes and messages may be missing, and ids from before mean nothing now"
            );
        }
        Ok(Store { storage, logs: Arc::new(logs), opened, directory })
    }

    /// Begins to use it, beneath what is in memory.
    fn start(
        self,
        setup: &JournalSetup<'_>,
        memory: MemoryEngine,
        journal: fn(&Arc<Logs>, Writer) -> io::Result<DiskJournal>,
    ) -> Result<(Channels, DataDirectory)> {
        let Store { storage, logs, opened: _, directory } = self;
        let (memory, settings) = (Arc::new(memory), setup.settings);
        let delivery =
            AnswerDelivery::with_parts(Arc::clone(&memory), Arc::clone(&logs), setup.plan.parts);
        // Tasks are woken at less cost by one of their own.
        let tasks = Handle::current();
        let answer_at = move |answers: Answering| drop(tasks.spawn(async move { answers() }));
        let delivery = delivery.answering_at(answer_at);
        let limit = settings.data_max_bytes.0 as u64;
        let writer = Writer {
            sync: settings.sync.0,
            max_bytes: if limit == 0 { u64::MAX } else { limit },
            server: Arc::new(delivery.clone()),
        };
        let broken = "cannot write to the data directory";
        let journal = Arc::new(journal(&logs, writer).context(broken)?);
        let durable = DurableLogs::start(&delivery, Arc::clone(&journal))
            .context("cannot start the threads that read the data directory")?;
        let durable = Arc::new(durable);
        tokio::spawn(log_state(Arc::downgrade(&journal)));
        let data = DataDirectory {
            records: Arc::new(JournalRecords::new(logs, Arc::clone(&journal))),
            journal,
            logs: Arc::clone(&durable),
            backups: Arc::new(Backups::new(settings.revocations_path(), &storage)),
            storage,
            kept: KeptReader::new(&setup.access.control.kept),
            is_given_up: AtomicBool::new(false),
            directory,
        };
        Ok((Channels::new(memory, Some(durable as _)), data))
    }
}
