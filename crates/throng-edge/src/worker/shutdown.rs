//! The end of a worker: it delivers everything that was accepted, then tells each client when to
//! come back, spread over the drain window, so that they do not all come at once.
//!
//! A long-poll's client is between two polls again and again, and messages that were accepted
//! meanwhile are in the log only, which ends with the server. So while such clients may be about,
//! for the length of the window at most, the worker goes on to take connections: a poll for which
//! something is ready is answered, and one for which nothing is ready is told when to come back.

use std::sync::atomic::Ordering;

use throng_core::{Counter, Parked, retry};
use throng_wire::{RetryAfter, chunk, sse};

use super::{TICKS_PER_S, Worker, ticks};
use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, State};
use crate::encoding::Encoding;
use crate::net::Net;

/// Connections closed in one slice.
const DRAINED_PER_SLICE: u32 = 512;

/// However late the drain begins, messages under way have this long, in ticks.
const LATE_DRAIN_TICKS: u32 = TICKS_PER_S;

/// After the drain timeout, closing connections have this long, in ticks.
const LAST_TICKS: u32 = 3 * TICKS_PER_S;

/// How far a worker's shutdown has come: it stops accepting, later drains, then ends. All times are
/// ticks.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    /// When accepting stopped; `None` while accepting.
    stopped_accepting: Option<u32>,
    /// When a client last had the answer to a long-poll that it will follow up on another
    /// connection.
    long_poll_ended: Option<u32>,
    drain: Option<Drain>,
}

#[derive(Debug)]
struct Drain {
    /// What is not delivered by then is given up.
    deadline: u32,
    /// The index of the next connection to close in this pass over the table; `None` between two
    /// passes.
    next_index: Option<u32>,
    /// A pass before then would find nothing new.
    next_pass: u32,
    /// Clients that are between two long-polls are awaited until then.
    polls_until: u32,
    /// A client whose long-poll ended since then may come back on another connection.
    polls_since: u32,
    is_ended: bool,
}

impl Shutdown {
    pub(super) fn stop_accepting(&mut self, now: u32) {
        self.stopped_accepting.get_or_insert(now);
    }

    /// Whether new subscriptions are refused.
    pub(super) fn has_stopped_accepting(&self) -> bool {
        self.stopped_accepting.is_some()
    }

    /// A client had the answer to its long-poll, and is about to ask on another connection.
    pub(super) fn note_long_poll_end(&mut self, now: u32) {
        self.long_poll_ended = Some(now);
    }

    /// Starts the drain, unless it has been started. The time since accepting stopped counts for
    /// the `timeout`.
    fn start_drain(&mut self, now: u32, timeout: u32, window: u32) {
        self.stop_accepting(now);
        let stopped = self.stopped_accepting.unwrap_or(now);
        let deadline = stopped.saturating_add(timeout).max(now.saturating_add(LATE_DRAIN_TICKS));
        self.drain.get_or_insert(Drain {
            deadline,
            next_index: None,
            next_pass: 0,
            polls_until: now.saturating_add(window).min(deadline),
            polls_since: now.saturating_sub(window),
            is_ended: false,
        });
    }

    pub(super) fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    fn is_ended(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.is_ended)
    }

    /// Whether there is a slice to do at once.
    pub(super) fn has_work(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.next_index.is_some() && !drain.is_ended)
    }

    /// Whether the worker drains and clients may be between two long-polls; `has_idle` says whether
    /// some of them have kept their connections.
    fn awaits_polls(&self, now: u32, has_idle: bool) -> bool {
        let Some(drain) = &self.drain else { return false };
        let has_left = self.long_poll_ended.is_some_and(|ended| ended >= drain.polls_since);
        now < drain.polls_until && (has_idle || has_left)
    }
}

impl<N: Net> Worker<N> {
    /// Whether the worker was told to end and has.
    pub fn is_ended(&self) -> bool {
        self.shutdown.is_ended()
    }

    /// Whether the listener is still needed: until the end of a drain's wait for long-polls.
    pub fn takes_connections(&self) -> bool {
        !self.shutdown.is_draining() || self.awaits_polls()
    }

    pub(super) fn start_drain(&mut self) {
        let timeout = ticks(self.settings.drain_timeout);
        let window = ticks(self.settings.drain_window);
        self.shutdown.start_drain(self.now.tick, timeout, window);
    }

    fn awaits_polls(&self) -> bool {
        let parked: u64 = Parked::ALL.iter().map(|&parked| self.counters.parked(parked)).sum();
        let has_idle = u64::from(self.connections.admitted()) > parked;
        self.shutdown.awaits_polls(self.now.tick, has_idle)
    }

