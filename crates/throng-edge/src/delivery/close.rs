//! Closes subscribers: the last words to them, and what they leave.

use std::time::Duration;

use throng_core::spread;
use throng_dialect::dialect::{End, Ended};
use throng_dialect::{CloseReason, Out};
use throng_wire::RetryAfter;

use super::Delivery;
use crate::close_counters::label_of;
use crate::connection::{ConnectionId, Flags, State};
use crate::counters::{Counter, Parked};
use crate::net::Net;

impl<N: Net> Delivery<N> {
    /// Frees a condemned connection.
    pub(crate) fn free(&mut self, id: ConnectionId, reason: CloseReason) {
        self.log_end(id, reason);
        self.leave_bookmarks(id, reason);
        self.unfollow_all(id);
        self.release(id, reason);
    }

    /// Closes a parked connection with what its dialect says for `reason`.
    pub(crate) fn close_for(&mut self, id: ConnectionId, reason: CloseReason) {
        self.close_with(id, reason, reason.message());
    }

    /// The same with a message of its own.
    pub(crate) fn close_with(&mut self, id: ConnectionId, reason: CloseReason, message: &str) {
        self.end(id, &End { reason, message, retry_after: None, may_stay: false });
    }

    /// Refuses an input of a WebSocket. That closes it, unless its dialect says so in band.
    pub(crate) fn refuse_input(&mut self, id: ConnectionId, reason: CloseReason, message: &str) {
        self.end(id, &End { reason, message, retry_after: None, may_stay: true });
    }

    /// Writes a parked connection its last words, and closes it.
    pub(crate) fn end(&mut self, id: ConnectionId, end: &End<'_>) {
        self.flush_replies(id);
        let connection = &self[id];
        let (encoding, is_chunked) = (connection.encoding(), connection.has(Flags::CHUNKED));
        let mut bytes = Vec::new();
        let mut out = Out::new(encoding.framing(), is_chunked, &mut bytes);
        match encoding.dialect().end(end, &mut out) {
            Ended::Stays if end.may_stay => self.send(id, &bytes),
            _ => self.close_after(id, &bytes, end.reason),
        }
    }

    /// Closes a connection that lags behind. A stream ends without its last chunk, because it is
    /// incomplete (RFC 9112 section 8).
    pub(crate) fn close_lagging(&mut self, id: ConnectionId, reason: CloseReason) {
        self.give_up_receipts(id);
        if self[id].is_websocket() {
            self.close_for(id, reason);
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
        self.leave_bookmarks(id, reason);
        self.unfollow_all(id);
        // It owes nothing any more.
        self[id].io.iter_mut().for_each(|io| io.unacknowledged = None);
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

    /// Closes a parked connection with the time to come back, within `window`.
    pub(crate) fn send_away(&mut self, id: ConnectionId, window: Duration) {
        let connection = &self[id];
        let retry_after = self.drain_retry(id, window);
        if connection.state() == State::LongPolling {
            // Its answer closes the connection as complete, which counts nothing.
            self.count(Counter::ClosedDraining);
            return self.send_poll_away(id, retry_after);
        }
        let (reason, message) = (CloseReason::Draining, &retry_after.close_reason());
        let retry_after = Some(retry_after);
        self.end(id, &End { reason, message, retry_after, may_stay: false });
    }

    /// The time within `window` at which the client of the connection should come back.
    fn drain_retry(&self, id: ConnectionId, window: Duration) -> RetryAfter {
        let window_ms = window.as_millis() as u64;
        // Numbers the connections of all workers without gaps or duplicates, so that their times
        // are spread evenly.
        let (worker, workers) =
            (self.metrics().worker().0, self.metrics().all().workers().len() as u32);
        let place = id.index().wrapping_mul(workers).wrapping_add(u32::from(worker));
        RetryAfter::from_ms(spread::delay_ms(place, &(0..window_ms)))
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
            reason = label_of(reason),
            "connection ended",
        );
    }
}
