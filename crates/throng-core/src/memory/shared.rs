//! What all shards share: settings, the workers' queues, and what the engine counts.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::engine::EngineMetrics;
use crate::id::{Epoch, MessageId, WorkerId};
use crate::log::Log;
use crate::rules::Rules;
use crate::worker_queue::WorkerQueue;

#[derive(Debug)]
pub(super) struct Shared {
    /// The epoch of all channels: one process holds all logs, and loses them together.
    pub(super) epoch: Epoch,
    pub(super) rules: Arc<Rules>,
    /// Hashes the names of channels, for shards and tables alike.
    hasher: foldhash::quality::RandomState,
    /// The workers' queues, by [`WorkerId`].
    queues: Vec<Arc<WorkerQueue>>,
    /// The limit of what all logs together keep.
    bytes_max: usize,
    /// The largest distance between the offsets of consecutive messages. It is 1 except in tests.
    offset_step_max: u64,
    pub(super) bytes: AtomicUsize,
    pub(super) messages: AtomicU64,
    /// Idempotency keys that all shards remember.
    pub(super) keys: AtomicUsize,
    pub(super) published: AtomicU64,
    pub(super) busy: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) evicted: AtomicU64,
}

impl Shared {
    pub(super) fn new(
        epoch: Epoch,
        rules: Arc<Rules>,
        queues: Vec<Arc<WorkerQueue>>,
        bytes_max: usize,
    ) -> Shared {
        Shared {
            epoch,
            rules,
            hasher: foldhash::quality::RandomState::default(),
            queues,
            bytes_max,
            offset_step_max: 1,
            bytes: AtomicUsize::new(0),
            messages: AtomicU64::new(0),
            keys: AtomicUsize::new(0),
            published: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Makes offsets skip numbers, as those of other engines do.
    #[cfg(any(test, feature = "conformance"))]
    pub(super) fn set_offset_step_max(&mut self, step_max: u64) {
        self.offset_step_max = step_max;
    }

    /// The offset of the message after the one at `offset`.
    pub(super) fn next_offset(&self, offset: u64) -> u64 {
        offset + 1 + offset.wrapping_mul(7) % self.offset_step_max
    }

    pub(super) fn are_offsets_consecutive(&self) -> bool {
        self.offset_step_max == 1
    }

    pub(super) fn message_id(&self, offset: u64) -> MessageId {
        MessageId { epoch: self.epoch, offset }
    }

    /// The hash of a channel's key.
    pub(super) fn hash(&self, key: &str) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(super) fn queue(&self, worker: WorkerId) -> &WorkerQueue {
        &self.queues[usize::from(worker.0)]
    }

    /// Whether all logs together exceed their limit.
    pub(super) fn is_over(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.bytes_max
    }

    /// Drops messages of a log with `trim`, which returns their bytes, and counts them.
    pub(super) fn shrink(&self, log: &mut Log, trim: impl FnOnce(&mut Log) -> usize) {
        let before = log.len();
        let bytes = trim(log);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.messages.fetch_sub((before - log.len()) as u64, Ordering::Relaxed);
    }

    /// What the engine counts, with `channels` channels.
    pub(super) fn metrics(&self, channels: u64) -> EngineMetrics {
        EngineMetrics {
            channels,
            messages: self.messages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed) as u64,
            published: self.published.load(Ordering::Relaxed),
            busy: self.busy.load(Ordering::Relaxed),
            duplicates: self.duplicates.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }
}
