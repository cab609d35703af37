//! The places that subscribers cannot take.
//!
//! A worker has room for a number of subscribers, its capacity, and for a few connections more: the
//! reserve. Every connection begins there, without a place of its own, while its head is read.
//! What it asks decides: a subscription needs a place among the subscribers, anything else goes to
//! the control plane. So a full server still knows a publisher from a subscriber.
//!
//! A few viewers of the status page may stay in the reserve, so that an operator sees a full server
//! live.
//!
//! # Invariants
//!
//! * Subscribers, and closing connections beyond `lingering_max`, never exceed the capacity, and
//!   viewers beyond it never exceed `viewers_max`. So at least `heads_max` places are left for
//!   heads.
//! * A new connection always gets a place: where none is left, the oldest unfinished head gives
//!   way. A client whose head comes at once is therefore never kept out by heads that do not end.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::Ordering;

use throng_core::Counter;
use throng_wire::error::ResponseOptions;
use throng_wire::subscribe::Request;
use throng_wire::{ErrorCode, ErrorResponse, RetryAfter};

use super::Worker;
use crate::close_reason::CloseReason;
use crate::connection::{Connection, Flags, State};
use crate::net::{Net, Transfer};

/// Shorter queues are not worth looking through.
const SWEEP_MIN: usize = 128;

/// Connections whose first head had not come whole when it was looked for, the oldest first.
#[derive(Debug, Default)]
pub(super) struct UnfinishedHeads {
    tokens: VecDeque<u64>,
    /// How many there were when those that are finished were taken out.
    swept: usize,
}

impl UnfinishedHeads {
    /// Adds one. Those for which `is_unfinished` no longer holds are taken out now and then, so
    /// that there are never many more of them than of the others.
    fn push(&mut self, token: u64, is_unfinished: impl Fn(u64) -> bool) {
        if self.tokens.len() >= SWEEP_MIN.max(2 * self.swept) {
            self.tokens.retain(|&token| is_unfinished(token));
            self.swept = self.tokens.len();
        }
        self.tokens.push_back(token);
    }

    fn pop(&mut self, is_unfinished: impl Fn(u64) -> bool) -> Option<u64> {
        while let Some(token) = self.tokens.pop_front() {
            if is_unfinished(token) {
                return Some(token);
            }
        }
        None
    }
}

impl<N: Net> Worker<N> {
    /// Whether it has no place for another subscriber.
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Places that are left for subscribers, beside those kept for connections on their way here.
    pub fn room(&self) -> u32 {
        let reserved = self.figures.worker(self.id).places_kept();
        self.capacity().saturating_sub(self.taken().saturating_add(reserved))
    }

    /// Connections that have a place outside the reserve and are not closing.
    fn subscribers(&self) -> u32 {
        self.admitted - self.viewers_in_reserve
    }

    /// Places of subscribers that are taken.
    fn taken(&self) -> u32 {
        let lingering_max = self.settings.limits.lingering_max;
        self.subscribers() + self.closing.saturating_sub(lingering_max)
    }

    fn capacity(&self) -> u32 {
        self.figures.worker(self.id).capacity
    }

    /// Tells the others how many connections there are, and how much room.
    pub(super) fn publish_load(&self) {
        let figures = self.figures.worker(self.id);
        let open = self.connections.len() as u32 - self.closing;
        figures.connections.store(open, Ordering::Relaxed);
        figures.taken.store(self.taken(), Ordering::Relaxed);
    }

    /// Whether the connection may subscribe: it has a place, or can have one.
    pub(super) fn has_place(&self, index: u32) -> bool {
        if self.connections.get(index).is_some_and(|it| it.has(Flags::SERVED)) {
            return true;
        }
        // What has come from elsewhere is what places are kept for.
        if self.is_taking_over { self.taken() < self.capacity() } else { !self.is_full() }
    }

    /// Whether a request for which no worker has a place may have one of the reserve.
    pub(super) fn may_view(&self, request: &Request) -> bool {
        request.is_status() && self.viewers_in_reserve < self.settings.limits.viewers_max
    }

