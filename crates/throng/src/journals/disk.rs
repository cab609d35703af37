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

use anyhow::{Context as _, Result, anyhow};
use rustix::fs::Mode;
use rustix::process::umask;
use throng_core::records::Records;
use throng_core::{JournalId, MemoryEngine};
use throng_data::directory::Directory;
use throng_data::engine::{AnswerDelivery, DurableLogs};
use throng_data::journal::{Answering, DiskJournal, JournalRefused, JournalSetup as Writer};
use throng_data::logs::{Logs, OpenedLogs};
use throng_data::records::JournalRecords;
use throng_data::rewriter::Rewriter;
use throng_data::storage::disk::DiskStorage;
use throng_handover::message::DescriptorKind;
use throng_units::format::seconds;
use tokio::runtime::Handle;

use super::backup::Backups;
use super::interface::{JournalSetup, Kind, Opened, Prepared, Preparing, ServerJournal};
use crate::memory::MemoryPlan;
use crate::settings::{LogPlace, SettingsError};
use kept::KeptReader;

pub(super) const KIND: Kind = Kind {
    place: LogPlace::Disk,
    states: ["no data directory", "a data directory"],
    check: |_| Ok(Vec::new()),
    passed_by: DescriptorKind::Data,
    prepare,
};

/// Names the time since the machine was started.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// How often the log looks whether the disk takes messages.
const LOOK: Duration = Duration::from_secs(1);

struct OpenStore {
    storage: Arc<DiskStorage>,
    logs: Arc<Logs>,
    opened: OpenedLogs,
}

/// The directory in use. When it is dropped, everything is on the disk, and another server may have
/// the directory.
struct DataDirectory {
    records: Arc<JournalRecords>,
    journal: Arc<DiskJournal>,
    logs: Arc<DurableLogs>,
    storage: Arc<DiskStorage>,
    /// `None` if files are not rewritten for what was erased.
    rewriter: Option<Rewriter>,
    backups: Arc<Backups>,
    kept: KeptReader,
    /// True if it keeps the subscriptions of users.
    has_records: bool,
    /// True if another process may have the store.
    is_given_up: AtomicBool,
    // Behind what writes to it.
    directory: Directory,
}

/// The directory of this process, or of another one, which has yet to give up what is in it.
struct PreparedDirectory {
    id: JournalId,
    directory: Directory,
    is_taken: bool,
    /// Open once the memory beneath it is known.
    store: Option<OpenStore>,
}

/// Locks the directory that the settings name, or takes it from another process, of which this is
/// the lock.
fn prepare(setup: &JournalSetup<'_>, id: JournalId, lock: Option<OwnedFd>) -> Preparing {
    let path = path(setup)?;
    let is_taken = lock.is_some();
    let taken = match lock {
        Some(lock) => Directory::take_over(path, lock),
        None => Directory::open(path),
    };
    let error = |error| SettingsError(format!("the data directory {} {error}", path.display()));
    let directory = taken.map_err(error)?;
    Ok(Box::new(PreparedDirectory { id, directory, is_taken, store: None }))
}

fn path<'a>(setup: &JournalSetup<'a>) -> Result<&'a Path> {
    setup.settings.data.0.as_deref().context("there is no data directory")
}

impl Prepared for PreparedDirectory {
    fn beneath(&mut self, memory: MemoryEngine, setup: &JournalSetup<'_>) -> Result<MemoryEngine> {
        let store = self.store.insert(OpenStore::open(path(setup)?, &self.directory, setup.plan)?);
        let OpenedLogs { epoch, stamps, .. } = store.opened;
        Ok(if self.is_taken {
            memory.with_epoch_of_positions(epoch)
        } else {
            let memory = memory.with_positions(epoch, stamps);
            match store.logs.holder_seed() {
                Some(seed) => memory.with_holder_seed(seed),
                None => memory,
            }
        })
    }

