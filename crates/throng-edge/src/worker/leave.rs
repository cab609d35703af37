//! Asks clients to leave, at a pace, while the worker goes on to serve the others.
//!
//! Nothing ends with the server yet, which may be told to stay: so those that lack messages are
//! asked later, and long-polls are served until their turn comes. Each client is told a moment of
//! its own within [`WINDOW`]; the pace decides how many come back a second.

use std::time::Duration;

use super::Worker;
use crate::connection::ConnectionId;
use crate::net::Net;
use crate::sockets::ticks;

/// The clients that are asked in a second come back at times spread over the next one.
const WINDOW: Duration = Duration::from_secs(1);

impl<N: Net> Worker<N> {
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
