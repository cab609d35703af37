//! Frees connections and their subscriptions.

use throng_core::Counter;

use super::Worker;
use crate::close_reason::CloseReason;
use crate::connection::{Connection, ConnectionId, State};
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Closes the socket and frees the connection, if it is still there.
    pub(super) fn release(&mut self, id: ConnectionId, reason: CloseReason) {
        self.unsubscribe_all(id);
        self.count_unparked(id);
        // Releasing a connection twice is normal: a failed write has released it already.
        let Some(connection) = self.connections.remove(id) else { return };
        // A closing connection was counted by reason when it began to close.
        if connection.state != State::Closing
            && let Some(counter) = reason.counter()
        {
            self.count(counter);
        }
        self.count(Counter::Closed);
    }

    /// Ends all subscriptions of the connection.
    pub(super) fn unsubscribe_all(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        let mut next = connection.newest_subscription.take();
        while let Some(subscription) = next {
            let left = self.subscriptions.leave(subscription);
            debug_assert!(left.is_some(), "a connection links to its own subscriptions only");
            let Some(left) = left else { break };
            self.engine.unfollow(self.now.unix_ms, left.channel, self.id);
            next = left.sibling;
        }
    }

    /// Counts that the connection is not parked any more. Call it before its state changes.
    pub(super) fn count_unparked(&self, id: ConnectionId) {
        if let Some(parked) = self.connections.get(id).and_then(Connection::parked) {
            self.counters.unpark(parked);
        }
    }
}
