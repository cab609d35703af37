//! The channels as this process has them in memory: their followers, and the logs that no journal
//! keeps. Those are lost with the process.
//!
//! Channels are distributed over shards by the hash of their names. A shard's lock is held while a
//! message is appended and the workers are notified, but not while they are woken.
//!
//! **Forgetting.** A channel without followers and without messages is forgotten. Its offsets must
//! not be used again, or an old id would name a new message. So a shard remembers the highest
//! offset of all channels that it has forgotten, and a channel that is new to it starts there. That
//! also tells a late notification for a forgotten channel by its offset. Of the channels that were
//! forgotten last it remembers since when they had no message, so that clients resume them. A
//! publication to a channel that keeps no history and has no followers does not create the channel.
//!
//! **Limit.** A publication that brings all logs together over their limit drops messages before it
//! returns: the oldest of the whole server, even if they are the last of their channels. So each
//! publishing thread exceeds the limit by at most one message. Every shard shows the age of its
//! oldest message in an atomic, which is read without the shard's lock.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `bookmarks` | what users go on from after their connections have died |
//! | `channel` | a channel's log and followers |
//! | `elsewhere` | channels whose logs a journal keeps |
//! | `forgotten` | what a shard remembers of channels that it has forgotten |
//! | `freeze` | the engine as bytes, and back |
//! | `holders` | what each publisher holds of the room for states and creations |
//! | `idempotency` | the keys of recent publications |
//! | `markers` | how far users have read channels |
//! | `name_hasher` | hashes the names of channels |
//! | `questions` | questions to the workers that follow a channel |
//! | `seal`, `sealing` | messages in memory that another process shares |
//! | `shard` | a part of the channels, behind one lock |
//! | `shared` | what all shards share: settings, queues, counts |
//! | `watchlists` | tells users whether others are online |

mod bookmarks;
mod channel;
mod elsewhere;
mod forgotten;
mod freeze;
mod holders;
mod idempotency;
mod markers;
mod members;
mod name_hasher;
mod questions;
mod seal;
mod sealing;
mod shard;
mod shared;
#[cfg(test)]
mod tests;
mod watchlists;

use std::collections::HashSet;
use std::slice;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bookmarks::Bookmarks;
use crate::change::{ChangeOutcome, Erase, Erased, LogChange, LogRecord, LogState};
use crate::channel_markers::ChannelMarkers;
use crate::creation::ReadAs;
use crate::engine::{Audience, EngineMetrics, Follow, Followed, History};
use crate::holder::RoomHolder;
use crate::id::{ChannelId, Epoch, LocalId, WorkerId};
use crate::idempotency_key::Publisher;
use crate::listing::{ListPart, ListPlace, ListQuery, ListStep, Selection};
use crate::members::Members;
use crate::name::{ChannelName, Kind};
use crate::of_apps::OfApps;
use crate::prefetch::AHEAD;
use crate::presence::PresenceCache;
use crate::publication::{Outcome, Publication, VolatilePublication};
use crate::reading::HistoryQuery;
use crate::rules::Rules;
use crate::stamp::Watermark;
use crate::state::{KeyPage, KeyQuery};
use crate::worker_queue::{Notification, WorkerQueue};
pub use elsewhere::Backlog;
pub use freeze::MemoryThaw;
use idempotency::Seed;
use name_hasher::NameHasher;
pub use seal::SegmentSink;
use sealing::Sealing;
use shard::list::StepBudget;
use shard::{Hashed, SHARD_BITS, Shard};
use shared::Shared;

/// The number of shards. With more, publishing threads wait for each other less; with fewer,
/// housekeeping comes to each more often.
const SHARDS: usize = 1 << SHARD_BITS;

/// Slots that a pass over all channels looks at under one lock: some ten microseconds.
const PASS_SLOTS: u32 = 1_024;

const _: () = assert!(SHARDS * idempotency::SHARE <= idempotency::KEYS_MAX / 2);

/// The time of the oldest message of a shard without messages.
const NEVER_MS: u64 = u64::MAX;

/// The part of the channels that is in memory. See the module.
#[derive(Debug)]
pub struct MemoryEngine {
    shards: Vec<Mutex<Shard>>,
    /// For each shard a time that none of its messages is older than; [`NEVER_MS`] if it has none.
    /// Written under the shard's lock.
    oldest_ms: Vec<AtomicU64>,
    shared: Shared,
    /// The shard whose housekeeping is next.
    next_tick: AtomicUsize,
    sealing: Sealing,
    members: Members,
    markers: ChannelMarkers,
    bookmarks: Bookmarks,
    of_apps: OfApps,
}

