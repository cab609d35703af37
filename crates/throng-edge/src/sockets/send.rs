//! Writes everything that is not a message of a channel, and handles blocked sockets.
//!
//! A socket is blocked once it has taken less than was written. What is left waits: the rest of a
//! partly written message first, then [`Outbound`](crate::connection), then messages, whose cursors
//! stay. An event (`EPOLLOUT`) resumes the connection.

use std::io::IoSlice;

use throng_dialect::CloseReason;

use super::Sockets;
use super::clock::{TICKS_PER_S, ticks};
use crate::connection::{ConnectionId, Flags, Left, Progress, State};
use crate::counters::Counter;
use crate::net::{Net, Transfer};

/// The time, in ticks, in which the peer of a closing connection has to read some of its output; it
/// starts again each time that the peer has.
pub(super) const LAST_READ_TICKS: u32 = 30 * TICKS_PER_S;

impl<N: Net> Sockets<N> {
    /// Writes `bytes`, at once or when the socket takes them. If it fails, the connection is
    /// condemned.
    pub(crate) fn send(&mut self, id: ConnectionId, bytes: &[u8]) {
        self.send_messages(id, bytes, 0);
    }

    /// As [`Sockets::send`], with `bytes` that contain `messages` messages.
    pub(crate) fn send_messages(&mut self, id: ConnectionId, bytes: &[u8], messages: u64) {
        let connection = &self.connections[id];
        if connection.state() == State::Condemned {
            return;
        }
        let transfer = if connection.has(Flags::BLOCKED) {
            Transfer::Blocked
        } else {
            self.net.write(&connection.socket, &[IoSlice::new(bytes)])
        };
        self.sent_messages(id, bytes, messages, transfer);
    }

