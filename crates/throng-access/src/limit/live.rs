//! How many at a time: connections of an address, subscriptions of a user.

use hashbrown::HashTable;

use super::key::LimitKey;

/// Bits of the count, and of the key, in one word. Of a million clients, some two share a count
/// with another one with a probability of 3 %; then each counts for both.
const COUNT_BITS: u32 = 20;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// The bits of a key by which a client is known here.
pub(super) const KEY_BITS: u64 = !COUNT_MAX;

/// The client has as many as it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtLimit;

/// Counts what clients hold, 9 to 18 bytes for each client that holds something. Its size follows
/// what it counts, which has a limit of its own, such as the connections of the server.
#[derive(Debug, Default)]
pub struct LiveCounts {
    /// Upper bits of the key, then the count.
    table: HashTable<u64>,
}

impl LiveCounts {
    /// Counts `count` more for `key`. The holder must give them to [`LiveCounts::release`].
    ///
    /// # Errors
    ///
    /// [`AtLimit`] if it would have more than `max`; then nothing was counted.
    pub fn acquire(&mut self, key: LimitKey, count: u32, max: u32) -> Result<(), AtLimit> {
        let (count, max) = (u64::from(count), u64::from(max).min(COUNT_MAX));
        if count == 0 {
            return Ok(());
        }
        if let Some(word) = self.table.find_mut(hash(key.0), |&word| is_same(word, key.0)) {
            if (*word & COUNT_MAX) + count > max {
                return Err(AtLimit);
            }
            *word += count;
            return Ok(());
        }
        if count > max {
            return Err(AtLimit);
        }
        let word = key.0 & !COUNT_MAX | count;
        self.table.insert_unique(hash(key.0), word, |&word| hash(word));
        Ok(())
    }

    /// The clients that hold something, by the [bits](KEY_BITS) of their keys, and how many.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        self.table.iter().map(|&word| (word & KEY_BITS, (word & COUNT_MAX) as u32))
    }

    /// Gives up `count` of what [`LiveCounts::acquire`] got.
    pub fn release(&mut self, key: LimitKey, count: u32) {
        if count == 0 {
            return;
        }
        let found = self.table.find_entry(hash(key.0), |&word| is_same(word, key.0));
        debug_assert!(found.is_ok(), "released more often than acquired");
        let Ok(mut found) = found else { return };
        let (held, count) = (*found.get() & COUNT_MAX, u64::from(count));
        debug_assert!(held >= count, "released more than acquired");
        if held > count {
            *found.get_mut() -= count;
        } else {
            found.remove();
        }
        // A burst of clients should not hold its memory for ever.
        if self.table.capacity() > 1024 && self.table.len() < self.table.capacity() / 8 {
            self.table.shrink_to(2 * self.table.len(), |&word| hash(word));
        }
    }

    /// How many `key` holds.
    pub fn count(&self, key: LimitKey) -> u32 {
        let found = self.table.find(hash(key.0), |&word| is_same(word, key.0));
        found.map_or(0, |&word| (word & COUNT_MAX) as u32)
    }

    /// How many clients hold something.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True if no client holds anything.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

/// The upper bits of a key or of a word; keys are hashes already.
fn hash(word: u64) -> u64 {
    (word >> COUNT_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn is_same(word: u64, key: u64) -> bool {
    word >> COUNT_BITS == key >> COUNT_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LimitKeys;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_limit_of_nothing_admits_nothing() {
        let mut counts = LiveCounts::default();
        assert_eq!(counts.acquire(LimitKey(1 << 40), 1, 0), Err(AtLimit));
        assert!(counts.is_empty());
    }

    #[test]
    fn memory_is_given_back() {
        let keys = LimitKeys::default();
        let mut counts = LiveCounts::default();
        let all: Vec<_> = (0..10_000).map(|number: u32| keys.name(&number.to_string())).collect();
        for &key in &all {
            counts.acquire(key, 1, 1).unwrap();
        }
        for &key in &all {
            counts.release(key, 1);
        }
        assert!(counts.is_empty() && counts.table.capacity() <= 2048);
    }

    proptest! {
        #[test]
        fn counts_as_a_map_does(
            steps in prop::collection::vec((any::<bool>(), 0..5_u32, 0..3_u32), 0..200),
        ) {
            let keys = LimitKeys::default();
            let mut counts = LiveCounts::default();
            let mut model = BTreeMap::<u32, u32>::new();
            for (acquires, number, count) in steps {
                let key = keys.name(&number.to_string());
                let held = model.entry(number).or_default();
                if acquires {
                    let fits = *held + count <= 3 || count == 0;
                    let expected = if fits { Ok(()) } else { Err(AtLimit) };
                    prop_assert_eq!(counts.acquire(key, count, 3), expected);
                    *held += if fits { count } else { 0 };
                } else {
                    let count = count.min(*held);
                    counts.release(key, count);
                    *held -= count;
                }
                prop_assert_eq!(counts.count(key), *held);
            }
            prop_assert_eq!(counts.len(), model.values().filter(|&&held| held > 0).count());
        }
    }
}
