//! The idempotency keys of recent publications.
//!
//! All shards together remember a limited number of keys. Beyond it a shard that has more than its
//! share forgets keys of the publisher that has the most of them, so that nobody's flood makes the
//! retries of others count as new publications.
//!
//! A key is kept as 128 bits of a hash, so that its length does not matter. The hash is SHA-1 with
//! a random seed: a frozen engine's keys must be found by a later build as well, and the fast
//! hashes may change with each of their versions.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::clock;
use crate::frozen::{Encoder, RecordKind};
use crate::publication::IDEMPOTENCY_MS;

/// Keys that all shards together remember, which take about 90 MB: a runaway publisher must not
/// fill the memory.
pub(super) const KEYS_MAX: usize = 1 << 20;

/// Keys that a shard remembers even if others have taken all [`KEYS_MAX`]: they then shrink with
/// each key that they add, and with each tick. So there are half as many more at most.
pub(super) const SHARE: usize = 1 << 13;

/// Keys that are forgotten at a time, because finding the publisher with the most keys costs a look
/// at all publishers.
const FORGOTTEN_AT_ONCE: usize = 256;

/// Bytes of a [`Key`] and of a [`Seed`].
pub(super) const KEY_BYTES: usize = 16;

/// Makes the hashes of keys unpredictable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seed(pub(super) [u8; KEY_BYTES]);

impl Seed {
    pub(super) fn numbered(number: u64) -> Seed {
        let mut seed = [0; KEY_BYTES];
        seed[..8].copy_from_slice(&number.to_le_bytes());
        Seed(seed)
    }

    pub(super) fn random() -> Seed {
        let mut seed = [0; KEY_BYTES];
        // The operating system seeds the hashers.
        for half in seed.chunks_mut(size_of::<u64>()) {
            half.copy_from_slice(&RandomState::new().hash_one(KEYS_MAX).to_le_bytes());
        }
        Seed(seed)
    }

    /// The hash of a channel and the text of a key.
    pub(super) fn key(&self, channel: &str, key: &str) -> Key {
        let mut hash = sha1_smol::Sha1::new();
        hash.update(&self.0);
        hash.update(&(channel.len() as u32).to_le_bytes());
        hash.update(channel.as_bytes());
        hash.update(key.as_bytes());
        let digest = hash.digest().bytes();
        Key(std::array::from_fn(|at| digest[at]))
    }
}

/// The hash of a channel and a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key(pub(super) [u8; KEY_BYTES]);

/// Hashes of the publisher and the channel that a key belongs to. They are for shares only: that
/// two publishers have the same one costs them nothing while there is room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Owner {
    pub(super) publisher: u32,
    pub(super) channel: u32,
}

/// Counts of the keys of all shards.
#[derive(Debug, Default)]
pub(super) struct KeyCounts {
    /// Keys that are remembered.
    pub(super) kept: AtomicUsize,
    /// Keys that were forgotten early, because there were too many.
    pub(super) displaced: AtomicU64,
}

impl KeyCounts {
    fn are_full(&self) -> bool {
        self.kept.load(Ordering::Relaxed) >= KEYS_MAX
    }
}

#[derive(Debug)]
struct Remembered {
    at_ms: u64,
    key: Key,
    owner: Owner,
}

#[derive(Debug, Default)]
pub(super) struct Idempotency {
    offsets: HashMap<Key, u64, foldhash::fast::RandomState>,
    /// The remembered keys, oldest first.
    order: VecDeque<Remembered>,
    /// How many keys each owner has.
    owners: HashMap<Owner, usize, foldhash::fast::RandomState>,
}

