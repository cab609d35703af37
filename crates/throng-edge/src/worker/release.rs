//! Frees connections and their subscriptions.

use throng_core::Fate;

use super::Worker;
use crate::close_reason::CloseReason;
use crate::connection::{Connection, ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Closes the socket and frees the connection, if it is still there.
    pub(super) fn release(&mut self, id: ConnectionId, reason: CloseReason) {
        self.notify_disconnected(id, reason);
        self.log_end(id, reason);
        self.unfollow_all(id);
        self.unwritten.settle(id, &mut self.subscriptions, Fate::Closed);
        // A failed write has released it already.
        let Some(connection) = self.connections.remove(id) else { return };
        let Connection { socket, flags, state, .. } = connection;
        self.net.close(socket);
        // A closing connection was counted by its reason when it began to close.
        if flags.has(Flags::CANARY) {
            return;
        }
        if state != State::Closing
            && let Some(counter) = reason.counter()
        {
            self.count(counter);
        }
        self.count(Counter::Closed);
    }
}