    fn open(
        self: Box<Self>,
        memory: &Arc<MemoryEngine>,
        setup: &JournalSetup<'_>,
    ) -> Result<Opened> {
        let PreparedDirectory { id, directory, is_taken, store } = *self;
        let store = store.context("the data directory is not open")?;
        let start = if is_taken { DiskJournal::start_paused } else { DiskJournal::start };
        // A directory that was taken over keeps its format until this process serves.
        if !is_taken {
            directory.note_format().context("cannot write to the data directory")?;
        }
        let data = store.start(setup, (id, memory), start, directory)?;
        // The running server sends what it has in memory.
        if data.has_records && !is_taken {
            data.kept.begin(&data.records)?;
        }
        let journal = Arc::clone(&data.logs) as _;
        Ok(Opened { journal, server: Arc::new(data), finish: Box::new(|_, _| Ok(())) })
    }
}

impl ServerJournal for DataDirectory {
    fn records(&self) -> Option<Arc<dyn Records>> {
        self.has_records.then(|| Arc::clone(&self.records) as _)
    }

    fn backups(&self) -> Option<Arc<Backups>> {
        Some(Arc::clone(&self.backups))
    }

    fn obstacle(&self) -> Option<String> {
        self.kept.obstacle().or_else(|| self.rewriting())
    }

    fn end(&self) {
        self.kept.end();
        self.rewriter.iter().for_each(Rewriter::end);
        self.backups.stop();
        // First: the disk of a backup may hang, and what was acknowledged must not wait for it.
        self.journal.end();
        self.backups.join();
        // Nobody reads any more. If somebody does, the next start has more to do.
        let _ = self.storage.close();
    }

    fn pass(&self) -> Result<(DescriptorKind, OwnedFd)> {
        let lock = self.directory.pass().context("cannot pass the lock of the data directory")?;
        Ok((DescriptorKind::Data, lock))
    }

    fn write_ahead(&self) {
        self.storage.write_ahead();
    }

    fn give_up(&self) -> Result<()> {
        self.journal.pause().map_err(|refused| match (refused, self.rewriting()) {
            (_, Some(obstacle)) => anyhow!(obstacle),
            (JournalRefused::Busy, None) => anyhow!(
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

impl DataDirectory {
    /// Why no process can take over while files are rewritten.
    fn rewriting(&self) -> Option<String> {
        let is_rewriting = self.rewriter.as_ref().is_some_and(Rewriter::is_rewriting);
        is_rewriting.then(|| {
            "the files of the data directory are being rewritten, so that none has what was \
             erased; try again when the log says that they are, or see `erase-within`"
                .to_owned()
        })
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

impl OpenStore {
    fn open(path: &Path, directory: &Directory, plan: MemoryPlan) -> Result<OpenStore> {
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
        Ok(OpenStore { storage, logs: Arc::new(logs), opened })
    }

    /// Begins to use it, beneath what is in memory.
    fn start(
        self,
        setup: &JournalSetup<'_>,
        (id, memory): (JournalId, &Arc<MemoryEngine>),
        journal: fn(&Arc<Logs>, Writer) -> io::Result<DiskJournal>,
        directory: Directory,
    ) -> Result<DataDirectory> {
        let OpenStore { storage, logs, opened: _ } = self;
        let (of_logs, settings) = (Arc::clone(&logs), setup.settings);
        let delivery =
            AnswerDelivery::with_parts(id, Arc::clone(memory), of_logs, setup.plan.parts);
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
        tokio::spawn(log_state(Arc::downgrade(&journal)));
        let within = Some(settings.erase_within.0).filter(|within| !within.is_zero());
        let rewriter = within.map(|within| Rewriter::start(&storage, &logs, within));
        let rewriter = rewriter.transpose().context("cannot start the rewriter")?;
        Ok(DataDirectory {
            records: Arc::new(JournalRecords::new(logs, Arc::clone(&journal))),
            journal,
            logs: Arc::new(durable),
            backups: Arc::new(Backups::new(settings.revocations_path(), &storage)),
            storage,
            rewriter,
            kept: KeptReader::new(&setup.access.control.kept),
            has_records: setup.has_records(LogPlace::Disk),
            is_given_up: AtomicBool::new(false),
            directory,
        })
    }
}
