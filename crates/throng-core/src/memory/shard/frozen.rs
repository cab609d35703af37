//! A shard's channels as frozen state.

use std::ops::Range;
use std::sync::{Arc, Weak};

use super::super::channel::{Channel, Follower, Followers};
use super::super::forgotten::{Forgotten, Quiet};
use super::super::shared::{Shared, state_of};
use super::{Hashed, SHARD_BITS, Shard, oldest_ms};
use crate::change::{KnownRecord, LogRecord};
use crate::clock;
use crate::frozen::{
    Decoder, Encoder, Head, OFFSET_MAX, RecordKind, ThawError, decode_name, encode_content,
    encode_name,
};
use crate::holder::RoomHolder;
use crate::id::{LocalId, WorkerId};
use crate::log::segment::{Sealed, SealedName, Segment};
use crate::log::{FrozenKeys, Log, Place};
use crate::memory::sealing::SharedPlaces;
use crate::message::Content;
use crate::name::ChannelName;
use crate::rules::JournalId;
use crate::stamp::Stamp;

/// The first version that tells whose room states and creations take.
const HOLDERS_VERSION: u16 = 11;

/// A channel without its messages.
#[derive(Debug)]
pub(in crate::memory) struct FrozenChannel {
    pub(in crate::memory) name: ChannelName,
    pub(in crate::memory) head: u64,
    followers: Vec<Follower>,
    /// No message beyond this stamp has been dropped.
    lost: Stamp,
    /// The offset up to which the user has read; 0 if that is not known.
    read: u64,
    pub(in crate::memory) messages: u32,
    record: Option<KnownRecord>,
    /// Whose the room of a creation is; nobody's before version 11.
    creator: RoomHolder,
    /// The part of its keys that the messages do not tell; `None` before version 8.
    pub(in crate::memory) keys: Option<FrozenKeys>,
    /// The journal that has its log.
    pub(in crate::memory) journal: Option<JournalId>,
    /// Its id, by which clients know it; `None` before version 3, which told no client.
    number: Option<u32>,
}

impl FrozenChannel {
    /// Reads a channel of this version, which only `workers` workers can follow.
    pub(in crate::memory) fn decode(
        mut decoder: Decoder<'_>,
        version: u16,
        workers: usize,
    ) -> Result<FrozenChannel, ThawError> {
        let name = decode_name(&mut decoder)?;
        let head = decoder.u64()?;
        if head > OFFSET_MAX {
            return Err(ThawError::Invalid("the head of a channel"));
        }
        let mut followers: Vec<Follower> = Vec::new();
        for _ in 0..decoder.u16()? {
            let (worker, local, subscribers) = (decoder.u16()?, decoder.u32()?, decoder.u32()?);
            let is_known = followers.iter().any(|other| other.worker == WorkerId(worker));
            let local = LocalId::from_number(local)
                .filter(|_| usize::from(worker) < workers && subscribers > 0 && !is_known);
            let local = local.ok_or(ThawError::Invalid("a follower of a channel"))?;
            followers.push(Follower { local, subscribers, worker: WorkerId(worker) });
        }
        let messages = decoder.u32()?;
        let (lost, read) = (Stamp(decoder.u64()?), decoder.u64()?);
        let journal = decoder.u8()?.checked_sub(1).map(JournalId);
        let number = if version < 3 { None } else { Some(decoder.u32()?) };
        let record = if version < 6 { None } else { decode_record(&mut decoder)? };
        let keys = if version < 8 { None } else { decode_keys(&mut decoder, version)? };
        let creator = if version < HOLDERS_VERSION { 0 } else { decoder.u16()? };
        decoder.finish()?;
        if keys.as_ref().is_some_and(|keys: &FrozenKeys| keys.older > messages || keys.floor > head)
        {
            return Err(ThawError::Invalid("the keys of a channel"));
        }
        if read > head {
            return Err(ThawError::Invalid("the read marker of a channel"));
        }
        Ok(FrozenChannel {
            name,
            head,
            followers,
            lost,
            read,
            messages,
            record,
            creator: RoomHolder::numbered(creator),
            keys,
            journal,
            number,
        })
    }
}

fn decode_record(decoder: &mut Decoder<'_>) -> Result<Option<KnownRecord>, ThawError> {
    let (version, block) = (decoder.u64()?, decoder.bytes()?);
    if version == 0 {
        return Ok(None);
    }
    let record = LogRecord::read(block).map_err(|_| ThawError::Invalid("the record of a log"))?;
    Ok(Some(KnownRecord { version, record }))
}

