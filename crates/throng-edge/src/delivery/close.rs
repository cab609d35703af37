//! Closes subscribers: close frames, last events, and what they leave.

use std::time::Duration;

use throng_core::retry;
use throng_wire::websocket::write_close;
use throng_wire::{RetryAfter, chunk, sse};

use super::Delivery;
use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, State};
use crate::counters::{Counter, Parked};
use crate::encoding::{Framing, frame_notice};
use crate::net::Net;

impl<N: Net> Delivery<N> {
    /// Frees a condemned connection.
    pub(crate) fn free(&mut self, id: ConnectionId, reason: CloseReason) {
        self.log_end(id, reason);
        self.unfollow_all(id);
        self.release(id, reason);
    }

    /// Closes a WebSocket with the code and the message of `reason`.
    pub(crate) fn close_websocket(&mut self, id: ConnectionId, reason: CloseReason) {
        let message = reason.close_frame().map_or("", |(_, message)| message);
        self.close_websocket_with(id, reason, message);
    }

    /// Closes a WebSocket with the code of `reason` and a message of its own, which the code of the
    /// error precedes where there is one.
    pub(crate) fn close_websocket_with(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        message: &str,
    ) {
        let mut out = Vec::with_capacity(message.len() + 4);
        if let Some((code, _)) = reason.close_frame() {
            write_close(&mut out, code, &reason.named(message));
        }
        self.close_after(id, &out, reason);
    }

    /// Closes a connection that lags behind. A stream ends without its last chunk, because it is
    /// incomplete (RFC 9112 section 8).
    pub(crate) fn close_lagging(&mut self, id: ConnectionId, reason: CloseReason) {
        self.give_up_receipts(id);
        if self[id].has(Flags::WEBSOCKET) {
            self.close_websocket(id, reason);
        } else {
            // Output that the client has not read would only delay the close.
            self.drop_output(id);
            self.close_after(id, b"", reason);
        }
    }

    /// Unsubscribes, writes `bytes` behind all other output, and begins to close.
    pub(crate) fn close_after(&mut self, id: ConnectionId, bytes: &[u8], reason: CloseReason) {
        self.close_after_messages(id, bytes, 0, reason);
    }

    /// As [`Worker::close_after`], with `bytes` that contain `messages` messages.
    pub(crate) fn close_after_messages(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        messages: u64,
        reason: CloseReason,
    ) {
        // It has had its final response, or cannot have one, and was counted then.
        if self[id].is_ending() {
            return;
        }
        self.log_end(id, reason);
        self.unfollow_all(id);
        self.close(id, bytes, messages, reason);
    }

    /// As [`Worker::close_after`], without lingering if the socket takes all of `bytes` at once:
    /// for an answer that must cost little. The caller has read all that the peer has sent so far,
    /// so that the answer is lost only if more comes meanwhile.
    pub(crate) fn close_at_once_after(&mut self, id: ConnectionId, bytes: &[u8]) {
        let rest =
            if self[id].has(Flags::BLOCKED) { Some(bytes) } else { self.write_last(id, bytes) };
        if let Some(rest) = rest {
            self.close_after(id, rest, CloseReason::Complete);
        }
    }

    /// Ends a stream with a last event.
    pub(crate) fn end_stream(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        event: &str,
        json: &[u8],
    ) {
        let connection = &self[id];
        let (encoding, is_chunked) = (connection.encoding(), connection.has(Flags::CHUNKED));
        let mut out = Vec::new();
        frame_notice(&mut out, encoding, is_chunked, event, json);
        if is_chunked {
            out.extend_from_slice(chunk::LAST);
        }
        self.close_after(id, &out, reason);
    }

    /// Closes a parked connection with the time to come back, within `window`.
    pub(crate) fn send_away(&mut self, id: ConnectionId, window: Duration) {
        let connection = &self[id];
        let retry_after = self.drain_retry(id, window);
        let (encoding, is_chunked) = (connection.encoding(), connection.has(Flags::CHUNKED));
        if connection.state == State::LongPolling {
            // Its answer closes the connection as complete, which counts nothing.
            self.count(Counter::ClosedDraining);
            return self.answer_long_poll_empty(id, Some(retry_after));
        }
        let mut out = Vec::new();
        match encoding.framing() {
            Framing::WebSocket => {
                let message = retry_after.close_reason();
                return self.close_websocket_with(id, CloseReason::Draining, &message);
            }
            Framing::Sse => {
                let mut inner = Vec::new();
                sse::write_retry(&mut inner, retry_after.ms());
                if is_chunked {
                    chunk::write_chunk(&mut out, &inner);
                } else {
                    out = inner;
                }
            }
            // Lines have no way to tell a client when to come back.
            Framing::Line => {}
        }
        if is_chunked {
            // Unlike a stream that lags, this one is complete (RFC 9112 section 8).
            out.extend_from_slice(chunk::LAST);
        }
        self.close_after(id, &out, CloseReason::Draining);
    }

    /// The time within `window` at which the client of the connection should come back.
    fn drain_retry(&self, id: ConnectionId, window: Duration) -> RetryAfter {
        let window_ms = window.as_millis() as u64;
        // Numbers the connections of all workers without gaps or duplicates, so that their times
        // are spread evenly.
        let (worker, workers) = (self.metrics().worker().0, self.metrics().workers() as u32);
        let place = id.index().wrapping_mul(workers).wrapping_add(u32::from(worker));
        RetryAfter::from_ms(retry::delay_ms(place, &(0..window_ms)))
    }

    /// Logs that a connection ends or begins to close. Nothing happens unless it streamed: the end
    /// of a long-poll ends a request. Must run while the connection still has its session and
    /// its subscriptions, which name the user.
    fn log_end(&self, id: ConnectionId, reason: CloseReason) {
        if !self.settings.logs_connections {
            return;
        }
        let connection = &self[id];
        let transport = match connection.parked() {
            Some(Parked::WebSocket) => "websocket",
            Some(Parked::Sse) => "sse",
            Some(Parked::Stream) => "stream",
            Some(Parked::Status) => "status",
            Some(Parked::Poll | Parked::Canary) | None => return,
        };
        let name = self.connections().user_name(connection);
        let inbox = self.user_of(id);
        let since_ms = self.connections().accepted_ms(connection);
        let now_ms = self.clock().unix_ms();
        // With the names that lists of connections have.
        let found = self.describe(id, connection);
        let peer = found.peer.map(|peer| peer.to_string());
        let (address, proxy) = match found.proxied {
            Some(client) => (Some(client.to_string()), peer),
            None => (peer, None),
        };
        tracing::info!(
            transport,
            connection = %found.name,
            address = address.map(tracing::field::display),
            proxy = proxy.map(tracing::field::display),
            user = name.or(inbox.as_ref().map(|inbox| inbox.name())),
            seconds = since_ms.map(|since_ms| now_ms.saturating_sub(since_ms) / 1000),
            reason = reason.label(),
            "connection ended",
        );
    }
}