    /// Records the result of writing `bytes`, with `messages` messages in them. What the socket has
    /// not taken waits. The messages count as delivered once all bytes are written.
    pub(crate) fn sent_messages(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        messages: u64,
        transfer: Transfer,
    ) {
        let written = match transfer {
            Transfer::Bytes(written) | Transfer::Held(written) => written,
            Transfer::Blocked => 0,
            Transfer::Gone => return self.condemn(id, CloseReason::Peer),
        };
        self.metrics.add(Counter::SentBytes, written as u64);
        self.budget.charge(bytes.len());
        let connection = &mut self.connections[id];
        debug_assert!(connection.state() != State::Condemned, "nothing is written to it");
        // Only bytes that went out spare the connection its heartbeat.
        connection.flags.set(Flags::WRITTEN, written > 0 || connection.has(Flags::WRITTEN));
        // All of it is taken.
        let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) else {
            self.metrics.add(connection.delivery_counter(), messages);
            if matches!(transfer, Transfer::Held(_)) {
                self.block(id);
            } else {
                self.unwritten.wrote_all(id);
            }
            return;
        };
        let outbound = connection.io_mut().outbound.get_or_insert_default();
        let max_bytes = self.settings.limits.max_outbound_bytes;
        // A single answer may exceed the limit: otherwise a long one could never be sent.
        if !outbound.is_empty() && outbound.bytes() + rest.len() > max_bytes {
            return self.condemn(id, CloseReason::Overload);
        }
        outbound.push_messages(rest, messages);
        self.block(id);
        self.connections.update_buffered(id);
    }

    /// Marks the socket as blocked, and asks for an event when it takes more.
    pub(crate) fn block(&mut self, id: ConnectionId) {
        let connection = &mut self.connections[id];
        if connection.has(Flags::BLOCKED) {
            return;
        }
        connection.flags.set(Flags::BLOCKED, true);
        let token = connection.token(id);
        let is_watched = connection.has(Flags::WATCHES_WRITABLE)
            || self.net.watch_writable(&connection.socket, token);
        connection.flags.set(Flags::WATCHES_WRITABLE, true);
        self.connections.fall_behind(id, self.clock.tick());
        self.count(Counter::WritesBlocked);
        if !is_watched {
            return self.condemn(id, CloseReason::SocketError);
        }
        self.begin_progress(id);
        self.count_held(id);
    }

    /// Counts what the connection has below, and waits for its socket if that is output.
    pub(crate) fn note_held(&mut self, id: ConnectionId) {
        if self.net.holds_output(&self.connections[id].socket) {
            self.block(id);
        } else {
            self.count_held(id);
        }
    }

    /// Counts the memory that the connection takes below.
    pub(crate) fn count_held(&mut self, id: ConnectionId) {
        let bytes = self.net.held_bytes(&self.connections[id].socket);
        self.connections.set_held(id, bytes);
    }

    /// Starts the deadline of a client that awaits an answer: it has to keep reading.
    pub(crate) fn begin_progress(&mut self, id: ConnectionId) {
        if matches!(self.connections[id].state(), State::Head | State::Closing) {
            let progress = Progress { since: self.clock.tick(), left: self.left(id) };
            self.connections[id].io_mut().outbound.get_or_insert_default().progress = progress;
        }
    }

    /// True if the client of a blocked connection has read some of its answer since the last call.
    /// If so, extends its deadline, up to the limit for the whole answer.
    pub(crate) fn makes_progress(&mut self, id: ConnectionId) -> bool {
        if !self.connections[id].has(Flags::BLOCKED) {
            return false;
        }
        let left = self.left(id);
        let connection = &mut self.connections[id];
        let due = match connection.state() {
            State::Closing => self.clock.deadline_ticks(LAST_READ_TICKS),
            State::Head => self.clock.deadline(self.settings.idle_timeout),
            State::Waiting | State::Streaming | State::LongPolling | State::Condemned => {
                return false;
            }
        };
        let outbound = connection.io.as_mut().and_then(|io| io.outbound.as_mut());
        debug_assert!(outbound.is_some(), "a client that awaits an answer has a deadline for it");
        let Some(outbound) = outbound else { return false };
        let until = ticks(self.settings.limits.answer_timeout);
        let until = outbound.progress.since.saturating_add(until);
        if !left.is_less_than(outbound.progress.left) || until <= self.clock.tick() {
            return false;
        }
        outbound.progress.left = left;
        connection.due = due.min(until);
        true
    }

    /// The output that the client has not read yet, without messages after its cursors.
    pub(crate) fn left(&self, id: ConnectionId) -> Left {
        let connection = &self.connections[id];
        let Some(io) = &connection.io else { return Left::default() };
        let is_chunked = connection.has(Flags::CHUNKED);
        let of_message = io.partial.as_ref().map_or(0, |partial| {
            let encoded = partial.encoding.begun(&partial.message, is_chunked);
            encoded.len() - partial.from as usize
        });
        let of_answers = io.outbound.as_ref().map_or(0, |outbound| outbound.bytes());
        Left {
            here: of_message + of_answers,
            in_kernel: self.net.unacknowledged_bytes(&connection.socket),
        }
    }

    /// Writes the output that waits: the rest of a partly written message, then `outbound`. Returns
    /// whether all of it is written; false if the connection is not blocked.
    pub(crate) fn flush(&mut self, id: ConnectionId) -> bool {
        loop {
            let connection = &mut self.connections[id];
            if !connection.has(Flags::BLOCKED) {
                return false;
            }
            let is_chunked = connection.has(Flags::CHUNKED);
            let counter = connection.delivery_counter();
            if let Err(transfer) = self.net.flush(&connection.socket) {
                if transfer == Transfer::Gone {
                    self.condemn(id, CloseReason::Peer);
                }
                return false;
            }
            // The socket took nothing of a shared message, which is in the replay buffer, or all of
            // what was held below.
            let Some(io) = &mut connection.io else {
                self.unwritten.wrote_all(id);
                return true;
            };
            // The rest of a message goes first: `outbound` was queued behind it.
            let rest = match &io.partial {
                Some(partial) => {
                    &partial.encoding.begun(&partial.message, is_chunked)[partial.from as usize..]
                }
                None => io.outbound.as_ref().map_or(&[][..], |outbound| outbound.front()),
            };
            let length = rest.len();
            if length == 0 {
                io.outbound = None;
                self.unwritten.wrote_all(id);
                return true;
            }
            let transfer = self.net.write(&connection.socket, &[IoSlice::new(rest)]);
            let written = match transfer {
                // If some of it waits below, the next turn of the loop finds that.
                Transfer::Bytes(count) | Transfer::Held(count) => count,
                Transfer::Blocked => return false,
                Transfer::Gone => {
                    self.condemn(id, CloseReason::Peer);
                    return false;
                }
            };
            self.metrics.add(Counter::SentBytes, written as u64);
            self.budget.charge_slice(written);
            connection.flags.set(Flags::WRITTEN, true);
            // A message counts as delivered with its last byte.
            match &mut io.partial {
                Some(partial) if written < length => partial.from += written as u32,
                Some(_) => {
                    io.partial = None;
                    if !matches!(transfer, Transfer::Held(_)) {
                        self.unwritten.wrote_all(id);
                    }
                    self.metrics.add(counter, 1);
                }
                None => {
                    if let Some(outbound) = &mut io.outbound {
                        self.metrics.add(counter, outbound.advance(written));
                    }
                }
            }
        }
    }
}
