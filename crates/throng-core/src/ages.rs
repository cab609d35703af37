//! Finds the owner of the oldest message without an update for each change.
//!
//! An entry is a lower bound: no message of the owner is older than its time. Owners drop their
//! oldest messages far more often than the oldest is asked for, so an entry is brought up to date
//! only when it comes first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Entries that one search brings up to date. After that the owner at hand is old enough.
const UPDATES_MAX: usize = 64;

/// A rebuild with fewer entries is not worth it.
const REBUILD_MIN: usize = 64;

/// Owners by number, in the order of the times of their oldest messages.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// The number of owners after the last rebuild.
    owners_rebuilt: usize,
}

impl Ages {
    /// Adds an owner that had no message, and now has one of `time_ms`. `oldest_of` is the time of
    /// an owner's oldest message, if it has any.
    pub(crate) fn add(&mut self, time_ms: u64, owner: u32, oldest_of: impl Fn(u32) -> Option<u64>) {
        // An owner that was empty for a time is here more than once.
        if self.heap.len() >= REBUILD_MIN + 2 * self.owners_rebuilt {
            self.rebuild(oldest_of);
        }
        self.heap.push(Reverse((time_ms, owner)));
    }

    /// No message is older than this.
    pub(crate) fn bound_ms(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((time_ms, _))| *time_ms)
    }

    /// The owner of the oldest message, or of one that is nearly as old.
    pub(crate) fn oldest(&mut self, oldest_of: impl Fn(u32) -> Option<u64>) -> Option<u32> {
        let mut updates = 0;
        loop {
            let mut first = self.heap.peek_mut()?;
            let Reverse((bound_ms, owner)) = *first;
            match oldest_of(owner) {
                None => {
                    PeekMut::pop(first);
                }
                Some(time_ms) if time_ms <= bound_ms || updates == UPDATES_MAX => {
                    return Some(owner);
                }
                Some(time_ms) => {
                    *first = Reverse((time_ms, owner));
                    updates += 1;
                }
            }
        }
    }

    /// True if there are far more entries than `owners`, the most that there can be.
    pub(crate) fn should_rebuild(&self, owners: usize) -> bool {
        self.heap.len() >= REBUILD_MIN + 2 * owners
    }

    /// Drops the entries that are out of date, and their memory.
    pub(crate) fn rebuild(&mut self, oldest_of: impl Fn(u32) -> Option<u64>) {
        let mut owners: Vec<u32> = self.heap.drain().map(|Reverse((_, owner))| owner).collect();
        owners.sort_unstable();
        owners.dedup();
        let current = owners.iter().filter_map(|&owner| Some(Reverse((oldest_of(owner)?, owner))));
        self.heap = current.collect();
        self.owners_rebuilt = self.heap.len();
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.heap.capacity()
    }

    #[cfg(test)]
    pub(crate) fn has(&self, owner: u32) -> bool {
        self.heap.iter().any(|Reverse((_, other))| *other == owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn the_oldest_is_found(steps in prop::collection::vec((0u8..3, 0usize..8), 0..400)) {
            let owners: RefCell<Vec<VecDeque<u64>>> = RefCell::new(vec![VecDeque::new(); 8]);
            let oldest_of = |owner: u32| owners.borrow()[owner as usize].front().copied();
            let mut ages = Ages::default();
            for (now_ms, (what, owner)) in (0..).zip(steps) {
                match what {
                    0 => {
                        owners.borrow_mut()[owner].push_back(now_ms);
                        if owners.borrow()[owner].len() == 1 {
                            ages.add(now_ms, owner as u32, oldest_of);
                        }
                    }
                    1 => {
                        owners.borrow_mut()[owner].pop_front();
                    }
                    _ => {
                        let expected = (0..8).filter_map(oldest_of).min();
                        let found = ages.oldest(oldest_of);
                        prop_assert_eq!(found.and_then(oldest_of), expected);
                        prop_assert_eq!(ages.bound_ms(), expected);
                    }
                }
                prop_assert!(ages.heap.len() <= REBUILD_MIN + 2 * 8);
            }
        }
    }
}