impl MemoryEngine {
    /// Empty logs. `queues` are indexed by [`WorkerId`]; all logs together keep at most
    /// `max_bytes`.
    pub fn new(
        epoch: Epoch,
        rules: Arc<Rules>,
        queues: Vec<Arc<WorkerQueue>>,
        max_bytes: usize,
    ) -> MemoryEngine {
        MemoryEngine {
            shards: (0..SHARDS).map(|number| Mutex::new(Shard::new(number as u32))).collect(),
            oldest_ms: (0..SHARDS).map(|_| AtomicU64::new(NEVER_MS)).collect(),
            shared: Shared::new(epoch, rules, queues, max_bytes, SHARDS),
            next_tick: AtomicUsize::new(0),
            sealing: Sealing::default(),
            members: Members::new(SHARDS),
            markers: ChannelMarkers::new(SHARDS),
            bookmarks: Bookmarks::default(),
            of_apps: OfApps::default(),
        }
    }

    /// The same engine, without channels so far, with a seed for the hashes of their names. They
    /// decide the ids of channels, so that a simulation has the same ones each time.
    #[must_use]
    pub fn with_hash_seed(mut self, seed: u64) -> MemoryEngine {
        self.shared.hasher = NameHasher::new(Seed::numbered(seed));
        self
    }

