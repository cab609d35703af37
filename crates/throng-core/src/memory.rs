//! The default engine: the logs are in this process's memory and gone with it.
//!
//! Channels are spread over shards by their name's hash; a shard's lock is held for an append and
//! the posting of its notifications, never while a worker is woken.
//!
//! **Forgetting.** A channel without subscribers and without messages is forgotten. Its offsets
//! must not come again, or an old id would name a new message: so a shard remembers the highest
//! offset of all its forgotten channels, and a channel that is new to it starts there. That also
//! makes a stale notifications about a forgotten channel recognisable by its offset. A channel that
//! keeps no history and has no subscribers is not even created by a publication.
//!
//! **Room.** A publication that brings all logs together over their limit makes room before it
//! returns, by dropping the oldest messages of the whole server, be they the last of their
//! channels. So the limit is exceeded by no more than one message for each thread that publishes.
//! Whose turn it is shows in a time for each shard, read without its lock.

mod channel;
mod idempotency;
mod names;
mod shard;
#[cfg(test)]
mod tests;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::{
    Audience, Engine, EngineMetrics, Follow, Followed, History, HistoryQuery, Publication,
    PublishError, Published,
};
use crate::id::Epoch;
use crate::name::ChannelName;
use crate::presence::PresenceCache;
use crate::rules::Rules;
use crate::worker_queue::{Notification, WorkerQueue};
use crate::{ChannelId, WorkerId};
use shard::{Shard, Wake};

/// Shards: enough that threads seldom meet, few enough that housekeeping visits each often.
const SHARDS: usize = 64;
const SHARD_BITS: u32 = SHARDS.trailing_zeros();

/// Nothing is kept.
const NEVER_MS: u64 = u64::MAX;

/// What all shards share.
#[derive(Debug)]
struct Shared {
    epoch: Epoch,
    rules: Arc<Rules>,
    queues: Vec<Arc<WorkerQueue>>,
    /// All logs together may keep this many bytes.
    bytes_max: usize,
    bytes: AtomicUsize,
    messages: AtomicU64,
    /// Idempotency keys remembered.
    keys: AtomicUsize,
    published: AtomicU64,
    busy: AtomicU64,
    duplicates: AtomicU64,
    evicted: AtomicU64,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.bytes_max
    }
}

/// Logs in memory.
#[derive(Debug)]
pub struct MemoryEngine {
    shards: Vec<Mutex<Shard>>,
    /// Nothing that a shard keeps is older than this; [`NEVER_MS`] if it keeps nothing. Written
    /// under the shard's lock.
    oldest_ms: Vec<AtomicU64>,
    hasher: foldhash::quality::RandomState,
    shared: Shared,
    next_tick: AtomicUsize,
    presence: Arc<PresenceCache>,
}

impl MemoryEngine {
    /// Empty logs. `queues` are the workers', in order; all logs together keep at most
    /// `bytes_max`.
    pub fn new(
        epoch: Epoch,
        rules: Arc<Rules>,
        queues: Vec<Arc<WorkerQueue>>,
        bytes_max: usize,
    ) -> MemoryEngine {
        MemoryEngine {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            oldest_ms: (0..SHARDS).map(|_| AtomicU64::new(NEVER_MS)).collect(),
            hasher: foldhash::quality::RandomState::default(),
            shared: Shared {
                epoch,
                rules,
                queues,
                bytes_max,
                bytes: AtomicUsize::new(0),
                messages: AtomicU64::new(0),
                keys: AtomicUsize::new(0),
                published: AtomicU64::new(0),
                busy: AtomicU64::new(0),
                duplicates: AtomicU64::new(0),
                evicted: AtomicU64::new(0),
            },
            next_tick: AtomicUsize::new(0),
            presence: Arc::default(),
        }
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes known how old a locked shard's messages are at most.
    fn note_oldest(&self, at: usize, shard: &Shard) {
        let oldest_ms = shard.oldest_bound_ms().unwrap_or(NEVER_MS);
        // It seldom changes, and all publishers read it.
        if self.oldest_ms[at].load(Ordering::Relaxed) != oldest_ms {
            self.oldest_ms[at].store(oldest_ms, Ordering::Relaxed);
        }
    }

    /// Drops the oldest messages of the whole server while there are too many bytes of them. Called
    /// without any lock held. A round drops something, or finds that a shard's messages are younger
    /// than was known; so it ends.
    fn make_room(&self) {
        while self.shared.is_over() {
            let (mut oldest, mut oldest_ms, mut others_oldest_ms) = (0, NEVER_MS, NEVER_MS);
            for (at, time_ms) in self.oldest_ms.iter().enumerate() {
                let time_ms = time_ms.load(Ordering::Relaxed);
                if time_ms < oldest_ms {
                    others_oldest_ms = oldest_ms;
                    (oldest, oldest_ms) = (at, time_ms);
                } else {
                    others_oldest_ms = others_oldest_ms.min(time_ms);
                }
            }
            if oldest_ms == NEVER_MS {
                return;
            }
            let mut shard = self.lock(oldest);
            shard.evict(&self.shared, others_oldest_ms);
            self.note_oldest(oldest, &shard);
        }
    }

    /// The shard of a name, and the hash to use within it.
    fn place(&self, name: &ChannelName) -> (usize, u64) {
        let hash = self.hasher.hash_one(name.key());
        ((hash >> (64 - SHARD_BITS)) as usize, hash)
    }

    fn id(shard: usize, slot: u32) -> ChannelId {
        ChannelId(slot << SHARD_BITS | shard as u32)
    }

    fn from_id(channel: ChannelId) -> (usize, u32) {
        ((channel.0 & (SHARDS as u32 - 1)) as usize, channel.0 >> SHARD_BITS)
    }
}

impl Engine for MemoryEngine {
    fn publish(&self, now_ms: u64, publication: Publication) -> Result<Published, PublishError> {
        let (at, hash) = self.place(&publication.channel);
        let mut wake = Wake::default();
        let result = {
            let mut shard = self.lock(at);
            let id_of = |slot| MemoryEngine::id(at, slot);
            let hash_of = |key: &str| self.hasher.hash_one(key);
            let result =
                shard.publish(&self.shared, now_ms, hash, publication, id_of, hash_of, &mut wake);
            self.note_oldest(at, &shard);
            result
        };
        wake.each(|worker| self.shared.queues[usize::from(worker.0)].wake());
        self.make_room();
        result
    }

    fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        let (at, hash) = self.place(follow.channel);
        let hash_of = |key: &str| self.hasher.hash_one(key);
        let mut shard = self.lock(at);
        let (slot, mut followed) = shard.follow(&self.shared, now_ms, hash, follow, hash_of);
        followed.channel = MemoryEngine::id(at, slot);
        followed
    }

    fn unfollow(&self, now_ms: u64, channel: ChannelId, worker: WorkerId) {
        let (at, slot) = MemoryEngine::from_id(channel);
        let hash_of = |key: &str| self.hasher.hash_one(key);
        self.lock(at).unfollow(&self.shared, now_ms, slot, worker, hash_of);
    }

    fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        let (at, hash) = self.place(channel);
        self.lock(at).history(&self.shared, now_ms, hash, channel, query, limit)
    }

    fn audience(&self, channel: &ChannelName) -> Audience {
        let (at, hash) = self.place(channel);
        self.lock(at).audience(hash, channel, |slot| MemoryEngine::id(at, slot))
    }

    fn name(&self, channel: ChannelId) -> Option<ChannelName> {
        let (at, slot) = MemoryEngine::from_id(channel);
        self.lock(at).name(slot)
    }

    fn names(&self, channels: &mut [ChannelId], each: &mut dyn FnMut(&ChannelName)) {
        let shard_of = |channel: &ChannelId| MemoryEngine::from_id(*channel).0;
        channels.sort_unstable_by_key(shard_of);
        for of_shard in channels.chunk_by(|left, right| shard_of(left) == shard_of(right)) {
            let names: Vec<_> = {
                let shard = self.lock(shard_of(&of_shard[0]));
                let slots = of_shard.iter().map(|&channel| MemoryEngine::from_id(channel).1);
                slots.filter_map(|slot| shard.name(slot)).collect()
            };
            names.iter().for_each(&mut *each);
        }
    }

    fn presence_cache(&self) -> &Arc<PresenceCache> {
        &self.presence
    }

    fn post(&self, worker: WorkerId, notification: Notification) {
        let queue = &self.shared.queues[usize::from(worker.0)];
        queue.post(notification);
        queue.wake();
    }

    fn tick(&self, now_ms: u64) {
        self.presence.expire(now_ms);
        let at = self.next_tick.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let hash_of = |key: &str| self.hasher.hash_one(key);
        let mut shard = self.lock(at);
        shard.tick(&self.shared, now_ms, hash_of);
        self.note_oldest(at, &shard);
    }

    fn log_bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed) as u64
    }

    fn metrics(&self) -> EngineMetrics {
        let shared = &self.shared;
        EngineMetrics {
            channels: (0..SHARDS).map(|at| self.lock(at).len() as u64).sum(),
            messages: shared.messages.load(Ordering::Relaxed),
            bytes: shared.bytes.load(Ordering::Relaxed) as u64,
            published: shared.published.load(Ordering::Relaxed),
            busy: shared.busy.load(Ordering::Relaxed),
            duplicates: shared.duplicates.load(Ordering::Relaxed),
            evicted: shared.evicted.load(Ordering::Relaxed),
        }
    }
}
