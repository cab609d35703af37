//! The data directory: what the server keeps over a restart.

mod backup;
mod journal_metrics;
mod refusal_metrics;
mod tenancy;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::fs::Mode;
use rustix::process::umask;
use throng_access::KeptSubscriptions;
use throng_core::records::Records;
use throng_core::{Channels, MemoryEngine};
use throng_data::directory::{Directory, DirectoryError};
use throng_data::engine::{AnswerDelivery, DurableLogs};
use throng_data::journal::{Answering, DiskJournal, JournalRefused, JournalSetup};
use throng_data::logs::{Logs, OpenedLogs};
use throng_data::records::JournalRecords;
use throng_data::storage::disk::DiskStorage;
use throng_units::format::{counted, seconds};
use tokio::runtime::Handle;

use crate::memory::MemoryPlan;
use crate::plane_settings::memory_plan;
use crate::settings::{Settings, SettingsError};
pub(crate) use backup::Backups;
use journal_metrics::JournalMetrics;
pub(crate) use refusal_metrics::DataMetrics;
pub(crate) use tenancy::Tenancy;

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
pub(crate) struct Data {
    pub(crate) records: Arc<dyn Records>,
    journal: Arc<DiskJournal>,
    memory: Arc<MemoryEngine>,
    engine: Arc<DurableLogs>,
    storage: Arc<DiskStorage>,
    backups: Arc<Backups>,
    // Behind what writes to it.
    directory: Directory,
}

impl Data {
    /// Opens the directory that the settings name, if they name one. `memory` makes the engine for
    /// all that is not in it.
    pub(crate) fn open(
        settings: &Settings,
        memory: impl FnOnce() -> MemoryEngine,
    ) -> Result<Option<Data>> {
        let Some(path) = &settings.data.0 else { return Ok(None) };
        let plan = memory_plan(settings).1;
        let store = Store::open(path, directory(path, Directory::open(path))?, plan)?;
        let memory = memory().with_positions(store.opened.epoch, store.opened.stamps);
        let data = store.start(settings, memory, DiskJournal::start)?;
        Ok(Some(data))
    }

    /// Opens the directory of another process, which has given up what is in it, over the engine
    /// that was taken over from it. Nothing is written before [`Tenancy::begin`].
    pub(crate) fn take_over(
        settings: &Settings,
        taken: Directory,
        memory: MemoryEngine,
    ) -> Result<Data> {
        let path = settings.data.0.as_deref().context("there is no data directory")?;
        let store = Store::open(path, taken, memory_plan(settings).1)?;
        let memory = memory.with_epoch_of_positions(store.opened.epoch);
        store.start(settings, memory, DiskJournal::start_paused)
    }

    /// The parts that an upgrade needs.
    pub(crate) fn tenancy(&self) -> Tenancy {
        let (journal, storage) = (Arc::clone(&self.journal), Arc::clone(&self.storage));
        Tenancy::new(journal, storage, self.backups())
    }

    /// Makes backups of it.
    pub(crate) fn backups(&self) -> Arc<Backups> {
        Arc::clone(&self.backups)
    }

    /// Its lock, for another process.
    pub(crate) fn pass(&self) -> io::Result<OwnedFd> {
        self.directory.pass()
    }

    /// The engine in memory, and all channels above it.
    pub(crate) fn engines(&self) -> (Arc<MemoryEngine>, Arc<Channels>) {
        let journal = Arc::clone(&self.engine) as _;
        let channels = Channels::new(Arc::clone(&self.memory), Some(journal));
        (Arc::clone(&self.memory), Arc::new(channels))
    }

    /// The directory's disk usage and activity; zero if there is none.
    pub(crate) fn journal_metrics(data: Option<&Data>) -> JournalMetrics {
        JournalMetrics(data.map(|data| (Arc::clone(&data.journal), Arc::clone(&data.engine))))
    }

    /// Reads which channels users follow.
    pub(crate) fn load_kept(&self, kept: &KeptSubscriptions) -> Result<()> {
        let begin = Instant::now();
        kept.load(&*self.records)
            .context("cannot read the subscriptions of users from the disk")?;
        let counts = kept.counts();
        tracing::info!(
            "read {} of {} in {}",
            counted(counts.subscriptions as u64, "subscription", "subscriptions"),
            counted(counts.users as u64, "user", "users"),
            seconds(begin.elapsed().as_secs_f64()),
        );
        Ok(())
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        self.backups.stop();
        // First: the disk of a backup may hang, and what was acknowledged must not wait for it.
        self.journal.end();
        self.backups.join();
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

/// The directory of another process, of which this is the lock, if it is the one that the settings
/// name.
///
/// # Errors
///
/// Only one of the two has a directory, or each has another one.
pub(crate) fn taken(settings: &Settings, lock: Option<OwnedFd>) -> Result<Option<Directory>> {
    match (&settings.data.0, lock) {
        (None, None) => Ok(None),
        (Some(path), Some(lock)) => directory(path, Directory::take_over(path, lock)).map(Some),
        (Some(path), None) => {
            let path = path.display();
            bail!("the running server has no data directory, and this one {path}; restart instead")
        }
        (None, Some(_)) => {
            bail!("the running server has a data directory, and this one none; restart instead")
        }
    }
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

    /// Begins to use it, over an engine for all that is in memory.
    fn start(
        self,
        settings: &Settings,
        memory: MemoryEngine,
        journal: fn(&Arc<Logs>, JournalSetup) -> io::Result<DiskJournal>,
    ) -> Result<Data> {
        let Store { storage, logs, opened: _, directory } = self;
        let memory = Arc::new(memory);
        let parts = memory_plan(settings).1.parts;
        let delivery = AnswerDelivery::with_parts(Arc::clone(&memory), Arc::clone(&logs), parts);
        // Tasks are woken at less cost by one of their own.
        let tasks = Handle::current();
        let answer_at = move |answers: Answering| drop(tasks.spawn(async move { answers() }));
        let delivery = delivery.answering_at(answer_at);
        let limit = settings.data_max_bytes.0 as u64;
        let setup = JournalSetup {
            sync: settings.sync.0,
            max_bytes: if limit == 0 { u64::MAX } else { limit },
            server: Arc::new(delivery.clone()),
        };
        let broken = "cannot write to the data directory";
        let journal = Arc::new(journal(&logs, setup).context(broken)?);
        let engine = DurableLogs::start(&delivery, Arc::clone(&journal))
            .context("cannot start the threads that read the data directory")?;
        tokio::spawn(log_state(Arc::downgrade(&journal)));
        let records = Arc::new(JournalRecords::new(logs, Arc::clone(&journal)));
        let engine = Arc::new(engine);
        let backups = Arc::new(Backups::new(settings.revocations_path(), &storage));
        Ok(Data { records, journal, memory, engine, storage, backups, directory })
    }
}
