//! State that all shards share: settings, the workers' queues, and counters.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::holders::Holders;
use super::idempotency::{Idempotency, Key, KeyCounts, Owner, Seed};
use super::name_hasher::NameHasher;
use crate::change::{KnownRecord, RecordVersion};
use crate::engine::{EngineMetrics, Followed};
use crate::events::EventSink;
use crate::frozen::OFFSET_MAX;
use crate::holder::RoomHolder;
use crate::id::{Epoch, MessageId, WorkerId};
use crate::idempotency_key::Publisher;
use crate::log::Log;
use crate::message::{Content, Message};
use crate::name::ChannelName;
use crate::presence::PresenceCache;
use crate::publication::{Publication, PublishError};
use crate::reading::StartAt;
use crate::rules::{JournalId, LagPolicy, RuleId, Rules};
use crate::stamp::{Stamp, Stamps, Watermark};
use crate::worker_queue::WorkerQueue;

#[derive(Debug)]
pub(super) struct Shared {
    /// The epoch of all channels: one process holds all logs, and loses them together.
    pub(super) epoch: Epoch,
    /// The epoch of positions in all channels. It outlives the process if stamps do.
    pub(super) positions: Epoch,
    /// No earlier position is known: channels have got other journals since then, in which the
    /// messages before are not.
    pub(super) positions_since: Stamp,
    pub(super) rules: Arc<Rules>,
    pub(super) hasher: NameHasher,
    /// The workers' queues, by [`WorkerId`].
    queues: Vec<Arc<WorkerQueue>>,
    /// The limit of what all logs together keep, unless memory is short.
    max_bytes: usize,
    /// The limit of now.
    limit_bytes: AtomicUsize,
    /// The largest distance between the offsets of consecutive messages. It is 1 except in tests.
    max_offset_step: u64,
    pub(super) bytes: AtomicUsize,
    /// Those of all states, which are among `bytes`.
    state_bytes: AtomicUsize,
    /// The keys of all states.
    state_keys: AtomicUsize,
    /// What publishers hold of the bytes of states.
    holders: Holders,
    pub(super) messages: AtomicU64,
    /// The order of all messages.
    pub(super) stamps: Stamps,
    /// For each rule the newest stamp of a message that was dropped, of a channel that has no log
    /// to tell so.
    lost: Box<[AtomicU64]>,
    /// Idempotency keys that all shards remember.
    pub(super) keys: KeyCounts,
    pub(super) idempotency_seed: Seed,
    /// Keys of the engine that this one was thawed from. They were hashed with their channels, so
    /// nothing tells their shards.
    thawed_keys: Mutex<Idempotency>,
    /// True if there may be thawed keys, readable without the lock.
    has_thawed_keys: AtomicBool,
    pub(super) published: AtomicU64,
    pub(super) volatile: AtomicU64,
    pub(super) busy: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) expired: AtomicU64,
    /// Entries of logs that pages have looked at.
    pub(super) visited: AtomicU64,
    ends_forgotten: AtomicU64,
    /// The channels that somebody has created.
    created: AtomicUsize,
    /// Those that may go at some time, and nobody looks after yet.
    mortal: Mutex<HashSet<ChannelName>>,
    pub(super) is_memory_short: AtomicBool,
    /// The journal whose channels are in the lists of the memory: it has none.
    pub(super) listed_here: Option<JournalId>,
    /// Hears of channels that get their first subscriber or lose their last one.
    pub(super) events: Option<Arc<dyn EventSink>>,
    /// Channels of another process that have another journal here.
    pub(super) moved: u64,
    /// Channels that are logs of presence events or of members.
    pub(super) presence_logs: AtomicU64,
    /// The answers to presence queries, and what presence events are made of.
    pub(super) presence: Arc<PresenceCache>,
}

/// While memory is short, the limit of all logs falls by this part of itself with each tick,
const SHORT_PARTS: usize = 64;

/// down to this share of itself.
const SHORT_SHARE: usize = 8;

/// The keys of a log's state, and the bytes that are kept whatever else needs room: of the state,
/// with its tombstones, and of a creation.
pub(super) fn state_of(log: &Log) -> [usize; 2] {
    [log.state_keys(), log.state_bytes() + log.tombstone_bytes() + log.creation_bytes()]
}

