//! Connections that wait for another turn, in the order in which they came.
//!
//! Connections are kept as tokens: one that has ended meanwhile, or whose place has a new
//! connection, is passed over.
//!
//! # Invariants
//!
//! A live connection is in `reads` once if it has [`Flags::READ_DEFERRED`], and not otherwise; the
//! same holds of `deliveries` and `unsettled` together and [`Flags::DELIVERY_DEFERRED`].

use std::collections::VecDeque;

use super::{Deferred, Sockets};
use crate::connection::{ConnectionId, Connections, Flags, State, Token};
use crate::counters::Counter;
use crate::net::Net;

impl<N: Net> Sockets<N> {
    /// Gives the connection another turn in the next slice.
    pub(crate) fn defer_read(&mut self, id: ConnectionId) {
        defer(&mut self.deferred.reads, Flags::READ_DEFERRED, &mut self.connections, id);
    }

    /// Lets the connection have the messages that it lacks in the next slice.
    pub(crate) fn defer_delivery(&mut self, id: ConnectionId) {
        let list = &mut self.deferred.deliveries;
        if defer(list, Flags::DELIVERY_DEFERRED, &mut self.connections, id) {
            self.count(Counter::DeliveriesDeferred);
        }
    }

    /// Lets the connection have the messages that it lacks when they are settled.
    pub(crate) fn defer_unsettled(&mut self, id: ConnectionId) {
        let list = &mut self.deferred.unsettled;
        if defer(list, Flags::DELIVERY_DEFERRED, &mut self.connections, id) {
            self.count(Counter::DeliveriesDeferred);
        }
    }

    /// Gives all that wait for messages to be settled a turn in the next slice.
    pub(crate) fn resume_unsettled(&mut self) {
        self.deferred.deliveries.append(&mut self.deferred.unsettled);
    }

    /// Lists a connection of another process as its flags say.
    pub(crate) fn resume_deferred(&mut self, token: Token, flags: Flags) {
        let lists = [
            (Flags::READ_DEFERRED, &mut self.deferred.reads),
            (Flags::DELIVERY_DEFERRED, &mut self.deferred.deliveries),
            (Flags::AWAITS_CONTROL, &mut self.deferred.handoffs),
        ];
        for (flag, list) in lists {
            list.extend(flags.has(flag).then_some(token));
        }
    }

    /// The number of deferred reads, of connections that have ended, too.
    pub(crate) fn deferred_reads(&self) -> usize {
        self.deferred.reads.len()
    }

    /// The number of deferred deliveries, to connections that have ended, too.
    pub(crate) fn deferred_deliveries(&self) -> usize {
        self.deferred.deliveries.len()
    }

    /// Takes the connection whose read was deferred first.
    pub(crate) fn next_read(&mut self) -> Option<ConnectionId> {
        next(&mut self.deferred.reads, Flags::READ_DEFERRED, &mut self.connections)
    }

    /// Takes the connection whose delivery was deferred first.
    pub(crate) fn next_delivery(&mut self) -> Option<ConnectionId> {
        next(&mut self.deferred.deliveries, Flags::DELIVERY_DEFERRED, &mut self.connections)
    }

    /// True if the worker retries something that no event reports: work is to be done soon.
    pub fn is_retrying(&self) -> bool {
        !self.deferred.handoffs.is_empty()
    }
}

impl Deferred {
    /// Panics unless lists and flags agree. For tests: it visits all connections.
    pub(super) fn check_invariants<S>(&self, connections: &Connections<S>) {
        let deliveries = self.deliveries.iter().chain(&self.unsettled);
        let lists: [(Vec<_>, Flags); 2] = [
            (self.reads.iter().collect(), Flags::READ_DEFERRED),
            (deliveries.collect(), Flags::DELIVERY_DEFERRED),
        ];
        for (list, flag) in lists {
            let live = list.into_iter().filter_map(|&token| connections.find(token));
            let mut listed: Vec<_> = live.collect();
            listed.sort_unstable();
            let all = (0..connections.extent()).map(ConnectionId::new);
            let is_flagged =
                |&id: &ConnectionId| connections.get(id).is_some_and(|found| found.has(flag));
            assert_eq!(listed, all.filter(is_flagged).collect::<Vec<_>>(), "{flag:?}");
        }
    }
}

/// Appends a connection to a list unless it is there, or ends. Returns whether it was appended.
fn defer<S>(
    list: &mut VecDeque<Token>,
    flag: Flags,
    connections: &mut Connections<S>,
    id: ConnectionId,
) -> bool {
    let connection = &mut connections[id];
    let is_new = !connection.has(flag) && connection.state() != State::Condemned;
    if is_new {
        connection.flags.set(flag, true);
        list.push_back(connection.token(id));
    }
    is_new
}

/// Takes the first connection of a list that is still there, and clears its flag.
fn next<S>(
    list: &mut VecDeque<Token>,
    flag: Flags,
    connections: &mut Connections<S>,
) -> Option<ConnectionId> {
    while let Some(token) = list.pop_front() {
        if let Some(id) = connections.find(token) {
            let connection = &mut connections[id];
            debug_assert!(connection.has(flag), "a listed connection has the flag");
            connection.flags.set(flag, false);
            return Some(id);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tests::{insert, sockets};

    #[test]
    fn a_connection_that_is_deferred_twice_has_one_turn() {
        let mut sockets = sockets(0);
        let ids = [insert(&mut sockets), insert(&mut sockets)];
        for id in [ids[1], ids[0], ids[1]] {
            sockets.defer_read(id);
        }
        sockets.check_invariants();
        let order = [sockets.next_read(), sockets.next_read(), sockets.next_read()];
        assert_eq!(order, [Some(ids[1]), Some(ids[0]), None]);
        assert_eq!(sockets.deferred_reads(), 0);
        sockets.check_invariants();
    }

    #[test]
    fn a_connection_can_be_deferred_again_once_it_had_its_turn() {
        let mut sockets = sockets(0);
        let id = insert(&mut sockets);
        (0..2).for_each(|_| sockets.defer_delivery(id));
        assert_eq!((sockets.next_delivery(), sockets.next_delivery()), (Some(id), None));
        sockets.defer_unsettled(id);
        assert_eq!(sockets.next_delivery(), None, "it waits for its messages");
        sockets.resume_unsettled();
        assert_eq!(sockets.next_delivery(), Some(id));
    }

    #[test]
    fn a_reused_place_does_not_inherit_a_turn() {
        let mut sockets = sockets(0);
        let id = insert(&mut sockets);
        sockets.defer_read(id);
        drop(sockets.connections.take(id));
        assert_eq!(insert(&mut sockets), id);
        sockets.check_invariants();
        assert_eq!(sockets.next_read(), None);
    }
}
