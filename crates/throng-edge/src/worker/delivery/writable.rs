//! Goes on with connections whose sockets take more, or may take more.

use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, State, Token};
use crate::net::Net;
use crate::worker::Worker;

impl<N: Net> Worker<N> {
    /// The connection's socket may take more (`EPOLLOUT`).
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
                // It has its answer, and is idle. Without one it has shaken hands, and the time of
                // its first head runs.
                if connection.has(Flags::SERVED) {
                    connection.due = self.clock.deadline(self.settings.idle_timeout);
                }
                self.input_kept(id);
            }
            State::Closing => self.half_close(id),
            // Nothing was written.
            State::Waiting => {}
            // A fan-out answers it, unless it has visited it before.
            State::LongPolling => {
                if self.newest_subscription(id).is_some_and(|own| self.is_in_order(id, own)) {
                    self.flush_in_order(id);
                }
            }
        }
        self.note_caught_up(id);
        self.count_held(id);
        self.connections.trim_buffers(id);
        self.evict_excess();
    }

    /// Ends the time that a connection is behind, unless it still lacks something.
    fn note_caught_up(&mut self, id: ConnectionId) {
        // It may have been released meanwhile.
        let Some(connection) = self.connections.get(id) else { return };
        if !connection.has(Flags::BLOCKED) && !connection.has(Flags::DELIVERY_DEFERRED) {
            self.connections.catch_up(id);
        }
    }

    /// Goes on with connections whose deliveries were deferred.
    pub(in crate::worker) fn continue_deliveries(&mut self) {
        for _ in 0..self.deferred.deliveries() {
            if self.budget.is_slice_spent() {
                return;
            }
            // All others have been released meanwhile.
            let Some(id) = self.deferred.next_delivery(&mut self.connections) else { return };
            let Some(connection) = self.connections.expect_live(id) else { continue };
            if connection.has(Flags::BLOCKED) {
                self.writable(connection.token(id));
            } else {
                self.flush_subscriptions(id);
                self.note_caught_up(id);
            }
        }
    }
}
