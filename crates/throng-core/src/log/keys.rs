//! Which messages of a log are the newest of their keys. See [`super::state`].

use std::collections::{BTreeMap, VecDeque};

use crate::holder::{Charges, RoomHolder};

/// The newest message of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Newest {
    pub(super) offset: u64,
    pub(super) holder: RoomHolder,
}

/// The keys of a log.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The newest message of each key, which may be a tombstone.
    pub(super) newest: BTreeMap<Box<str>, Newest>,
    /// The bytes that publishers hold more or less than those who count them know.
    pub(super) uncounted: Charges,
    /// Bytes of those messages that are no tombstones, and of the index.
    pub(super) bytes: usize,
    /// The tombstones among them, oldest first: time and offset. Some may be superseded.
    pub(super) tombstones: VecDeque<(u64, u64)>,
    /// How many keys have tombstones.
    pub(super) removed: usize,
    /// Bytes of those, and of their part of the index.
    pub(super) removed_bytes: usize,
    /// The number of messages before the window, with placeholders.
    pub(super) older: usize,
    /// Bytes of those.
    pub(super) older_bytes: usize,
    /// The placeholders among those.
    pub(super) gone: usize,
    pub(super) floor: u64,
    /// Keys whose values have expired or were erased, for which tombstones are due.
    pub(super) ended: Vec<Box<str>>,
    /// The time for which the next look for expired values is planned; `None` if none is.
    pub(super) look_ms: Option<u64>,
}

/// The part of the keys that the messages of a log do not tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FrozenKeys {
    /// The number of messages before the window.
    pub(crate) older: u32,
    /// The offset of the newest message that was dropped though nothing has superseded it.
    pub(crate) floor: u64,
    /// The offsets of messages that are the last of their keys and not the newest values: those
    /// were erased.
    pub(crate) ended: Vec<u64>,
    /// The offsets of the newest messages that somebody holds, and who. Version 11 has begun to
    /// tell.
    pub(crate) holders: Vec<(u64, RoomHolder)>,
}

impl Keys {
    /// The offset of a key's newest message.
    pub(super) fn offset_of(&self, key: &str) -> Option<u64> {
        self.newest.get(key).map(|newest| newest.offset)
    }
}
