//! The engine as frozen state, record by record, so that no buffer holds all of it.
//!
//! Channels keep their ids, which are numbers that clients know, unless this build hashes names in
//! another way. The thaw derives the rest, such as the rule of each channel. Each worker that
//! follows a channel stays its follower, under the same local id. So messages that are published
//! after the thaw reach a worker's queue even before the worker is thawed.
//!
//! A channel whose rule names another journal than before begins a new log there, and its messages
//! are left out. Its followers stay with the former channel until they leave, because their clients
//! have ids of the former log: it gets no message, and is not found by its name.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::forgotten::Quiet;
use super::idempotency::{KEY_BYTES, Key, Seed};
use super::name_hasher::NameHasher;
use super::shard::Shard;
use super::shard::frozen::{FrozenChannel, LeftLog};
use super::{MemoryEngine, SHARDS, Shared};
use crate::clock;
use crate::engine::EngineMetrics;
use crate::frozen::{Decoder, Encoder, OFFSET_MAX, RecordKind, ThawError, decode_content};
use crate::id::Epoch;
use crate::log::FrozenKeys;
use crate::log::segment::{Segment, SharedBytes};
use crate::name::ChannelName;
use crate::rules::Rules;
use crate::stamp::Stamp;
use crate::worker_queue::WorkerQueue;

impl MemoryEngine {
    /// Writes the engine, one record with each call of `write`; a record is hardly longer than the
    /// longest message. Nothing may be published meanwhile, and all workers must have taken their
    /// notifications: those in queues are not written. Of messages in segments only the places are
    /// written, since [`MemoryEngine::seal`].
    pub fn freeze<E>(&self, mut write: impl FnMut(Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        let write: &mut dyn FnMut(Vec<u8>) -> Result<(), E> = &mut write;
        let metrics = self.shared.metrics(0);
        let mut first = Encoder::first(RecordKind::Engine);
        first.u64(self.shared.epoch.number());
        first.raw(&self.shared.idempotency_seed.0);
        let EngineMetrics { published, busy, duplicates, evicted, expired, .. } = metrics;
        [published, busy, duplicates, evicted].into_iter().for_each(|count| first.u64(count));
        first.u64(self.shared.stamps.newest().0);
        first.u64(self.shared.lost_anywhere().0);
        first.u64(expired);
        first.raw(&self.shared.hasher.seed().0);
        first.u64(self.shared.rules.journals());
        first.u64(self.shared.positions_since.0);
        self.members.counters().iter().for_each(|count| first.u64(count.load(Ordering::Relaxed)));
        write(first.finish())?;
        self.sealing.records().into_iter().try_for_each(&mut *write)?;
        let segments = self.sealing.places();
        self.shared.thawed_keys().freeze(write)?;
        let (mut channels, mut forgotten_head) = (0, 0);
        for at in 0..SHARDS {
            let shard = self.lock(at);
            channels += shard.freeze(&self.shared, segments, write)?;
            shard.freeze_keys(write)?;
            forgotten_head = shard.freeze_forgotten(&self.shared, write)?.max(forgotten_head);
        }
        self.freeze_members(write)?;
        self.freeze_markers(write)?;
        self.freeze_bookmarks(write)?;
        self.freeze_watchlists(write)?;
        let mut end = Encoder::new(RecordKind::EngineEnd);
        end.u64(channels);
        end.u64(forgotten_head);
        write(end.finish())
    }
}

/// Reads a frozen engine, record by record.
#[derive(Debug)]
pub struct MemoryThaw {
    engine: MemoryEngine,
    has_begun: bool,
    /// The version of the format, once the thaw has begun.
    version: u16,
    is_ended: bool,
    has_failed: bool,
    channels: u64,
    /// Whether the rules gave some channels other journals; `None` before version 7, which does
    /// not tell.
    had_other_journals: Option<bool>,
    /// The highest head of the channels that were in memory, and are in a journal now.
    left_head: u64,
    /// The channel whose messages are being read.
    open: Option<OpenChannel>,
    keys: Vec<(u64, Key, u64)>,
    /// Segments that have come and are not in use yet.
    came: VecDeque<Segment>,
    /// Those that are in use.
    segments: Vec<Arc<Segment>>,
}

#[derive(Debug)]
struct OpenChannel {
    name: ChannelName,
    shard: usize,
    log: OpenLog,
    keys: Option<FrozenKeys>,
    messages_left: u32,
}

/// The log of a channel whose messages are being read.
#[derive(Debug)]
enum OpenLog {
    /// Of the channel in this slot.
    Here(u32),
    /// Of one that has another journal now.
    Left(LeftLog),
}

impl OpenChannel {
    /// Checks that all is there if the last message was read. Returns whether it was.
    fn end(&self, shared: &Shared, shard: &mut Shard) -> Result<bool, ThawError> {
        if self.messages_left == 0 {
            match &self.log {
                OpenLog::Here(slot) => {
                    shard.check_thawed(*slot)?;
                    self.keys.iter().for_each(|keys| shard.thaw_keys(shared, *slot, keys));
                }
                OpenLog::Left(log) => log.check_end()?,
            }
        }
        Ok(self.messages_left == 0)
    }
}

impl MemoryThaw {
    /// Takes the arguments of [`MemoryEngine::new`], except the epoch, which is in the frozen
    /// state.
    pub fn new(rules: Arc<Rules>, queues: Vec<Arc<WorkerQueue>>, max_bytes: usize) -> MemoryThaw {
        MemoryThaw {
            engine: MemoryEngine::new(Epoch::numbered(0), rules, queues, max_bytes),
            has_begun: false,
            version: 0,
            is_ended: false,
            has_failed: false,
            channels: 0,
            had_other_journals: None,
            left_head: 0,
            open: None,
            keys: Vec::new(),
            came: VecDeque::new(),
            segments: Vec::new(),
        }
    }

