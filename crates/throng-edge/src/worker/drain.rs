//! Lets clients go, so that they do not all come back at once.
//!
//! A **drain** delivers the messages that were accepted, then closes each connection with the time
//! to come back, spread over the drain window.
//!
//! Before it, clients may be asked to **leave**, at a pace, while the worker goes on to serve the
//! others. Nothing ends with the server yet, which may be told to stay: so those that lack messages
//! are asked later, and long-polls are served until their turn comes. Each client is told a moment
//! of its own within [`WINDOW`]; the pace decides how many come back a second.

use std::time::Duration;

use super::Worker;
use crate::connection::ConnectionId;
use crate::net::Net;
use crate::sessions::{DrainInputs, DrainStep, Polls};
use crate::sockets::ticks;

/// The clients that are asked in a second come back at times spread over the next one.
const WINDOW: Duration = Duration::from_secs(1);

impl<N: Net> Worker<N> {
    /// True if the worker's drain is over.
    pub fn is_ended(&self) -> bool {
        self.shutdown().is_ended()
    }

    /// True if the listener is still needed. A drain needs it while it waits for long-polls.
    pub fn takes_connections(&self) -> bool {
        !self.shutdown().is_draining() || self.awaits_polls()
    }

    /// Takes no more subscriptions. From now on clients are told to come back within a time that
    /// depends on their number now, before any worker closes some of them.
    pub(super) fn end_accepting(&mut self) {
        let window = self.spread_window();
        let tick = self.clock().tick();
        self.shutdown_mut().stop_accepting(tick, window);
    }

    pub(super) fn start_drain(&mut self) {
        self.end_accepting();
        let timeout = ticks(self.settings.drain_timeout);
        let window = ticks(self.settings.drain_window);
        let tick = self.clock().tick();
        self.shutdown_mut().start_drain(tick, timeout, window);
    }

    fn awaits_polls(&self) -> bool {
        self.shutdown().awaits_polls(self.clock().tick(), self.polls())
    }

    fn polls(&self) -> Polls {
        let has_idle = u64::from(self.connections().admitted()) > self.connections().parked();
        Polls { has_idle, ended: self.poll_ended() }
    }

    /// Does one slice of a drain.
    pub(super) fn continue_drain(&mut self) {
        if !self.shutdown().is_draining() {
            return;
        }
        self.stop_clocks();
        let is_empty = self.connections().is_empty();
        let inputs = DrainInputs {
            tick: self.clock().tick(),
            polls: self.polls(),
            is_delivered: !self.has_undelivered() && self.queue.is_empty(),
            extent: if is_empty { 0 } else { self.connections().extent() },
        };
        let step = self.shutdown_mut().next_step(inputs);
        match step {
            DrainStep::Wait => {}
            DrainStep::End => self.metrics().set_ended(),
            DrainStep::Close { indices, is_late, awaits_polls } => {
                for index in indices {
                    let id = ConnectionId::new(index);
                    self.turn(|sessions| sessions.drain_connection(id, is_late, awaits_polls));
                }
            }
        }
    }

    pub(super) fn begin_leave(&mut self, over_ms: u64) {
        let over = ticks(Duration::from_millis(over_ms));
        let clients = u32::try_from(self.connections().parked()).unwrap_or(u32::MAX);
        let tick = self.clock().tick();
        self.shutdown_mut().leave(tick, over, clients);
    }

    /// Asks those whose turn it is, a slice of them.
    pub(super) fn continue_leave(&mut self) {
        let extent = if self.connections().is_empty() { 0 } else { self.connections().extent() };
        let tick = self.clock().tick();
        while let Some(index) = self.shutdown_mut().next_to_leave(tick, extent) {
            let id = ConnectionId::new(index);
            if self.may_be_asked_to_leave(id) {
                self.shutdown_mut().note_asked_to_leave();
                self.turn(|sessions| sessions.send_away(id, WINDOW));
            }
        }
    }
}
