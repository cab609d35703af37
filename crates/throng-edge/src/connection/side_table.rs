//! What only some connections have, beside what each has: a request that waits for answers, and an
//! end of what it may do.
//!
//! A connection keeps an index of four bytes. Most have no entry, so that a parked connection costs
//! nothing here. An entry is freed as soon as nothing is left in it, and with its connection.

use throng_core::slab::Slab;

use super::id::{ConnectionId, SideIndex};
use super::pending::Pending;
use super::state::{Connection, State};

/// A tick that never comes.
const NEVER: u32 = u32::MAX;

/// What one connection has.
#[derive(Debug)]
struct SideEntry {
    /// The connection whose entry it is.
    owner: ConnectionId,
    /// The tick at which the connection would be due without this entry.
    own_due: u32,
    /// What waits, if anything does.
    pending: Option<Box<Pending>>,
    /// The tick until which it may wait.
    deadline: u32,
    /// The tick at which what the connection may do ends.
    expires: u32,
}

impl SideEntry {
    fn new(owner: ConnectionId, own_due: u32) -> SideEntry {
        SideEntry { owner, own_due, pending: None, deadline: NEVER, expires: NEVER }
    }

    /// The tick at which the connection needs attention.
    fn due(&self) -> u32 {
        self.own_due.min(self.deadline).min(self.expires)
    }
}

/// The entries of one worker's connections.
///
/// Invariant: each entry has something in it, and is that of exactly one connection, whose `due` is
/// the earliest of its own, the deadline and the expiry.
#[derive(Debug, Default)]
pub(super) struct SideTable {
    entries: Slab<SideEntry>,
}

impl SideTable {
    fn entry<S>(&self, connection: &Connection<S>) -> Option<&SideEntry> {
        if !connection.side.is_some() {
            return None;
        }
        let entry = self.entries.get(connection.side.index());
        debug_assert!(entry.is_some(), "the index of an entry that is freed");
        entry
    }

    fn entry_mut<S>(&mut self, connection: &Connection<S>) -> Option<&mut SideEntry> {
        if !connection.side.is_some() {
            return None;
        }
        self.entries.get_mut(connection.side.index())
    }

    /// Changes the connection's entry, which is made if there is none, and freed if nothing is left
    /// in it.
    fn change<S, R>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
        change: impl FnOnce(&mut SideEntry) -> R,
    ) -> Option<R> {
        if !connection.side.is_some() {
            let entry = SideEntry::new(id, connection.due);
            connection.side = SideIndex::new(self.entries.insert(entry));
        }
        let entry = self.entries.get_mut(connection.side.index())?;
        debug_assert_eq!(entry.owner, id);
        let result = change(entry);
        connection.due = entry.due();
        if entry.pending.is_none() && entry.expires == NEVER {
            self.entries.remove(connection.side.index());
            connection.side = SideIndex::NONE;
        }
        Some(result)
    }

    /// Frees what the connection has.
    pub(super) fn free<S>(&mut self, connection: &mut Connection<S>) {
        if connection.side.is_some() {
            let removed = self.entries.remove(connection.side.index());
            debug_assert!(removed.is_some(), "the index of an entry that is freed");
            connection.side = SideIndex::NONE;
        }
    }

    /// What the connection waits for.
    pub(super) fn pending<S>(&self, connection: &Connection<S>) -> Option<&Pending> {
        self.entry(connection)?.pending.as_deref()
    }

    /// What the connection waits for.
    pub(super) fn pending_mut<S>(&mut self, connection: &Connection<S>) -> Option<&mut Pending> {
        self.entry_mut(connection)?.pending.as_deref_mut()
    }

    /// The connection waits until the tick `deadline`, at most.
    pub(super) fn begin_wait<S>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
        pending: Pending,
        deadline: u32,
    ) {
        if connection.state == State::Waiting {
            // Nothing but the deadline ends it.
            connection.due = NEVER;
        }
        self.change(id, connection, |entry| {
            debug_assert!(entry.pending.is_none(), "what a connection asks is answered in order");
            (entry.pending, entry.deadline) = (Some(Box::new(pending)), deadline);
        });
    }

    /// The connection waits no longer. Returns what it has waited with.
    pub(super) fn end_wait<S>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
    ) -> Option<Box<Pending>> {
        self.pending(connection)?;
        let taken = self.change(id, connection, |entry| {
            entry.deadline = NEVER;
            entry.pending.take()
        });
        taken.flatten()
    }

    /// Whether the connection waits and its deadline is over.
    pub(super) fn is_wait_over<S>(&self, connection: &Connection<S>, now: u32) -> bool {
        self.entry(connection).is_some_and(|entry| entry.deadline <= now)
    }

    /// What the connection may do ends at the tick `expires`, if not earlier.
    pub(super) fn limit<S>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
        expires: u32,
    ) {
        self.change(id, connection, |entry| entry.expires = entry.expires.min(expires));
    }

    /// The tick at which what the connection may do ends, if it does.
    pub(super) fn expires<S>(&self, connection: &Connection<S>) -> Option<u32> {
        self.entry(connection).map(|entry| entry.expires).filter(|&expires| expires != NEVER)
    }

    /// Whether what the connection may do has ended.
    pub(super) fn is_expired<S>(&self, connection: &Connection<S>, now: u32) -> bool {
        self.entry(connection).is_some_and(|entry| entry.expires <= now)
    }

    /// The tick at which the connection is due, apart from what it waits for.
    pub(super) fn own_due<S>(&self, connection: &Connection<S>) -> u32 {
        self.entry(connection).map_or(connection.due, |entry| entry.own_due)
    }

    /// Sets the tick at which the connection is due, apart from what it waits for.
    pub(super) fn set_own_due<S>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
        due: u32,
    ) {
        if connection.side.is_some() {
            self.change(id, connection, |entry| entry.own_due = due);
        } else {
            connection.due = due;
        }
    }

    /// Panics unless these connections, which are all, and the entries belong together. For tests.
    pub(super) fn check_invariants<'a, S: 'a>(
        &self,
        connections: impl Iterator<Item = (ConnectionId, &'a Connection<S>)>,
    ) {
        let mut entries = 0;
        for (id, connection) in connections {
            let entry = self.entry(connection);
            let waits = entry.is_some_and(|entry| entry.pending.is_some());
            match connection.state {
                State::Waiting => assert!(waits, "{id:?} waits for nothing"),
                State::Streaming => {}
                _ => assert!(entry.is_none(), "{id:?} keeps an entry"),
            }
            let Some(entry) = entry else { continue };
            entries += 1;
            assert_eq!(entry.owner, id, "the entry's connection");
            assert_eq!(entry.due(), connection.due, "the earliest moment of {id:?}");
            assert!(waits || entry.expires != NEVER, "nothing is left in the entry of {id:?}");
            assert_eq!(waits, entry.deadline != NEVER, "the deadline of {id:?}");
        }
        assert_eq!(self.entries.len(), entries, "entries without a connection");
    }
}
