//! Ends connections at the end of a turn.
//!
//! A **turn** is the time in which the worker acts on one connection, or on a few whose writes it
//! makes together. Whoever calls something in a turn may find the connection condemned afterwards,
//! but it is still there, and calls about it do nothing. Loops over connections give each a turn of
//! its own, and hold no id from one to the next.

use super::Sessions;
use crate::net::Net;

impl<N: Net> Sessions<N> {
    /// Acts on connections, then frees those that were condemned meanwhile.
    pub(crate) fn turn<R>(&mut self, act: impl FnOnce(&mut Sessions<N>) -> R) -> R {
        self.connections_mut().begin_turn();
        let result = act(self);
        self.connections_mut().end_turn();
        while let Some((id, reason)) = self.connections_mut().next_condemned() {
            self.free(id, reason);
        }
        self.settle_receipts();
        self.tell_ended();
        result
    }
}
