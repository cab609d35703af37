//! The connections that were not written all that they are to get, because their sockets do not
//! take it, and since when.
//!
//! They are few, so that they are found without passing all connections.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::id::ConnectionId;

/// The connections of one worker that are behind: each with the tick at which its socket took less
/// than was written, after it had last had everything.
#[derive(Debug, Default)]
pub(super) struct BehindList(BTreeMap<ConnectionId, u32>);

impl BehindList {
    /// The socket of a connection has taken less than was written, at this tick.
    pub(super) fn fall_behind(&mut self, id: ConnectionId, tick: u32) {
        self.0.entry(id).or_insert(tick);
    }

    /// A connection has had everything, or has gone.
    pub(super) fn catch_up(&mut self, id: ConnectionId) {
        self.0.remove(&id);
    }

    /// The tick since which a connection is behind; `None` if it is not.
    pub(super) fn since(&self, id: ConnectionId) -> Option<u32> {
        self.0.get(&id).copied()
    }

    /// The connection that comes next, by index, and since when it is behind. `after` is the one
    /// before.
    pub(super) fn next(&self, after: Option<ConnectionId>) -> Option<(ConnectionId, u32)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.range((from, Bound::Unbounded)).next().map(|(&id, &since)| (id, since))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_behind_since_it_last_had_everything() {
        let mut behind = BehindList::default();
        let [first, second] = [3, 9].map(ConnectionId::new);
        behind.fall_behind(second, 5);
        behind.fall_behind(first, 7);
        behind.fall_behind(second, 8);
        assert_eq!((behind.since(first), behind.since(second)), (Some(7), Some(5)));
        assert_eq!(behind.next(None), Some((first, 7)));
        assert_eq!(behind.next(Some(first)), Some((second, 5)));
        behind.catch_up(second);
        assert_eq!((behind.next(Some(first)), behind.len()), (None, 1));
        behind.fall_behind(second, 9);
        assert_eq!(behind.since(second), Some(9));
    }
}
