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

use crate::connection::{ConnectionId, Connections, Flags, State, Token};

#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// Connections that have more to read, or to act upon, than one turn allows.
    reads: VecDeque<Token>,
    /// Connections that lack messages, and whose sockets may take more than one slice allows.
    deliveries: VecDeque<Token>,
    /// Connections that lack only messages which are not settled, and will not be soon.
    unsettled: VecDeque<Token>,
    /// Connections that the control plane has not taken yet.
    handoffs: VecDeque<Token>,
}

impl Deferred {
    /// Gives the connection another turn in the next slice.
    pub(crate) fn defer_read<S>(&mut self, id: ConnectionId, connections: &mut Connections<S>) {
        defer(&mut self.reads, Flags::READ_DEFERRED, id, connections);
    }

    /// Lets the connection have what it lacks in the next slice. Returns whether it was not
    /// deferred before.
    pub(crate) fn defer_delivery<S>(
        &mut self,
        id: ConnectionId,
        connections: &mut Connections<S>,
    ) -> bool {
        defer(&mut self.deliveries, Flags::DELIVERY_DEFERRED, id, connections)
    }

    /// Lets the connection have what it lacks when that is settled.
    pub(crate) fn defer_unsettled<S>(
        &mut self,
        id: ConnectionId,
        connections: &mut Connections<S>,
    ) -> bool {
        defer(&mut self.unsettled, Flags::DELIVERY_DEFERRED, id, connections)
    }

    /// Gives all that wait for messages to be settled a turn in the next slice.
    pub(crate) fn resume_unsettled(&mut self) {
        self.deliveries.append(&mut self.unsettled);
    }

    /// Lists a connection of another worker as its flags say.
    pub(crate) fn resume(&mut self, token: Token, flags: Flags) {
        let lists = [
            (Flags::READ_DEFERRED, &mut self.reads),
            (Flags::DELIVERY_DEFERRED, &mut self.deliveries),
            (Flags::AWAITS_CONTROL, &mut self.handoffs),
        ];
        for (flag, list) in lists {
            list.extend(flags.has(flag).then_some(token));
        }
    }

    /// The number of connections in `reads`, ended ones included.
    pub(crate) fn reads(&self) -> usize {
        self.reads.len()
    }

    /// The number of connections in `deliveries`, ended ones included.
    pub(crate) fn deliveries(&self) -> usize {
        self.deliveries.len()
    }

    /// Takes the connection whose read was deferred first.
    pub(crate) fn next_read<S>(
        &mut self,
        connections: &mut Connections<S>,
    ) -> Option<ConnectionId> {
        next(&mut self.reads, Flags::READ_DEFERRED, connections)
    }

    /// Takes the connection whose delivery was deferred first.
    pub(crate) fn next_delivery<S>(
        &mut self,
        connections: &mut Connections<S>,
    ) -> Option<ConnectionId> {
        next(&mut self.deliveries, Flags::DELIVERY_DEFERRED, connections)
    }

    /// Tries to hand the connection off again in the next slice.
    pub(crate) fn defer_handoff(&mut self, token: Token) {
        self.handoffs.push_back(token);
    }

    /// The number of connections that wait for the control plane, ended ones included.
    pub(crate) fn handoffs(&self) -> usize {
        self.handoffs.len()
    }

    /// Takes the connection that has waited longest for the control plane. It may be gone, or
    /// closing.
    pub(crate) fn next_handoff(&mut self) -> Option<Token> {
        self.handoffs.pop_front()
    }

    /// True if a slice has something to do at once. The control plane tells by no event when it
    /// takes connections.
    pub(crate) fn has_work(&self) -> bool {
        !self.reads.is_empty() || !self.deliveries.is_empty()
    }

    /// Panics unless lists and flags agree. For tests: it visits all connections.
    pub(crate) fn check_invariants<S>(&self, connections: &Connections<S>) {
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
    id: ConnectionId,
    connections: &mut Connections<S>,
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
    use std::sync::Arc;

    use throng_core::{NodeTag, WorkerId};

    use super::*;
    use crate::limits::Limits;
    use crate::metrics::Metrics;

    fn connections(count: usize) -> (Connections<()>, Vec<ConnectionId>) {
        let metrics = Metrics::new([100].into_iter());
        let mut connections = Connections::new(
            NodeTag::ALONE,
            WorkerId(0),
            metrics,
            Limits::default(),
            Arc::default(),
            0,
        );
        let ids =
            (0..count).map(|_| connections.insert((), Flags::default(), 0, 0, None)).collect();
        (connections, ids)
    }

    #[test]
    fn a_connection_that_is_deferred_twice_has_one_turn() {
        let (mut connections, ids) = connections(2);
        let mut deferred = Deferred::default();
        for id in [ids[1], ids[0], ids[1]] {
            deferred.defer_read(id, &mut connections);
        }
        deferred.check_invariants(&connections);
        assert!(deferred.has_work());
        let mut next = || deferred.next_read(&mut connections);
        let order = [next(), next(), next()];
        assert_eq!(order, [Some(ids[1]), Some(ids[0]), None]);
        assert!(!deferred.has_work());
        deferred.check_invariants(&connections);
    }

    #[test]
    fn a_connection_can_be_deferred_again_once_it_had_its_turn() {
        let (mut connections, ids) = connections(1);
        let mut deferred = Deferred::default();
        assert!(deferred.defer_delivery(ids[0], &mut connections));
        assert!(!deferred.defer_delivery(ids[0], &mut connections));
        assert_eq!(deferred.next_delivery(&mut connections), Some(ids[0]));
        assert!(deferred.defer_delivery(ids[0], &mut connections));
    }

    #[test]
    fn a_reused_place_does_not_inherit_a_turn() {
        let (mut connections, ids) = connections(1);
        let mut deferred = Deferred::default();
        deferred.defer_read(ids[0], &mut connections);
        drop(connections.take(ids[0]));
        let reused = connections.insert((), Flags::default(), 0, 0, None);
        assert_eq!(reused, ids[0]);
        deferred.check_invariants(&connections);
        assert_eq!(deferred.next_read(&mut connections), None);
    }
}
