//! The tables that every node has whole: who is told of their entries, and changes under way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::Ticket;

use crate::api::table::StoredEntry;
use crate::journal::{Changed, TableId};

/// Tickets that wait for a comparison, at most.
const WAITING_MAX: usize = 4_096;

/// News for the owner of the table's contents.
#[derive(Debug)]
pub enum TableNews {
    /// These entries were written, in this order.
    Entries(Vec<StoredEntry>),
    /// All entries that there were a moment ago have been told.
    Current,
    /// The table has lost entries. Those that are there are told again.
    Lost,
}

type HoldOwner = Box<dyn Fn(TableNews) + Send + Sync>;

/// The news that nobody has been told yet, and who is told.
#[derive(Default)]
struct Told {
    owner: Option<HoldOwner>,
    early: Vec<TableNews>,
}

#[derive(Default)]
struct JournalTable {
    told: Mutex<Told>,
    /// When it was current last; 0 for never.
    as_of_ms: AtomicU64,
    /// Parties that wait until the table is current as of a time.
    waiting: Mutex<Vec<(u64, Ticket<()>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
pub(super) struct SharedTables {
    all: Vec<JournalTable>,
    changes: Mutex<HashMap<u64, Ticket<Changed>>>,
    looks: Mutex<HashMap<u64, Ticket<Option<StoredEntry>>>>,
    matches: Mutex<HashMap<u64, Ticket<Option<u64>>>>,
}

impl SharedTables {
    /// As many as the journal has.
    pub(super) fn new(count: usize) -> SharedTables {
        SharedTables {
            all: (0..count).map(|_| JournalTable::default()).collect(),
            ..SharedTables::default()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Sets who is told of entries, and tells all that have come already.
    pub(super) fn set_owner(&self, table: TableId, owner: HoldOwner) {
        let Some(table) = self.all.get(table.0) else { return };
        let mut told = lock(&table.told);
        std::mem::take(&mut told.early).into_iter().for_each(&owner);
        told.owner = Some(owner);
    }

    /// When all entries that there were had been told, in milliseconds of the node's clock; `None`
    /// if that never was.
    pub(super) fn as_of_ms(&self, table: TableId) -> Option<u64> {
        let as_of_ms = self.all.get(table.0)?.as_of_ms.load(Ordering::Acquire);
        (as_of_ms > 0).then_some(as_of_ms)
    }

    /// Keeps the ticket of a change until [`SharedTables::changed`].
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

    /// Keeps the ticket of who reads an entry until [`SharedTables::looked`].
    pub(super) fn look(&self, token: u64, done: Ticket<Option<StoredEntry>>) {
        lock(&self.looks).insert(token, done);
    }

    /// Answers who reads an entry.
    pub(super) fn looked(&self, token: u64, found: Option<Option<StoredEntry>>) {
        let done = lock(&self.looks).remove(&token);
        // Dropped, it says that it cannot be read.
        if let (Some(done), Some(found)) = (done, found) {
            done.answer(found);
        }
    }

    /// Keeps the ticket of who counts or removes entries until [`SharedTables::matched`].
    pub(super) fn match_keys(&self, token: u64, done: Ticket<Option<u64>>) {
        lock(&self.matches).insert(token, done);
    }

    /// Answers who counts or removes entries.
    pub(super) fn matched(&self, token: u64, count: Option<u64>) {
        let done = lock(&self.matches).remove(&token);
        if let Some(done) = done {
            done.answer(count);
        }
    }

    /// Keeps a ticket until all that there is at this time has been told. Returns whether there is
    /// room for it.
    pub(super) fn wait(&self, table: TableId, now_ms: u64, done: Ticket<()>) -> bool {
        let Some(table) = self.all.get(table.0) else { return false };
        let mut waiting = lock(&table.waiting);
        let has_room = waiting.len() < WAITING_MAX;
        if has_room {
            waiting.push((now_ms, done));
        }
        has_room
    }

    /// All that there was at this time has been told.
    pub(super) fn is_current(&self, table: TableId, as_of_ms: u64) {
        self.tell(table, TableNews::Current);
        let Some(table) = self.all.get(table.0) else { return };
        table.as_of_ms.store(as_of_ms, Ordering::Release);
        let mut waiting = lock(&table.waiting);
        let told: Vec<_> = waiting.extract_if(.., |(at_ms, _)| *at_ms <= as_of_ms).collect();
        drop(waiting);
        told.into_iter().for_each(|(_, done)| done.answer(()));
    }

    /// The servers cannot be reached: who waits gets no answer.
    pub(super) fn is_away(&self) {
        for table in &self.all {
            let waiting = std::mem::take(&mut *lock(&table.waiting));
            drop(waiting);
        }
    }

    /// Tells the owner, or keeps it for the owner.
    pub(super) fn tell(&self, table: TableId, news: TableNews) {
        let Some(table) = self.all.get(table.0) else { return };
        // Under the lock, so that the order stays.
        let mut told = lock(&table.told);
        match &told.owner {
            Some(owner) => owner(news),
            None => told.early.push(news),
        }
    }
}
