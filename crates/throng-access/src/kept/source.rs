//! The store of kept subscriptions that are not in memory yet, and the users requested early.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use throng_core::Ticket;
use throng_core::records::Records;
use throng_wire::ErrorResponse;

/// The result of reading a user's subscriptions: from then on they are in memory.
pub type KeptRead = Result<(), ErrorResponse>;

/// The users that are not read.
#[derive(Debug)]
pub(super) struct Unread {
    /// The first one in the order of keys, unless it was read early.
    pub(super) next: Box<str>,
    /// Users behind it that are read.
    pub(super) early: HashSet<Box<str>>,
}

impl Unread {
    pub(super) fn is_read(&self, user: &str) -> bool {
        // The order of keys, which begin with the length.
        (user.len(), user) < (self.next.len(), &*self.next) || self.early.contains(user)
    }
}

/// Where the unread subscriptions are, and the users that are asked for.
pub(super) struct Source {
    pub(super) records: Arc<dyn Records>,
    queue: Mutex<Queue>,
    pub(super) is_asked: Condvar,
    /// Entries that were passed.
    pub(super) read: AtomicU64,
    /// About how many there were at the start.
    pub(super) expected: u64,
}

/// The users requested early, first come, first served.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) asked: VecDeque<(Box<str>, Ticket<KeptRead>)>,
    /// True once reading has stopped because the server ends.
    pub(super) is_ended: bool,
}

impl fmt::Debug for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Source")
    }
}

impl Source {
    pub(super) fn new(records: Arc<dyn Records>) -> Source {
        let expected = records.approximate_len();
        let (queue, is_asked, read) = Default::default();
        Source { records, queue, is_asked, read, expected }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