    /// Checks the next segment that [`MemoryEngine::seal`] has written, and keeps it. All of them
    /// come before the records.
    pub fn segment(&mut self, bytes: SharedBytes) -> Result<(), ThawError> {
        self.came.push_back(Segment::read(bytes)?);
        Ok(())
    }

    /// Reads the next record. After an error there is no engine.
    pub fn record(&mut self, record: &[u8]) -> Result<(), ThawError> {
        let read = self.read(record);
        self.has_failed |= read.is_err();
        read
    }

    fn read(&mut self, record: &[u8]) -> Result<(), ThawError> {
        let (kind, decoder) = Decoder::new(record)?;
        if self.is_ended || self.has_begun == (kind == RecordKind::Engine) {
            return Err(ThawError::Invalid("the order of records"));
        }
        match kind {
            RecordKind::Engine => self.begin(decoder),
            RecordKind::Message => self.message(decoder),
            RecordKind::SealedMessages => self.sealed_messages(decoder),
            _ if self.open.is_some() => Err(ThawError::Invalid("the messages of a channel lack")),
            RecordKind::SegmentInUse => self.segment_in_use(decoder),
            RecordKind::Channel => self.channel(decoder),
            RecordKind::IdempotencyKey => self.idempotency_key(decoder),
            RecordKind::QuietChannels => self.quiet_channels(decoder),
            RecordKind::Members => self.engine.thaw_members(decoder),
            RecordKind::Markers => self.engine.thaw_markers(decoder),
            RecordKind::Bookmarks => self.engine.thaw_bookmarks(decoder),
            RecordKind::Watched => self.engine.thaw_watched(decoder),
            RecordKind::EngineEnd => self.end(decoder),
            _ => Err(ThawError::Invalid("the record is no part of an engine")),
        }
    }

