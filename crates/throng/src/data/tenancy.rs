//! The user of a data directory's store, when one process takes over from another.
//!
//! Both have the lock of the directory. The store itself is open in one process at a time, and only
//! the one that serves writes to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow};
use throng_data::journal::{DiskJournal, JournalRefused};
use throng_data::storage::disk::DiskStorage;

use super::backup::Backups;

/// The parts of the data directory that an upgrade needs.
pub(crate) struct Tenancy {
    journal: Arc<DiskJournal>,
    storage: Arc<DiskStorage>,
    backups: Arc<Backups>,
    /// True if another process may have the store.
    is_given_up: AtomicBool,
}

impl Tenancy {
    pub(super) fn new(
        journal: Arc<DiskJournal>,
        storage: Arc<DiskStorage>,
        backups: Arc<Backups>,
    ) -> Tenancy {
        Tenancy { journal, storage, backups, is_given_up: AtomicBool::new(false) }
    }

    /// Makes backups of it, and ends with this process.
    pub(crate) fn backups(&self) -> Arc<Backups> {
        Arc::clone(&self.backups)
    }

    /// Has what is in memory written before it is given up.
    pub(crate) fn write_ahead(&self) {
        self.storage.write_ahead();
    }

    /// Closes the store, so that another process can open it. Call it when nobody publishes or
    /// reads any more, and [`Tenancy::take_back`] after an error.
    ///
    /// # Errors
    ///
    /// The disk fails or is too slow.
    pub(crate) fn give_up(&self) -> Result<()> {
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

    /// Opens the store again if it was given up, as no other process has it any more, and writes to
    /// it as before. If it cannot be opened, durable channels refuse messages until it can.
    pub(crate) fn take_back(&self) {
        let was_given_up = self.is_given_up.swap(false, Ordering::Relaxed);
        if was_given_up && let Err(error) = self.storage.open_again() {
            tracing::error!("the data directory cannot be opened again: {error}");
        }
        self.begin();
    }

    /// Begins to write: this is the process that serves.
    pub(crate) fn begin(&self) {
        self.journal.go_on();
    }
}
