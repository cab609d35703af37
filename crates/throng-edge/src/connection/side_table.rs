//! State of only some connections, beside the state of each: the session of its token, a request
//! that waits for answers, an end of the access policy's permission, a deadline by which the client
//! has to show who it is, and options that it has chosen.
//!
//! A connection keeps an index of four bytes. Most have nothing here, so that a parked connection
//! costs nothing. A session alone costs its 16 bytes. An entry is made for what is rarer, and takes
//! the session in; it is freed as soon as nothing else is left in it.

use std::sync::Arc;

use throng_access::{Clients, Grants, GrantsId, Session};
use throng_core::slab::Slab;
use throng_dialect::Framing;
use throng_wire::subscribe::Options;

use super::id::{ConnectionId, SideIndex, SidePlace};
use super::pending::Pending;
use super::sessions::SessionTable;
use super::state::{Connection, State};
use super::user_names::{KeptNames, KnownUser};

/// A tick that does not come.
pub(crate) const NEVER: u32 = u32::MAX;

#[derive(Debug)]
struct SideEntry {
    /// The connection whose entry it is.
    owner: ConnectionId,
    /// The tick at which the connection would be due without this entry.
    own_due: u32,
    pending: Option<Box<Pending>>,
    /// The tick until which it may wait.
    deadline: u32,
    /// The tick at which what the access policy allowed ends.
    expires: u32,
    /// The tick at which the first of its subscriptions ends by itself.
    subscription_expires: u32,
    /// The tick until which the client has to show who it is.
    identify_by: u32,
    /// What the client has chosen for as long as the connection streams.
    options: Options,
    session: Option<Session>,
}

impl SideEntry {
    fn new(owner: ConnectionId, own_due: u32, session: Option<Session>) -> SideEntry {
        SideEntry {
            owner,
            own_due,
            pending: None,
            deadline: NEVER,
            expires: NEVER,
            subscription_expires: NEVER,
            identify_by: NEVER,
            options: Options::default(),
            session,
        }
    }

    /// The tick at which the connection needs attention, apart from its session: the timer scan
    /// looks at sessions themselves, whose times are not ticks.
    fn due(&self) -> u32 {
        let shared = self.deadline.min(self.expires).min(self.subscription_expires);
        self.own_due.min(shared).min(self.identify_by)
    }

    /// True if there is more than a session in it.
    fn is_needed(&self) -> bool {
        self.has_deadlines() || !self.options.are_none()
    }

    /// True if the connection may be due for another reason than its own.
    fn has_deadlines(&self) -> bool {
        let ends = [self.expires, self.subscription_expires, self.identify_by];
        self.pending.is_some() || ends.into_iter().any(|tick| tick != NEVER)
    }
}

/// The entries and sessions of one worker's connections.
///
/// Invariant: each entry has more in it than a session. Each entry and each session belongs to
/// exactly one connection. The `due` of a connection with an entry is the earliest of its own and
/// those of the entry.
#[derive(Debug)]
pub(crate) struct SideTable {
    entries: Slab<SideEntry>,
    sessions: SessionTable,
    /// Connections with options.
    choosers: usize,
    /// The sessions whose users' names are kept.
    kept_names: KeptNames,
}

impl SideTable {
    pub(super) fn new(clients: Arc<Clients>) -> SideTable {
        let sessions = SessionTable::new(clients);
        let kept_names = KeptNames::Commands;
        SideTable { entries: Slab::default(), sessions, choosers: 0, kept_names }
    }

    /// Keeps the names of the users of these sessions, of which there are none yet.
    pub(super) fn keep_names(&mut self, kept: KeptNames) {
        self.kept_names = kept;
    }

    fn entry<S>(&self, connection: &Connection<S>) -> Option<&SideEntry> {
        let SidePlace::Entry(index) = connection.side.place() else { return None };
        let entry = self.entries.get(index);
        debug_assert!(entry.is_some(), "the index of an entry that is freed");
        entry
    }