/// One byte: whether there are keys. Then the number of messages before the window, the floor, the
/// messages that are the last of their keys and not the newest values, and whose room the newest
/// ones take.
fn decode_keys(decoder: &mut Decoder<'_>, version: u16) -> Result<Option<FrozenKeys>, ThawError> {
    match decoder.u8()? {
        0 => Ok(None),
        1 => {
            let (older, floor, ended) = (decoder.u32()?, decoder.u64()?, decoder.u32()?);
            let ended = (0..ended).map(|_| decoder.u64()).collect::<Result<_, _>>()?;
            let held = if version < HOLDERS_VERSION { 0 } else { decoder.u32()? };
            let mut holder = || Ok((decoder.u64()?, RoomHolder::numbered(decoder.u16()?)));
            let holders = (0..held).map(|_| holder()).collect::<Result<_, ThawError>>()?;
            Ok(Some(FrozenKeys { older, floor, ended, holders }))
        }
        _ => Err(ThawError::Invalid("the keys of a channel")),
    }
}

fn encode_keys(encoder: &mut Encoder, keys: Option<FrozenKeys>) {
    encoder.u8(u8::from(keys.is_some()));
    if let Some(FrozenKeys { older, floor, ended, holders }) = keys {
        encoder.u32(older);
        encoder.u64(floor);
        encoder.u32(ended.len() as u32);
        ended.into_iter().for_each(|offset| encoder.u64(offset));
        encoder.u32(holders.len() as u32);
        for (offset, holder) in holders {
            encoder.u64(offset);
            encoder.u16(holder.number());
        }
    }
}

impl Shard {
    /// The shard's memory of forgotten channels once the channels that [`Shard::freeze`] leaves out
    /// are forgotten, too.
    fn forgotten_as_frozen(&self, shared: &Shared) -> Forgotten {
        let mut forgotten = self.forgotten.clone();
        // A journal remembers the offsets of its channels.
        let is_here = |channel: &Channel| shared.rules.get(channel.rule).journal.is_none();
        let is_left_out = |channel: &Channel| channel.is_forgettable() && is_here(channel);
        for (_, channel) in self.channels.iter().filter(|(_, channel)| is_left_out(channel)) {
            forgotten.forget(shared.hash(self.names.get(channel.name)), channel.head);
        }
        forgotten
    }

    /// Writes which forgotten channels have been quiet. Returns the offset up to which no channel
    /// that is new in another engine may get one.
    pub(in crate::memory) fn freeze_forgotten<E>(
        &self,
        shared: &Shared,
        write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let forgotten = self.forgotten_as_frozen(shared);
        let quiet: Vec<Quiet> = forgotten.quiet().collect();
        if !quiet.is_empty() {
            let mut encoder = Encoder::new(RecordKind::QuietChannels);
            encoder.u32(quiet.len() as u32);
            for Quiet { hash, from, to } in quiet {
                [hash, from, to].into_iter().for_each(|number| encoder.u64(number));
            }
            write(encoder.finish())?;
        }
        Ok(forgotten.head())
    }

    /// Adds a forgotten channel that has been quiet.
    pub(in crate::memory) fn thaw_quiet(&mut self, quiet: Quiet) {
        self.forgotten.add(quiet);
    }

    /// Raises the offset that new channels start after.
    pub(in crate::memory) fn raise_forgotten_head(&mut self, head: u64) {
        self.forgotten.raise(head);
    }

    /// Writes all channels that have messages or followers, each with its messages. Returns how
    /// many channels that were.
    ///
    /// Of messages in the `segments` that the other process has, only the places are written.
    pub(in crate::memory) fn freeze<E>(
        &self,
        shared: &Shared,
        segments: SharedPlaces,
        write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut count = 0;
        for (slot, channel) in self.channels.iter() {
            if channel.is_forgettable() {
                continue;
            }
            write(self.freeze_channel(shared, slot, channel))?;
            if let Some(log) = &channel.log {
                freeze_messages(log, segments, write)?;
            }
            count += 1;
        }
        Ok(count)
    }

