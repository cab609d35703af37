//! Idempotency keys that all nodes know, whatever becomes of the servers.
//!
//! The stream knows the keys of five minutes by itself. But when its servers are restarted, they
//! learn them again from the messages that are still stored, and messages leave a channel's log
//! long before their keys end. So each node writes the keys that it has published with to a table,
//! all of a tenth of a second as one entry, and every node has the table whole.
//!
//! An entry is kept for five minutes. It has the version (1), the epoch (8), the time in
//! milliseconds since 1970 (8), and for each key its id (16) and the sequence of the message (8).
//! Numbers are little-endian.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::journal::{KnownKey, StoredKeys, TableId};

const VERSION: u8 = 1;
const HEAD_BYTES: usize = 1 + 8 + 8;
const KEY_BYTES: usize = 16 + 8;

/// Keys of an entry, at most: 24 KB.
const ENTRY_KEYS_MAX: usize = 1_024;

/// Keys that wait to be written, at most: the stream takes none while it cannot be reached. Beyond
/// it the oldest are not written.
const WAITING_MAX: usize = 65_536;

/// The keys of this node that are not in the table yet.
#[derive(Default)]
pub(super) struct SharedKeys {
    /// `None` if the node shares none.
    pub(super) table: Option<TableId>,
    waiting: Mutex<Waiting>,
    written: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    keys: Vec<KnownKey>,
    is_writing: bool,
}

impl SharedKeys {
    pub(super) fn new(table: Option<TableId>) -> SharedKeys {
        SharedKeys { table, ..SharedKeys::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no entry of this process has had.
    pub(super) fn number(&self) -> u64 {
        self.written.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps keys until they are written. Returns how many are given up for that.
    pub(super) fn add(&self, keys: impl IntoIterator<Item = KnownKey>) -> usize {
        let mut waiting = self.lock();
        waiting.keys.extend(keys);
        let excess = waiting.keys.len().saturating_sub(WAITING_MAX);
        waiting.keys.drain(..excess).count()
    }

    /// The keys to be written now.
    pub(super) fn take(&self) -> Option<Vec<KnownKey>> {
        let mut waiting = self.lock();
        if waiting.is_writing || waiting.keys.is_empty() {
            return None;
        }
        waiting.is_writing = true;
        let count = waiting.keys.len().min(ENTRY_KEYS_MAX);
        Some(waiting.keys.drain(..count).collect())
    }

    /// The keys that were taken are written, or `again` are to be written once more.
    pub(super) fn done(&self, again: Option<Vec<KnownKey>>) {
        let mut waiting = self.lock();
        waiting.is_writing = false;
        if let Some(again) = again {
            waiting.keys.splice(..0, again);
        }
    }
}

pub(super) fn entry(epoch: u64, wall_ms: u64, keys: &[KnownKey]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + keys.len() * KEY_BYTES);
    bytes.push(VERSION);
    bytes.extend_from_slice(&epoch.to_le_bytes());
    bytes.extend_from_slice(&wall_ms.to_le_bytes());
    for KnownKey { id, sequence } in keys {
        bytes.extend_from_slice(id);
        bytes.extend_from_slice(&sequence.to_le_bytes());
    }
    bytes
}

/// Reads an entry; `None` for one of another version.
pub(super) fn read(bytes: &[u8], from_wall_ms: impl Fn(u64) -> u64) -> Option<StoredKeys> {
    let (&[VERSION], rest) = bytes.split_first_chunk()? else { return None };
    let (epoch, rest) = rest.split_first_chunk()?;
    let (wall_ms, rest) = rest.split_first_chunk()?;
    let (keys, []) = rest.as_chunks::<KEY_BYTES>() else { return None };
    let key = |key: &[u8; KEY_BYTES]| {
        let (id, sequence) = key.split_first_chunk()?;
        Some(KnownKey { id: *id, sequence: u64::from_le_bytes(sequence.try_into().ok()?) })
    };
    Some(StoredKeys {
        epoch: u64::from_le_bytes(*epoch),
        stored_ms: from_wall_ms(u64::from_le_bytes(*wall_ms)),
        keys: keys.iter().filter_map(key).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> KnownKey {
        KnownKey { id: [number; 16], sequence: u64::from(number) * 1_000 }
    }

    #[test]
    fn an_entry_is_read_as_it_is_written() {
        let keys = vec![key(1), key(255)];
        let found = read(&entry(7, 5_000, &keys), |wall_ms| wall_ms - 1_000);
        assert_eq!(found, Some(StoredKeys { epoch: 7, stored_ms: 4_000, keys }));
        let mut later = entry(7, 5_000, &[key(1)]);
        later[0] = 2;
        for bad in [&later[..], &later[..HEAD_BYTES - 1], &[]] {
            assert_eq!(read(bad, |wall_ms| wall_ms), None);
        }
    }

    #[test]
    fn keys_wait_until_they_are_written() {
        let keys = SharedKeys::new(Some(TableId(0)));
        assert!(keys.take().is_none());
        assert_eq!(keys.add((0..5).map(key)), 0);
        let taken = keys.take().expect("they wait");
        assert_eq!((taken.len(), keys.add([key(5)])), (5, 0));
        assert!(keys.take().is_none(), "one entry is under way");
        keys.done(Some(taken));
        assert_eq!(keys.take(), Some((0..6).map(key).collect()));
        keys.done(None);
        assert!(keys.take().is_none());
    }

    #[test]
    fn too_many_keys_are_given_up_and_counted() {
        let keys = SharedKeys::new(Some(TableId(0)));
        assert_eq!(keys.add((0..WAITING_MAX).map(|at| key(at as u8))), 0);
        assert_eq!(keys.add((0..7).map(key)), 7);
        assert_eq!(keys.take().map(|keys| keys.len()), Some(ENTRY_KEYS_MAX));
    }
}
