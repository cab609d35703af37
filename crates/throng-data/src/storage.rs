//! The store's medium: ordered tables of bytes, with atomic commits and a sync.
//!
//! The trait is small so that a layer that fails, is full, is slow, or forgets what was not synced
//! can stand in for a disk.
//!
//! # Contract
//!
//! * A commit is visible to reads once it returns, as a whole.
//! * What is committed survives the end of the process. Only what is synced survives the end of the
//!   machine; of the rest any number of the newest commits may be missing, and never an older one.
//! * After an error nothing more is committed until [`Storage::recover`] has succeeded. Whether the
//!   failed commit is there can be read then.

use std::ops::ControlFlow;

pub mod disk;
#[cfg(test)]
pub(crate) mod memory;

/// A table. The numbers are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Space {
    /// The format, the epoch, how the last run ended.
    Meta = 0,
    /// The head of each channel, by name.
    Heads = 1,
    /// Messages, by name and offset.
    Messages = 2,
    /// When the oldest message of each channel expires, or earlier, by time and name.
    Expiry = 3,
    /// Idempotency keys, by name and key.
    Keys = 4,
    /// The same, by time.
    KeyExpiry = 5,
    /// Small state of other parts of the server, by table and key; and the records of logs.
    Records = 6,
    /// The names of channels, by the number that each has for lists.
    Numbers = 7,
}

impl Space {
    /// All tables, in the order of their numbers.
    pub const ALL: [Space; 8] = [
        Space::Meta,
        Space::Heads,
        Space::Messages,
        Space::Expiry,
        Space::Keys,
        Space::KeyExpiry,
        Space::Records,
        Space::Numbers,
    ];
}

/// A key or a value. Clones share it, also with what the storage keeps of it in memory, so that a
/// commit copies nothing.
pub type Bytes = fjall::Slice;

/// A change of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub space: Space,
    pub key: Bytes,
    /// Its new value; `None` removes it.
    pub value: Option<Bytes>,
}

impl Write {
    /// Sets an entry.
    pub fn put(space: Space, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Write {
        Write { space, key: key.into(), value: Some(value.into()) }
    }

    /// Removes an entry, if it is there.
    pub fn remove(space: Space, key: impl Into<Bytes>) -> Write {
        Write { space, key: key.into(), value: None }
    }
}

/// Why something could not be stored or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    #[error("no space is left")]
    Full,
    #[error("{0}")]
    Failed(String),
    /// A part of what is on the disk cannot be read or understood.
    #[error("{0}")]
    Damaged(String),
}

/// Which end of a range is read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrder {
    /// The lowest key first.
    Up,
    /// The highest key first.
    Down,
}

/// Called with each entry of a range, until it breaks.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// See the module.
pub trait Storage: Send + Sync {
    /// The value of a key.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;

    /// Calls `each` with the entries from the first key of `range` on, up to the second and without
    /// it.
    fn scan(
        &self,
        space: Space,
        range: (&[u8], &[u8]),
        order: KeyOrder,
        each: Each<'_>,
    ) -> Result<(), StorageError>;

    /// Makes all changes, or none.
    fn commit(&self, writes: &[Write]) -> Result<(), StorageError>;

    /// Makes everything that is committed survive the end of the machine.
    fn sync(&self) -> Result<(), StorageError>;

    /// Makes everything that can be read survive the end of the machine, as [`Storage::recover`]
    /// does, and leaves as little as possible that opening has to read into memory. Nobody commits
    /// meanwhile.
    fn settle(&self) -> Result<(), StorageError>;

    /// Frees memory, if nobody has committed anything for a while. Does not wait.
    fn give_back(&self) {}

    /// Makes commits possible again after an error, and everything that can be read survive the end
    /// of the machine. A sync is not enough for that: the system drops what a failed sync had to
    /// write, although reads still find it, so it is written anew.
    fn recover(&self) -> Result<(), StorageError>;

    /// Fails if nothing can be written, or what is written by its name would be somewhere else than
    /// what was opened, or nowhere. Cheap.
    fn check(&self) -> Result<(), StorageError> {
        Ok(())
    }

    /// About how many entries a table has, with some that were replaced or removed. Cheap.
    fn approximate_len(&self, _: Space) -> u64 {
        0
    }

    /// Bytes on the disk.
    fn bytes(&self) -> Result<u64, StorageError>;
}
