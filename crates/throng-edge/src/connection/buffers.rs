//! Limits the memory that clients make a worker hold: half-read requests, unread answers.
//!
//! When all connections together exceed the worker's share of
//! [`Limits::max_buffered_bytes`](crate::limits::Limits), those that buffer most are evicted, not
//! the one that asked last. Of connections that buffer about the same, to a power of two, the one
//! that has been buffering longest goes first: a client whose answer is being written outlasts
//! those that do not read theirs.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::id::ConnectionId;

/// The bytes that the quota counts for one connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Buffered {
    bytes: usize,
    /// The value of [`BufferQuota::begun`] when it began to buffer something.
    since: u64,
}

/// A connection that may be evicted. The greatest is evicted first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// The number of bits of its buffered bytes: their logarithm.
    size: u32,
    since: Reverse<u64>,
    id: ConnectionId,
}

/// The memory that all connections of a worker buffer.
///
/// Invariant: `places` has one entry for each connection that buffers the floor or more, and
/// `bytes` is the sum of what is counted for all.
#[derive(Debug)]
pub(super) struct BufferQuota {
    bytes: usize,
    max_bytes: usize,
    floor_bytes: usize,
    /// The number of times that a connection has begun to buffer something.
    begun: u64,
    places: BTreeSet<Place>,
}

impl Buffered {
    /// The bytes that the quota counts for the connection.
    pub(super) fn bytes(self) -> usize {
        self.bytes
    }
}

impl BufferQuota {
    /// The sum of what is counted for all connections.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn new(max_bytes: usize, floor_bytes: usize) -> BufferQuota {
        BufferQuota { bytes: 0, max_bytes, floor_bytes, begun: 0, places: BTreeSet::new() }
    }

    /// Sets the limit of what all together buffer.
    pub(super) fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// Counts `bytes` for the connection, for which `buffered` was counted before.
    pub(super) fn set(&mut self, id: ConnectionId, buffered: &mut Buffered, bytes: usize) {
        let before = self.place(id, *buffered);
        self.bytes = self.bytes - buffered.bytes + bytes;
        if buffered.bytes == 0 {
            self.begun += 1;
            buffered.since = self.begun;
        }
        buffered.bytes = bytes;
        let after = self.place(id, *buffered);
        if before != after {
            if let Some(before) = before {
                self.places.remove(&before);
            }
            self.places.extend(after);
        }
    }

    /// The connection buffers nothing any more.
    pub(super) fn release(&mut self, id: ConnectionId, mut buffered: Buffered) {
        self.set(id, &mut buffered, 0);
    }

    fn place(&self, id: ConnectionId, buffered: Buffered) -> Option<Place> {
        // Rounded, so that a few more bytes move no entry, and age decides among similar sizes.
        let size = usize::BITS - buffered.bytes.leading_zeros();
        let place = Place { size, since: Reverse(buffered.since), id };
        (buffered.bytes >= self.floor_bytes.max(1)).then_some(place)
    }

    /// The connection to evict next; `None` while all together stay within the limit, or each is
    /// below the floor.
    pub(super) fn excess(&self) -> Option<ConnectionId> {
        self.places.last().filter(|_| self.bytes > self.max_bytes).map(|place| place.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota() -> BufferQuota {
        BufferQuota::new(100, 8)
    }

    #[test]
    fn the_largest_is_evicted_first_and_among_equals_the_oldest() {
        let mut quota = quota();
        let mut held = [Buffered::default(); 5];
        for (index, bytes) in [(2, 33), (0, 7), (1, 40), (3, 15), (4, 5)] {
            assert_eq!(quota.excess(), None);
            quota.set(ConnectionId::new(index as u32), &mut held[index], bytes);
        }
        assert_eq!(quota.bytes, 100);
        quota.set(ConnectionId::new(4), &mut held[4], 6);
        assert_eq!(
            quota.excess(),
            Some(ConnectionId::new(2)),
            "33 and 40 are alike, and it is older"
        );
        quota.release(ConnectionId::new(2), held[2]);
        assert_eq!(quota.excess(), None);
        quota.set(ConnectionId::new(3), &mut held[3], 64);
        assert_eq!(quota.excess(), Some(ConnectionId::new(3)));
        quota.release(ConnectionId::new(3), held[3]);
        quota.release(ConnectionId::new(1), held[1]);
        quota.set(ConnectionId::new(0), &mut held[0], 7);
        quota.max_bytes = 0;
        assert_eq!(quota.excess(), None, "none below the floor");
    }

    #[test]
    fn the_sum_stays_that_of_all_connections() {
        let mut quota = quota();
        let mut held = [Buffered::default(); 7];
        for step in 0..1000_u32 {
            let index = (step * 31 % 7) as usize;
            let bytes = (step as usize * 97) % 300;
            quota.set(ConnectionId::new(index as u32), &mut held[index], bytes);
            let sum: usize = held.iter().map(|held| held.bytes).sum();
            let many = held.iter().filter(|held| held.bytes >= 8).count();
            assert_eq!((quota.bytes, quota.places.len()), (sum, many));
        }
        (0..7).for_each(|index| quota.release(ConnectionId::new(index), held[index as usize]));
        assert!(quota.bytes == 0 && quota.places.is_empty());
    }
}