impl Idempotency {
    /// The keys that are remembered, the oldest first: when, and of which message.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Key, u64)> {
        let entry =
            |entry: &Remembered| Some((entry.at_ms, entry.key, *self.offsets.get(&entry.key)?));
        self.order.iter().filter_map(entry)
    }

    /// Writes the keys that are remembered, the oldest first.
    pub(super) fn freeze<E>(
        &self,
        write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        for (at_ms, Key(key), offset) in self.iter() {
            let mut encoder = Encoder::new(RecordKind::IdempotencyKey);
            encoder.raw(&key);
            encoder.u64(clock::wall_ms(at_ms));
            encoder.u64(offset);
            write(encoder.finish())?;
        }
        Ok(())
    }

    /// True if no key is remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The offset of the message that was published with `key`.
    pub(super) fn find(&mut self, now_ms: u64, key: Key, all: &KeyCounts) -> Option<u64> {
        self.expire(now_ms, all);
        self.offsets.get(&key).copied()
    }

    /// Remembers the offset of a message.
    pub(super) fn remember(
        &mut self,
        now_ms: u64,
        (key, owner): (Key, Owner),
        offset: u64,
        all: &KeyCounts,
    ) {
        if all.are_full() && self.order.len() >= SHARE {
            self.displace(all);
        }
        all.kept.fetch_add(1, Ordering::Relaxed);
        // Each publishing thread reads the clock itself, and expiry takes the first key for the
        // oldest.
        let at_ms = self.order.back().map_or(now_ms, |last| now_ms.max(last.at_ms));
        self.order.push_back(Remembered { at_ms, key, owner });
        self.offsets.insert(key, offset);
        *self.owners.entry(owner).or_default() += 1;
    }

    pub(super) fn expire(&mut self, now_ms: u64, all: &KeyCounts) {
        let is_over = |entry: &Remembered| entry.at_ms.saturating_add(IDEMPOTENCY_MS) <= now_ms;
        while let Some(entry) = self.order.pop_front_if(|entry| is_over(entry)) {
            self.forget(&entry, all);
        }
        if self.order.capacity() > 1024 && self.order.len() * 4 < self.order.capacity() {
            self.order.shrink_to(self.order.len() * 2);
            self.offsets.shrink_to(self.order.len() * 2);
            self.owners.shrink_to(self.owners.len() * 2);
        }
    }

    /// Returns what was taken while others needed it.
    pub(super) fn shrink_to_share(&mut self, all: &KeyCounts) {
        while all.kept.load(Ordering::Relaxed) > KEYS_MAX && self.order.len() > SHARE {
            self.displace(all);
        }
    }

    /// Forgets the oldest keys of the publisher that has the most: of one channel, if most of them
    /// are there. If nobody has many, the oldest keys of all.
    fn displace(&mut self, all: &KeyCounts) {
        let worth_while = |count: usize| count >= 2 * FORGOTTEN_AT_ONCE;
        let mut publishers: HashMap<u32, usize, foldhash::fast::RandomState> = HashMap::default();
        for (owner, count) in &self.owners {
            *publishers.entry(owner.publisher).or_default() += count;
        }
        let fullest = publishers.into_iter().max_by_key(|&(_, count)| count);
        let Some((publisher, of_publisher)) = fullest else { return };
        let channels = self.owners.iter().filter(|(owner, _)| owner.publisher == publisher);
        let channel =
            channels.max_by_key(|&(_, &count)| count).map(|(&owner, &count)| (owner, count));
        let mut left = FORGOTTEN_AT_ONCE;
        let mut is_chosen = |owner: Owner| {
            let is_fullest = match channel {
                Some((fullest, count)) if worth_while(count) => owner == fullest,
                _ => owner.publisher == publisher || !worth_while(of_publisher),
            };
            is_fullest && left.checked_sub(1).map(|rest| left = rest).is_some()
        };
        // The rest is put back in front. Mostly it is little: the fullest has the oldest, too.
        let (mut kept, mut forgotten) = (Vec::new(), 0);
        while forgotten < FORGOTTEN_AT_ONCE
            && let Some(entry) = self.order.pop_front()
        {
            if is_chosen(entry.owner) {
                forgotten += 1;
                self.forget(&entry, all);
            } else {
                kept.push(entry);
            }
        }
        kept.into_iter().rev().for_each(|entry| self.order.push_front(entry));
        all.displaced.fetch_add(forgotten as u64, Ordering::Relaxed);
    }

    fn forget(&mut self, entry: &Remembered, all: &KeyCounts) {
        self.offsets.remove(&entry.key);
        all.kept.fetch_sub(1, Ordering::Relaxed);
        if let Entry::Occupied(mut owner) = self.owners.entry(entry.owner) {
            *owner.get_mut() -= 1;
            if *owner.get() == 0 {
                owner.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(publisher: u32, number: usize) -> (Key, Owner) {
        let mut bytes = [0; KEY_BYTES];
        bytes[..4].copy_from_slice(&publisher.to_le_bytes());
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        (Key(bytes), Owner { publisher, channel: 0 })
    }

    #[test]
    fn filling_all_keys_displaces_keys_of_the_same_publisher_only() {
        let all = KeyCounts::default();
        let (mut flooded, mut quiet) = (Idempotency::default(), Idempotency::default());
        flooded.remember(1, key(1, 0), 7, &all);
        for number in 0..KEYS_MAX + 3 * FORGOTTEN_AT_ONCE {
            flooded.remember(1, key(2, number), 8, &all);
        }
        for number in 0..SHARE {
            quiet.remember(1, key(3, number), 9, &all);
        }
        assert_eq!(flooded.find(2, key(1, 0).0, &all), Some(7));
        assert_eq!(flooded.find(2, key(2, 0).0, &all), None, "the oldest of who has the most");
        assert_eq!(quiet.find(2, key(3, 0).0, &all), Some(9));
        assert!(all.displaced.load(Ordering::Relaxed) > 0);
        flooded.shrink_to_share(&all);
        assert!(!all.are_full() || all.kept.load(Ordering::Relaxed) == KEYS_MAX);
        assert_eq!(quiet.find(2, key(3, 0).0, &all), Some(9));
        for table in [&mut flooded, &mut quiet] {
            table.expire(1 + IDEMPOTENCY_MS, &all);
            assert!(table.offsets.is_empty() && table.owners.is_empty());
        }
        assert_eq!(all.kept.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_oldest_keys_go_first_where_nobody_has_many() {
        let all = KeyCounts::default();
        let mut table = Idempotency::default();
        for number in 0..1000 {
            table.remember(1, key(number as u32, number), 8, &all);
        }
        table.displace(&all);
        assert_eq!(table.order.len(), 1000 - FORGOTTEN_AT_ONCE);
        assert_eq!(table.find(2, key(0, 0).0, &all), None);
        assert_eq!(table.find(2, key(999, 999).0, &all), Some(8));
    }
}