    /// The engine, once its last record was read.
    pub fn finish(mut self) -> Result<MemoryEngine, ThawError> {
        if !self.is_ended || self.has_failed {
            return Err(ThawError::Truncated);
        }
        // Each shard has frozen its own keys in order.
        self.keys.sort_unstable();
        self.engine.shared.thaw_keys(self.keys.into_iter());
        for at in 0..SHARDS {
            let shard = self.engine.lock(at);
            self.engine.note_oldest(at, &shard);
        }
        self.engine.sealing.begin_with(&self.segments);
        // The limit may be lower than before the freeze.
        self.engine.evict();
        Ok(self.engine)
    }

    fn begin(&mut self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        self.version = decoder.version()?;
        let shared = &mut self.engine.shared;
        shared.epoch = Epoch::numbered(decoder.u64()?);
        shared.positions = shared.epoch;
        shared.idempotency_seed = Seed(key_bytes(&mut decoder)?);
        // Leaves room to count on.
        let count = |decoder: &mut Decoder<'_>| Ok(decoder.u64()?.min(u64::MAX / 2));
        for counter in [&shared.published, &shared.busy, &shared.duplicates, &shared.evicted] {
            counter.store(count(&mut decoder)?, Ordering::Relaxed);
        }
        let newest = decoder.u64()?;
        if newest > OFFSET_MAX {
            return Err(ThawError::Invalid("the newest stamp"));
        }
        shared.stamps.resume_after(Stamp(newest));
        // Which rule it was of is not known: the rules may have changed since.
        shared.lose_all(Stamp(decoder.u64()?));
        shared.expired.store(count(&mut decoder)?, Ordering::Relaxed);
        shared.hasher = NameHasher::new(Seed(key_bytes(&mut decoder)?));
        if self.version >= 7 {
            self.had_other_journals = Some(decoder.u64()? != shared.rules.journals());
            shared.positions_since = Stamp(decoder.u64()?);
        }
        if self.version >= 9 {
            for counter in self.engine.members.counters() {
                counter.store(count(&mut decoder)?, Ordering::Relaxed);
            }
        }
        self.has_begun = true;
        decoder.finish()
    }

    fn channel(&mut self, decoder: Decoder<'_>) -> Result<(), ThawError> {
        let shared = &self.engine.shared;
        let frozen = FrozenChannel::decode(decoder, self.version, shared.workers())?;
        let (at, hashed) = self.engine.find(&frozen.name);
        self.channels += 1;
        let mut shard = self.engine.lock(at);
        let log = if frozen.journal == self.engine.rule(&frozen.name).journal {
            OpenLog::Here(shard.thaw_channel(shared, hashed.hash, &frozen)?)
        } else {
            shard.thaw_left(shared, hashed.hash, &frozen)?;
            OpenLog::Left(LeftLog::new(&frozen))
        };
        drop(shard);
        if let OpenLog::Left(_) = log {
            self.engine.shared.moved += 1;
            if frozen.journal.is_none() {
                self.left_head = self.left_head.max(frozen.head);
            }
        }
        let FrozenChannel { name, messages: messages_left, keys, .. } = frozen;
        let open = OpenChannel { name, shard: at, log, keys, messages_left };
        self.open = Some(open).filter(|open| open.messages_left > 0);
        Ok(())
    }

    fn message(&mut self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        let open = self.open.as_mut().ok_or(ThawError::Invalid("a message without a channel"))?;
        let shared = &self.engine.shared;
        let content = decode_content(&mut decoder, shared.epoch, &open.name)?;
        decoder.finish()?;
        let mut shard = self.engine.lock(open.shard);
        match &mut open.log {
            OpenLog::Here(slot) => shard.thaw_message(shared, *slot, content)?,
            OpenLog::Left(log) => log.message(shared, &content)?,
        }
        open.messages_left -= 1;
        if open.end(shared, &mut shard)? {
            drop(shard);
            self.open = None;
        }
        Ok(())
    }

