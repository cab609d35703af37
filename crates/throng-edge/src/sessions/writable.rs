//! Goes on with connections whose sockets take more, or may take more.

use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, State, Token};
use crate::net::Net;
use crate::sessions::Sessions;

impl<N: Net> Sessions<N> {
    /// The connection's socket may take more (`EPOLLOUT`).
    pub fn writable(&mut self, token: Token) {
        // It may have ended since the event.
        let Some(id) = self.connections().find(token) else { return };
        if self.budget().is_slice_spent() {
            return self.defer_delivery(id);
        }
        self.write_on(id);
    }

    /// Goes on with what the connection lacks.
    fn write_on(&mut self, id: ConnectionId) {
        self.turn(|sessions| sessions.flush_all(id));
        self.evict_excess();
    }

    /// Writes what waits, and acts on the connection once all of it is written.
    fn flush_all(&mut self, id: ConnectionId) {
        if !self.flush(id) {
            return;
        }
        self.budget().begin_turn();
        let connection = &mut self[id];
        connection.flags.set(Flags::BLOCKED, false);
        if connection.has(Flags::PEER_ENDED) {
            return self.condemn(id, CloseReason::Peer);
        }
        match connection.state() {
            State::Streaming => self.flush_subscriptions(id),
            State::Head => {
                // It has its answer, and is idle. Without one it has shaken hands, and the time of
                // its first head runs.
                if connection.has(Flags::SERVED) {
                    self[id].due = self.clock().deadline(self.settings.idle_timeout);
                }
                self.input_kept(id);
            }
            State::Closing => self.half_close(id),
            // Nothing was written.
            State::Waiting | State::Condemned => {}
            // A fan-out answers it, unless it has visited it before.
            State::LongPolling => {
                if self.newest_subscription(id).is_some_and(|own| self.is_in_order(id, own)) {
                    self.flush_in_order(id);
                }
            }
        }
        if self.is_here(id) {
            self.note_caught_up(id);
            self.count_held(id);
            self.connections_mut().trim_buffers(id);
        }
    }

    /// Goes on with connections whose deliveries were deferred.
    pub(crate) fn continue_deliveries(&mut self) {
        for _ in 0..self.deferred().deliveries() {
            if self.budget().is_slice_spent() {
                return;
            }
            // All others have ended meanwhile.
            let Some(id) = self.next_delivery() else { return };
            if self[id].has(Flags::BLOCKED) {
                self.write_on(id);
            } else {
                self.turn(|sessions| {
                    sessions.flush_subscriptions(id);
                    sessions.note_caught_up(id);
                });
            }
        }
    }
}
