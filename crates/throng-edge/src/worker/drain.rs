//! The end: everything accepted is delivered, then clients are told when to come back, each at
//! another moment of the drain window, so that they do not all come at once.
//!
//! A long-poll's client is between two polls again and again, and messages that were accepted
//! meanwhile are in the log only, which ends with the server. So while such clients may be about,
//! for the length of the window at most, the worker goes on to take connections: a poll for which
//! something is ready is answered, and one for which nothing is told when to come back.

use std::sync::atomic::Ordering;

use throng_core::{Counter, Parked, retry};
use throng_wire::{RetryAfter, chunk, sse};

use super::{TICKS_PER_S, Worker};
use crate::close_reason::CloseReason;
use crate::connection::{Flags, State};
use crate::framing::Framing;
use crate::net::Net;

/// Connections sent home in one slice.
const PARTINGS_PER_SLICE: u32 = 512;

/// However late the drain begins, messages under way are given this long, in ticks.
const GOODBYE_TICKS: u32 = TICKS_PER_S;

/// After the drain timeout, closing connections are given this long, in ticks.
const LAST_TICKS: u32 = 3 * TICKS_PER_S;

/// How far the end has come.
#[derive(Debug)]
pub(super) struct Drain {
    /// In ticks: what is not delivered by then is given up.
    deadline: u32,
    /// The next connection to send home; `None` while messages are being delivered.
    at: Option<u32>,
    /// In ticks: before it there is no use in another round.
    next_round: u32,
    /// In ticks: clients that are between two long-polls are waited for until then.
    polls_until: u32,
    /// In ticks: one that has left a connection since may come back on another.
    polls_since: u32,
    is_ended: bool,
}

impl Drain {
    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }
}

impl<N: Net> Worker<N> {
    pub(super) fn stop_accepting(&mut self) {
        self.doors_closed.get_or_insert(self.now.tick);
    }

    pub(super) fn start_drain(&mut self) {
        self.stop_accepting();
        if self.drain.is_none() {
            // What the control plane took of it is gone, but for a moment to say goodbye.
            let timeout = Self::ticks(self.settings.drain_timeout);
            let deadline = self.doors_closed.unwrap_or_default().saturating_add(timeout);
            let deadline = deadline.max(self.now.tick.saturating_add(GOODBYE_TICKS));
            let window = Self::ticks(self.settings.drain_window);
            self.drain = Some(Drain {
                deadline,
                at: None,
                next_round: 0,
                polls_until: self.now.tick.saturating_add(window).min(deadline),
                polls_since: self.now.tick.saturating_sub(window),
                is_ended: false,
            });
        }
    }

    /// Whether the worker drains, and clients may be about that are between two long-polls.
    pub(super) fn expects_polls(&self) -> bool {
        let Some(drain) = &self.drain else { return false };
        let parked: u64 = Parked::ALL.iter().map(|&parked| self.counters.parked(parked)).sum();
        let has_kept = u64::from(self.admitted) > parked;
        let has_left = self.poller_left.is_some_and(|left| left >= drain.polls_since);
        self.now.tick < drain.polls_until && (has_kept || has_left)
    }

    /// Goes on with the end for one slice.
    pub(super) fn drain_on(&mut self) {
        let now = self.now.tick;
        let expects_polls = self.expects_polls();
        let is_delivered = !self.subscriptions.is_fanning_out() && self.queue.is_empty();
        let Some(drain) = &mut self.drain else { return };
        let is_late = now >= drain.deadline;
        if !expects_polls {
            // Once the listener is closed nobody can come.
            drain.polls_until = now;
        }
        let is_over = now >= drain.deadline.saturating_add(LAST_TICKS);
        if is_over || (self.connections.is_empty() && !expects_polls) {
            drain.is_ended = true;
            self.figures.worker(self.id).is_ended.store(true, Ordering::Release);
            return;
        }
        if !is_delivered && !is_late {
            return;
        }
        let at = match drain.at {
            Some(at) => at,
            None if now >= drain.next_round => 0,
            None => return,
        };
        let end = self.connections.extent().min(at + PARTINGS_PER_SLICE);
        drain.at = (end < self.connections.extent()).then_some(end);
        drain.next_round = now + 1;
        for index in at..end {
            self.part(index, is_late, expects_polls);
        }
    }

    /// Whether there is a slice to do at once.
    pub(super) fn is_parting(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.at.is_some() && !drain.is_ended)
    }

    /// Sends one connection home; one that is still to get something only if it is late, and one
    /// that may still ask for something only if no polls are expected any more.
    fn part(&mut self, index: u32, is_late: bool, expects_polls: bool) {
        let Some(connection) = self.connections.get(index) else { return };
        match connection.state {
            State::Closing => {}
            State::Head if connection.has(Flags::BLOCKED) && !is_late => {}
            State::Head if expects_polls => {}
            State::Head if connection.io.is_some() => self.refuse_draining(index),
            State::Head => self.forget(index, CloseReason::Draining),
            _ if connection.has(Flags::BLOCKED) && !is_late => {}
            _ if connection.has(Flags::POSTPONED) && !is_late => {}
            _ => self.send_home(index),
        }
    }

    fn send_home(&mut self, index: u32) {
        let Some(connection) = self.connections.get(index) else { return };
        let retry_after = self.drain_retry(index);
        let (framing, is_chunked) = (connection.framing, connection.has(Flags::CHUNKED));
        if connection.state == State::Polling {
            self.count(Counter::ClosedDraining);
            return self.answer_poll_empty(index, Some(retry_after));
        }
        let mut out = Vec::new();
        match framing {
            Framing::WebSocket | Framing::WebSocketEnvelope => {
                let message = retry_after.close_reason();
                return self.close_websocket_with(index, CloseReason::Draining, &message);
            }
            Framing::Sse | Framing::SseEnvelope => {
                let mut inner = Vec::new();
                sse::write_retry(&mut inner, retry_after.ms());
                match is_chunked {
                    true => chunk::write_chunk(&mut out, &inner),
                    false => out = inner,
                }
            }
            Framing::Line | Framing::LineEnvelope => {}
        }
        if is_chunked {
            out.extend_from_slice(chunk::LAST);
        }
        self.last_words(index, &out, CloseReason::Draining);
    }

    /// When the client of a connection is to come back.
    fn drain_retry(&self, index: u32) -> RetryAfter {
        let window_ms = self.settings.drain_window.as_millis() as u64;
        let workers = self.figures.workers().len() as u32;
        let place = index.wrapping_mul(workers).wrapping_add(u32::from(self.id.0));
        RetryAfter::from_ms(retry::delay_ms(place, &(0..window_ms)))
    }
}
