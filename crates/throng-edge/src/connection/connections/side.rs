//! State of only some connections: a waiting request, a session, an end of their permission.
//!
//! The side table keeps the earliest of a connection's deadlines in its `due`. So whatever changes
//! one of them goes through here.

use std::sync::Arc;

use throng_access::limit::ClientKeys;
use throng_access::{Grants, GrantsId, Session};
use throng_wire::subscribe::Options;

use super::Connections;
use crate::connection::id::ConnectionId;
use crate::connection::many::Many;
use crate::connection::pending::{Asked, Pending};
use crate::connection::side_table::SideTable;
use crate::connection::state::{Connection, State};
use crate::connection::user_names::{KeptNames, KnownUser};

impl<S> Connections<S> {
    /// State that only some connections have.
    pub(crate) fn side(&self) -> &SideTable {
        &self.side
    }

    /// The connection's request waits for answers, at most until the tick `deadline`. One that is
    /// not parked yet is [`State::Waiting`] from now on.
    pub(crate) fn begin_wait(&mut self, id: ConnectionId, pending: Pending, deadline: u32) {
        let connection = &mut self.table[id.index()];
        if connection.state() == State::Head {
            connection.set_state(State::Waiting);
        }
        debug_assert!(matches!(connection.state(), State::Waiting | State::Streaming));
        self.side.begin_wait(id, connection, pending, deadline);
        // What waits is counted there.
        connection.io_mut();
        self.update_buffered(id);
    }

    /// The connection waits no longer. Returns what it has waited with, if it has.
    pub(crate) fn end_wait(&mut self, id: ConnectionId) -> Option<Box<Pending>> {
        let connection = &mut self.table[id.index()];
        let pending = self.side.end_wait(id, connection)?;
        if connection.state() == State::Waiting {
            connection.set_state(State::Head);
        }
        self.update_buffered(id);
        Some(pending)
    }

    /// The answers that the connection waits for; `None` if it does not wait.
    pub(crate) fn pending(&self, id: ConnectionId) -> Option<&Pending> {
        self.side.pending(&self[id])
    }

    /// The answers that the connection waits for; `None` if it does not wait.
    pub(crate) fn pending_mut(&mut self, id: ConnectionId) -> Option<&mut Pending> {
        self.side.pending_mut(&self.table[id.index()])
    }

    /// True if the connection gets no messages before its command is answered.
    pub(crate) fn holds_messages(&self, id: ConnectionId) -> bool {
        let many = |pending: &Pending| match &pending.asked {
            Asked::Many(many) => many.holds_messages(),
            _ => false,
        };
        self.pending(id).is_some_and(many)
    }

    /// The command for which the connection's messages are held, if it has one.
    pub(crate) fn holder_mut(&mut self, id: ConnectionId) -> Option<&mut Many> {
        match &mut self.pending_mut(id)?.asked {
            Asked::Many(many) if many.holds_messages() => Some(many),
            _ => None,
        }
    }

    /// Keeps what the client of a streaming connection has chosen, once for a connection.
    pub(crate) fn set_options(&mut self, id: ConnectionId, options: Options) {
        let connection = &mut self.table[id.index()];
        debug_assert!(options.are_none() || connection.state() == State::Streaming);
        self.side.set_options(id, connection, options);
    }

    /// What the client has chosen for as long as the connection streams.
    pub(crate) fn options(&self, id: ConnectionId) -> Options {
        self.side.options(&self[id])
    }

    /// Connections whose clients have chosen something.
    pub(crate) fn choosers(&self) -> usize {
        self.side.choosers()
    }

    /// The session of the connection's token; `None` without a token.
    pub(crate) fn session(&self, id: ConnectionId) -> Option<&Session> {
        self.side.session(&self[id])
    }

    /// The name of the connection's user, if it is kept.
    pub(crate) fn user_name(&self, connection: &Connection<S>) -> Option<&str> {
        self.side.user_of(self.side.session(connection)?)
    }

    /// The clients whose limits the connection counts against: its address, and the user or server
    /// key of its session.
    pub(crate) fn limited_client(&self, id: ConnectionId) -> ClientKeys {
        let clients = self.clients();
        let address = clients.limiter.address(self.address(id));
        let Some(session) = self.session(id) else { return address };
        address.and(clients.of_session(session, self.side.grants_of(session)))
    }

    /// So many subscriptions of the connection count for its client no longer.
    pub(crate) fn end_subscriptions(&self, id: ConnectionId, count: u32) {
        self.clients().limiter.unsubscribe(self.limited_client(id), count);
    }

    /// Keeps the names of the users of these sessions, of which there are none yet.
    pub(crate) fn keep_names(&mut self, kept: KeptNames) {
        self.side.keep_names(kept);
    }

    /// Begins a session of a parked connection, instead of the one that it has. `session` makes it,
    /// with the place of `grants`. `user` is its user, if that is known.
    pub(crate) fn begin_session(
        &mut self,
        id: ConnectionId,
        grants: &Arc<Grants>,
        user: Option<KnownUser<'_>>,
        session: impl FnOnce(GrantsId) -> Session,
    ) {
        let connection = &mut self.table[id.index()];
        debug_assert!(matches!(connection.state(), State::Streaming | State::LongPolling));
        self.side.begin_session(connection, grants, user, session);
    }

    /// The client was told that its session ends.
    pub(crate) fn note_told(&mut self, id: ConnectionId) {
        self.side.note_told(&self.table[id.index()]);
    }

    /// Ends the permission of a streaming connection at the tick `expires`, if not earlier.
    pub(crate) fn limit(&mut self, id: ConnectionId, expires: u32) {
        let connection = &mut self.table[id.index()];
        debug_assert!(connection.state() == State::Streaming);
        self.side.limit(id, connection, expires);
    }

    /// One of the subscriptions of a streaming connection ends at the tick `expires`.
    pub(crate) fn limit_subscription(&mut self, id: ConnectionId, expires: u32) {
        let connection = &mut self.table[id.index()];
        debug_assert!(connection.state() == State::Streaming);
        self.side.limit_subscription(id, connection, expires);
    }

    /// Sets the tick at which the next of its subscriptions ends, if one does.
    pub(crate) fn set_subscription_limit(&mut self, id: ConnectionId, expires: Option<u32>) {
        self.side.set_subscription_limit(id, &mut self.table[id.index()], expires);
    }

    /// True if the time of one of its subscriptions is over.
    pub(crate) fn has_expired_subscription(&self, id: ConnectionId, now: u32) -> bool {
        self.side.has_expired_subscription(&self[id], now)
    }

    /// The client of a streaming connection has to show who it is until the tick `until`; `None`
    /// once it has.
    pub(crate) fn await_identity(&mut self, id: ConnectionId, until: Option<u32>) {
        let connection = &mut self.table[id.index()];
        debug_assert!(connection.state() == State::Streaming);
        self.side.await_identity(id, connection, until);
    }

    /// The tick until which the client has to show who it is; `None` if it has, or is nobody.
    pub(crate) fn identify_by(&self, id: ConnectionId) -> Option<u32> {
        self.side.identify_by(&self[id])
    }

    /// Sets the tick at which the connection is due, apart from what it waits for.
    pub(crate) fn set_own_due(&mut self, id: ConnectionId, due: u32) {
        self.side.set_own_due(id, &mut self.table[id.index()], due);
    }
}