impl Shared {
    pub(super) fn new(
        epoch: Epoch,
        rules: Arc<Rules>,
        queues: Vec<Arc<WorkerQueue>>,
        max_bytes: usize,
        shards: usize,
    ) -> Shared {
        let lost = (0..rules.len()).map(|_| AtomicU64::new(0)).collect();
        Shared {
            epoch,
            positions: epoch,
            positions_since: Stamp::default(),
            rules,
            hasher: NameHasher::new(Seed::random()),
            queues,
            max_bytes,
            limit_bytes: AtomicUsize::new(max_bytes),
            max_offset_step: 1,
            bytes: AtomicUsize::new(0),
            state_bytes: AtomicUsize::new(0),
            state_keys: AtomicUsize::new(0),
            holders: Holders::default(),
            messages: AtomicU64::new(0),
            // One more for what is stamped elsewhere.
            stamps: Stamps::new(shards + 1),
            lost,
            keys: KeyCounts::default(),
            idempotency_seed: Seed::random(),
            thawed_keys: Mutex::default(),
            has_thawed_keys: AtomicBool::new(false),
            published: AtomicU64::new(0),
            volatile: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            visited: AtomicU64::new(0),
            ends_forgotten: AtomicU64::new(0),
            created: AtomicUsize::new(0),
            mortal: Mutex::default(),
            is_memory_short: AtomicBool::new(false),
            listed_here: None,
            events: None,
            moved: 0,
            presence_logs: AtomicU64::new(0),
            presence: Arc::default(),
        }
    }

    /// Keeps of a subscription's backlog what its channel's policy gives to a client that resumes.
    pub(super) fn keep_latest(&self, start: StartAt, mut followed: Followed) -> Followed {
        if self.rules.get(followed.rule).lag_policy != LagPolicy::Latest {
            return followed;
        }
        let head = followed.head;
        let resumes_here = match start {
            StartAt::After(id) => {
                Some(id).filter(|id| id.epoch == head.epoch && id.offset <= head.offset)
            }
            StartAt::Since(position) => {
                Some(followed.cursor).filter(|_| position.epoch == self.positions)
            }
            StartAt::Live | StartAt::Last(_) | StartAt::From(_) | StartAt::State => None,
        };
        followed.keep_latest(resumes_here);
        followed
    }

    /// Makes offsets skip numbers, as in other engines.
    #[cfg(any(test, feature = "conformance"))]
    pub(super) fn set_max_offset_step(&mut self, max_step: u64) {
        self.max_offset_step = max_step;
    }

    /// The offset of the message after the one at `offset`. Refuses the message if there is none:
    /// a log that goes further could be frozen, but not be thawed.
    pub(super) fn next_offset(&self, offset: u64) -> Result<u64, PublishError> {
        self.check_offsets(offset, 1)?;
        Ok(self.offset_after(offset))
    }

    /// The same without the check.
    pub(super) fn offset_after(&self, offset: u64) -> u64 {
        offset + 1 + offset.wrapping_mul(7) % self.max_offset_step
    }

    /// Checks that there are offsets for this many messages after the one at `offset`.
    pub(super) fn check_offsets(&self, offset: u64, messages: u64) -> Result<(), PublishError> {
        if offset.saturating_add(messages.saturating_mul(self.max_offset_step)) <= OFFSET_MAX {
            return Ok(());
        }
        self.busy.fetch_add(1, Ordering::Relaxed);
        Err(PublishError::NoOffset)
    }

    pub(super) fn are_offsets_consecutive(&self) -> bool {
        self.max_offset_step == 1
    }

    pub(super) fn message_id(&self, offset: u64) -> MessageId {
        MessageId { epoch: self.epoch, offset }
    }

    /// The hash of the publication's idempotency key, if it has one, and to whom it belongs.
    pub(super) fn idempotency_key(&self, publication: &Publication) -> Option<(Key, Owner)> {
        let key = publication.idempotency_key.as_ref()?;
        let channel = publication.channel.key();
        let hash = self.idempotency_seed.key(channel, key.scoped());
        // Clients without a name are told apart by their channels.
        let publisher = if key.is_anonymous() { channel } else { key.publisher() };
        let of = |text| self.hash(text) as u32;
        Some((hash, Owner { publisher: of(publisher), channel: of(channel) }))
    }

    /// The offset of the message that was published with this key before the engine was frozen.
    pub(super) fn thawed_offset(&self, now_ms: u64, key: Key) -> Option<u64> {
        if !self.has_thawed_keys.load(Ordering::Relaxed) {
            return None;
        }
        self.thawed_keys().find(now_ms, key, &self.keys)
    }

    /// Keys of the engine that this one was thawed from.
    pub(super) fn thawed_keys(&self) -> MutexGuard<'_, Idempotency> {
        self.thawed_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers keys of the engine that this one was thawed from, the oldest first.
    pub(super) fn thaw_keys(&self, keys: impl Iterator<Item = (u64, Key, u64)>) {
        let mut thawed = self.thawed_keys();
        keys.for_each(|(at_ms, key, offset)| {
            // Nobody's in particular: all expire within minutes.
            thawed.remember(at_ms, (key, Owner::default()), offset, &self.keys);
        });
        self.has_thawed_keys.store(!thawed.is_empty(), Ordering::Relaxed);
    }

