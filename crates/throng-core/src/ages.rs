//! Finds who keeps the oldest message, without being told of every change.
//!
//! An entry says that nothing of an owner is older than its time. Owners drop their oldest messages
//! far more often than somebody asks, so an entry is brought up to date only when it comes first:
//! adding costs next to nothing, and asking what has gone by since.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Entries brought up to date for one answer. Beyond it the owner at hand is old enough.
const UPDATES_MAX: usize = 64;

/// With fewer entries than this, tidying is not worth it.
const TIDY_MIN: usize = 64;

/// Owners, by number, and how old their oldest message is at most.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// Owners left by the last tidying.
    tidied: usize,
}

impl Ages {
    /// An owner that kept nothing does now, since `time_ms`. `oldest_of` is the time of an owner's
    /// oldest message, if it has any.
    pub(crate) fn add(&mut self, time_ms: u64, owner: u32, oldest_of: impl Fn(u32) -> Option<u64>) {
        // Owners that have emptied and filled again are here more than once.
        if self.heap.len() >= TIDY_MIN + 2 * self.tidied {
            self.tidy(oldest_of);
        }
        self.heap.push(Reverse((time_ms, owner)));
    }

    /// Nothing is older than this.
    pub(crate) fn bound_ms(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((time_ms, _))| *time_ms)
    }

    /// The owner of the oldest message, or of one nearly as old.
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

    /// Whether there are far more entries than the `owners` that there can be.
    pub(crate) fn wants_tidying(&self, owners: usize) -> bool {
        self.heap.len() >= TIDY_MIN + 2 * owners
    }

    /// Drops what is out of date, and the memory that it took.
    pub(crate) fn tidy(&mut self, oldest_of: impl Fn(u32) -> Option<u64>) {
        let mut owners: Vec<u32> = self.heap.drain().map(|Reverse((_, owner))| owner).collect();
        owners.sort_unstable();
        owners.dedup();
        let current = owners.iter().filter_map(|&owner| Some(Reverse((oldest_of(owner)?, owner))));
        self.heap = current.collect();
        self.tidied = self.heap.len();
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
        fn names_owners_by_age(steps in prop::collection::vec((0u8..3, 0usize..8), 0..400)) {
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
                prop_assert!(ages.heap.len() <= TIDY_MIN + 2 * 8);
            }
        }
    }
}
