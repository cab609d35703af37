//! Closes connections when the time has come until which the access policy allowed what they do.

use throng_wire::chunk;

use super::Worker;
use super::delivery::notice::frame_notice;
use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags};
use crate::net::Net;

/// The notice that ends a stream.
const EXPIRED: &[u8] = br#"{"type":"expired"}"#;

impl<N: Net> Worker<N> {
    /// Closes a streaming connection. Its client is told why, so that it does not come back with
    /// the same permission.
    pub(super) fn close_expired(&mut self, id: ConnectionId) {
        // A command that was refused a moment ago may have found the client gone.
        let Some(connection) = self.connections.get(id) else { return };
        if connection.has(Flags::WEBSOCKET) {
            return self.close_websocket(id, CloseReason::Expired);
        }
        let (encoding, is_chunked) = (connection.encoding(), connection.has(Flags::CHUNKED));
        let mut out = Vec::new();
        frame_notice(&mut out, encoding, is_chunked, "expired", EXPIRED);
        if is_chunked {
            out.extend_from_slice(chunk::LAST);
        }
        self.close_after(id, &out, CloseReason::Expired);
    }
}