    /// Expires thawed keys; mostly there are none.
    pub(super) fn expire_thawed_keys(&self, now_ms: u64) {
        if self.has_thawed_keys.load(Ordering::Relaxed) {
            let mut thawed = self.thawed_keys();
            thawed.expire(now_ms, &self.keys);
            self.has_thawed_keys.store(!thawed.is_empty(), Ordering::Relaxed);
        }
    }

    /// The hash of a channel's key.
    pub(super) fn hash(&self, key: &str) -> u64 {
        self.hasher.hash(key)
    }

    pub(super) fn queue(&self, worker: WorkerId) -> &WorkerQueue {
        &self.queues[usize::from(worker.0)]
    }

    pub(super) fn workers(&self) -> usize {
        self.queues.len()
    }

    /// True if all logs together exceed their limit.
    pub(super) fn is_over(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Sets the limit of now. Each call while memory is short lowers it by a part, so that no call
    /// has to drop much at once, and no more is dropped than has to be.
    pub(super) fn set_limit(&self, is_memory_short: bool) {
        let limit = if is_memory_short {
            let limit = self.limit_bytes.load(Ordering::Relaxed);
            let from = limit.min(self.bytes.load(Ordering::Relaxed));
            let lower = from.saturating_sub(self.max_bytes / SHORT_PARTS);
            lower.max(self.max_bytes / SHORT_SHARE).min(limit)
        } else {
            self.max_bytes
        };
        self.limit_bytes.store(limit, Ordering::Relaxed);
    }

    /// A message of a channel with this rule is dropped, and no log tells so.
    pub(super) fn lose(&self, rule: RuleId, stamp: Stamp) {
        let lost = &self.lost[rule.index()];
        // Seldom more than one thread drops what is newer than all before.
        if lost.load(Ordering::Relaxed) < stamp.0 {
            lost.fetch_max(stamp.0, Ordering::Relaxed);
        }
    }

    /// The newest message that [`Shared::lose`] knows of, of a channel with this rule.
    pub(super) fn lost(&self, rule: RuleId) -> Stamp {
        Stamp(self.lost[rule.index()].load(Ordering::Relaxed))
    }

    /// The newest message that [`Shared::lose`] knows of, of any channel.
    pub(super) fn lost_anywhere(&self) -> Stamp {
        let lost = self.lost.iter().map(|lost| lost.load(Ordering::Relaxed));
        Stamp(lost.max().unwrap_or_default())
    }

    /// Messages of channels without a log were dropped up to this stamp.
    pub(super) fn lose_all(&self, stamp: Stamp) {
        self.lost.iter().for_each(|lost| lost.store(stamp.0, Ordering::Relaxed));
    }

    /// True if this engine has given out the position, and no channel has got another journal
    /// since.
    pub(super) fn is_known(&self, position: Watermark) -> bool {
        position.epoch == self.positions
            && (self.positions_since..=self.stamps.newest()).contains(&position.stamp)
    }

    /// True if a channel with this rule and without a log has had no messages that a client with
    /// this position lacks. `false` if another channel with the rule may have had some.
    pub(super) fn has_all_since(&self, rule: RuleId, position: Watermark) -> bool {
        self.is_known(position) && position.stamp >= self.lost(rule)
    }

    /// The position of a client that has all messages which are settled.
    pub(super) fn watermark(&self) -> Watermark {
        Watermark { epoch: self.positions, stamp: self.stamps.settled() }
    }

    /// Appends a message to a log, and counts it.
    pub(super) fn add(
        &self,
        log: &mut Log,
        content: Arc<Content>,
        message: Weak<Message>,
        holder: RoomHolder,
    ) {
        let (before, state_before) = (log.bytes(), state_of(log));
        log.append(content, message, holder);
        // It may have superseded one.
        self.bytes.fetch_add(log.bytes(), Ordering::Relaxed);
        self.bytes.fetch_sub(before, Ordering::Relaxed);
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.count_state(state_before, log);
    }

    /// Counts the state of a log, which was of so many keys and bytes before.
    pub(super) fn count_state(&self, before: [usize; 2], log: &mut Log) {
        self.holders.count(log.take_uncounted());
        let now = state_of(log);
        // Mostly there is none.
        if now != before {
            for (all, at) in [(&self.state_keys, 0), (&self.state_bytes, 1)] {
                all.fetch_add(now[at], Ordering::Relaxed);
                all.fetch_sub(before[at], Ordering::Relaxed);
            }
        }
    }

    /// Checks that a publisher's states and creations may take so many bytes more. All of them are
    /// not dropped for others' messages, so they get half of the limit of all logs.
    pub(super) fn check_room_for_state(
        &self,
        holder: RoomHolder,
        bytes: usize,
    ) -> Result<(), PublishError> {
        let taken = self.state_bytes.load(Ordering::Relaxed);
        self.holders.check(holder, bytes, (self.max_bytes / 2).saturating_sub(taken))
    }

    /// The publisher as one that holds room.
    pub(super) fn holder(&self, publisher: Publisher<'_>) -> RoomHolder {
        Holders::holder(&self.idempotency_seed, publisher)
    }

    /// Counts messages that were appended to a log.
    pub(super) fn count_added(&self, messages: usize, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.messages.fetch_add(messages as u64, Ordering::Relaxed);
    }

    /// Drops messages of a log with `trim`, which returns their bytes, and counts them.
    pub(super) fn shrink(&self, log: &mut Log, trim: impl FnOnce(&mut Log) -> usize) {
        let (before, state_before) = (log.len(), state_of(log));
        let bytes = trim(log);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.messages.fetch_sub((before - log.len()) as u64, Ordering::Relaxed);
        self.count_state(state_before, log);
    }

    /// Drops all messages of a log, and counts them.
    pub(super) fn clear(&self, log: &mut Log) {
        log.release_all();
        self.holders.count(log.take_uncounted());
        self.shrink(log, Log::clear);
    }

    /// Replaces the record of a log, of a channel with a name of this length, which `creator`
    /// creates if it was not before. Returns its version.
    pub(super) fn set_record(
        &self,
        now_ms: u64,
        log: &mut Log,
        record: Option<KnownRecord>,
        (name_bytes, creator): (usize, RoomHolder),
    ) -> RecordVersion {
        let version = record.as_ref().map_or(0, |known| known.version);
        let is_opened = log.is_ended() && !record.as_ref().is_some_and(|it| it.record.is_of_end());
        if is_opened && let Some(end) = log.newest_end() {
            // It tells readers nothing any more.
            self.erase(log, end);
        }
        let (state_before, was_created) = (state_of(log), log.is_created());
        let held = |log: &Log| (log.creator(), log.creation_bytes() as isize);
        let (holder, held_before) = held(log);
        let [bytes, before] = log.set_record(now_ms, record, (name_bytes, creator));
        self.holders.count([(holder, -held_before), held(log)].into_iter());
        self.count_state(state_before, log);
        self.created.fetch_add(usize::from(log.is_created()), Ordering::Relaxed);
        self.created.fetch_sub(usize::from(was_created), Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(before, Ordering::Relaxed);
        version
    }

    /// True if publications have to be compared with creations. Mostly there are none.
    pub(super) fn has_created(&self) -> bool {
        self.created.load(Ordering::Relaxed) > 0 || self.rules.must_any_exist()
    }

    /// The channels to look after because they may go at some time.
    pub(super) fn mortal(&self) -> MutexGuard<'_, HashSet<ChannelName>> {
        self.mortal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets that a channel has ended, of which nothing else is kept.
    pub(super) fn forget_end(&self, log: &mut Log) {
        self.set_record(0, log, None, (0, RoomHolder::NOBODY));
        self.ends_forgotten.fetch_add(1, Ordering::Relaxed);
    }

    /// Erases a message of a log. Returns whether it could be read.
    pub(super) fn erase(&self, log: &mut Log, offset: u64) -> bool {
        let state_before = state_of(log);
        let bytes = log.erase(offset);
        self.count_state(state_before, log);
        self.bytes.fetch_sub(bytes.unwrap_or(0), Ordering::Relaxed);
        bytes.is_some()
    }

    /// Takes the bodies of a log's messages that have expired, and counts them.
    pub(super) fn expire(&self, log: &mut Log, now_ms: u64) {
        let state_before = state_of(log);
        let (messages, bytes) = log.expire(now_ms);
        if messages > 0 {
            self.count_state(state_before, log);
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.expired.fetch_add(messages as u64, Ordering::Relaxed);
        }
    }

    /// The engine's counters, with `channels` channels.
    pub(super) fn metrics(&self, channels: u64) -> EngineMetrics {
        EngineMetrics {
            channels,
            messages: self.messages.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed) as u64,
            state_keys: self.state_keys.load(Ordering::Relaxed) as u64,
            members: 0,
            read_markers: 0,
            read_markers_refused: 0,
            state_bytes: self.state_bytes.load(Ordering::Relaxed) as u64,
            states_refused: self.holders.refused(),
            published: self.published.load(Ordering::Relaxed),
            volatile: self.volatile.load(Ordering::Relaxed),
            busy: self.busy.load(Ordering::Relaxed),
            duplicates: self.duplicates.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
            expired: self.expired.load(Ordering::Relaxed),
            visited: self.visited.load(Ordering::Relaxed),
            ends_forgotten: self.ends_forgotten.load(Ordering::Relaxed),
            keys: self.keys.kept.load(Ordering::Relaxed) as u64,
            keys_displaced: self.keys.displaced.load(Ordering::Relaxed),
        }
    }
}