    fn entry_mut<S>(&mut self, connection: &Connection<S>) -> Option<&mut SideEntry> {
        let SidePlace::Entry(index) = connection.side.place() else { return None };
        self.entries.get_mut(index)
    }

    /// True if the connection has an entry, beside a session.
    #[cfg(test)]
    pub(crate) fn has_entry<S>(&self, connection: &Connection<S>) -> bool {
        self.entry(connection).is_some()
    }

    /// True if the connection has deadlines here.
    pub(crate) fn has_deadlines<S>(&self, connection: &Connection<S>) -> bool {
        self.entry(connection).is_some_and(SideEntry::has_deadlines)
    }

    /// Changes the connection's entry, which is made if there is none, and freed if nothing but a
    /// session is left in it.
    fn change<S, R>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
        change: impl FnOnce(&mut SideEntry) -> R,
    ) -> Option<R> {
        let index = match connection.side.place() {
            SidePlace::Entry(index) => index,
            place => {
                // A connection has one index only, so that its entry takes the session over.
                let session = match place {
                    SidePlace::Session(index) => self.sessions.take(index),
                    _ => None,
                };
                self.entries.insert(SideEntry::new(id, connection.due, session))
            }
        };
        connection.side = SideIndex::new(SidePlace::Entry(index));
        let entry = self.entries.get_mut(index)?;
        debug_assert_eq!(entry.owner, id);
        let result = change(entry);
        // The tick looks at the connection alone, so this has to be the earliest deadline of the
        // entry.
        connection.due = entry.due();
        if !entry.is_needed() {
            let session = entry.session;
            self.entries.remove(index);
            let place = session.map(|session| SidePlace::Session(self.sessions.insert(session)));
            connection.side = SideIndex::new(place.unwrap_or(SidePlace::Nowhere));
        }
        Some(result)
    }

    pub(super) fn free<S>(&mut self, connection: &mut Connection<S>) {
        let session = match connection.side.place() {
            SidePlace::Nowhere => return,
            SidePlace::Session(index) => self.sessions.take(index),
            SidePlace::Entry(index) => {
                let removed = self.entries.remove(index);
                debug_assert!(removed.is_some(), "the index of an entry that is freed");
                let chose = removed.as_ref().is_some_and(|entry| !entry.options.are_none());
                self.choosers -= usize::from(chose);
                removed.and_then(|entry| entry.session)
            }
        };
        connection.side = SideIndex::NONE;
        if let Some(session) = session {
            self.sessions.end(session, self.keeps_name(connection));
        }
    }

    /// The session of the connection's token.
    pub(crate) fn session<S>(&self, connection: &Connection<S>) -> Option<&Session> {
        match connection.side.place() {
            SidePlace::Nowhere => None,
            SidePlace::Session(index) => self.sessions.get(index),
            SidePlace::Entry(_) => self.entry(connection)?.session.as_ref(),
        }
    }

    /// The name of a session's user, if it is kept.
    pub(crate) fn user_of(&self, session: &Session) -> Option<&str> {
        self.sessions.user_of(session)
    }

    /// The name of a session's user for people, if it is kept.
    pub(crate) fn shown_name_of(&self, session: &Session) -> Option<&str> {
        self.sessions.shown_name_of(session)
    }

    /// What a session's user shows to other members, if it is kept.
    pub(crate) fn info_of(&self, session: &Session) -> Option<&str> {
        self.sessions.info_of(session)
    }

    /// The grants of a session's token.
    pub(crate) fn grants_of(&self, session: &Session) -> &Arc<Grants> {
        self.sessions.grants_of(session)
    }

    /// Begins a session, instead of the one that the connection has. `session` makes it, with the
    /// place of `grants`. It counts already for its user or server key. `user` is its user.
    pub(super) fn begin_session<S>(
        &mut self,
        connection: &mut Connection<S>,
        grants: &Arc<Grants>,
        user: Option<KnownUser<'_>>,
        session: impl FnOnce(GrantsId) -> Session,
    ) {
        let is_named = self.keeps_name(connection);
        let begun = self.sessions.begin(grants, user.filter(|_| is_named), session);
        let before = self.put_session(connection, Some(begun));
        if let Some(before) = before {
            self.sessions.end(before, is_named);
        }
    }

    /// True if the names of the connection's user are kept.
    fn keeps_name<S>(&self, connection: &Connection<S>) -> bool {
        match self.kept_names {
            KeptNames::Commands => connection.has_commands(),
            KeptNames::Publishers => connection.encoding().framing() == Framing::WebSocket,
            KeptNames::All => true,
        }
    }

    /// Ends the session, if the connection has one.
    pub(super) fn end_session<S>(&mut self, connection: &mut Connection<S>) {
        if let Some(before) = self.put_session(connection, None) {
            self.sessions.end(before, self.keeps_name(connection));
        }
    }

    /// The client was told that its session ends.
    pub(super) fn note_told<S>(&mut self, connection: &Connection<S>) {
        let session = match connection.side.place() {
            SidePlace::Nowhere => None,
            SidePlace::Session(index) => self.sessions.get_mut(index),
            SidePlace::Entry(_) => {
                self.entry_mut(connection).and_then(|entry| entry.session.as_mut())
            }
        };
        if let Some(session) = session {
            *session = session.told();
        }
    }

    /// Replaces the session. Returns the one before, which still holds its grants.
    fn put_session<S>(
        &mut self,
        connection: &mut Connection<S>,
        session: Option<Session>,
    ) -> Option<Session> {
        if let Some(entry) = self.entry_mut(connection) {
            return std::mem::replace(&mut entry.session, session);
        }
        let before = match connection.side.place() {
            SidePlace::Session(index) => self.sessions.take(index),
            _ => None,
        };
        let place = session.map(|session| SidePlace::Session(self.sessions.insert(session)));
        connection.side = SideIndex::new(place.unwrap_or(SidePlace::Nowhere));
        before
    }

    pub(super) fn pending<S>(&self, connection: &Connection<S>) -> Option<&Pending> {
        self.entry(connection)?.pending.as_deref()
    }

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
        if connection.state() == State::Waiting {
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

    /// True if the connection waits and its deadline is over.
    pub(crate) fn is_wait_over<S>(&self, connection: &Connection<S>, now: u32) -> bool {
        self.entry(connection).is_some_and(|entry| entry.deadline <= now)
    }

    /// Ends the connection's permission at the tick `expires`, if not earlier.
    pub(super) fn limit<S>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
        expires: u32,
    ) {
        self.change(id, connection, |entry| entry.expires = entry.expires.min(expires));
    }

    /// One of the connection's subscriptions ends at the tick `expires`.
    pub(super) fn limit_subscription<S>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
        expires: u32,
    ) {
        self.change(id, connection, |entry| {
            entry.subscription_expires = entry.subscription_expires.min(expires);
        });
    }

    /// Sets the tick at which the next of the connection's subscriptions ends, if one does.
    pub(super) fn set_subscription_limit<S>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
        expires: Option<u32>,
    ) {
        let expires = expires.unwrap_or(NEVER);
        if let SidePlace::Entry(_) = connection.side.place() {
            self.change(id, connection, |entry| entry.subscription_expires = expires);
        }
    }

    /// True if the time of one of the connection's subscriptions is over.
    pub(super) fn has_expired_subscription<S>(&self, connection: &Connection<S>, now: u32) -> bool {
        self.entry(connection).is_some_and(|entry| entry.subscription_expires <= now)
    }

    /// The tick at which what the connection may do ends, if it does.
    pub(crate) fn expires<S>(&self, connection: &Connection<S>) -> Option<u32> {
        self.entry(connection).map(|entry| entry.expires).filter(|&expires| expires != NEVER)
    }

    /// True if what the connection may do has ended.
    pub(crate) fn is_expired<S>(&self, connection: &Connection<S>, now: u32) -> bool {
        self.entry(connection).is_some_and(|entry| entry.expires <= now)
    }

    /// The client has to show who it is until the tick `until`; `None` once it has.
    pub(super) fn await_identity<S>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
        until: Option<u32>,
    ) {
        if until.is_some() || self.identify_by(connection).is_some() {
            let until = until.unwrap_or(NEVER);
            self.change(id, connection, |entry| entry.identify_by = until);
        }
    }

    /// The tick until which the client has to show who it is, if it has not.
    pub(super) fn identify_by<S>(&self, connection: &Connection<S>) -> Option<u32> {
        self.entry(connection).map(|entry| entry.identify_by).filter(|&until| until != NEVER)
    }

    /// Keeps what the client has chosen, once for a connection.
    pub(super) fn set_options<S>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
        options: Options,
    ) {
        debug_assert!(self.options(connection).are_none(), "{id:?} has options");
        if !options.are_none() {
            self.choosers += 1;
            self.change(id, connection, |entry| entry.options = options);
        }
    }

    /// What the client has chosen for as long as the connection streams.
    pub(super) fn options<S>(&self, connection: &Connection<S>) -> Options {
        self.entry(connection).map_or_else(Options::default, |entry| entry.options)
    }

    /// Connections whose clients have chosen something.
    pub(super) fn choosers(&self) -> usize {
        self.choosers
    }

    /// The tick at which the connection is due, apart from what it waits for.
    pub(crate) fn own_due<S>(&self, connection: &Connection<S>) -> u32 {
        self.entry(connection).map_or(connection.due, |entry| entry.own_due)
    }

    /// Sets the tick at which the connection is due, apart from what it waits for.
    pub(super) fn set_own_due<S>(
        &mut self,
        id: ConnectionId,
        connection: &mut Connection<S>,
        due: u32,
    ) {
        if let SidePlace::Entry(_) = connection.side.place() {
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
        let (mut entries, mut stored, mut holders, mut choosers) = (0, 0, 0, 0);
        for (id, connection) in connections {
            let entry = self.entry(connection);
            let waits = entry.is_some_and(|entry| entry.pending.is_some());
            let session = self.session(connection);
            holders += usize::from(session.is_some());
            match connection.state() {
                State::Waiting => assert!(waits && session.is_none(), "{id:?} waits for nothing"),
                State::Streaming => {}
                State::LongPolling => assert!(entry.is_none(), "{id:?} keeps an entry"),
                State::Head | State::Closing | State::Condemned => {
                    assert!(!connection.side.is_some(), "{id:?} keeps something");
                }
            }
            let Some(entry) = entry else {
                stored += usize::from(session.is_some());
                continue;
            };
            entries += 1;
            choosers += usize::from(!entry.options.are_none());
            assert_eq!(entry.owner, id, "the entry's connection");
            assert_eq!(entry.due(), connection.due, "the earliest moment of {id:?}");
            assert!(entry.is_needed(), "nothing is left in the entry of {id:?}");
            assert_eq!(waits, entry.deadline != NEVER, "the deadline of {id:?}");
            let is_stranger = entry.identify_by != NEVER;
            assert!(!is_stranger || entry.session.is_none(), "{id:?} has shown who it is");
        }
        assert_eq!(self.entries.len(), entries, "entries without a connection");
        assert_eq!(self.choosers, choosers, "connections with options");
        self.sessions.check_invariants(stored, holders);
    }
}

/// When a worker ends, its connections end with it.
impl Drop for SideTable {
    fn drop(&mut self) {
        let beside = self.entries.iter().filter_map(|(_, entry)| entry.session.as_ref());
        self.sessions.stored().chain(beside).for_each(|session| self.sessions.end_count(session));
    }
}
