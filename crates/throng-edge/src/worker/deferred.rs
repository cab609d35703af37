//! Lists of connections that go on when others have had their turn.

use throng_core::Counter;

use super::Worker;
use crate::connection::{ConnectionId, Flags};
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Gives the connection another turn in the next slice: it has more to read, or to act upon.
    pub(super) fn defer_read(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.expect_live_mut(id) else { return };
        if !connection.has(Flags::READ_DEFERRED) {
            connection.flags.set(Flags::READ_DEFERRED, true);
            self.deferred_reads.push_back(connection.token(id));
        }
    }

    /// Lets the connection have what it lacks in the next slice.
    pub(super) fn defer_delivery(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.expect_live_mut(id) else { return };
        if !connection.has(Flags::DELIVERY_DEFERRED) {
            connection.flags.set(Flags::DELIVERY_DEFERRED, true);
            self.deferred_deliveries.push_back(connection.token(id));
            self.count(Counter::Postponed);
        }
    }
}
