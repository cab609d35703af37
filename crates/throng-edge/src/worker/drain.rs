//! Drains a worker: delivers the messages that were accepted, then closes each connection with the
//! time to come back, spread over the drain window, so that clients do not all come back at once.

use throng_wire::ErrorCode;

use super::Worker;
use super::shutdown::{DrainInputs, DrainStep, Polls};
use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, State};
use crate::net::Net;
use crate::sockets::ticks;

impl<N: Net> Worker<N> {
    /// True if the worker's drain is over.
    pub fn is_ended(&self) -> bool {
        self.shutdown.is_ended()
    }

    /// True if the listener is still needed. A drain needs it while it waits for long-polls.
    pub fn takes_connections(&self) -> bool {
        !self.shutdown.is_draining() || self.awaits_polls()
    }

    /// Takes no more subscriptions. From now on clients are told to come back within a time that
    /// depends on their number now, before any worker closes some of them.
    pub(super) fn end_accepting(&mut self) {
        let window = self.spread_window();
        let tick = self.clock().tick();
        self.shutdown.stop_accepting(tick, window);
    }

    pub(super) fn start_drain(&mut self) {
        self.end_accepting();
        let timeout = ticks(self.settings.drain_timeout);
        let window = ticks(self.settings.drain_window);
        let tick = self.clock().tick();
        self.shutdown.start_drain(tick, timeout, window);
    }

    fn awaits_polls(&self) -> bool {
        self.shutdown.awaits_polls(self.clock().tick(), self.polls())
    }

    fn polls(&self) -> Polls {
        let has_idle = u64::from(self.connections().admitted()) > self.connections().parked();
        Polls { has_idle, ended: self.poll_ended() }
    }

    /// Does one slice of a drain.
    pub(super) fn continue_drain(&mut self) {
        if !self.shutdown.is_draining() {
            return;
        }
        let is_empty = self.connections().is_empty();
        let inputs = DrainInputs {
            tick: self.clock().tick(),
            polls: self.polls(),
            is_delivered: !self.cursors().is_fanning_out() && self.queue.is_empty(),
            extent: if is_empty { 0 } else { self.connections().extent() },
        };
        let step = self.shutdown.next_step(inputs);
        match step {
            DrainStep::Wait => {}
            DrainStep::End => self.metrics().set_ended(),
            DrainStep::Close { indices, is_late, awaits_polls } => {
                for index in indices {
                    let id = ConnectionId::new(index);
                    self.turn(|worker| worker.drain_connection(id, is_late, awaits_polls));
                }
            }
        }
    }

    /// Closes one connection. One that lacks messages, or reads an answer, stays until `is_late`;
    /// one that may send another request stays while `awaits_polls`.
    pub(super) fn drain_connection(&mut self, id: ConnectionId, is_late: bool, awaits_polls: bool) {
        // The place has no connection.
        let Some(connection) = self.connections().get(id) else { return };
        match connection.state {
            State::Closing | State::Condemned => {}
            State::Head if connection.has(Flags::BLOCKED) && !is_late => {}
            State::Head if awaits_polls => {}
            State::Head if connection.io.is_some() => self.refuse_draining(id),
            State::Head => self.condemn(id, CloseReason::Draining),
            // Messages may be ready for it, which are lost with the server.
            State::Waiting if self.is_waiting_poll(id) && !is_late => {}
            State::Waiting => self.refuse_waiting(id, ErrorCode::Draining.into()),
            _ if connection.has(Flags::BLOCKED) && !is_late => {}
            _ if connection.has(Flags::DELIVERY_DEFERRED) && !is_late => {}
            _ => {
                let window = self.spread_window();
                self.send_away(id, window);
            }
        }
    }
}
