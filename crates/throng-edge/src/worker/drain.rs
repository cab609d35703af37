//! The end of a worker: it delivers everything that was accepted, then tells each client when to
//! come back, spread over the drain window, so that they do not all come at once.

use throng_core::{Counter, retry};
use throng_wire::{RetryAfter, chunk, sse};

use super::Worker;
use super::clock::ticks;
use super::shutdown::{DrainInputs, DrainStep};
use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, State};
use crate::encoding::Encoding;
use crate::net::Net;

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
        self.shutdown.start_drain(self.clock.tick(), timeout, window);
    }

    fn awaits_polls(&self) -> bool {
        self.shutdown.awaits_polls(self.clock.tick(), self.has_idle())
    }

    /// Whether clients of long-polls have kept their connections without a request.
    fn has_idle(&self) -> bool {
        u64::from(self.connections.admitted()) > self.metrics.parked()
    }

    /// Goes on with a drain for one slice.
    pub(super) fn continue_drain(&mut self) {
        if !self.shutdown.is_draining() {
            return;
        }
        let is_empty = self.connections.is_empty();
        let step = self.shutdown.next_step(DrainInputs {
            tick: self.clock.tick(),
            has_idle: self.has_idle(),
            is_delivered: !self.subscriptions.is_fanning_out() && self.queue.is_empty(),
            extent: if is_empty { 0 } else { self.connections.extent() },
        });
        match step {
            DrainStep::Wait => {}
            DrainStep::End => self.metrics.set_ended(),
            DrainStep::Close { indices, is_late, awaits_polls } => {
                for index in indices {
                    self.drain_connection(ConnectionId::new(index), is_late, awaits_polls);
                }
            }
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
        // All connections of all workers have different numbers, dense from 0.
        let (worker, workers) = (self.metrics.worker().0, self.metrics.workers() as u32);
        let place = id.index().wrapping_mul(workers).wrapping_add(u32::from(worker));
        RetryAfter::from_ms(retry::delay_ms(place, &(0..window_ms)))
    }
}