    fn freeze_channel(&self, shared: &Shared, slot: u32, channel: &Channel) -> Vec<u8> {
        let mut encoder = Encoder::new(RecordKind::Channel);
        encode_name(&mut encoder, &ChannelName::from_key(self.names.get(channel.name)));
        encoder.u64(channel.head);
        let followers = channel.followers.as_slice();
        encoder.u16(followers.len() as u16);
        for follower in followers {
            encoder.u16(follower.worker.0);
            encoder.u32(follower.local.number());
            encoder.u32(follower.subscribers);
        }
        encoder.u32(channel.log.as_ref().map_or(0, |log| log.len()) as u32);
        encoder.u64(channel.log.as_ref().map_or(0, |log| log.lost().0));
        encoder.u64(channel.log.as_ref().map_or(0, |log| log.read()));
        encoder.u8(shared.rules.get(channel.rule).journal.map_or(0, |JournalId(id)| id + 1));
        encoder.u32(self.id(slot).0);
        let record = channel.log.as_ref().and_then(|log| log.record());
        encoder.u64(record.map_or(0, |known| known.version));
        encoder.bytes(record.map_or(&[], |known| known.record.block()));
        encode_keys(&mut encoder, channel.log.as_ref().and_then(|log| log.frozen_keys()));
        let creator = channel.log.as_ref().map_or(RoomHolder::NOBODY, |log| log.creator());
        encoder.u16(creator.number());
        encoder.finish()
    }

    pub(in crate::memory) fn freeze_keys<E>(
        &self,
        write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.idempotency.freeze(write)
    }

    /// Adds a channel without its messages. Returns its slot.
    pub(in crate::memory) fn thaw_channel(
        &mut self,
        shared: &Shared,
        hash: u64,
        frozen: &FrozenChannel,
    ) -> Result<u32, ThawError> {
        let name = Hashed { name: &frozen.name, hash };
        if self.find(name).is_some() {
            return Err(ThawError::Invalid("a channel is there twice"));
        }
        // Clients know it by its id, which the hash of its name is a part of. A build that hashes
        // in another way gives it a new one, of which they are told.
        let slot = match self.slot_of(frozen).and_then(|slot| self.create_at(shared, name, slot)) {
            Some(slot) => slot,
            None => self.find_or_create(shared, name),
        };
        let channel = &mut self.channels[slot];
        channel.head = frozen.head;
        channel.followers = Followers::from(frozen.followers.clone());
        // Its messages follow.
        let is_kept = frozen.messages > 0 || frozen.record.is_some();
        channel.log = is_kept.then(|| Box::new(Log::new(frozen.lost)));
        if let Some(log) = &mut channel.log {
            log.set_read(frozen.read);
            let name_bytes = self.names.get(channel.name).len();
            let of = (name_bytes, frozen.creator);
            shared.set_record(clock::now_ms(), log, frozen.record.clone(), of);
            if log.record().is_some_and(|known| known.record.is_of_mortal()) {
                shared.mortal().insert(frozen.name.clone());
            }
            frozen.keys.iter().for_each(|keys| log.begin_keys(keys.floor));
            self.note_age(slot, 0);
        }
        Ok(slot)
    }

    /// The slot that a frozen channel had, if it was in this shard.
    fn slot_of(&self, frozen: &FrozenChannel) -> Option<u32> {
        let is_here = |number: &u32| number % (1 << SHARD_BITS) == self.number;
        frozen.number.filter(is_here).map(|number| number >> SHARD_BITS)
    }

    /// Adds a channel that has another journal now, for those who follow it: until they have left,
    /// it keeps its id and its head, but nobody finds it by its name, and it gets no message.
    pub(in crate::memory) fn thaw_left(
        &mut self,
        shared: &Shared,
        hash: u64,
        frozen: &FrozenChannel,
    ) -> Result<(), ThawError> {
        let name = Hashed { name: &frozen.name, hash };
        if self.find(name).or_else(|| self.find_left(name)).is_some() {
            return Err(ThawError::Invalid("a channel is there twice"));
        }
        if frozen.followers.is_empty() {
            return Ok(());
        }
        let channel = Channel {
            head: frozen.head,
            followers: Followers::from(frozen.followers.clone()),
            ..self.new_channel(shared, name)
        };
        let slot = match self.slot_of(frozen).filter(|&slot| self.channels.get(slot).is_none()) {
            Some(slot) => {
                let inserted = self.channels.insert_at(slot, channel);
                debug_assert!(inserted.is_ok(), "the slot is vacant");
                slot
            }
            None => self.channels.insert(channel),
        };
        let Shard { channels, names, left, .. } = self;
        let hash_of = |&other: &u32| shared.hash(names.get(channels[other].name));
        left.insert_unique(hash, slot, hash_of);
        Ok(())
    }

    /// Forgets which channels have been quiet, and starts new channels after `head`.
    pub(in crate::memory) fn forget_quiet(&mut self, head: u64) {
        self.forgotten.begin_anew(head);
    }