    /// Goes on with a drain for one slice.
    pub(super) fn continue_drain(&mut self) {
        let now = self.now.tick;
        let awaits_polls = self.awaits_polls();
        let is_delivered = !self.subscriptions.is_fanning_out() && self.queue.is_empty();
        let Some(drain) = &mut self.shutdown.drain else { return };
        let is_late = now >= drain.deadline;
        if !awaits_polls {
            // The listener is closed now: no poll can come later.
            drain.polls_until = now;
        }
        let is_over = now >= drain.deadline.saturating_add(LAST_TICKS);
        if is_over || (self.connections.is_empty() && !awaits_polls) {
            drain.is_ended = true;
            self.metrics.worker(self.id).is_ended.store(true, Ordering::Release);
            return;
        }
        if !is_delivered && !is_late {
            return;
        }
        let first = match drain.next_index {
            Some(index) => index,
            None if now >= drain.next_pass => 0,
            None => return,
        };
        let end = self.connections.extent().min(first + DRAINED_PER_SLICE);
        drain.next_index = (end < self.connections.extent()).then_some(end);
        drain.next_pass = now + 1;
        for index in first..end {
            self.drain_connection(ConnectionId::new(index), is_late, awaits_polls);
        }
    }

    /// Closes one connection. If messages are under way to it, that waits until it is late; if it
    /// may still ask for something, until no polls are awaited any more.
    fn drain_connection(&mut self, id: ConnectionId, is_late: bool, awaits_polls: bool) {
        // Not every place of the table is taken.
        let Some(connection) = self.connections.get(id) else { return };
        match connection.state {
            State::Closing => {}
            State::Head if connection.has(Flags::BLOCKED) && !is_late => {}
            State::Head if awaits_polls => {}
            State::Head if connection.io.is_some() => self.refuse_draining(id),
            State::Head => self.release(id, CloseReason::Draining),
            _ if connection.has(Flags::BLOCKED) && !is_late => {}
            _ if connection.has(Flags::DELIVERY_DEFERRED) && !is_late => {}
            _ => self.drain_parked(id),
        }
    }

    /// Tells a parked client when to come back, each at another moment of the drain window.
    fn drain_parked(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.expect_live(id) else { return };
        let retry_after = self.drain_retry(id);
        let (encoding, is_chunked) = (connection.encoding, connection.has(Flags::CHUNKED));
        if connection.state == State::LongPolling {
            self.count(Counter::ClosedDraining);
            return self.answer_long_poll_empty(id, Some(retry_after));
        }
        let mut out = Vec::new();
        match encoding {
            Encoding::WebSocket | Encoding::WebSocketEnvelope => {
                let message = retry_after.close_reason();
                return self.close_websocket_with(id, CloseReason::Draining, &message);
            }
            Encoding::Sse | Encoding::SseEnvelope => {
                let mut inner = Vec::new();
                sse::write_retry(&mut inner, retry_after.ms());
                if is_chunked {
                    chunk::write_chunk(&mut out, &inner);
                } else {
                    out = inner;
                }
            }
            Encoding::Line | Encoding::LineEnvelope => {}
        }
        if is_chunked {
            out.extend_from_slice(chunk::LAST);
        }
        self.close_after(id, &out, CloseReason::Draining);
    }

    /// When the client of the connection is to come back.
    fn drain_retry(&self, id: ConnectionId) -> RetryAfter {
        let window_ms = self.settings.drain_window.as_millis() as u64;
        let workers = self.metrics.workers().len() as u32;
        let place = id.index().wrapping_mul(workers).wrapping_add(u32::from(self.id.0));
        RetryAfter::from_ms(retry::delay_ms(place, &(0..window_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_since_accepting_stopped_counts_for_the_drain_timeout() {
        let deadline = |stopped, started| {
            let mut shutdown = Shutdown::default();
            shutdown.stop_accepting(stopped);
            shutdown.start_drain(started, 100, 50);
            shutdown.start_drain(started + 70, 100, 50);
            shutdown.drain.map(|drain| drain.deadline)
        };
        assert_eq!(deadline(0, 0), Some(100));
        assert_eq!(deadline(0, 60), Some(100));
        assert_eq!(deadline(0, 200), Some(200 + LATE_DRAIN_TICKS), "a moment is left in any case");
    }

    #[test]
    fn polls_are_awaited_for_the_window_while_a_client_may_come_back() {
        let mut shutdown = Shutdown::default();
        shutdown.note_long_poll_end(960);
        assert!(!shutdown.awaits_polls(1000, true), "it does not drain");
        shutdown.start_drain(1000, 100, 50);
        assert!(shutdown.awaits_polls(1049, false) && !shutdown.awaits_polls(1050, false));
        let mut shutdown = Shutdown::default();
        shutdown.note_long_poll_end(900);
        shutdown.start_drain(1000, 100, 50);
        assert!(!shutdown.awaits_polls(1001, false), "its client has come back long ago");
        assert!(shutdown.awaits_polls(1001, true), "a client has kept its connection");
    }
}