    /// The same engine with offsets that grow by 1 to `max_step`, as in other engines: for tests of
    /// code that must not rely on consecutive offsets.
    #[cfg(any(test, feature = "conformance"))]
    pub fn with_skipping_offsets(mut self, max_step: u64) -> MemoryEngine {
        self.shared.set_max_offset_step(max_step);
        self
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the age of a locked shard's oldest message.
    fn note_oldest(&self, at: usize, shard: &Shard) {
        let oldest_ms = shard.oldest_bound_ms().unwrap_or(NEVER_MS);
        // It seldom changes, and all publishing threads read it.
        if self.oldest_ms[at].load(Ordering::Relaxed) != oldest_ms {
            self.oldest_ms[at].store(oldest_ms, Ordering::Relaxed);
        }
    }

    /// Drops the oldest messages of the whole server while they exceed their limit. The caller
    /// holds no lock. Each round drops a message, or finds that a shard's messages are younger than
    /// their bound said; so the loop ends.
    fn evict(&self) {
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

    /// The shard of a name, and the name's hash.
    fn find<'a>(&self, name: &'a ChannelName) -> (usize, Hashed<'a>) {
        let hash = self.shared.hash(name.key());
        (MemoryEngine::shard_of(hash), Hashed { name, hash })
    }

    fn shard_of(hash: u64) -> usize {
        (hash >> (u64::BITS - SHARD_BITS)) as usize
    }

    /// The shard of a channel, and its slot there.
    fn split(channel: ChannelId) -> (usize, u32) {
        ((channel.0 & (SHARDS as u32 - 1)) as usize, channel.0 >> SHARD_BITS)
    }

    /// As [`Channels::publish`](crate::Channels::publish), of a log in memory.
    pub fn publish(&self, now_ms: u64, publication: Publication) -> Outcome {
        let (at, name) = self.find(&publication.channel);
        let hash = name.hash;
        let known = if self.shared.has_created() {
            let wanted = |record: Option<&LogRecord>| record?.creation()?.content_type;
            self.read_before((at, name), slice::from_ref(&publication), wanted)
        } else {
            None
        };
        let result = {
            let mut shard = self.lock(at);
            let result = shard.publish(&self.shared, now_ms, hash, (publication, known));
            self.note_oldest(at, &shard);
            result
        };
        let (published, wake) = result?;
        wake.into_iter().for_each(|worker| self.shared.queue(worker).wake());
        self.evict();
        Ok(published)
    }

    /// Reads messages as a channel with its record takes them, which may take longer than others
    /// should wait for its shard.
    fn read_before(
        &self,
        (at, name): (usize, Hashed<'_>),
        messages: &[Publication],
        wanted: impl FnOnce(Option<&LogRecord>) -> Option<Box<str>>,
    ) -> Option<ReadAs> {
        let record = self.lock(at).state(&self.shared, name).record;
        let wanted = wanted(record.as_ref().map(|known| &known.record))?;
        Some(ReadAs::of(wanted, messages))
    }

    /// Publishes to an internal log, which no journal keeps.
    ///
    /// The room of a value is its key's: members have it in the lists of many channels.
    pub fn publish_internal(&self, now_ms: u64, publication: Publication) -> Outcome {
        debug_assert_eq!(publication.channel.kind(), Kind::Internal);
        let holder = |key| self.holder(Publisher::User(key));
        let holder = publication.key().map_or(RoomHolder::NOBODY, holder);
        self.publish(now_ms, Publication { holder, ..publication })
    }

    /// The account to which a publisher's states and creations are charged.
    pub fn holder(&self, publisher: Publisher<'_>) -> RoomHolder {
        self.shared.holder(publisher)
    }

    /// Posts a volatile message to the workers that follow its channel here. Returns the number of
    /// its subscriptions.
    pub fn publish_volatile(&self, now_ms: u64, publication: VolatilePublication) -> u64 {
        self.shared.volatile.fetch_add(1, Ordering::Relaxed);
        let (subscribers, workers) = self.deliver_volatile_asleep(now_ms, publication);
        self.wake(workers);
        subscribers
    }

    /// Posts a volatile message, which may be another process's. Returns the number of its
    /// subscriptions, and the workers that the caller wakes ([`MemoryEngine::wake`]).
    pub fn deliver_volatile_asleep(
        &self,
        now_ms: u64,
        publication: VolatilePublication,
    ) -> (u64, Vec<WorkerId>) {
        let (at, Hashed { hash, .. }) = self.find(&publication.channel);
        self.lock(at).post_volatile(&self.shared, now_ms, hash, publication)
    }

    /// True if the server is short of memory ([`MemoryEngine::set_memory_short`]).
    pub fn is_memory_short(&self) -> bool {
        self.shared.is_memory_short.load(Ordering::Relaxed)
    }

    /// As [`Channels::change`](crate::Channels::change), of a log in memory.
    pub fn change(&self, now_ms: u64, change: LogChange) -> ChangeOutcome {
        let (at, name) = self.find(&change.channel);
        let hash = name.hash;
        let known = if self.shared.has_created() || change.is_of_creation() {
            self.read_before((at, name), &change.messages, |record| change.content_type(record))
        } else {
            None
        };
        let result = {
            let mut shard = self.lock(at);
            let result = shard.change(&self.shared, now_ms, hash, (change, known));
            self.note_oldest(at, &shard);
            result
        };
        let (changed, wake) = result?;
        wake.into_iter().for_each(|worker| self.shared.queue(worker).wake());
        self.evict();
        Ok(changed)
    }

    /// A channel may go at some time, so that somebody has to look after it: see
    /// [`MemoryEngine::take_mortal`].
    pub fn note_mortal(&self, channel: &ChannelName) {
        self.shared.mortal().insert(channel.clone());
    }

    /// The channels, of all journals, that were noted since the last call.
    pub fn take_mortal(&self) -> HashSet<ChannelName> {
        std::mem::take(&mut *self.shared.mortal())
    }

    /// True if somebody has created a channel whose log is in memory.
    pub(crate) fn is_created(&self, channel: &ChannelName) -> bool {
        let (at, name) = self.find(channel);
        self.lock(at).is_created(name)
    }

    /// As [`Channels::state`](crate::Channels::state), of a log in memory.
    pub fn state(&self, channel: &ChannelName) -> LogState {
        let (at, name) = self.find(channel);
        self.lock(at).state(&self.shared, name)
    }

    /// As [`Channels::keys`](crate::Channels::keys), of a log in memory.
    pub fn keys(&self, now_ms: u64, channel: &ChannelName, query: &KeyQuery) -> KeyPage {
        let (at, name) = self.find(channel);
        self.lock(at).keys(&self.shared, now_ms, name, query)
    }

    /// As [`Channels::erase`](crate::Channels::erase), of a log in memory.
    pub fn erase(&self, now_ms: u64, channel: &ChannelName, what: Erase) -> Erased {
        let (at, name) = self.find(channel);
        let mut shard = self.lock(at);
        let (erased, wake) = shard.erase(&self.shared, now_ms, name, what);
        self.note_oldest(at, &shard);
        drop(shard);
        self.wake(wake);
        erased
    }

    /// As [`Channels::watermark`](crate::Channels::watermark), in the memory's own order.
    pub fn watermark(&self) -> Watermark {
        self.shared.watermark()
    }

    /// As [`Channels::follow`](crate::Channels::follow), of a log in memory.
    pub fn follow(&self, now_ms: u64, follow: Follow<'_>) -> Followed {
        let (at, Hashed { hash, .. }) = self.find(follow.channel);
        self.lock(at).follow(&self.shared, now_ms, hash, &follow)
    }

    /// Says that a worker is about to follow these channels, at most [`AHEAD`](crate::AHEAD) of
    /// them: what that needs is loaded, all at the same time.
    /// Passes the worker's ids of those that it follows already, as far as they are easily found.
    pub fn look_ahead(
        &self,
        channels: &[ChannelName],
        worker: WorkerId,
        each: &mut dyn FnMut(LocalId),
    ) {
        let mut places = [None; AHEAD];
        for (place, name) in places.iter_mut().zip(channels) {
            let (at, hashed) = self.find(name);
            let shard = self.lock(at);
            *place = shard.guess(hashed).map(|slot| (at, slot, name));
            place.inspect(|(_, slot, _)| shard.prefetch(*slot));
        }
        for (at, slot, _) in places.into_iter().flatten() {
            self.lock(at).prefetch_followers(slot);
        }
        for (at, slot, name) in places.into_iter().flatten() {
            let local = self.lock(at).local(slot, name, worker);
            local.inspect(|local| each(*local));
        }
    }

    /// Removes a subscription of a worker.
    pub fn unfollow(&self, now_ms: u64, channel: ChannelId, worker: WorkerId) {
        let (at, slot) = MemoryEngine::split(channel);
        self.lock(at).unfollow(&self.shared, now_ms, slot, worker);
    }

    /// Removes a subscription of a worker from each of these channels, in this order.
    pub fn unfollow_all(&self, now_ms: u64, channels: &[ChannelId], worker: WorkerId) {
        for channels in channels.chunks(AHEAD) {
            // One alone would be waited for twice.
            if channels.len() > 1 {
                for &channel in channels {
                    let (at, slot) = MemoryEngine::split(channel);
                    self.lock(at).prefetch(slot);
                }
                for &channel in channels {
                    let (at, slot) = MemoryEngine::split(channel);
                    self.lock(at).prefetch_followers(slot);
                }
            }
            for &channel in channels {
                self.unfollow(now_ms, channel, worker);
            }
        }
    }

    /// Corrects the number of a worker's subscriptions of a channel: connections may have been lost
    /// while it was frozen. Does nothing if the worker does not follow the channel.
    pub fn set_subscribers(
        &self,
        now_ms: u64,
        channel: ChannelId,
        worker: WorkerId,
        subscribers: u32,
    ) {
        let (at, slot) = MemoryEngine::split(channel);
        self.lock(at).set_subscribers(&self.shared, now_ms, slot, worker, subscribers);
    }

    /// As [`Channels::history`](crate::Channels::history), of a log in memory.
    pub fn history(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        let (at, name) = self.find(channel);
        self.lock(at).history(&self.shared, now_ms, name, query, limit)
    }

    /// The followers of a channel.
    pub fn audience(&self, channel: &ChannelName) -> Audience {
        let (at, name) = self.find(channel);
        self.lock(at).audience(name)
    }

    /// The ids of a channel that a worker follows since another process had it in another journal.
    /// It gets no message any more.
    pub fn left_by(&self, channel: &ChannelName, worker: WorkerId) -> Option<(ChannelId, LocalId)> {
        let (at, name) = self.find(channel);
        self.lock(at).left_by(name, worker)
    }

    /// The number of channels that were in use when another process was taken over, and have
    /// another journal here.
    pub fn moved_channels(&self) -> u64 {
        self.shared.moved
    }

    /// The name of a channel; `None` if it was forgotten.
    pub fn name(&self, channel: ChannelId) -> Option<ChannelName> {
        let (at, slot) = MemoryEngine::split(channel);
        self.lock(at).name(slot)
    }

    /// True if this is still the name of a channel: another one may have got its id.
    pub fn is_named(&self, channel: ChannelId, name: &ChannelName) -> bool {
        let (at, slot) = MemoryEngine::split(channel);
        self.lock(at).is_named(slot, name)
    }

    /// Calls `each` with the names of these channels, in any order and without forgotten ones.
    /// Sorts `channels`, so that each lock is taken once and not for every channel.
    pub fn names(&self, channels: &mut [ChannelId], each: &mut dyn FnMut(&ChannelName)) {
        let shard_of = |channel: &ChannelId| MemoryEngine::split(*channel).0;
        channels.sort_unstable_by_key(shard_of);
        for of_shard in channels.chunk_by(|left, right| shard_of(left) == shard_of(right)) {
            let names: Vec<_> = {
                let shard = self.lock(shard_of(&of_shard[0]));
                let slots = of_shard.iter().map(|&channel| MemoryEngine::split(channel).1);
                slots.filter_map(|slot| shard.name(slot)).collect()
            };
            names.iter().for_each(&mut *each);
        }
    }

    /// As [`Channels::list`](crate::Channels::list), of the channels that are in memory.
    pub fn list(&self, now_ms: u64, kind: Kind, after: Option<ListPlace>) -> ListStep {
        let (first, mut slot) = shard::list::after(after);
        let (mut budget, mut step) = (StepBudget::default(), ListStep::default());
        for at in first..SHARDS {
            let mut shard = self.lock(at);
            let is_cut = shard.list(&self.shared, now_ms, (kind, slot), &mut budget, &mut step);
            self.note_oldest(at, &shard);
            if is_cut {
                break;
            }
            slot = 0;
        }
        step
    }

    /// As [`Channels::list_part`](crate::Channels::list_part), of the channels that are in memory.
    /// It passes all of them, some at a time under the lock of their shard, which takes
    /// milliseconds.
    pub(crate) fn list_part(&self, now_ms: u64, query: &ListQuery) -> ListPart {
        let channels = (0..SHARDS).map(|at| self.lock(at).len()).sum();
        let mut selection = Selection::among(channels, query);
        for at in 0..SHARDS {
            let mut begin = 0;
            loop {
                let mut shard = self.lock(at);
                let end = shard.extent().min(begin + PASS_SLOTS);
                shard.select(&self.shared, now_ms, begin..end, &mut selection);
                self.note_oldest(at, &shard);
                if end == shard.extent() {
                    break;
                }
                begin = end;
            }
        }
        selection.finish()
    }

    /// The answers to presence queries that clients share.
    pub fn presence_cache(&self) -> &Arc<PresenceCache> {
        &self.shared.presence
    }

    /// Hands notifications to a worker, outside any channel's order.
    pub fn post(&self, worker: WorkerId, notification: Notification) {
        let queue = self.shared.queue(worker);
        queue.post(notification);
        queue.wake();
    }

    /// Expires messages and keys of a part of the channels. Call about ten times a second.
    pub fn tick(&self, now_ms: u64) {
        self.shared.presence.expire(now_ms);
        self.shared.expire_thawed_keys(now_ms);
        self.remove_expired_keys(now_ms);
        self.tick_members(now_ms);
        self.bookmarks.expire(now_ms);
        self.step_watchlists(now_ms);
        let at = self.next_tick.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let mut shard = self.lock(at);
        shard.tick(&self.shared, now_ms);
        self.note_oldest(at, &shard);
        drop(shard);
        self.drop_ended_markers(at);
        self.unseal_some();
        self.shared.set_limit(self.is_memory_short());
        self.evict();
    }

    /// Removes the keys of all states whose values have expired.
    fn remove_expired_keys(&self, now_ms: u64) {
        for at in 0..SHARDS {
            // Mostly none is planned.
            let mut shard = self.lock(at);
            if shard.next_look_ms().is_none_or(|look_ms| look_ms > now_ms) {
                continue;
            }
            let wake = shard.remove_expired_keys(&self.shared, now_ms);
            self.note_oldest(at, &shard);
            drop(shard);
            self.wake(wake);
        }
    }

    /// Says whether the server is short of memory. While it is, each tick drops some of the oldest
    /// messages early.
    pub fn set_memory_short(&self, is_short: bool) {
        self.shared.is_memory_short.store(is_short, Ordering::Relaxed);
    }

    /// Bytes in all logs here. Cheaper than [`MemoryEngine::metrics`].
    pub fn log_bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed) as u64
    }

    /// Counters of what is in memory.
    pub fn metrics(&self) -> EngineMetrics {
        let all: u64 = (0..SHARDS).map(|at| self.lock(at).len() as u64).sum();
        let is_there = |name: &ChannelName| {
            let (at, hashed) = self.find(name);
            self.lock(at).has(hashed)
        };
        // Internal logs are no channels of clients.
        let internal = [ChannelName::status(), ChannelName::canary()];
        let internal = internal.iter().filter(|name| is_there(name)).count() as u64;
        let internal = internal + self.shared.presence_logs.load(Ordering::Relaxed);
        let members = self.member_metrics().members;
        let (read_markers, read_markers_refused) = self.markers.counts();
        EngineMetrics {
            members,
            read_markers,
            read_markers_refused,
            ..self.shared.metrics(all.saturating_sub(internal))
        }
    }
}
