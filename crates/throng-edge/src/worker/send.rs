//! Writes everything that is not a message of a channel; what blocks, and what happens when it no
//! longer does.

use std::io::IoSlice;

use throng_core::Counter;

use super::Worker;
use super::close::LAST_READ_TICKS;
use crate::close_reason::CloseReason;
use crate::connection::{Connection, Flags, State};
use crate::net::{Net, Transfer};
use crate::outbound::{Left, Progress};

impl<N: Net> Worker<N> {
    /// Writes `bytes`, now or when the socket takes them.
    pub(super) fn send(&mut self, index: u32, bytes: &[u8]) {
        self.send_messages(index, bytes, 0);
    }

    /// Writes `bytes`, which end with the last of some `messages`, now or when the socket takes
    /// them.
    pub(super) fn send_messages(&mut self, index: u32, bytes: &[u8], messages: u64) {
        let Some(connection) = self.connections.get(index) else { return };
        let transfer = match connection.has(Flags::BLOCKED) {
            true => Transfer::Blocked,
            false => self.net.write(&connection.socket, &[IoSlice::new(bytes)]),
        };
        self.sent_messages(index, bytes, messages, transfer);
    }

    /// Takes note of what writing `bytes` came to; the rest waits until the socket takes it.
    pub(super) fn sent(&mut self, index: u32, bytes: &[u8], transfer: Transfer) {
        self.sent_messages(index, bytes, 0, transfer);
    }

