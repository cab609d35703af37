//! The sessions of one worker's connections, and the grants that they hold.

use std::sync::Arc;

use throng_access::{Clients, Grants, GrantsId, GrantsTable, Session};
use throng_core::slab::Slab;

use super::user_names::{KnownUser, UserNames};

/// SessionTable, and what their tokens grant.
///
/// Invariant: a session holds its grants, and counts as a connection of its user or server key,
/// from [`SessionTable::begin`] until [`SessionTable::end`], whether it is in the slab or with its
/// connection's entry in the side table.
#[derive(Debug)]
pub(super) struct SessionTable {
    clients: Arc<Clients>,
    slab: Slab<Session>,
    grants: GrantsTable,
    names: UserNames,
    /// SessionTable that hold grants.
    holders: usize,
}

// The slab adds nothing: it uses a niche.
const _: () = assert!(Slab::<Session>::ENTRY_BYTES == 16);

impl SessionTable {
    pub(super) fn new(clients: Arc<Clients>) -> SessionTable {
        SessionTable {
            clients,
            slab: Slab::default(),
            grants: GrantsTable::default(),
            names: UserNames::default(),
            holders: 0,
        }
    }

    /// Begins a session, which holds `grants` and is counted already. `user` is its user, if the
    /// names of that are to be kept until [`SessionTable::end`].
    pub(super) fn begin(
        &mut self,
        grants: &Arc<Grants>,
        user: Option<KnownUser<'_>>,
        session: impl FnOnce(GrantsId) -> Session,
    ) -> Session {
        self.holders += 1;
        let session = session(self.grants.hold(grants));
        if let (Some(tag), Some(user)) = (session.user_tag(), user) {
            self.names.hold(tag, user);
        }
        session
    }

    /// The name of a session's user, if it is kept.
    pub(super) fn user_of(&self, session: &Session) -> Option<&str> {
        self.names.get(session.user_tag()?)
    }

    /// The name of a session's user for people, if it is kept.
    pub(super) fn shown_name_of(&self, session: &Session) -> Option<&str> {
        self.names.shown(session.user_tag()?)
    }

    /// What a session's user shows to other members, if it is kept.
    pub(super) fn info_of(&self, session: &Session) -> Option<&str> {
        self.names.info(session.user_tag()?)
    }

    /// Ends a session. `is_named`: the name of its user was kept.
    pub(super) fn end(&mut self, session: Session, is_named: bool) {
        debug_assert!(self.holders > 0);
        self.holders -= 1;
        self.end_count(&session);
        self.grants.release(session.grants());
        if let Some(tag) = session.user_tag().filter(|_| is_named) {
            self.names.release(tag);
        }
    }

    /// Ends what the session counts, with its worker.
    pub(super) fn end_count(&self, session: &Session) {
        let client = self.clients.of_session(session, self.grants_of(session));
        self.clients.limiter.disconnect(client);
    }

    pub(super) fn stored(&self) -> impl Iterator<Item = &Session> {
        self.slab.iter().map(|(_, session)| session)
    }

    /// Stores a session. Returns its index.
    pub(super) fn insert(&mut self, session: Session) -> u32 {
        self.slab.insert(session)
    }

    pub(super) fn get(&self, index: u32) -> Option<&Session> {
        self.slab.get(index)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Session> {
        self.slab.get_mut(index)
    }

    /// Takes a session out, which goes on elsewhere.
    pub(super) fn take(&mut self, index: u32) -> Option<Session> {
        self.slab.remove(index)
    }

    /// The grants of a session's token.
    pub(super) fn grants_of(&self, session: &Session) -> &Arc<Grants> {
        self.grants.get(session.grants())
    }

    /// Panics unless there are `stored` sessions in the slab, and `holders` in all. For tests.
    pub(super) fn check_invariants(&self, stored: usize, holders: usize) {
        assert_eq!(self.slab.len(), stored, "sessions without a connection");
        assert_eq!(self.holders, holders, "sessions that hold grants");
        assert!(self.grants.len() <= holders, "grants that no session holds");
    }
}
