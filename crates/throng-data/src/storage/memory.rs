//! Storage in memory that fails as disks do, for tests.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Each, KeyOrder, Space, Storage, StorageError, Write};

type Tables = BTreeMap<(Space, Vec<u8>), Vec<u8>>;

/// The fate of the next commits and syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The commit fails and is not there.
    CommitLost(bool),
    /// The commit fails and is there nevertheless.
    CommitKept,
    /// The sync fails.
    Sync,
}

#[derive(Debug, Default)]
struct State {
    /// Shared with scans, whose visitors read other entries.
    now: Arc<Tables>,
    synced: Tables,
    unsynced: Vec<Vec<Write>>,
    fault: Option<Fault>,
    is_broken: bool,
    /// True if it has no space, as the last fault was.
    is_full: bool,
    /// How many recoveries fail from now on.
    failing_recoveries: u32,
    /// The unreadable entry.
    damaged: Option<(Space, Vec<u8>)>,
}

/// See the module. Clones are the same storage.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryStorage(Arc<Mutex<State>>);

fn apply(tables: &mut Tables, writes: &[Write]) {
    for Write { space, key, value } in writes {
        let key = (*space, key.to_vec());
        match value {
            Some(value) => drop(tables.insert(key, value.to_vec())),
            None => drop(tables.remove(&key)),
        }
    }
}

impl MemoryStorage {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next commit or sync fails in this way, and then this many recoveries, or all of them
    /// until [`MemoryStorage::mend`].
    pub(crate) fn fail(&self, fault: Fault, failing_recoveries: u32) {
        let mut state = self.lock();
        (state.fault, state.failing_recoveries) = (Some(fault), failing_recoveries);
        state.is_full = fault == Fault::CommitLost(true);
    }

    /// An entry cannot be read from now on.
    pub(crate) fn damage(&self, space: Space, key: &[u8]) {
        self.lock().damaged = Some((space, key.to_vec()));
    }

    /// Recoveries succeed from now on.
    pub(crate) fn mend(&self) {
        self.lock().failing_recoveries = 0;
    }

    /// The number of commits that the end of the machine may take.
    pub(crate) fn unsynced(&self) -> usize {
        self.lock().unsynced.len()
    }

    /// The machine ends. Of the commits that are not synced, the oldest `kept` are there.
    pub(crate) fn lose_power(&self, kept: usize) {
        let mut state = self.lock();
        let State { now, synced, unsynced, .. } = &mut *state;
        for writes in unsynced.drain(..).take(kept) {
            apply(synced, &writes);
        }
        *now = Arc::new(synced.clone());
        (state.fault, state.is_broken, state.failing_recoveries) = (None, false, 0);
        state.unsynced.clear();
    }

    /// The process ends.
    pub(crate) fn end_process(&self) {
        let mut state = self.lock();
        (state.fault, state.is_broken, state.failing_recoveries) = (None, false, 0);
    }
}

impl Storage for MemoryStorage {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        let state = self.lock();
        let at = (space, key.to_vec());
        if state.damaged.as_ref() == Some(&at) {
            return Err(StorageError::Damaged("a checksum is wrong".into()));
        }
        Ok(state.now.get(&at).cloned())
    }

    fn scan(
        &self,
        space: Space,
        (from, to): (&[u8], &[u8]),
        order: KeyOrder,
        each: Each<'_>,
    ) -> Result<(), StorageError> {
        let (now, damaged) = {
            let state = self.lock();
            (Arc::clone(&state.now), state.damaged.clone())
        };
        let has_damaged =
            |(of, key): &(Space, Vec<u8>)| *of == space && (from..to).contains(&&**key);
        if damaged.as_ref().is_some_and(has_damaged) {
            return Err(StorageError::Damaged("a checksum is wrong".into()));
        }
        let range = now.range((space, from.to_vec())..(space, to.to_vec()));
        let mut visit = |(key, value): (&(Space, Vec<u8>), &Vec<u8>)| each(&key.1, value);
        let _: ControlFlow<()> = match order {
            KeyOrder::Up => range.into_iter().try_for_each(&mut visit),
            KeyOrder::Down => range.into_iter().rev().try_for_each(&mut visit),
        };
        Ok(())
    }

    fn commit(&self, writes: &[Write]) -> Result<(), StorageError> {
        let mut state = self.lock();
        if state.is_broken {
            return Err(StorageError::Failed("it has failed before".into()));
        }
        let fault = match state.fault {
            Some(Fault::Sync) | None => None,
            _ => state.fault.take(),
        };
        if !matches!(fault, Some(Fault::CommitLost(_))) {
            apply(Arc::make_mut(&mut state.now), writes);
            state.unsynced.push(writes.to_vec());
        }
        match fault {
            None => Ok(()),
            Some(Fault::CommitLost(true)) => {
                state.is_broken = true;
                Err(StorageError::Full)
            }
            Some(_) => {
                state.is_broken = true;
                Err(StorageError::Failed("a commit fails".into()))
            }
        }
    }

    fn sync(&self) -> Result<(), StorageError> {
        let mut state = self.lock();
        if state.is_broken || state.fault == Some(Fault::Sync) {
            (state.is_broken, state.fault) = (true, None);
            // The system has dropped what it could not write; reads still find it in its cache.
            state.unsynced.clear();
            return Err(StorageError::Failed("a sync fails".into()));
        }
        let State { synced, unsynced, .. } = &mut *state;
        unsynced.drain(..).for_each(|writes| apply(synced, &writes));
        Ok(())
    }

    fn settle(&self) -> Result<(), StorageError> {
        let mut state = self.lock();
        debug_assert!(!state.is_broken, "it was opened anew");
        state.unsynced.clear();
        state.synced = Tables::clone(&state.now);
        Ok(())
    }

    fn recover(&self) -> Result<(), StorageError> {
        let mut state = self.lock();
        if let Some(left) = state.failing_recoveries.checked_sub(1) {
            state.failing_recoveries = left;
            if state.is_full {
                return Err(StorageError::Full);
            }
            return Err(StorageError::Failed("it still fails".into()));
        }
        state.is_broken = false;
        state.unsynced.clear();
        state.synced = Tables::clone(&state.now);
        Ok(())
    }

    fn bytes(&self) -> Result<u64, StorageError> {
        let state = self.lock();
        Ok(state.now.iter().map(|((_, key), value)| (key.len() + value.len()) as u64).sum())
    }
}
