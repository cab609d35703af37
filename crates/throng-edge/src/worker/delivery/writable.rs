//! Goes on with connections whose sockets take more.

use crate::close_reason::CloseReason;
use crate::connection::{Flags, State, Token};
use crate::net::Net;
use crate::worker::{Worker, ticks};

impl<N: Net> Worker<N> {
    /// The connection's socket may take more.
    pub fn writable(&mut self, token: Token) {
        // An earlier event of the batch may have released it.
        let Some(id) = self.connections.find(token) else { return };
        if self.budget.is_slice_spent() {
            return self.defer_delivery(id);
        }
        if !self.flush(id) {
            return;
        }
        self.budget.begin_turn();
        let Some(connection) = self.connections.expect_live_mut(id) else { return };
        connection.flags.set(Flags::BLOCKED, false);
        if connection.has(Flags::PEER_ENDED) {
            return self.release(id, CloseReason::Peer);
        }
        match connection.state {
            State::Streaming => self.flush_subscriptions(id),
            State::Head => {
                // It has its answer, and is idle from now on.
                let idle_timeout = ticks(self.settings.idle_timeout);
                connection.due = self.now.tick.saturating_add(idle_timeout);
                self.input(id, &mut []);
            }
            State::Closing => self.half_close(id),
            State::LongPolling => {}
        }
        self.connections.trim_buffers(id);
        self.evict_excess();
    }

    /// Goes on with connections whose deliveries were deferred.
    pub(in crate::worker) fn continue_deliveries(&mut self) {
        for _ in 0..self.deferred_deliveries.len() {
            if self.budget.is_slice_spent() {
                return;
            }
            let Some(token) = self.deferred_deliveries.pop_front() else { return };
            let Some(id) = self.connections.find(token) else { continue };
            let Some(connection) = self.connections.get_mut(id) else { continue };
            connection.flags.set(Flags::DELIVERY_DEFERRED, false);
            if connection.has(Flags::BLOCKED) {
                self.writable(token);
            } else {
                self.flush_subscriptions(id);
            }
        }
    }
}
