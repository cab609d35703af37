//! Notifies the application of connections that begin and end.

use throng_access::Credentials;
use throng_core::events::Event;
use throng_wire::subscribe::{Request, Transport};

use super::Sessions;
use crate::close_reason::label_of;
use crate::connection::ConnectionId;
use crate::net::Net;

impl<N: Net> Sessions<N> {
    /// A connection begins to stream. A viewer of the status page is the operator.
    pub(crate) fn notify_connected(
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

    /// Streams have ended, or begun to close.
    pub(crate) fn tell_ended(&mut self) {
        while let Some((connection, reason)) = self.next_ended() {
            if let Some(events) = &self.events {
                let event = Event::Disconnected { connection, reason: label_of(reason) };
                events.notify(self.clock().unix_ms(), event);
            }
        }
    }
}
