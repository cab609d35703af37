//! The table that every node has whole: who is told of its entries, and changes under way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::Ticket;

use crate::api::table::TableEntry;
use crate::journal::Changed;

/// Tickets that wait for a comparison, at most.
const WAITING_MAX: usize = 4_096;

/// What the owner of the table's contents is told.
#[derive(Debug)]
pub enum TableNews {
    /// These entries were written, in this order.
    Entries(Vec<TableEntry>),
    /// All entries that there were a moment ago have been told.
    Current,
    /// The table has lost entries. Those that are there are told again.
    Lost,
}

type Owner = Box<dyn Fn(TableNews) + Send + Sync>;

/// The news that nobody has been told yet, and who is told.
#[derive(Default)]
struct Told {
    owner: Option<Owner>,
    early: Vec<TableNews>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Table {
    is_there: bool,
    told: Mutex<Told>,
    changes: Mutex<HashMap<u64, Ticket<Changed>>>,
    /// When it was current last; 0 for never.
    as_of_ms: AtomicU64,
    /// Who waits until it is current as of a time.
    waiting: Mutex<Vec<(u64, Ticket<()>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    pub(super) fn new(is_there: bool) -> Table {
        Table { is_there, ..Table::default() }
    }

    /// Whether the node has a table.
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }

    /// Sets who is told of entries, and tells all that have come already.
    pub(super) fn set_owner(&self, owner: Owner) {
        let mut told = lock(&self.told);
        std::mem::take(&mut told.early).into_iter().for_each(&owner);
        told.owner = Some(owner);
    }

    /// When all entries that there were had been told, in milliseconds of the node's clock; `None`
    /// if that never was.
    pub(super) fn as_of_ms(&self) -> Option<u64> {
        let as_of_ms = self.as_of_ms.load(Ordering::Acquire);
        (as_of_ms > 0).then_some(as_of_ms)
    }

    /// Keeps the ticket of a change until [`Table::changed`].
    pub(super) fn begin(&self, token: u64, done: Ticket<Changed>) {
        lock(&self.changes).insert(token, done);
    }

    /// Answers a change.
    pub(super) fn changed(&self, token: u64, outcome: Changed) {
        let done = lock(&self.changes).remove(&token);
        if let Some(done) = done {
            done.answer(outcome);
        }
    }

    /// Keeps a ticket until all that there is at this time has been told. Returns whether there is
    /// room for it.
    pub(super) fn wait(&self, now_ms: u64, done: Ticket<()>) -> bool {
        let mut waiting = lock(&self.waiting);
        let has_room = waiting.len() < WAITING_MAX;
        if has_room {
            waiting.push((now_ms, done));
        }
        has_room
    }

    /// All that there was at this time has been told.
    pub(super) fn is_current(&self, as_of_ms: u64) {
        self.as_of_ms.store(as_of_ms, Ordering::Release);
        self.tell(TableNews::Current);
        let mut waiting = lock(&self.waiting);
        let told: Vec<_> = waiting.extract_if(.., |(at_ms, _)| *at_ms <= as_of_ms).collect();
        drop(waiting);
        told.into_iter().for_each(|(_, done)| done.answer(()));
    }

    /// The servers cannot be reached: who waits gets no answer.
    pub(super) fn is_away(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        drop(waiting);
    }

    /// Tells the owner, or keeps it for the owner.
    pub(super) fn tell(&self, news: TableNews) {
        // Under the lock, so that the order stays.
        let mut told = lock(&self.told);
        match &told.owner {
            Some(owner) => owner(news),
            None => told.early.push(news),
        }
    }
}
