//! The data directory: what the server keeps over a restart.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use rustix::fs::Mode;
use rustix::process::umask;
use throng_access::KeptSubscriptions;
use throng_core::records::Records;
use throng_core::{Rules, Stamp, clock};
use throng_data::directory::Directory;
use throng_data::journal::{Journal, Setup};
use throng_data::logs::{Logs, Opened};
use throng_data::promise::Sync;
use throng_data::records::JournalRecords;
use throng_data::storage::disk::DiskStorage;
use throng_units::format::{count, seconds};

use crate::settings::{Settings, SettingsError};

/// Names the time since the machine was started.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Memory for blocks of the store that were read.
const CACHE_BYTES: u64 = 64 << 20;

/// The open directory. When it is dropped, everything is on the disk, and another server may have
/// the directory.
pub(crate) struct Data {
    pub(crate) records: Arc<dyn Records>,
    // Behind what writes to it.
    _directory: Directory,
}

impl Data {
    /// Opens the directory that the settings name, if they name one.
    pub(crate) fn open(settings: &Settings, rules: &Arc<Rules>) -> Result<Option<Data>> {
        let Some(path) = &settings.data.0 else { return Ok(None) };
        // The library that stores makes files for everybody to read.
        umask(Mode::RWXG | Mode::RWXO);
        let shown = path.display();
        let directory = Directory::open(path)
            .map_err(|error| SettingsError(format!("the data directory {shown} {error}")))?;
        let boot = fs::read_to_string(BOOT).with_context(|| format!("cannot read {BOOT}"))?;
        let broken = || format!("cannot open the data directory {shown}");
        let storage = DiskStorage::open(&directory.store(), CACHE_BYTES).with_context(broken)?;
        let (logs, Opened { may_have_lost, .. }) =
            Logs::open(Arc::new(storage), boot.trim()).with_context(broken)?;
        if may_have_lost {
            tracing::warn!(
                "the machine ended before all of the data directory was on the disk: the newest \
                 changes may be missing"
            );
        }
        let (logs, rules) = (Arc::new(logs), Arc::clone(rules));
        let setup = Setup {
            sync: Sync::Always,
            now_ms: clock::now_ms,
            // Only records are written, and no messages.
            next_stamp: Box::new(Stamp::default),
            retention_of: Box::new(move |channel| rules.get(rules.find(channel)).retention),
        };
        let journal = Journal::start(&logs, setup).with_context(broken)?;
        let records = Arc::new(JournalRecords::new(logs, Arc::new(journal)));
        Ok(Some(Data { records, _directory: directory }))
    }

    /// Reads which channels users follow.
    pub(crate) fn load_kept(&self, kept: &KeptSubscriptions) -> Result<()> {
        let begin = Instant::now();
        kept.load(&*self.records)
            .context("cannot read the subscriptions of users from the disk")?;
        let counts = kept.counts();
        tracing::info!(
            "read {} subscriptions of {} users in {}",
            count(counts.subscriptions as u64),
            count(counts.users as u64),
            seconds(begin.elapsed().as_secs_f64()),
        );
        Ok(())
    }
}
