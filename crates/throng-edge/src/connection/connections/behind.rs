//! Which connections are behind: their sockets have not taken all that was written.

use std::sync::atomic::Ordering;

use super::Connections;
use crate::connection::id::ConnectionId;
use crate::connection::state::State;

impl<S> Connections<S> {
    /// The connection's socket took less than was written, at this tick. One that closes has had
    /// its last output, which has a deadline of its own.
    pub(crate) fn fall_behind(&mut self, id: ConnectionId, tick: u32) {
        if self[id].state() != State::Closing {
            self.behind.fall_behind(id, tick);
            self.publish_behind();
        }
    }

    /// The connection has had everything.
    pub(crate) fn catch_up(&mut self, id: ConnectionId) {
        self.behind.catch_up(id);
        self.publish_behind();
    }

    /// The tick since which the connection is behind; `None` if it is not.
    pub(crate) fn behind_since(&self, id: ConnectionId) -> Option<u32> {
        self.behind.since(id)
    }

    /// The connection that is behind and comes next, by index, and since when it is. `after` is the
    /// one before.
    pub(crate) fn next_behind(&self, after: Option<ConnectionId>) -> Option<(ConnectionId, u32)> {
        self.behind.next(after)
    }

    /// Shows other threads how many there are.
    pub(super) fn publish_behind(&self) {
        self.load().behind.store(self.behind.len() as u32, Ordering::Relaxed);
    }
}
