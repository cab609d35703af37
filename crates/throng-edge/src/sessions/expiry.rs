//! Closes connections when what they are allowed to do has ended, and tells clients of `throng.v1`
//! before.
//!
//! The end of a token is in its session, which the timer scan looks at. The end of what the access
//! policy allowed is in the side table.

use throng_core::ScanClose;
use throng_dialect::Saying;
use throng_wire::{ErrorCode, ErrorResponse};

use super::Sessions;
use super::error_response::Reader;
use crate::close_reason::CloseReason;
use crate::connection::{Connection, ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::net::Net;

impl<N: Net> Sessions<N> {
    /// Acts on a streaming connection whose session needs attention: the client is told that it
    /// ends, or it has ended.
    pub(crate) fn attend_session(&mut self, id: ConnectionId) {
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
        self.say(id, &Saying::Expiring(left_s));
    }

    /// Closes a subscriber with what its dialect says for `reason`, and a long-poll with the error
    /// that `error` makes.
    pub(crate) fn close_subscriber(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        message: &str,
        error: impl FnOnce() -> ErrorResponse,
    ) {
        let connection = &self[id];
        if connection.state() == State::LongPolling {
            // No byte of a response is written yet, so that there can still be a status.
            let long_poll = connection.io.as_ref().and_then(|io| io.long_poll.as_deref());
            let reader = long_poll.map(Reader::of_poll).unwrap_or_default();
            return self.refuse_for(id, &error(), &reader, reason);
        }
        self.close_with(id, reason, message);
    }

    /// Ends the subscriptions of a connection whose own time is over, and tells its client.
    fn end_expired_subscriptions(&mut self, id: ConnectionId) {
        let error = ErrorResponse::new(ErrorCode::Forbidden, "the subscription has expired");
        for subscription in self.take_expired(id) {
            if !self[id].is_parked() {
                return;
            }
            self.end_denied(id, subscription, &error);
        }
    }

    /// True if the client is to be told that its session ends, or it has ended.
    pub(crate) fn is_session_due(&self, connection: &Connection<N::Socket>, now_s: u64) -> bool {
        let session = self.connections().session_of(connection);
        session.is_some_and(|session| u64::from(session.next_s()) <= now_s)
    }

    /// Acts on a connection whose deadline is over.
    pub(crate) fn due(&mut self, id: ConnectionId) {
        if self.makes_progress(id) {
            return;
        }
        let connection = &self[id];
        match connection.state() {
            State::Streaming if self.connections().has_deadlines(connection) => self.due_beside(id),
            State::Streaming => self.heartbeat(id),
            State::Waiting => self.time_out_waiting(id),
            State::LongPolling => self.answer_long_poll_empty(id, None),
            State::Closing | State::Condemned => self.condemn(id, CloseReason::Complete),
            State::Head => {
                if connection.has(Flags::AWAITS_CONTROL) {
                    return self.refuse_busy(id);
                }
                if connection.has(Flags::AWAITS_PROXY_HEADER) {
                    return self.condemn(id, CloseReason::ProxyHeader);
                }
                if connection.has(Flags::READ_DEFERRED) && !connection.has(Flags::BLOCKED) {
                    // Its input waits for its turn, and may be a whole request. If it is not, a
                    // later scan finds it.
                    return;
                }
                let has_begun = connection.io.as_ref().is_some_and(|io| !io.inbound.is_empty());
                if has_begun && !connection.has(Flags::BLOCKED) {
                    self.count(Counter::RefusedTooSlow);
                    self.refuse(id, &ErrorResponse::slow_head(), &Reader::default());
                } else {
                    self.condemn(id, CloseReason::Idle);
                }
            }
        }
    }

    /// Acts on a streaming connection that is due, and has more deadlines than its
    /// heartbeat.
    pub(crate) fn due_beside(&mut self, id: ConnectionId) {
        let tick = self.clock().tick();
        if self.connections().is_wait_over(id, tick) {
            self.time_out_waiting(id);
        }
        if self.connections().is_expired(id, tick) {
            self.close_for(id, CloseReason::Expired);
        }
        if self.connections().has_expired_subscription(id, tick) {
            self.end_expired_subscriptions(id);
        }
        let is_parked = self[id].state() == State::Streaming;
        if is_parked && self.connections().own_due(id) <= tick {
            self.heartbeat(id);
        }
    }

    /// Closes a connection whose token is revoked.
    pub(crate) fn close_revoked(&mut self, id: ConnectionId) {
        let error = ErrorResponse::from(ErrorCode::TokenRevoked);
        self.close_subscriber(id, CloseReason::Revoked, &error.message, || error.clone());
    }

    /// Closes a connection for the application.
    pub(crate) fn close_for_application(&mut self, id: ConnectionId, close: &ScanClose) {
        let ScanClose { code, reason, may_return } = close;
        if self[id].state() == State::LongPolling && *may_return {
            return self.answer_long_poll_empty(id, None);
        }
        let message = reason.to_string();
        self.close_subscriber(id, CloseReason::Disconnected(*code), reason, || {
            ErrorResponse::new(ErrorCode::Forbidden, message)
        });
    }
}
