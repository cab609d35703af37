//! A scan of the connections of a worker, and how far it has come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use throng_core::{ConnectionName, ConnectionScan, FoundConnection, ScanAction};

use crate::connection::ConnectionId;

/// A scan that is under way.
#[derive(Debug)]
pub(in crate::worker) struct RunningScan {
    scan: Arc<ConnectionScan>,
    /// The place that comes next, or the next of the names that it is about.
    next: u32,
    /// The newest generation when the scan began: it is not about clients that came later, or came
    /// back.
    newest_generation: u32,
    count: u64,
    /// Of those that are behind, the ones that hold most: the one that holds least is on top.
    ranked: BinaryHeap<Reverse<Rank>>,
    found: Vec<FoundConnection>,
}

/// A connection that is behind. The greatest holds most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::worker) struct Rank {
    /// Bytes that wait for it.
    pub(in crate::worker) held_bytes: u64,
    pub(in crate::worker) name: Reverse<ConnectionName>,
}

impl RunningScan {
    /// A scan from the first place on.
    pub(in crate::worker) fn new(scan: Arc<ConnectionScan>, newest_generation: u32) -> RunningScan {
        RunningScan {
            scan,
            next: 0,
            newest_generation,
            count: 0,
            ranked: BinaryHeap::new(),
            found: Vec::new(),
        }
    }

    pub(in crate::worker) fn scan(&self) -> &Arc<ConnectionScan> {
        &self.scan
    }

    /// The next of `extent` places; `None` if all were passed.
    pub(in crate::worker) fn next_place(&mut self, extent: u32) -> Option<ConnectionId> {
        let place = self.next;
        (place < extent).then(|| {
            self.next += 1;
            ConnectionId::new(place)
        })
    }

    /// The next of these names; `None` if all were passed.
    pub(in crate::worker) fn next_of(
        &mut self,
        names: &[ConnectionName],
    ) -> Option<ConnectionName> {
        let name = names.get(self.next as usize).copied();
        self.next += u32::from(name.is_some());
        name
    }

    /// The place that was passed last; `None` at the beginning.
    pub(in crate::worker) fn last_place(&self) -> Option<ConnectionId> {
        self.next.checked_sub(1).map(ConnectionId::new)
    }

    /// All places up to this one are passed.
    pub(in crate::worker) fn pass(&mut self, place: ConnectionId) {
        self.next = place.index() + 1;
    }

    /// True if a connection of this generation was there when the scan began.
    pub(in crate::worker) fn is_about(&self, generation: u32) -> bool {
        // Generations wrap around, and no connection is half a round old.
        self.newest_generation.wrapping_sub(generation) < u32::MAX / 2
    }

    pub(in crate::worker) fn count(&mut self) {
        self.count += 1;
    }

    /// Keeps a connection if it is among those that hold most.
    pub(in crate::worker) fn rank(&mut self, rank: Rank) {
        let ScanAction::List { limit } = self.scan.action else { return };
        self.ranked.push(Reverse(rank));
        if self.ranked.len() > limit {
            self.ranked.pop();
        }
    }

    /// Takes one of those that hold most, to list it.
    pub(in crate::worker) fn next_ranked(&mut self) -> Option<ConnectionName> {
        self.ranked.pop().map(|Reverse(rank)| rank.name.0)
    }

    /// Lists a connection, if the scan lists any, up to its limit.
    pub(in crate::worker) fn list(&mut self, found: impl FnOnce() -> FoundConnection) {
        if let ScanAction::List { limit } = self.scan.action
            && self.found.len() < limit
        {
            self.found.push(found());
        }
    }

    pub(in crate::worker) fn finish(self) {
        self.scan.answer(self.count, self.found);
    }
}
