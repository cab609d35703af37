//! Idempotency keys of the last minutes.

use std::collections::{HashMap, VecDeque};

use crate::engine::IDEMPOTENCY_MS;

/// Keys remembered per shard: a publisher in a frenzy must not fill the memory. Beyond it the
/// oldest is forgotten.
const KEYS_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct Idempotency {
    offsets: HashMap<Box<str>, u64, foldhash::quality::RandomState>,
    /// By age.
    order: VecDeque<(u64, Box<str>)>,
}

impl Idempotency {
    /// One text for channel and key: a channel's key contains no line feed.
    pub(super) fn key(channel: &str, key: &str) -> Box<str> {
        [channel, "\n", key].concat().into()
    }

    /// The offset that was published under `key`.
    pub(super) fn find(&mut self, now_ms: u64, key: &str) -> Option<u64> {
        self.expire(now_ms);
        self.offsets.get(key).copied()
    }

    pub(super) fn remember(&mut self, now_ms: u64, key: Box<str>, offset: u64) {
        if self.order.len() >= KEYS_MAX
            && let Some((_, oldest)) = self.order.pop_front()
        {
            self.offsets.remove(&oldest);
        }
        self.order.push_back((now_ms, key.clone()));
        self.offsets.insert(key, offset);
    }

    pub(super) fn expire(&mut self, now_ms: u64) {
        while self.order.front().is_some_and(|(at, _)| at + IDEMPOTENCY_MS <= now_ms) {
            if let Some((_, key)) = self.order.pop_front() {
                self.offsets.remove(&key);
            }
        }
    }
}
