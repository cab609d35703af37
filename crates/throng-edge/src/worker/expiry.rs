//! Closes connections when what they are allowed to do has ended, and tells clients of `throng.v1`
//! before.
//!
//! The end of a token is in its session, which the timer scan looks at. The end of what the access
//! policy allowed is in the side table.

use throng_wire::{ErrorCode, ErrorResponse, v1};

use super::Worker;
use super::error_response::Reader;
use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, State};
use crate::net::Net;

/// The notice that ends a stream.
const EXPIRED: &[u8] = br#"{"type":"expired"}"#;

impl<N: Net> Worker<N> {
    /// Closes a streaming connection, as the access policy has decided. Its client is told why, so
    /// that it does not come back with the same permission.
    pub(super) fn close_expired(&mut self, id: ConnectionId) {
        if self[id].has(Flags::WEBSOCKET) {
            return self.close_websocket(id, CloseReason::Expired);
        }
        self.end_stream(id, CloseReason::Expired, "expired", EXPIRED);
    }

    /// Acts on a streaming connection whose session needs attention: the client is told that it
    /// ends, or it has ended.
    pub(super) fn attend_session(&mut self, id: ConnectionId) {
        let now_s = self.clock().wall_s();
        // `tick` has just seen that it is due; a connection without a session never is.
        let Some(session) = self.connections().session(id) else { return };
        let left_s = session.remaining_s(now_s);
        if left_s == 0 {
            let error = ErrorResponse::from(ErrorCode::TokenExpired);
            return self
                .close_subscriber(id, CloseReason::TokenExpired, &error.message, || error.clone());
        }
        self.connections_mut().note_told(id);
        self.notify(id, "expiring", |json| v1::expiring(json, left_s));
    }

    /// Closes a subscriber. A WebSocket gets the close code of `reason`, a stream a last event with
    /// the same, and a long-poll the error that `error` makes.
    pub(super) fn close_subscriber(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        message: &str,
        error: impl FnOnce() -> ErrorResponse,
    ) {
        let connection = &self[id];
        if connection.has(Flags::WEBSOCKET) {
            return self.close_websocket_with(id, reason, message);
        }
        if connection.state == State::LongPolling {
            // No byte of a response is written yet, so that there can still be a status.
            let long_poll = connection.io.as_ref().and_then(|io| io.long_poll.as_deref());
            let reader = long_poll.map(Reader::of_poll).unwrap_or_default();
            return self.refuse_for(id, &error(), &reader, reason);
        }
        let (word, code) = (reason.word(), reason.close_frame().map_or(0, |(code, _)| code));
        let mut json = Vec::new();
        v1::closed(&mut json, word, code, message);
        self.end_stream(id, reason, "closed", &json);
    }
}