    /// The connection, which subscribes, has its place from now on.
    pub(super) fn admit_subscriber(&mut self, index: u32, is_in_reserve: bool) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if !connection.has(Flags::SERVED) {
            connection.flags.set(Flags::SERVED, true);
            connection.flags.set(Flags::IN_RESERVE, is_in_reserve);
            self.admitted += 1;
            self.viewers_in_reserve += u32::from(is_in_reserve);
        }
    }

    /// The connection gives its place up, if it has one. Called before it closes or is gone.
    pub(super) fn give_up_place(&mut self, flags: Flags) {
        self.admitted -= u32::from(flags.has(Flags::SERVED));
        self.viewers_in_reserve -= u32::from(flags.has(Flags::IN_RESERVE));
    }

    /// Whether one more closing connection, which had no place, may wait for its peer.
    pub(super) fn may_linger(&self) -> bool {
        self.subscribers() + self.closing
            < self.capacity().saturating_add(self.settings.limits.lingering_max)
    }

    /// Takes note of a head that has not come whole yet.
    pub(super) fn await_head(&mut self, index: u32) {
        let Some(connection) = self.connections.get(index) else { return };
        if !is_unfinished(connection) {
            return;
        }
        let token = Self::token(index, connection.generation);
        let mut heads = std::mem::take(&mut self.unfinished_heads);
        heads.push(token, |token| self.is_unfinished(token));
        self.unfinished_heads = heads;
    }

    fn is_unfinished(&self, token: u64) -> bool {
        let connection = self.index_of(token).and_then(|index| self.connections.get(index));
        connection.is_some_and(is_unfinished)
    }

    /// Makes a place for a new connection. Returns whether there is one.
    pub(super) fn make_way(&mut self) -> bool {
        let limits = &self.settings.limits;
        // Of the viewers' places only those that are taken: heads do not spread to the others.
        let reserve = limits.heads_max + limits.lingering_max + self.viewers_in_reserve;
        if (self.connections.len() as u32) < self.capacity().saturating_add(reserve) {
            return true;
        }
        let mut heads = std::mem::take(&mut self.unfinished_heads);
        let oldest = heads.pop(|token| self.is_unfinished(token));
        self.unfinished_heads = heads;
        let Some(index) = oldest.and_then(|token| self.index_of(token)) else { return false };
        if let Some(connection) = self.connections.get(index) {
            let mut out = Vec::new();
            let options = self.response_options(ErrorCode::Full, None);
            ErrorResponse::no_more_connections().write_response(&mut out, &options);
            // Whatever becomes of it: the place is needed now.
            if let Transfer::Bytes(sent) = self.net.write(&connection.socket, &[IoSlice::new(&out)])
            {
                self.counters.add(Counter::SentBytes, sent as u64);
            }
        }
        self.forget(index, CloseReason::Evicted);
        true
    }

    /// A connection for which there is no place at all: all heads have come, and wait for the
    /// control plane.
    pub(super) fn refuse_at_once(&mut self, socket: &N::Socket) {
        self.count(Counter::RefusedBusy);
        let mut out = Vec::new();
        self.write_error(ErrorCode::Busy, &mut out);
        // What it has sent is read first, as closing a socket with unread bytes resets it.
        let _ = self.net.read(socket, &mut self.buffer);
        if let Transfer::Bytes(sent) = self.net.write(socket, &[IoSlice::new(&out)]) {
            self.counters.add(Counter::SentBytes, sent as u64);
        }
        self.count(Counter::Closed);
    }

    /// Appends the response to a request that does not subscribe, or that is not known.
    pub(super) fn write_error(&self, code: ErrorCode, out: &mut Vec<u8>) {
        let options = self.response_options(code, None);
        ErrorResponse::from(code).write_response(out, &options);
    }

    /// What goes with an error of this code to the pages of `allow_origin`, now. The connection
    /// ends with it. Each call gives the next client's `Retry-After`.
    pub(super) fn response_options<'a>(
        &self,
        code: ErrorCode,
        allow_origin: Option<&'a str>,
    ) -> ResponseOptions<'a> {
        ResponseOptions {
            keep_alive: false,
            allow_origin,
            retry_after: self.retry_after(code),
            date: Some(self.date.get()),
        }
    }

    /// The next client's `Retry-After`, for a code that has one.
    pub(super) fn retry_after(&self, code: ErrorCode) -> Option<RetryAfter> {
        let window_ms = code.retry()?.window_ms(self.settings.drain_window);
        Some(RetryAfter::from_ms(self.retry_schedule.next_ms(&window_ms)))
    }
}

/// Whether its first head is still to come, in whole or in part.
fn is_unfinished<S>(connection: &Connection<S>) -> bool {
    connection.state == State::Head
        && !connection.has(Flags::SERVED)
        && !connection.has(Flags::AWAITS_CONTROL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_unfinished_head_is_found() {
        let mut heads = UnfinishedHeads::default();
        (0..10).for_each(|token| heads.push(token, |_| true));
        assert_eq!(heads.pop(|token| token > 3), Some(4));
        assert_eq!(heads.pop(|_| true), Some(5));
        assert_eq!(heads.pop(|token| token > 20), None);
    }

    #[test]
    fn finished_heads_do_not_pile_up() {
        let mut heads = UnfinishedHeads::default();
        for token in 0..100_000 {
            heads.push(token, |it| it == 0 || it == token);
            assert!(heads.tokens.len() <= SWEEP_MIN, "{}", heads.tokens.len());
        }
        assert_eq!(heads.pop(|token| token == 0), Some(0));
    }
}
