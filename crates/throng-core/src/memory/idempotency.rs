//! The idempotency keys of recent publications.
//!
//! A key is kept as 128 bits of randomly seeded hash, so that its length does not matter.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::engine::IDEMPOTENCY_MS;

/// Keys that all shards together remember, which take about 80 MB: a runaway publisher must not
/// fill the memory. Beyond it a shard forgets its oldest key for each new one.
const KEYS_MAX: usize = 1 << 20;

/// The hash of a channel and a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u64; 2]);

#[derive(Debug, Default)]
pub(super) struct Idempotency {
    seeds: [foldhash::quality::RandomState; 2],
    offsets: HashMap<Key, u64, foldhash::fast::RandomState>,
    /// When each key was remembered, oldest first.
    order: VecDeque<(u64, Key)>,
}

impl Idempotency {
    pub(super) fn key(&self, channel: &str, key: &str) -> Key {
        Key([0, 1].map(|at: usize| self.seeds[at].hash_one((channel, key))))
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