    /// Creates a channel in a slot, which it had elsewhere. Returns the slot; `None` if that is in
    /// use.
    fn create_at(&mut self, shared: &Shared, name: Hashed<'_>, slot: u32) -> Option<u32> {
        if self.channels.get(slot).is_some() {
            return None;
        }
        let channel = self.new_channel(shared, name);
        let inserted = self.channels.insert_at(slot, channel);
        debug_assert!(inserted.is_ok(), "the slot is vacant");
        self.index(shared, name.hash, slot);
        Some(slot)
    }

    /// Adds the next message of a channel, or refuses one that does not follow the last.
    pub(in crate::memory) fn thaw_message(
        &mut self,
        shared: &Shared,
        slot: u32,
        content: Content,
    ) -> Result<(), ThawError> {
        let content = Arc::new(content);
        let log = self.log_before(shared, slot, &content)?;
        shared.add(log, content, Weak::new(), RoomHolder::NOBODY);
        self.note_age(slot, 1);
        Ok(())
    }

    /// The same with consecutive messages of a segment, which have to be of the channel.
    pub(in crate::memory) fn thaw_sealed(
        &mut self,
        shared: &Shared,
        (slot, name): (u32, &ChannelName),
        segment: &Arc<Segment>,
        places: Range<u32>,
    ) -> Result<(), ThawError> {
        let channel = &mut self.channels[slot];
        let log = channel.log.get_or_insert_with(Box::default);
        let (name, mut last) = (SealedName::new(name), Last::of(log));
        let (head, newest, count) = (channel.head, shared.stamps.newest(), places.len());
        let bytes = log.append_sealed(segment, places, |message| {
            last.follow_sealed(message, &name, head, newest)
        })?;
        shared.count_added(count, bytes);
        self.note_age(slot, count);
        Ok(())
    }

    /// The log of a channel that is thawed, if this is its next message.
    fn log_before(
        &mut self,
        shared: &Shared,
        slot: u32,
        next: &Content,
    ) -> Result<&mut Log, ThawError> {
        let channel = &mut self.channels[slot];
        let log = channel.log.get_or_insert_with(Box::default);
        let it = (next.id.offset, next.time_ms, next.stamp);
        Last::of(log).follow(next.previous, it, channel.head, shared.stamps.newest())?;
        Ok(log)
    }

    /// Notes how old a thawed log is, which has got `count` messages, if those are its first ones.
    fn note_age(&mut self, slot: u32, count: usize) {
        let Shard { ages, channels, .. } = self;
        let log = channels[slot].log.as_ref().filter(|log| log.len() == count);
        if let Some(time_ms) = log.and_then(|log| log.age_ms()) {
            ages.add(time_ms, slot, |slot| oldest_ms(channels, slot));
        }
    }

    /// Checks that the channel's messages end at its head, once they have all been thawed.
    pub(in crate::memory) fn check_thawed(&self, slot: u32) -> Result<(), ThawError> {
        let channel = &self.channels[slot];
        check_end(channel.log.as_ref().and_then(|log| Log::newest_offset(log)), channel.head)
    }

    /// Goes on with the keys of a channel, all of whose messages have been thawed.
    pub(in crate::memory) fn thaw_keys(&mut self, shared: &Shared, slot: u32, keys: &FrozenKeys) {
        let Some(log) = &mut self.channels[slot].log else { return };
        // Keys that have ended were counted with their messages.
        let before = state_of(log);
        log.thaw_keys(keys);
        shared.count_state(before, log);
        if let Some(time_ms) = log.oldest_ms() {
            let Shard { ages, channels, .. } = self;
            ages.add(time_ms, slot, |slot| oldest_ms(channels, slot));
        }
        self.plan_look(slot);
    }
}

/// Checks that the newest message of a channel is at its head.
fn check_end(newest: Option<u64>, head: u64) -> Result<(), ThawError> {
    let ends_there = newest.is_none_or(|newest| newest == head);
    ends_there
        .then_some(())
        .ok_or(ThawError::Invalid("the messages of a channel do not end at its head"))
}

/// The log of a channel that has another journal now: its messages are checked and left out.
#[derive(Debug)]
pub(in crate::memory) struct LeftLog {
    last: Last,
    head: u64,
}

impl LeftLog {
    pub(in crate::memory) fn new(frozen: &FrozenChannel) -> LeftLog {
        let is_sparse = frozen.keys.is_some();
        let last = Last { offset: None, time_ms: 0, stamp: Stamp::default(), is_sparse };
        LeftLog { last, head: frozen.head }
    }