    fn segment_in_use(&mut self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        let (place, later_ms) = (decoder.u32()?, decoder.u64()?.cast_signed());
        decoder.finish()?;
        let segment = self.came.pop_front().filter(|segment| {
            place as usize == self.segments.len() && segment.epoch() == self.engine.shared.epoch
        });
        let segment = segment.ok_or(ThawError::Invalid("a segment that has not come"))?;
        let ahead_ms = clock::ahead_ms().wrapping_sub(later_ms);
        self.segments.push(Arc::new(segment.numbered(place, ahead_ms)));
        Ok(())
    }

    fn sealed_messages(&mut self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        let open = self.open.as_mut().ok_or(ThawError::Invalid("a message without a channel"))?;
        let (place, first, count) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
        decoder.finish()?;
        let segment = self.segments.get(place as usize);
        let segment = segment.ok_or(ThawError::Invalid("a segment that has not come"))?;
        let end = first.checked_add(count).filter(|end| *end <= segment.len());
        let end = end.filter(|_| 0 < count && count <= open.messages_left);
        let end = end.ok_or(ThawError::Invalid("messages in a segment"))?;
        let shared = &self.engine.shared;
        let mut shard = self.engine.lock(open.shard);
        let (name, places) = (&open.name, first..end);
        match &mut open.log {
            OpenLog::Here(slot) => shard.thaw_sealed(shared, (*slot, name), segment, places)?,
            OpenLog::Left(log) => log.sealed(shared, name, segment, places)?,
        }
        open.messages_left -= count;
        if open.end(shared, &mut shard)? {
            drop(shard);
            self.open = None;
        }
        Ok(())
    }

    fn idempotency_key(&mut self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        let key = Key(key_bytes(&mut decoder)?);
        let (at_ms, offset) = (clock::from_wall_ms(decoder.u64()?), decoder.u64()?);
        decoder.finish()?;
        self.keys.push((at_ms, key, offset));
        Ok(())
    }

    fn quiet_channels(&mut self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        for _ in 0..decoder.u32()? {
            let quiet = Quiet { hash: decoder.u64()?, from: decoder.u64()?, to: decoder.u64()? };
            if quiet.from > quiet.to || quiet.to > OFFSET_MAX {
                return Err(ThawError::Invalid("the silence of a channel"));
            }
            self.engine.lock(MemoryEngine::shard_of(quiet.hash)).thaw_quiet(quiet);
        }
        decoder.finish()
    }

    fn end(&mut self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        let (channels, forgotten_head) = (decoder.u64()?, decoder.u64()?);
        decoder.finish()?;
        if channels != self.channels || forgotten_head > OFFSET_MAX {
            return Err(ThawError::Invalid("the end of an engine"));
        }
        // Names may be in other shards now: each starts new channels after all forgotten ones.
        let head = forgotten_head.max(self.left_head);
        if self.engine.shared.moved > 0 || self.had_other_journals == Some(true) {
            self.journals_are_new(head);
        } else {
            (0..SHARDS).for_each(|at| self.engine.lock(at).raise_forgotten_head(head));
        }
        self.is_ended = true;
        Ok(())
    }

    /// Takes note that rules name other journals than before, perhaps also for channels without a
    /// log here. New channels in memory start beyond `head`: one that went to a journal and comes
    /// back must not continue at its old offset, because a client would resume there and lack the
    /// messages that the journal got meanwhile. For the same reason earlier positions are unknown.
    fn journals_are_new(&mut self, head: u64) {
        let head = (head + 1).min(OFFSET_MAX);
        (0..SHARDS).for_each(|at| self.engine.lock(at).forget_quiet(head));
        let shared = &mut self.engine.shared;
        shared.positions_since = shared.stamps.newest();
    }
}

fn key_bytes(decoder: &mut Decoder<'_>) -> Result<[u8; KEY_BYTES], ThawError> {
    let bytes = decoder.raw(KEY_BYTES)?;
    Ok(std::array::from_fn(|at| bytes[at]))
}