    /// As [`Worker::sent`], of bytes that end with the last of some `messages`: these are counted
    /// once all of it is written.
    pub(super) fn sent_messages(
        &mut self,
        index: u32,
        bytes: &[u8],
        messages: u64,
        transfer: Transfer,
    ) {
        let written = match transfer {
            Transfer::Bytes(written) => written,
            Transfer::Blocked => 0,
            Transfer::End | Transfer::Gone => return self.forget(index, CloseReason::Peer),
        };
        if self.connections.get(index).is_none() {
            return;
        }
        self.counters.add(Counter::SentBytes, written as u64);
        self.charge(bytes.len());
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.flags.set(Flags::WRITTEN, written > 0 || connection.has(Flags::WRITTEN));
        let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) else {
            return self.counters.add(connection.delivery_counter(), messages);
        };
        let outbound = connection.io_mut().outbound.get_or_insert_default();
        let bytes_max = self.settings.limits.outbound_bytes_max;
        // One answer may always wait, however long it is.
        if !outbound.is_empty() && outbound.bytes() + rest.len() > bytes_max {
            self.forget(index, CloseReason::Overload);
            return;
        }
        outbound.push_messages(rest, messages);
        self.block(index);
        self.count_held(index);
    }

    /// The socket takes no more: an event will tell when it does.
    pub(super) fn block(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.has(Flags::BLOCKED) {
            return;
        }
        connection.flags.set(Flags::BLOCKED, true);
        let token = Self::token(index, connection.generation);
        let is_watched = connection.has(Flags::WATCHES_WRITABLE)
            || self.net.watch_writable(&connection.socket, token);
        connection.flags.set(Flags::WATCHES_WRITABLE, true);
        self.count(Counter::Blocked);
        if !is_watched {
            return self.forget(index, CloseReason::SocketError);
        }
        self.begin_progress(index);
    }

    /// From now on the client has to take what is left of its answer, as far as it awaits one.
    pub(super) fn begin_progress(&mut self, index: u32) {
        let is_answer = |it: &Connection<_>| matches!(it.state, State::Head | State::Closing);
        if self.connections.get(index).is_some_and(is_answer) {
            let progress = Progress { since: self.now.tick, left: self.left(index) };
            let Some(connection) = self.connections.get_mut(index) else { return };
            connection.io_mut().outbound.get_or_insert_default().progress = progress;
        }
    }

    /// Whether the client of a blocked connection has taken some of its answer since that was last
    /// looked at, and may go on for a while.
    pub(super) fn makes_progress(&mut self, index: u32) -> bool {
        if self.connections.get(index).is_none_or(|it| !it.has(Flags::BLOCKED)) {
            return false;
        }
        let left = self.left(index);
        let Some(connection) = self.connections.get_mut(index) else { return false };
        let patience = match connection.state {
            State::Closing => LAST_READ_TICKS,
            State::Head => Self::ticks(self.settings.idle_timeout),
            State::Parked | State::Polling => return false,
        };
        let outbound = connection.io.as_mut().and_then(|io| io.outbound.as_mut());
        let Some(outbound) = outbound else { return false };
        let until = Self::ticks(self.settings.limits.answer_timeout);
        let until = outbound.progress.since.saturating_add(until);
        if !left.is_less_than(outbound.progress.left) || until <= self.now.tick {
            return false;
        }
        outbound.progress.left = left;
        connection.due = self.now.tick.saturating_add(patience).min(until);
        true
    }

    /// What the client has not taken yet.
    fn left(&self, index: u32) -> Left {
        let Some(connection) = self.connections.get(index) else { return Left::default() };
        let Some(io) = &connection.io else { return Left::default() };
        let is_chunked = connection.has(Flags::CHUNKED);
        let of_message = io.partial.as_ref().map_or(0, |partial| {
            let encoded = connection.framing.encode(&partial.message, is_chunked);
            encoded.len() - partial.from as usize
        });
        let of_answers = io.outbound.as_ref().map_or(0, |outbound| outbound.bytes());
        Left {
            here: of_message + of_answers,
            in_kernel: self.net.unacknowledged_bytes(&connection.socket),
        }
    }

    /// The connection's socket may take more.
    pub fn writable(&mut self, token: u64) {
        let Some(index) = self.index_of(token) else { return };
        if self.slice_bytes == 0 {
            return self.postpone(index);
        }
        if !self.flush(index) {
            return;
        }
        self.begin_turn();
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.flags.set(Flags::BLOCKED, false);
        if connection.has(Flags::PEER_ENDED) {
            return self.forget(index, CloseReason::Peer);
        }
        match connection.state {
            State::Parked => self.flush_subscriptions(index),
            State::Head => {
                // It has its answer, and is idle from now on.
                let idle_timeout = Self::ticks(self.settings.idle_timeout);
                connection.due = self.now.tick.saturating_add(idle_timeout);
                self.input(index, &mut []);
            }
            State::Closing => self.finish(index),
            State::Polling => {}
        }
        self.shed(index);
        self.relieve();
    }

    /// Goes on with the connection when others have had their turn.
    pub(super) fn postpone(&mut self, index: u32) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !connection.has(Flags::POSTPONED) {
            connection.flags.set(Flags::POSTPONED, true);
            self.postponed.push_back(Self::token(index, connection.generation));
            self.count(Counter::Postponed);
        }
    }

    /// Goes on with connections that were postponed.
    pub(super) fn catch_up_on(&mut self) {
        for _ in 0..self.postponed.len() {
            if self.slice_bytes == 0 {
                return;
            }
            let Some(token) = self.postponed.pop_front() else { return };
            let Some(index) = self.index_of(token) else { continue };
            let Some(connection) = self.connections.get_mut(index) else { continue };
            connection.flags.set(Flags::POSTPONED, false);
            if connection.has(Flags::BLOCKED) {
                self.writable(token);
            } else {
                self.flush_subscriptions(index);
            }
        }
    }

    /// Writes what waits: the rest of a message, then `outbound`. Returns whether all of it went.
    fn flush(&mut self, index: u32) -> bool {
        loop {
            let Some(connection) = self.connections.get_mut(index) else { return false };
            if !connection.has(Flags::BLOCKED) {
                return false;
            }
            let (framing, is_chunked) = (connection.framing, connection.has(Flags::CHUNKED));
            let counter = connection.delivery_counter();
            let Some(io) = &mut connection.io else { return true };
            let rest = match &io.partial {
                Some(partial) => {
                    &framing.encode(&partial.message, is_chunked)[partial.from as usize..]
                }
                None => io.outbound.as_ref().map_or(&[][..], |outbound| outbound.front()),
            };
            let length = rest.len();
            if length == 0 {
                io.outbound = None;
                return true;
            }
            let written = match self.net.write(&connection.socket, &[IoSlice::new(rest)]) {
                Transfer::Bytes(count) => count,
                Transfer::Blocked => return false,
                Transfer::End | Transfer::Gone => {
                    self.forget(index, CloseReason::Peer);
                    return false;
                }
            };
            self.counters.add(Counter::SentBytes, written as u64);
            self.slice_bytes = self.slice_bytes.saturating_sub(written);
            connection.flags.set(Flags::WRITTEN, true);
            match &mut io.partial {
                Some(partial) if written < length => partial.from += written as u32,
                Some(_) => {
                    io.partial = None;
                    self.counters.add(counter, 1);
                }
                None => {
                    if let Some(outbound) = &mut io.outbound {
                        self.counters.add(counter, outbound.advance(written));
                    }
                }
            }
        }
    }
}
