//! The room on the disk that each publisher takes with states and creations.
//!
//! # Invariants
//!
//! * A publisher's row is the sum of what all rows of keys and creations say that it holds, also of
//!   erased histories that are yet to be removed. It is in the commit that changes them.
//! * The rows in memory are those of the last commit that was made or is being made again.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use throng_core::{RoomGate, RoomHolder};

use super::format::{self, Table};
use super::group::WriteBatch;
use super::state_rows as rows;
use crate::storage::{KeyOrder, Space, Storage, StorageError, Write};

/// Bytes of the seed by which publishers are told apart.
pub(super) const SEED_BYTES: usize = 16;

/// What publishers hold.
#[derive(Debug, Default)]
pub(super) struct Room {
    held: Mutex<HashMap<RoomHolder, u64, RandomState>>,
    pub(super) gate: RoomGate,
    seed: Mutex<Option<[u8; SEED_BYTES]>>,
}

/// The rows of publishers after a commit.
#[must_use]
pub(super) struct HeldRows(Vec<(RoomHolder, u64)>);

impl Room {
    pub(super) fn read(storage: &dyn Storage) -> Result<Room, StorageError> {
        let mut held = HashMap::default();
        let range: (&[u8], &[u8]) = (&[Table::Holders as u8], &[Table::Holders as u8 + 1]);
        let scanned = storage.scan(Space::Records, range, KeyOrder::Up, &mut |place, row| {
            held.extend(rows::holder_of(place, row));
            ControlFlow::Continue(())
        });
        match scanned {
            // A damaged row counts for less than its publisher holds; `throng data check` tells.
            Ok(()) | Err(StorageError::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
        let seed = storage.get(Space::Meta, format::HOLDER_SEED)?;
        let seed = seed.and_then(|seed| seed.try_into().ok());
        Ok(Room { held: Mutex::new(held), gate: RoomGate::default(), seed: Mutex::new(seed) })
    }

    fn held(&self) -> MutexGuard<'_, HashMap<RoomHolder, u64, RandomState>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn seed(&self) -> MutexGuard<'_, Option<[u8; SEED_BYTES]>> {
        self.seed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a publisher holds, with what a group adds.
    pub(super) fn held_with(&self, batch: &WriteBatch, holder: RoomHolder) -> u64 {
        let before = self.held().get(&holder).copied().unwrap_or(0);
        let charged = batch.charged.get(&holder).copied().unwrap_or(0);
        before.saturating_add_signed(charged as i64)
    }

    /// What all publishers hold.
    pub(super) fn all(&self) -> HashMap<RoomHolder, u64, RandomState> {
        self.held().clone()
    }

    /// Adds the rows after these charges to the writes of a commit. [`Room::note`] them once it is
    /// sure to be made.
    pub(super) fn write(
        &self,
        charges: impl Iterator<Item = (RoomHolder, isize)>,
        writes: &mut Vec<Write>,
    ) -> HeldRows {
        let mut after = Vec::new();
        for (holder, bytes) in charges.filter(|(_, bytes)| *bytes != 0) {
            let before = self.held().get(&holder).copied().unwrap_or(0);
            let bytes = before.saturating_add_signed(bytes as i64);
            let place = rows::holder(holder);
            writes.push(match bytes {
                0 => Write::remove(Space::Records, place),
                bytes => Write::put(Space::Records, place, bytes.to_be_bytes()),
            });
            after.push((holder, bytes));
        }
        HeldRows(after)
    }

    pub(super) fn note(&self, HeldRows(after): HeldRows) {
        self.held().extend(after);
    }
}
