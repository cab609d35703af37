//! Ends connections: the last bytes, lingering, release.
//!
//! Closing a socket with unread input sends a reset (RFC 9293 section 3.6.1), which may destroy the
//! final response on its way to the peer. So after its final response a connection is `Closing`:
//! the sending side is shut down, input is discarded, and the socket is closed when the peer has
//! closed its side too, or after [`LINGER_TICKS`] (RFC 9112 section 9.6).

use std::io::IoSlice;

use throng_core::{ConnectionName, Fate};
use throng_dialect::CloseReason;

use super::Sockets;
use super::clock::TICKS_PER_S;
use super::send::LAST_READ_TICKS;
use crate::close_counters::counter_of;
use crate::connection::{ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::net::{Net, Transfer};

/// The time, in ticks, in which the peer of a closing connection has to finish sending.
const LINGER_TICKS: u32 = 2 * TICKS_PER_S;

impl<N: Net> Sockets<N> {
    /// Lets the connection end with this turn, without another byte. The first reason counts.
    pub(crate) fn condemn(&mut self, id: ConnectionId, reason: CloseReason) {
        self.connections.condemn(id, reason);
    }

    /// Closes the socket of a condemned connection, and frees everything that it has.
    pub(crate) fn release(&mut self, id: ConnectionId, reason: CloseReason) {
        self.note_ended(id, reason);
        self.unwritten.settle(id, Fate::Closed);
        let (connection, address) = self.connections.take(id);
        let (state, flags) = (connection.state(), connection.flags);
        // First: whoever sees the close may come back at once.
        drop(address);
        self.net.close(connection.socket);
        if flags.has(Flags::CANARY) {
            return;
        }
        // A closing connection was counted by its reason when it began to close.
        if state != State::Closing
            && let Some(counter) = counter_of(reason)
        {
            self.count(counter);
        }
        self.count(Counter::Closed);
    }

    /// Writes `bytes`, which contain `messages` messages, behind all other output, and begins to
    /// close. The connection has no subscriptions: no message may follow its final response.
    pub(crate) fn close(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        messages: u64,
        reason: CloseReason,
    ) {
        let connection = &self.connections[id];
        debug_assert!(!connection.is_ending() && connection.newest_subscription.is_none());
        if let Some(counter) = counter_of(reason).filter(|_| !connection.has(Flags::CANARY)) {
            self.count(counter);
        }
        self.note_ended(id, reason);
        let lingers = self.connections.begin_closing(id);
        let connection = &mut self.connections[id];
        // Until everything is written; from then on `half_close` lets it linger.
        connection.due = self.clock.deadline_ticks(LAST_READ_TICKS);
        if let Some(io) = &mut connection.io {
            io.long_poll = None;
            io.inbound = Vec::new();
            io.reader = Default::default();
        }
        if !bytes.is_empty() {
            self.send_messages(id, bytes, messages);
        }
        if self.connections[id].has(Flags::BLOCKED) {
            self.begin_progress(id);
        }
        self.half_close(id);
        if !lingers {
            self.condemn(id, CloseReason::Complete);
        }
    }

    /// Lists a stream that ends, unless it is a viewer of the status page, who is the operator, or
    /// its client has not shown who it is: nothing was told of it.
    fn note_ended(&mut self, id: ConnectionId, reason: CloseReason) {
        let connection = &self.connections[id];
        let is_stream = connection.state() == State::Streaming && !connection.has(Flags::VIEWER);
        if is_stream && self.connections.identify_by(id).is_none() {
            self.ended.push_back((self.connections.name_of(id, connection), reason));
        }
    }

    /// The stream that has ended first of those that were not asked for.
    pub(crate) fn next_ended(&mut self) -> Option<(ConnectionName, CloseReason)> {
        self.ended.pop_front()
    }

    /// Writes the last bytes to a socket that is not blocked. Returns the rest that it has not
    /// taken; `None` if nothing is left to do for the connection.
    pub(crate) fn write_last<'b>(&mut self, id: ConnectionId, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let transfer = self.net.write_last(&self.connections[id].socket, bytes);
        let written = match transfer {
            Transfer::Bytes(written) | Transfer::Held(written) => written,
            Transfer::Blocked => 0,
            Transfer::Gone => {
                self.condemn(id, CloseReason::Peer);
                return None;
            }
        };
        self.metrics.add(Counter::SentBytes, written as u64);
        self.budget.charge(written);
        let rest = bytes.get(written..).unwrap_or_default();
        if matches!(transfer, Transfer::Held(_)) {
            self.block(id);
        } else if rest.is_empty() {
            self.condemn(id, CloseReason::Complete);
            return None;
        }
        Some(rest)
    }

    /// Shuts down the sending side of a closing connection once everything is written.
    pub(crate) fn half_close(&mut self, id: ConnectionId) {
        let connection = &mut self.connections[id];
        let is_written = !connection.has(Flags::BLOCKED);
        if connection.state() == State::Closing && is_written && !connection.has(Flags::FINISHED) {
            connection.flags.set(Flags::FINISHED, true);
            connection.due = self.clock.deadline_ticks(LINGER_TICKS);
            self.net.finish(&connection.socket);
        }
    }

    /// Drops the output that the socket has not taken.
    pub(crate) fn drop_output(&mut self, id: ConnectionId) {
        let connection = &mut self.connections[id];
        connection.flags.set(Flags::BLOCKED, false);
        if let Some(io) = &mut connection.io {
            io.partial = None;
            io.outbound = None;
        }
        self.unwritten.settle(id, Fate::Lagging);
    }

    /// Ends a connection without a response.
    pub(crate) fn cut_off(&mut self, id: ConnectionId) {
        if self.connections[id].state() == State::Closing {
            // It began to close for another reason, but overload loses its final response.
            self.count(Counter::ClosedOverload);
        }
        self.condemn(id, CloseReason::Overload);
    }

    /// Ends a connection whose place is needed now: a part of `bytes` that its socket does not take
    /// at once is not sent.
    pub(crate) fn give_way(&mut self, id: ConnectionId, bytes: &[u8]) {
        let socket = &self.connections[id].socket;
        if let Transfer::Bytes(sent) = self.net.write(socket, &[IoSlice::new(bytes)]) {
            self.metrics.add(Counter::SentBytes, sent as u64);
        }
        self.condemn(id, CloseReason::Evicted);
    }

    /// Closes a connection that is behind, to free what waits for it. A close frame would wait.
    pub(crate) fn close_for_memory(&mut self, id: ConnectionId) {
        // It may have caught up since it was found.
        if self.connections.behind_since(id).is_some() {
            self.net.reset(&self.connections[id].socket);
            self.condemn(id, CloseReason::Memory);
        }
    }
}
