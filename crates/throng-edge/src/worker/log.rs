//! Requests in the log, at the level `debug`.

use throng_wire::ErrorCode;
use throng_wire::log::request_line;
use throng_wire::subscribe::{Request, Transport};
use tracing::Level;

use super::Worker;
use crate::connection::ConnectionId;
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Logs the request that `bytes` begin with. `outcome` is an error code or the transport. Costs
    /// one comparison unless the level is on.
    fn log_request(&self, id: ConnectionId, bytes: &[u8], status: u16, outcome: &str) {
        if !tracing::enabled!(Level::DEBUG) {
            return;
        }
        // The connection may have gone; the request is logged all the same.
        let connection = self.connections.get(id);
        let peer = connection.and_then(|connection| self.net.peer(&connection.socket));
        let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
        tracing::debug!(%peer, "{} {status} {outcome}", request_line(bytes));
    }

    /// Logs a request that is refused.
    pub(super) fn log_error(&self, id: ConnectionId, bytes: &[u8], code: ErrorCode) {
        self.log_request(id, bytes, code.status(), code.name());
    }

    /// Logs a request that subscribes. A long-poll is logged when it starts, not with its answer.
    pub(super) fn log_subscription(&self, id: ConnectionId, request: &Request, bytes: &[u8]) {
        if self.connections.is_canary(id) {
            return;
        }
        let (status, transport) = match request.transport {
            Transport::WebSocket { .. } => (101, "websocket"),
            Transport::Sse => (200, "sse"),
            Transport::Stream => (200, "stream"),
            Transport::LongPoll { .. } => (200, "poll"),
        };
        self.log_request(id, bytes, status, transport);
    }
}
