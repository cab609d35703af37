//! Closes connections when what they are allowed to do has ended, and tells clients of `throng.v1`
//! before.
//!
//! The end of a token is in its session, which the timer scan looks at. The end of what the access
//! policy allowed is in the side table.
//!
//! New rules end subscriptions, and revocations and the application end connections.

use throng_access::Action;
use throng_core::{Kind, ScanClose, SubscriptionId};
use throng_dialect::{CloseReason, Saying};
use throng_wire::{ErrorCode, ErrorResponse};

use super::Sessions;
use super::error_response::Reader;
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
            self.charge_departures(id, &[subscription]);
            self.end_denied(id, subscription, &error);
        }
    }

    /// True if the client is to be told that its session ends, or it has ended.
    pub(crate) fn is_session_due(&self, connection: &Connection<N::Socket>, now_s: u64) -> bool {
        let session = self.connections().side().session(connection);
        session.is_some_and(|session| u64::from(session.next_s()) <= now_s)
    }

    /// Acts on a connection whose deadline is over.
    pub(crate) fn due(&mut self, id: ConnectionId) {
        if self.makes_progress(id) {
            return;
        }
        let connection = &self[id];
        match connection.state() {
            State::Streaming if self.connections().side().has_deadlines(connection) => {
                self.due_beside(id)
            }
            State::Streaming => self.heartbeat(id),
            State::Waiting => self.time_out_waiting(id),
            State::LongPolling => self.answer_long_poll(id, true, &[]),
            State::Closing | State::Condemned => self.condemn(id, CloseReason::Complete),
            State::Head => {
                if connection.has(Flags::AWAITS_CONTROL) {
                    // The control plane takes no more for now.
                    self.count(Counter::RefusedBusy);
                    return self.refuse(id, &ErrorCode::Busy.into(), &Reader::default());
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
        if self.connections().side().is_wait_over(&self[id], tick) {
            self.time_out_waiting(id);
        }
        if self.connections().side().is_expired(&self[id], tick) {
            self.close_for(id, CloseReason::Expired);
        }
        if self.is_identity_late(id) && self.connections().pending(id).is_none() {
            self.close_for(id, CloseReason::Unidentified);
        }
        if self.connections().has_expired_subscription(id, tick) {
            self.end_expired_subscriptions(id);
        }
        let is_parked = self[id].state() == State::Streaming;
        if is_parked && self.connections().side().own_due(&self[id]) <= tick {
            self.heartbeat(id);
        }
    }

    /// Closes a connection whose token is revoked.
    pub(crate) fn close_revoked(&mut self, id: ConnectionId) {
        let error = ErrorResponse::from(ErrorCode::TokenRevoked);
        self.close_subscriber(id, CloseReason::Revoked, &error.message, || error.clone());
    }

    /// Closes a connection of a client whose application the settings do not have any more.
    fn close_without_app(&mut self, id: ConnectionId) {
        let message = "this server does not have the application any more";
        let error = || ErrorResponse::new(ErrorCode::TokenRevoked, message);
        self.close_subscriber(id, CloseReason::Revoked, message, error);
    }

    /// Closes a connection for the application.
    pub(crate) fn close_for_application(&mut self, id: ConnectionId, close: &ScanClose) {
        let ScanClose { code, reason, may_return } = close;
        if self[id].state() == State::LongPolling && *may_return {
            return self.answer_long_poll(id, true, &[]);
        }
        let message = reason.to_string();
        self.close_subscriber(id, CloseReason::Disconnected(*code), reason, || {
            ErrorResponse::new(ErrorCode::Forbidden, message)
        });
    }

    /// Asks the access policy again about all that a connection follows. A client with commands is
    /// told which of it ends. Others have asked for all of it in one request: their connections are
    /// closed, and the error is the one that this request would get now. Returns how many
    /// subscriptions were passed.
    pub(crate) fn recheck_access(&mut self, id: ConnectionId) -> usize {
        let count = self.subscriptions(id).count();
        if self.has_lost_app(id) {
            self.close_without_app(id);
            return count;
        }
        for subscription in self.subscriptions_to_grant(id) {
            let connection = &self[id];
            if !connection.is_parked() {
                break;
            }
            let has_commands = connection.has_commands();
            let Some(error) = self.denial_now(id, subscription) else { continue };
            if !has_commands {
                let reason = CloseReason::Refused(error.code);
                self.close_subscriber(id, reason, &error.message, || error.clone());
                break;
            }
            self.end_denied(id, subscription, &error);
        }
        count
    }

    /// Why a connection may not have a subscription any more; `None` if it may.
    fn denial_now(&self, id: ConnectionId, subscription: SubscriptionId) -> Option<ErrorResponse> {
        let (channel, _) = self.cursors().channel(subscription)?;
        let name = self.engine.name(channel)?;
        // The control plane has let those in who see the status.
        if name.kind() == Kind::Internal && !name.is_presence() {
            return None;
        }
        self.denial(&self.client(id, Action::Subscribe(&name)), subscription)
    }
}
