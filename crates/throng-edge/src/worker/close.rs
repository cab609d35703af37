//! Last words, and forgetting.
//!
//! A socket that is closed while the peer's bytes wait unread answers with a reset, which may
//! destroy what was just written to it. So after its last words a connection is `Closing`: the
//! sending side is finished, what the peer still sends is thrown away, and the socket is closed
//! when the peer has ended too, or a moment later.

use throng_core::Counter;
use throng_wire::subscribe::Request;
use throng_wire::websocket::write_close;
use throng_wire::{ErrorCode, ErrorResponse};

use super::{TICKS_PER_S, Worker};
use crate::close_reason::CloseReason;
use crate::connection::{Flags, State};
use crate::net::Net;

/// A closing connection's peer has this long to end its side, in ticks.
const LINGER_TICKS: u32 = 2 * TICKS_PER_S;

/// And this long to take some of what is written already, before that; and again when it has.
pub(super) const LAST_READ_TICKS: u32 = 30 * TICKS_PER_S;

/// A connection to close once what was published before is delivered to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Farewell {
    pub(super) token: u64,
    /// The close code to answer with.
    pub(super) code: Option<u16>,
}

impl<N: Net> Worker<N> {
    /// Answers a request that cannot be served, and closes.
    pub(super) fn refuse(&mut self, index: u32, error: &ErrorResponse, origin: Option<&str>) {
        let options = self.response_options(error.code, origin);
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        error.write_response(&mut out, &options);
        self.last_words(index, &out, CloseReason::Complete);
        self.scratch = out;
    }

    /// The control plane takes no more for now.
    pub(super) fn refuse_busy(&mut self, index: u32) {
        self.count(Counter::RefusedBusy);
        let mut out = Vec::new();
        self.write_error(ErrorCode::Busy, &mut out);
        self.last_words(index, &out, CloseReason::Complete);
    }

    /// The server is going away, and the request has not come whole.
    pub(super) fn refuse_draining(&mut self, index: u32) {
        let mut out = Vec::new();
        self.write_error(ErrorCode::Draining, &mut out);
        self.last_words(index, &out, CloseReason::Draining);
    }

    /// Refuses a subscription for now, in the form that its client understands.
    pub(super) fn turn_away(&mut self, index: u32, request: &Request, code: ErrorCode) {
        self.count(refused_counter(code));
        let options = self.response_options(code, request.origin.as_deref());
        let mut out = Vec::new();
        ErrorResponse::from(code).write_for_subscriber(&mut out, request, &options);
        self.last_words(index, &out, CloseReason::Complete);
    }

    /// Closes a WebSocket with the code and the message of `reason`.
    pub(super) fn close_websocket(&mut self, index: u32, reason: CloseReason) {
        let message = reason.close_frame().map_or("", |(_, message)| message);
        self.close_websocket_with(index, reason, message);
    }

    /// Closes a WebSocket with the code of `reason` and a message of its own.
    pub(super) fn close_websocket_with(&mut self, index: u32, reason: CloseReason, message: &str) {
        let mut out = Vec::with_capacity(message.len() + 4);
        if let Some((code, _)) = reason.close_frame() {
            write_close(&mut out, code, message);
        }
        self.last_words(index, &out, reason);
    }

    /// Closes a WebSocket for overload. The reason says what it is, and when to come back.
    pub(super) fn close_overloaded(&mut self, index: u32, what: &str) {
        let mut message = what.to_owned();
        if let Some(retry_after) = self.retry_after(ErrorCode::Busy) {
            message += &format!("; {}", retry_after.close_reason());
        }
        self.close_websocket_with(index, CloseReason::Overload, &message);
    }

    /// Ends a connection that has fallen behind. A stream ends without its last chunk: it is not
    /// complete.
    pub(super) fn end_behind(&mut self, index: u32) {
        let Some(connection) = self.connections.get(index) else { return };
        if connection.has(Flags::WEBSOCKET) {
            self.close_websocket(index, CloseReason::Lagging);
        } else {
            // Nothing waits to be said, so there is nothing to wait for.
            self.drop_output(index);
            self.last_words(index, b"", CloseReason::Lagging);
        }
    }

    /// Gives up what the socket has not taken yet.
    fn drop_output(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.flags.set(Flags::BLOCKED, false);
        if let Some(io) = &mut connection.io {
            io.partial = None;
            io.outbound = None;
        }
    }