    /// Checks the next message, or refuses one that does not follow the last.
    pub(in crate::memory) fn message(
        &mut self,
        shared: &Shared,
        next: &Content,
    ) -> Result<(), ThawError> {
        let it = (next.id.offset, next.time_ms, next.stamp);
        self.last.follow(next.previous, it, self.head, shared.stamps.newest())
    }

    /// The same with consecutive messages of a segment, which have to be of the channel.
    pub(in crate::memory) fn sealed(
        &mut self,
        shared: &Shared,
        name: &ChannelName,
        segment: &Segment,
        mut places: Range<u32>,
    ) -> Result<(), ThawError> {
        let (name, newest) = (SealedName::new(name), shared.stamps.newest());
        places
            .try_for_each(|at| self.last.follow_sealed(&segment.get(at), &name, self.head, newest))
    }

    /// Checks that the messages end at the head, once they have all come.
    pub(in crate::memory) fn check_end(&self) -> Result<(), ThawError> {
        check_end(self.last.offset, self.head)
    }
}

/// The last message of a log, which the next one has to follow.
#[derive(Debug)]
struct Last {
    /// `None` if the log is empty.
    offset: Option<u64>,
    time_ms: u64,
    stamp: Stamp,
    /// True if messages may lack that later ones have superseded.
    is_sparse: bool,
}

impl Last {
    fn of(log: &Log) -> Last {
        Last {
            offset: log.newest_offset(),
            time_ms: log.newest_ms().unwrap_or(0),
            stamp: log.newest_stamp().unwrap_or_default(),
            is_sparse: log.has_keys(),
        }
    }

    /// Goes on to a message of a segment, which has to be of the channel with this name.
    fn follow_sealed(
        &mut self,
        next: &Sealed<'_>,
        name: &SealedName,
        head: u64,
        newest: Stamp,
    ) -> Result<(), ThawError> {
        if !next.is_of(name) {
            return Err(ThawError::Invalid("a message of another channel"));
        }
        let Head { offset, previous, time_ms, stamp, .. } = next.head;
        self.follow(previous, (offset, time_ms, stamp), head, newest)
    }

    /// Goes on to `next`, the offset before which is `previous`, in a channel with this head.
    /// `newest` is the newest stamp of the engine.
    fn follow(
        &mut self,
        previous: u64,
        (offset, time_ms, stamp): (u64, u64, Stamp),
        head: u64,
        newest: Stamp,
    ) -> Result<(), ThawError> {
        let follows = |last: u64| last == previous || (self.is_sparse && last < previous);
        let is_next = self.offset.is_none_or(follows)
            && self.time_ms <= time_ms
            && self.stamp <= stamp
            && stamp <= newest
            && offset <= head;
        *self = Last { offset: Some(offset), time_ms, stamp, ..*self };
        is_next.then_some(()).ok_or(ThawError::Invalid("a message does not follow the one before"))
    }
}

/// Writes the messages of a log, oldest first.
fn freeze_messages<E>(
    log: &Log,
    segments: SharedPlaces,
    write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    // Consecutive messages of a segment: its place, the first one and their number.
    let mut run: Option<(u32, u32, u32)> = None;
    for place_of in log.places() {
        let place = match place_of {
            Place::Here(_) => None,
            Place::Sealed { segment, at } => segments.of(segment).map(|place| (place, at)),
        };
        match (&mut run, place) {
            (Some((place, first, count)), Some(next)) if (*place, *first + *count) == next => {
                *count += 1;
                continue;
            }
            _ => {}
        }
        if let Some(run) = run.take() {
            write(freeze_run(run))?;
        }
        match (place, place_of) {
            (Some((place, at)), _) => run = Some((place, at, 1)),
            (None, Place::Here(content)) => write(freeze_message(content))?,
            (None, Place::Sealed { segment, at }) => {
                write(freeze_message(&log.sealed_content(segment, at)))?;
            }
        }
    }
    run.map_or(Ok(()), |run| write(freeze_run(run)))
}

fn freeze_run((place, first, count): (u32, u32, u32)) -> Vec<u8> {
    let mut encoder = Encoder::new(RecordKind::SealedMessages);
    [place, first, count].into_iter().for_each(|number| encoder.u32(number));
    encoder.finish()
}

fn freeze_message(content: &Content) -> Vec<u8> {
    let mut encoder = Encoder::new(RecordKind::Message);
    encode_content(&mut encoder, content);
    encoder.finish()
}
