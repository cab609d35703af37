//! Ends connections at the end of a turn.
//!
//! A **turn** is the time in which the worker acts on one connection, or on a few whose writes it
//! makes together. Whoever calls something in a turn may find the connection condemned afterwards,
//! but it is still there, and calls about it do nothing. Loops over connections give each a turn of
//! its own, and hold no id from one to the next.

use throng_core::Fate;

use super::Worker;
use crate::close_reason::CloseReason;
use crate::connection::{Connection, ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Acts on connections, then frees those that were condemned meanwhile.
    pub(super) fn turn<R>(&mut self, act: impl FnOnce(&mut Worker<N>) -> R) -> R {
        self.connections.begin_turn();
        let result = act(self);
        self.connections.end_turn();
        while let Some((id, reason)) = self.connections.next_condemned() {
            self.free(id, reason);
        }
        result
    }

    /// Lets the connection end with this turn, without another byte. The first reason counts.
    pub(super) fn condemn(&mut self, id: ConnectionId, reason: CloseReason) {
        self.connections.condemn(id, reason);
    }

    /// Closes the socket of a connection, and frees everything that it has.
    fn free(&mut self, id: ConnectionId, reason: CloseReason) {
        self.notify_disconnected(id, reason);
        self.log_end(id, reason);
        self.unfollow_all(id);
        self.unwritten.settle(id, &mut self.subscriptions, Fate::Closed);
        let (Connection { socket, flags, state, .. }, address) = self.connections.take(id);
        // First: whoever sees the close may come back at once.
        drop(address);
        self.net.close(socket);
        if flags.has(Flags::CANARY) {
            return;
        }
        // A closing connection was counted by its reason when it began to close.
        if state != State::Closing
            && let Some(counter) = reason.counter()
        {
            self.count(counter);
        }
        self.count(Counter::Closed);
    }
}
