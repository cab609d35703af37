//! Notifies the application of connections that begin and end.

use throng_access::Credentials;
use throng_core::events::Event;
use throng_wire::subscribe::{Request, Transport};

use super::Worker;
use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, State};
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// A connection begins to stream. A viewer of the status page is the operator.
    pub(super) fn notify_connected(
        &self,
        id: ConnectionId,
        request: &Request,
        credentials: Credentials<'_>,
    ) {
        let Some(events) = &self.events else { return };
        let transport = match request.transport {
            _ if request.is_status() => return,
            Transport::WebSocket { .. } => "websocket",
            Transport::Sse => "sse",
            Transport::Stream => "stream",
            Transport::LongPoll { .. } => return,
        };
        let connection = self.connections().name(id);
        let is_claimed = matches!(credentials, Credentials::Claimed { .. });
        let event =
            Event::Connected { connection, user: credentials.user(), is_claimed, transport };
        events.notify(self.clock().unix_ms(), event);
    }

    /// A connection ends or begins to close. Nothing happens unless it streamed.
    pub(super) fn notify_disconnected(&self, id: ConnectionId, reason: CloseReason) {
        let Some(events) = &self.events else { return };
        let connection = &self[id];
        if connection.state != State::Streaming || connection.has(Flags::VIEWER) {
            return;
        }
        let connection = self.connections().name_of(id, connection);
        let event = Event::Disconnected { connection, reason: reason.label() };
        events.notify(self.clock().unix_ms(), event);
    }
}
