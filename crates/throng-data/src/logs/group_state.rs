//! A group's view of the state of a log.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use throng_core::{ChannelName, Charges};

use super::format::{self, Table};
use super::state_rows::{self as rows, KeyRow, StateRow};
use crate::storage::{Space, Write};

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupState {
    row: StateRow,
    /// The row on the disk, if it is there.
    stored: Option<StateRow>,
    keys: HashMap<Box<str>, KeyChange, RandomState>,
    /// What publishers hold more or less of that than the group has counted.
    pub(super) charges: Charges,
    /// The keys of the group's own messages, by their offsets.
    own: HashMap<u64, Box<str>, RandomState>,
}

#[derive(Debug, Clone, Copy)]
struct KeyChange {
    /// As it is on the disk.
    stored: Option<KeyRow>,
    now: Option<KeyRow>,
}

impl GroupState {
    /// The state of a log that has this row; `None`: none yet.
    pub(super) fn new(stored: Option<StateRow>) -> GroupState {
        GroupState { row: stored.unwrap_or_default(), stored, ..GroupState::default() }
    }

    pub(super) fn row(&self) -> &StateRow {
        &self.row
    }

    /// Begins the state of a log with these bounds.
    pub(super) fn begin(&mut self, floor: u64) {
        self.row = StateRow { floor, base: floor, ..StateRow::default() };
    }

    /// True if it is known what the disk has of a key.
    pub(super) fn knows(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// Notes what the disk has of a key. What is left of an erased history does not count.
    pub(super) fn learn(&mut self, key: &str, stored: Option<KeyRow>) {
        let now = stored.filter(|row| row.offset > self.row.base);
        if let Some(left) = stored.filter(|_| now.is_none()) {
            // The row is removed in the commit.
            self.release(left);
        }
        self.keys.insert(key.into(), KeyChange { stored, now });
    }

    /// The newest message of a key.
    pub(super) fn newest(&self, key: &str) -> Option<KeyRow> {
        self.keys.get(key)?.now
    }

    /// The key of a message that the group has added.
    pub(super) fn own_key(&self, offset: u64) -> Option<&str> {
        self.own.get(&offset).map(|key| &**key)
    }

    /// Takes the newest message of a key out of the state, in a log with these bounds.
    pub(super) fn take(&mut self, key: &str, log_floor: u64) -> Option<KeyRow> {
        let row = self.keys.get_mut(key)?.now.take()?;
        let StateRow { keys, removed, bytes, older, older_removed, .. } = &mut self.row;
        if row.is_tombstone() {
            *removed = removed.saturating_sub(1);
            *older_removed = older_removed.saturating_sub(u64::from(row.is_older_tombstone()));
        } else {
            *keys = keys.saturating_sub(1);
            *bytes = bytes.saturating_sub(row.bytes);
        }
        *older = older.saturating_sub(u64::from(row.offset <= log_floor));
        self.release(row);
        Some(row)
    }

    /// The publisher of a value holds it no more.
    fn release(&mut self, row: KeyRow) {
        let (holder, bytes) = row.charge();
        self.charges.add(holder, -bytes);
    }

    /// Puts the newest message of a key in, which the group has just added. The key has none.
    pub(super) fn put(&mut self, key: &str, row: KeyRow) {
        let Some(change) = self.keys.get_mut(key) else {
            debug_assert!(false, "it is known what the disk has");
            return;
        };
        debug_assert!(change.now.is_none(), "it was taken out");
        change.now = Some(row);
        self.own.insert(row.offset, key.into());
        let (holder, bytes) = row.charge();
        self.charges.add(holder, bytes);
        if row.is_tombstone() {
            self.row.removed += 1;
        } else {
            self.row.keys += 1;
            self.row.bytes += row.bytes;
        }
    }

    /// The newest message of a key leaves the bounds of its log and stays. Returns whether more
    /// tombstones have than `max`.
    pub(super) fn pass(&mut self, key: &str, tombstone_due_ms: u64, max: usize) -> bool {
        self.row.older += 1;
        let Some(row) = self.keys.get_mut(key).and_then(|change| change.now.as_mut()) else {
            return false;
        };
        if !row.is_tombstone() {
            return false;
        }
        row.due_ms = tombstone_due_ms.max(1);
        self.row.older_removed += 1;
        self.row.older_removed > max as u64
    }

    /// Sets when the newest message of a key is due.
    pub(super) fn postpone(&mut self, key: &str, due_ms: u64) {
        if let Some(row) = self.keys.get_mut(key).and_then(|change| change.now.as_mut()) {
            row.due_ms = due_ms;
        }
    }

    /// A message is dropped that nothing has superseded.
    pub(super) fn lose(&mut self, offset: u64) {
        self.row.floor = self.row.floor.max(offset);
    }

    /// All messages up to an offset are erased.
    pub(super) fn clear(&mut self, offset: u64) {
        self.row = StateRow { floor: offset, base: offset, ..StateRow::default() };
        let known: Vec<_> = self.keys.values_mut().filter_map(|change| change.now.take()).collect();
        known.into_iter().for_each(|row| self.release(row));
        self.own.clear();
    }

    /// The writes of what has changed. `is_there` says whether the log has a state now.
    pub(super) fn store(&mut self, name: &ChannelName, is_there: bool) -> Vec<Write> {
        let mut writes = Vec::new();
        let put = |place: Vec<u8>, value: &[u8]| Write::put(Space::Records, place, value);
        let remove = |place: Vec<u8>| Write::remove(Space::Records, place);
        for (key, change) in &mut self.keys {
            if change.stored == change.now {
                continue;
            }
            let places = |row: Option<KeyRow>| {
                let places = row.map(|row| row.places(name)).unwrap_or_default();
                places.into_iter().flatten()
            };
            writes.extend(places(change.stored).map(remove));
            writes.extend(places(change.now).map(|place| put(place, key.as_bytes())));
            let place = rows::key(name, key);
            writes.push(match change.now {
                Some(row) => put(place, &row.encode()),
                None => remove(place),
            });
            change.stored = change.now;
        }
        let row = is_there.then_some(self.row);
        if row != self.stored {
            let place = format::of_table(Table::States, name);
            writes.push(
                row.map_or_else(|| remove(place.clone()), |row| put(place.clone(), &row.encode())),
            );
            self.stored = row;
        }
        writes
    }
}
