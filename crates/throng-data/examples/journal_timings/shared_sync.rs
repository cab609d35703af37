//! The library for many threads that each wait until their own messages are safe, and share syncs:
//! what any server could do with it that does nothing else.

use std::sync::{Condvar, Mutex, PoisonError};

use throng_data::storage::disk::DiskStorage;
use throng_data::storage::{Storage as _, Write};

use crate::Failure;

#[derive(Default)]
struct Waiting {
    writes: Vec<Write>,
    /// The number of the group that gathers. All before it are synced, or are being synced.
    group: u64,
    /// Groups that are synced.
    synced: u64,
    is_committing: bool,
    error: Option<String>,
}

/// One of the threads that wait commits for all of them.
pub(crate) struct SharedSync<'s> {
    storage: &'s DiskStorage,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl SharedSync<'_> {
    pub(crate) fn new(storage: &DiskStorage) -> SharedSync<'_> {
        SharedSync { storage, waiting: Mutex::default(), changed: Condvar::new() }
    }

    /// Returns when `writes` are safe.
    pub(crate) fn commit(&self, mut writes: Vec<Write>) -> Result<(), Failure> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.writes.append(&mut writes);
        let own = waiting.group;
        while waiting.synced <= own {
            if waiting.is_committing {
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            waiting.is_committing = true;
            waiting.group += 1;
            let group = std::mem::take(&mut waiting.writes);
            drop(waiting);
            let done = self.storage.commit(&group).and_then(|()| self.storage.sync());
            waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.is_committing = false;
            waiting.synced += 1;
            waiting.error = done.err().map(|error| error.to_string()).or(waiting.error.take());
            self.changed.notify_all();
        }
        waiting.error.clone().map_or(Ok(()), |error| Err(error.into()))
    }
}
