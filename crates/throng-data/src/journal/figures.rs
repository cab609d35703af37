//! The counters of a journal.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use throng_core::{Histogram, Snapshot};

use crate::logs::{AllStates, Writer};

/// State of the thread that others read.
#[derive(Debug, Default)]
pub(super) struct EngineShared {
    /// How the disk is: see `DiskJournal::state`.
    pub(super) state: AtomicU8,
    pub(super) failure: Mutex<String>,
    /// True if the directory took more than it may at the last look.
    pub(super) is_over_limit: AtomicBool,
    pub(super) messages: AtomicU64,
    pub(super) message_bytes: AtomicU64,
    /// How long commits took, with their syncs.
    pub(super) commits: Histogram,
    /// Disk usage of the directory at the last look.
    pub(super) disk_bytes: AtomicU64,
    pub(super) unreadable: AtomicU64,
    pub(super) names_kept: AtomicU64,
    pub(super) names_forgotten: AtomicU64,
    pub(super) state_keys: AtomicU64,
    pub(super) state_bytes: AtomicU64,
}

impl EngineShared {
    /// Notes how much there is of all states.
    pub(super) fn note_states(&self, writer: &Writer) {
        let AllStates { keys, bytes, .. } = writer.all_states();
        self.state_keys.store(keys, Ordering::Relaxed);
        self.state_bytes.store(bytes, Ordering::Relaxed);
    }

    /// How much there is of all states.
    pub(super) fn states(&self) -> AllStates {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        AllStates { keys: get(&self.state_keys), bytes: get(&self.state_bytes), creations: 0 }
    }

    /// Counters so far, of a directory with this limit.
    pub(super) fn figures(&self, max_bytes: u64) -> JournalFigures {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        JournalFigures {
            messages: get(&self.messages),
            message_bytes: get(&self.message_bytes),
            disk_bytes: get(&self.disk_bytes),
            max_bytes,
            commits: Snapshot::of(std::iter::once(&self.commits)),
            unreadable: get(&self.unreadable),
            names_kept: get(&self.names_kept),
            names_forgotten: get(&self.names_forgotten),
        }
    }
}

/// Counters of a journal since its start.
#[derive(Debug)]
pub struct JournalFigures {
    pub messages: u64,
    /// Bytes of their bodies.
    pub message_bytes: u64,
    /// Disk usage of the directory, at most half a second old.
    pub disk_bytes: u64,
    /// The limit of that, [`JournalSetup::max_bytes`].
    pub max_bytes: u64,
    /// How long commits took, with their syncs.
    pub commits: Snapshot,
    /// How many entries that were needed could not be read.
    pub unreadable: u64,
    /// How many channels the disk knows, as far as they were counted since the start.
    pub names_kept: u64,
    /// How many channels it has forgotten, as they were empty for long.
    pub names_forgotten: u64,
}
