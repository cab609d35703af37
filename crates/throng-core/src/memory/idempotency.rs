//! The idempotency keys of recent publications.
//!
//! A key is kept as 128 bits of a hash, so that its length does not matter. The hash is SHA-1 with
//! a random seed: a frozen engine's keys must be found by a later build as well, and the fast
//! hashes may change with each of their versions.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::clock;
use crate::frozen::{Encoder, RecordKind};
use crate::publication::IDEMPOTENCY_MS;

/// Keys that all shards together remember, which take about 80 MB: a runaway publisher must not
/// fill the memory. Beyond it a shard forgets its oldest key for each new one.
const KEYS_MAX: usize = 1 << 20;

/// Bytes of a [`Key`] and of a [`Seed`].
pub(super) const KEY_BYTES: usize = 16;

/// Makes the hashes of keys unpredictable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seed(pub(super) [u8; KEY_BYTES]);

impl Seed {
    pub(super) fn random() -> Seed {
        let mut seed = [0; KEY_BYTES];
        // The operating system seeds the hashers.
        for half in seed.chunks_mut(size_of::<u64>()) {
            half.copy_from_slice(&RandomState::new().hash_one(KEYS_MAX).to_le_bytes());
        }
        Seed(seed)
    }

    /// The hash of a channel and a key.
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

#[derive(Debug, Default)]
pub(super) struct Idempotency {
    offsets: HashMap<Key, u64, foldhash::fast::RandomState>,
    /// When each key was remembered, oldest first.
    order: VecDeque<(u64, Key)>,
}

impl Idempotency {
    /// The keys that are remembered, the oldest first: when, and of which message.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Key, u64)> {
        self.order.iter().filter_map(|&(at_ms, key)| Some((at_ms, key, *self.offsets.get(&key)?)))
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

    /// Whether no key is remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The offset of the message that was published with `key`.
    pub(super) fn find(&mut self, now_ms: u64, key: Key, all: &AtomicUsize) -> Option<u64> {
        self.expire(now_ms, all);
        self.offsets.get(&key).copied()
    }

    /// Remembers the offset of a message. `all` counts the keys of all shards.
    pub(super) fn remember(&mut self, now_ms: u64, key: Key, offset: u64, all: &AtomicUsize) {
        if all.fetch_add(1, Ordering::Relaxed) >= KEYS_MAX {
            self.forget_oldest(all);
        }
        // Each publishing thread reads the clock itself, and expiry takes the first key for the
        // oldest.
        let at_ms = self.order.back().map_or(now_ms, |(last_ms, _)| now_ms.max(*last_ms));
        self.order.push_back((at_ms, key));
        self.offsets.insert(key, offset);
    }

    pub(super) fn expire(&mut self, now_ms: u64, all: &AtomicUsize) {
        while self.order.front().is_some_and(|(at, _)| at.saturating_add(IDEMPOTENCY_MS) <= now_ms)
        {
            self.forget_oldest(all);
        }
        if self.order.capacity() > 1024 && self.order.len() * 4 < self.order.capacity() {
            self.order.shrink_to(self.order.len() * 2);
            self.offsets.shrink_to(self.order.len() * 2);
        }
    }

    fn forget_oldest(&mut self, all: &AtomicUsize) {
        if let Some((_, key)) = self.order.pop_front() {
            self.offsets.remove(&key);
            all.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
