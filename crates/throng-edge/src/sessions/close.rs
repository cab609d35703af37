//! Closes connections: final responses and close frames.

use throng_dialect::CloseReason;
use throng_dialect::dialect::End;
use throng_wire::subscribe::Request;
use throng_wire::{ErrorCode, ErrorResponse};

use super::Sessions;
use super::error_response::Reader;
use crate::connection::{ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::net::Net;

impl<N: Net> Sessions<N> {
    /// Refuses a request with an error response for `reader`, and closes.
    pub(crate) fn refuse(&mut self, id: ConnectionId, error: &ErrorResponse, reader: &Reader) {
        self.refuse_for(id, error, reader, CloseReason::Complete);
    }

    /// Answers a request with an error response for `reader`, and closes for `reason`.
    pub(crate) fn refuse_for(
        &mut self,
        id: ConnectionId,
        error: &ErrorResponse,
        reader: &Reader,
        reason: CloseReason,
    ) {
        let mut options = self.response_options(error.code, reader.origin.as_deref());
        options.request_id = reader.request_id.as_deref();
        options.is_head = reader.is_head;
        let mut out = self.buffers().take_output();
        match reader.dialect {
            Some(dialect) => dialect.refuse(error, None, &options, &mut out),
            None => error.write_response(&mut out, &options),
        }
        self.close_after(id, &out, reason);
        self.buffers().return_output(out);
    }

    /// Refuses a subscription; if its client may try again, in the form that it understands.
    pub(crate) fn refuse_subscription(
        &mut self,
        id: ConnectionId,
        request: &Request,
        error: &ErrorResponse,
    ) {
        self.count(refused_counter(error.code));
        // Pages of a refused origin may read that they are refused, so that their makers see why.
        // The sentence is about the origin itself, and is readable for any program as it is; and
        // without credentials, because the origin is not listed.
        let origin = request.origin.as_deref().filter(|origin| !origin.is_empty());
        let options = self.response_options(error.code, origin);
        let mut out = Vec::new();
        throng_dialect::refuse(error, Some(request), &options, &mut out);
        self.close_after(id, &out, CloseReason::Complete);
    }

    /// Closes a WebSocket that could not be served, and tells it when to come back. If it
    /// `may_stay`, only an input of it was not served.
    pub(super) fn close_for_now(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        what: &str,
        may_stay: bool,
    ) {
        let mut message = what.to_owned();
        let retry_after = self.retry_after(ErrorCode::Busy);
        if let Some(retry_after) = retry_after {
            message += &format!("; {}", retry_after.close_reason());
        }
        self.end(id, &End { reason, message: &message, retry_after, may_stay });
    }

    /// Closes one connection. One that lacks messages, or reads an answer, stays until `is_late`;
    /// one that may send another request stays while `awaits_polls`.
    pub(crate) fn drain_connection(&mut self, id: ConnectionId, is_late: bool, awaits_polls: bool) {
        // The place has no connection.
        let Some(connection) = self.connections().get(id) else { return };
        if connection.state() == State::Streaming && connection.holds_for_acks() {
            // It takes more, and its client need not be awaited.
            self.flush_at_last(id);
        }
        let connection = &self[id];
        match connection.state() {
            State::Closing | State::Condemned => {}
            State::Head if connection.has(Flags::BLOCKED) && !is_late => {}
            State::Head if awaits_polls => {}
            State::Head if connection.io.is_some() => {
                let error = ErrorCode::Draining.into();
                self.refuse_for(id, &error, &Reader::default(), CloseReason::Draining);
            }
            State::Head => self.condemn(id, CloseReason::Draining),
            // Messages may be ready for it, which are lost with the server.
            State::Waiting if self.is_waiting_poll(id) && !is_late => {}
            State::Waiting => self.refuse_waiting(id, ErrorCode::Draining.into()),
            _ if connection.has(Flags::BLOCKED) && !is_late => {}
            _ if connection.has(Flags::DELIVERY_DEFERRED) && !is_late => {}
            _ => {
                let window = self.spread_window();
                self.send_away(id, window);
            }
        }
    }
}

/// The counter of subscriptions that are refused with this code.
fn refused_counter(code: ErrorCode) -> Counter {
    match code {
        ErrorCode::OriginRefused => Counter::RefusedOrigin,
        ErrorCode::HostRefused => Counter::RefusedHost,
        ErrorCode::Full => Counter::RefusedFull,
        ErrorCode::Busy => Counter::RefusedBusy,
        ErrorCode::Draining => Counter::RefusedDraining,
        _ => Counter::RefusedSubscribe,
    }
}
