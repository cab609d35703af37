//! Small state that outlives the process: what the server keeps for users, besides messages.
//!
//! Memory is the truth while the process runs. Each entry is read from the store once: at the
//! start, or before the first request that depends on it. From then on each change goes to the
//! store first, and is made in memory once it is safe there.

use std::ops::ControlFlow;

use throng_wire::{ErrorCode, ErrorResponse};

use crate::later::Ticket;

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// A table of entries with keys. The numbers are on the disk, which uses those from 128 on itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Table {
    /// Which channels users follow on all of their connections.
    Subscriptions = 1,
    /// How far users have read durable inboxes.
    ReadMarkers = 2,
    /// The users whose erasure is not done.
    UserErasures = 3,
    /// How far users have read durable channels: by user and channel.
    ChannelMarkers = 4,
    /// The keys of these, by channel and user.
    MarkedChannels = 5,
}

impl Table {
    /// One of its entries, for people.
    pub fn noun(self) -> &'static str {
        match self {
            Table::Subscriptions => "subscription",
            Table::ReadMarkers => "read marker",
            Table::UserErasures => "erasure of a user",
            Table::ChannelMarkers => "read marker in a channel",
            Table::MarkedChannels => "key of a read marker",
        }
    }
}

/// A change of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The table that has the entry.
    pub table: Table,
    /// Its key, of 1 to [`KEY_BYTES_MAX`] bytes.
    pub key: Box<[u8]>,
    /// Its new value; `None` removes the entry.
    pub value: Option<Box<[u8]>>,
}

/// Why a change is refused: it is not in the store, and never will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// More changes wait than may.
    #[error(
        "the disk of the data directory does not keep up, so the change is not made; try again"
    )]
    Busy,
    /// The disk has no space.
    #[error("the disk of the data directory is full, so the change is not made")]
    Full,
    /// The directory takes more than it may.
    #[error(
        "the data directory is beyond `data-max-bytes`, so the change is not made; raise that \
         limit, or let channels keep less"
    )]
    OverLimit,
    #[error("the disk of the data directory fails, so the change is not made")]
    Failed,
}

impl From<StoreError> for ErrorResponse {
    fn from(error: StoreError) -> ErrorResponse {
        let code = match error {
            StoreError::Busy => ErrorCode::Busy,
            StoreError::Full | StoreError::OverLimit => ErrorCode::NotStored,
            StoreError::Failed => ErrorCode::Unavailable,
        };
        ErrorResponse::new(code, error.to_string())
    }
}

/// Receives each entry, its key and its value, until it breaks.
pub type Each<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// A store of tables.
pub trait Records: Send + Sync {
    /// Makes all of `changes` or none, in the order of the calls, and answers once they are as safe
    /// as the store promises. The answer comes on the store's thread; a refusal may come inside the
    /// call. While the store fails, changes that it has taken wait until it works again. If
    /// `done` is dropped without an answer, the store ends, and it is not known whether the changes
    /// are made.
    fn change(&self, changes: Vec<Change>, done: Ticket<Result<(), StoreError>>);

    /// Why changes are refused at the moment, if they are.
    ///
    /// # Errors
    ///
    /// The result that [`Records::change`] would have.
    fn state(&self) -> Result<(), StoreError>;

    /// Calls `each` with the entries of a table from the key `from` on, in the order of keys, until
    /// it breaks. Blocks for the disk.
    ///
    /// # Errors
    ///
    /// One sentence about what cannot be read.
    fn read_from(&self, table: Table, from: &[u8], each: Each<'_>) -> Result<(), String>;

    /// About how many entries all tables have. May count replaced and removed ones.
    fn approximate_len(&self) -> u64 {
        0
    }
}
