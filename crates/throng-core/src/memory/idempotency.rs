//! Idempotency keys of the last minutes, as far as there is room for them.
//!
//! A key is kept as 128 bits of randomly seeded hash, so that it costs the same whatever its
//! length.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::engine::IDEMPOTENCY_MS;

/// Keys remembered by all shards together, about 80 MB of them: a publisher in a frenzy must not
/// fill the memory. Beyond it a shard forgets its oldest for each new one.
const KEYS_MAX: usize = 1 << 20;

/// Stands for a channel and a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u64; 2]);

#[derive(Debug, Default)]
pub(super) struct Idempotency {
    seeds: [foldhash::quality::RandomState; 2],
    offsets: HashMap<Key, u64, foldhash::fast::RandomState>,
    /// By age.
    order: VecDeque<(u64, Key)>,
}

impl Idempotency {
    pub(super) fn key(&self, channel: &str, key: &str) -> Key {
        Key([0, 1].map(|at: usize| self.seeds[at].hash_one((channel, key))))
    }

    /// The offset that was published under `key`.
    pub(super) fn find(&mut self, now_ms: u64, key: Key, all: &AtomicUsize) -> Option<u64> {
        self.expire(now_ms, all);
        self.offsets.get(&key).copied()
    }

    /// `all` counts the keys of all shards.
    pub(super) fn remember(&mut self, now_ms: u64, key: Key, offset: u64, all: &AtomicUsize) {
        if all.fetch_add(1, Ordering::Relaxed) >= KEYS_MAX {
            self.forget_oldest(all);
        }
        // The threads that publish have a clock each, and expiry goes by the first in order.
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
