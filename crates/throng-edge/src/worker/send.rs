//! Writes everything that is not a message of a channel; what blocks, and what happens when it no
//! longer does.

use std::io::IoSlice;

use throng_core::Counter;

use super::Worker;
use crate::connection::{Flags, State};
use crate::net::{Net, Transfer};

/// Bytes that may wait for one blocked connection, beside messages: answers to its own commands. A
/// client that asks without reading is closed beyond it.
const OUTBOUND_BYTES_MAX: usize = 4 << 20;

impl<N: Net> Worker<N> {
    /// Writes `bytes`, now or when the socket takes them.
    pub(super) fn send(&mut self, index: u32, bytes: &[u8]) {
        let Some(connection) = self.connections.get(index) else { return };
        let transfer = match connection.has(Flags::BLOCKED) {
            true => Transfer::Blocked,
            false => self.net.write(&connection.socket, &[IoSlice::new(bytes)]),
        };
        self.sent(index, bytes, transfer);
    }

    /// Takes note of what writing `bytes` came to; the rest waits until the socket takes it.
    pub(super) fn sent(&mut self, index: u32, bytes: &[u8], transfer: Transfer) {
        let written = match transfer {
            Transfer::Bytes(written) => written,
            Transfer::Blocked => 0,
            Transfer::End | Transfer::Gone => return self.forget(index, Counter::ClosedByPeer),
        };
        let Some(connection) = self.connections.get_mut(index) else { return };
        self.counters.add(Counter::SentBytes, written as u64);
        let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) else { return };
        let outbound = &mut connection.io_mut().outbound;
        // One answer may always wait, however long it is.
        if !outbound.is_empty() && outbound.len() + rest.len() > OUTBOUND_BYTES_MAX {
            self.forget(index, Counter::ClosedOverload);
            return;
        }
        outbound.extend_from_slice(rest);
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
            self.forget(index, Counter::ClosedByError);
        }
    }

    /// The connection's socket may take more.
    pub fn writable(&mut self, token: u64) {
        let Some(index) = self.index_of(token) else { return };
        if !self.flush(index) {
            return;
        }
        self.begin_turn();
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.flags.set(Flags::BLOCKED, false);
        if connection.has(Flags::PEER_ENDED) {
            return self.forget(index, Counter::ClosedByPeer);
        }
        match connection.state {
            State::Parked => self.flush_subscriptions(index),
            State::Head => self.input(index, &mut []),
            State::Closing => self.finish(index),
            State::Polling => {}
        }
        if let Some(connection) = self.connections.get_mut(index) {
            self.held_bytes -= connection.shed();
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
                None if io.outbound.is_empty() => return true,
                None => &io.outbound[..],
            };
            let length = rest.len();
            let written = match self.net.write(&connection.socket, &[IoSlice::new(rest)]) {
                Transfer::Bytes(count) => count,
                Transfer::Blocked => return false,
                Transfer::End | Transfer::Gone => {
                    self.forget(index, Counter::ClosedByPeer);
                    return false;
                }
            };
            self.counters.add(Counter::SentBytes, written as u64);
            match &mut io.partial {
                Some(partial) if written < length => partial.from += written as u32,
                Some(_) => {
                    io.partial = None;
                    self.counters.add(counter, 1);
                }
                None if written < length => {
                    io.outbound.drain(..written);
                }
                None => io.outbound = Vec::new(),
            }
        }
    }
}