    /// Unsubscribes, writes `bytes` behind everything else, and lets the connection close.
    pub(super) fn last_words(&mut self, index: u32, bytes: &[u8], reason: CloseReason) {
        self.last_messages(index, bytes, 0, reason);
    }

    /// As [`Worker::last_words`], with `bytes` that end with the last of some `messages`.
    pub(super) fn last_messages(
        &mut self,
        index: u32,
        bytes: &[u8],
        messages: u64,
        reason: CloseReason,
    ) {
        let Some(connection) = self.connections.get(index) else { return };
        if connection.state == State::Closing {
            return;
        }
        if let Some(counter) = reason.counter() {
            self.count(counter);
        }
        self.leave_all(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        if let Some(parked) = connection.parked() {
            self.counters.unpark(parked);
        }
        let flags = connection.flags;
        let had_place = flags.has(Flags::SERVED) && !flags.has(Flags::IN_RESERVE);
        let lingers = had_place || self.may_linger();
        self.give_up_place(flags);
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.state = State::Closing;
        self.closing += 1;
        connection.due = self.now.tick.saturating_add(LAST_READ_TICKS);
        if let Some(io) = &mut connection.io {
            io.poll = None;
            io.inbound = Vec::new();
            io.reader = Default::default();
        }
        self.publish_load();
        if !bytes.is_empty() {
            self.send_messages(index, bytes, messages);
        }
        if self.connections.get(index).is_some_and(|it| it.has(Flags::BLOCKED)) {
            self.begin_progress(index);
        }
        self.finish(index);
        if !lingers {
            self.forget(index, CloseReason::Complete);
        }
    }

    /// Finishes the sending side of a closing connection once everything is written.
    pub(super) fn finish(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let is_written = !connection.has(Flags::BLOCKED);
        if connection.state == State::Closing && is_written && !connection.has(Flags::FINISHED) {
            connection.flags.set(Flags::FINISHED, true);
            connection.due = self.now.tick.saturating_add(LINGER_TICKS);
            self.net.finish(&connection.socket);
        }
    }

    /// Ends all subscriptions of a connection.
    pub(super) fn leave_all(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let mut next = connection.first.take();
        while let Some(subscription) = next {
            let Some(left) = self.subscriptions.leave(subscription) else { break };
            self.engine.unfollow(self.now.unix_ms, left.channel, self.id);
            next = left.sibling;
        }
    }

    /// Closes the socket and forgets the connection.
    pub(super) fn forget(&mut self, index: u32, reason: CloseReason) {
        self.leave_all(index);
        self.unpark(index);
        let Some(connection) = self.connections.remove(index) else { return };
        self.holdings.release(index, connection.held());
        match connection.state {
            State::Closing => self.closing -= 1,
            _ => self.give_up_place(connection.flags),
        }
        self.publish_load();
        // What closes already was counted when it began to.
        if connection.state != State::Closing
            && let Some(counter) = reason.counter()
        {
            self.count(counter);
        }
        self.count(Counter::Closed);
    }

    /// Answers the close frames of clients, after what was published before they came. Called once
    /// the notifications of then have been taken.
    pub(super) fn say_farewells(&mut self) {
        for farewell in std::mem::take(&mut self.farewells) {
            let Some(index) = self.index_of(farewell.token) else { continue };
            self.flush_subscriptions(index);
            let Some(index) = self.index_of(farewell.token) else { continue };
            if self.connections.get(index).is_some_and(|it| it.has(Flags::POSTPONED)) {
                self.farewells.push(farewell);
                continue;
            }
            match farewell.code {
                Some(code) => {
                    let mut out = Vec::new();
                    write_close(&mut out, code, "");
                    self.last_words(index, &out, CloseReason::Peer);
                }
                None => self.last_words(index, &[0x88, 0], CloseReason::Peer),
            }
        }
    }
}

/// What counts the refusal of a subscription with this code.
pub(super) fn refused_counter(code: ErrorCode) -> Counter {
    match code {
        ErrorCode::OriginRefused => Counter::RefusedOrigin,
        ErrorCode::HostRefused => Counter::RefusedHost,
        ErrorCode::Full => Counter::RefusedFull,
        ErrorCode::Busy => Counter::RefusedBusy,
        ErrorCode::Draining => Counter::RefusedDraining,
        _ => Counter::RefusedSubscribe,
    }
}
