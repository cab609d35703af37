//! Writing: commits of groups of entries, with retention and idempotency keys.

use std::collections::HashSet;
use std::collections::hash_map::Entry as MapEntry;
use std::num::NonZeroU64;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use throng_core::{
    ChannelName, Content, Extras, IDEMPOTENCY_MS, MessageId, Publication, PublishError, Retention,
    Stamp, StateLimits, clock,
};

use super::ages::{AgeNow, AgeTable, Note};
use super::due::Earliest;
use super::entry::{Appended, Entry};
use super::erasure_notes::ErasureNotes;
use super::format::{self, KnownKey, LogHead, Scratch};
use super::group::{
    ChannelMap, Group, GroupChannel, KnownHead, NewMessage, TRIMMED_PER_COMMIT, WriteBatch,
};
use super::names::NameIndex;
use super::reader::{Logs, unreadable};
use super::state_rows::AllStates;
use super::unreadable::Unreadable;
use crate::storage::{Space, Storage, StorageError, Write};
use crate::sync_policy::SyncPolicy;

/// Channels whose heads the writer keeps in memory.
pub(super) const HEADS_MAX: usize = 65_536;

/// Messages that a publication may drop besides its commit's own: more than it adds, so that a log
/// that is too long becomes shorter however busy its channel is.
const TRIMMED_PER_PUBLICATION: usize = 2;

/// Stamps that are reserved at a time: so many that a run seldom notes more than one reservation,
/// and few beside the 2^62 that there are.
const STAMPS_AHEAD: u64 = 1 << 40;

/// How often the time is noted, while something is written.
const SEEN_EVERY_MS: u64 = 60_000;

/// Tells the head of a channel that is followed, as those who follow it know it.
pub(crate) type FollowedHead = dyn Fn(&ChannelName) -> Option<u64> + Send;

/// The limits of a channel's state.
pub(crate) type StateLimitsOf = dyn Fn(&ChannelName) -> StateLimits + Send;

/// The limits of states.
#[derive(Default)]
pub(super) struct StateTerms {
    pub(super) limits_of: Option<Box<StateLimitsOf>>,
    /// The limit of the bytes of all states.
    pub(super) max_bytes: Option<u64>,
}

/// Appends to the logs. There is one.
pub struct Writer {
    pub(super) logs: Arc<Logs>,
    sync: SyncPolicy,
    /// Heads of channels that were written lately.
    pub(super) heads: ChannelMap<KnownHead>,
    /// The number of the newest channel.
    newest_number: u64,
    /// The stamp up to which stamps may be given out without another note.
    stamps: u64,
    /// Publications that an error has kept from being acknowledged.
    pending: Option<Pending>,
    /// The visit of all channels, if it is under way.
    pub(super) walk: Option<Walk>,
    pub(super) ages: AgeTable,
    /// The time by the machine's clock that was noted last.
    seen_ms: u64,
    pub(super) unreadable: Unreadable,
    followed_head: Option<Box<FollowedHead>>,
    pub(super) names: NameIndex,
    /// Where what is due begins.
    pub(super) earliest: Earliest,
    /// True if messages of erased histories may be left.
    pub(super) has_erased: bool,
    pub(super) erasures: ErasureNotes,
    pub(super) state_terms: StateTerms,
    /// How much there is of all states.
    pub(super) states: AllStates,
    /// Channels in whose states something may be due for another reason than the time.
    pub(super) key_work: HashSet<ChannelName>,
}

/// A visit of all channels: see `walk`.
pub(super) struct Walk {
    /// The note at its end.
    pub(super) retention: Vec<u8>,
    /// The first key that was not visited.
    pub(super) next: Vec<u8>,
}

/// A commit that is to be acknowledged.
struct Pending {
    writes: Vec<Write>,
    channels: Arc<ChannelMap<GroupChannel>>,
    appended: Vec<Appended>,
    /// All messages of `appended`, in their order.
    messages: Vec<NewMessage>,
}

/// Has heads say which of the messages that a group has added and dropped were the last, by the
/// stamps that these have now.
fn raise_lost(
    writes: &mut [Write],
    channels: &mut Arc<ChannelMap<GroupChannel>>,
    appended: &[Appended],
) {
    let mut lost = ChannelMap::<u64>::default();
    for content in appended.iter().flat_map(Appended::contents) {
        let channel = channels.get(&content.channel);
        if channel.is_some_and(|channel| content.id.offset <= channel.head.floor) {
            let lost = lost.entry(content.channel.clone()).or_default();
            *lost = (*lost).max(content.stamp.0);
        }
    }
    for (name, lost) in lost {
        let Some(channel) = Arc::make_mut(channels).get_mut(&name) else { continue };
        channel.head.lost = channel.head.lost.max(lost);
        channel.stored = channel.head;
        let key = format::name(&name);
        let of_head = |write: &&mut Write| write.space == Space::Heads && *write.key == *key;
        // Its floor has moved, so the head is among them.
        if let Some(write) = writes.iter_mut().rfind(of_head) {
            write.value = Some(Scratch::default().head(&channel.head));
        }
    }
}

impl Writer {
    /// Begins to write. Call it once.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn begin(
        logs: &Arc<Logs>,
        sync: SyncPolicy,
        newest: Stamp,
    ) -> Result<Writer, StorageError> {
        let mut writer = Writer::prepare(logs, sync)?;
        writer.begin_run(newest)?;
        Ok(writer)
    }

    /// A writer that has written nothing: [`Writer::begin_run`] comes first.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub(crate) fn prepare(logs: &Arc<Logs>, sync: SyncPolicy) -> Result<Writer, StorageError> {
        let newest_number = logs.newest_number()?;
        let states = Logs::read_states(&*logs.storage)?;
        Ok(Writer {
            logs: Arc::clone(logs),
            sync,
            heads: ChannelMap::default(),
            newest_number,
            stamps: 0,
            pending: None,
            walk: None,
            ages: AgeTable::default(),
            seen_ms: 0,
            unreadable: Unreadable::default(),
            followed_head: None,
            names: NameIndex::new(newest_number),
            earliest: Earliest::UNKNOWN,
            has_erased: true,
            erasures: logs.read_erasures()?,
            state_terms: StateTerms::default(),
            states,
            key_work: HashSet::new(),
        })
    }

    /// The same, which knows who follows channels.
    #[must_use]
    pub(crate) fn with_followers(self, followed_head: Box<FollowedHead>) -> Writer {
        Writer { followed_head: Some(followed_head), ..self }
    }

    /// The same, which keeps to limits of states: those of each channel, and of all bytes.
    #[must_use]
    pub(crate) fn with_state_limits(self, limits_of: Box<StateLimitsOf>, max_bytes: u64) -> Writer {
        let (limits_of, max_bytes) = (Some(limits_of), Some(max_bytes));
        Writer { state_terms: StateTerms { limits_of, max_bytes }, ..self }
    }

    pub(super) fn followed_head(&self, name: &ChannelName) -> Option<u64> {
        self.followed_head.as_ref().and_then(|head| head(name))
    }

    /// Notes that a run begins, or goes on after [`Writer::end_run`]: in between another process
    /// may have opened the storage and written nothing.
    ///
    /// # Errors
    ///
    /// An error of the storage. Then call [`Writer::retry`], and this again.
    pub(crate) fn begin_run(&mut self, newest: Stamp) -> Result<(), StorageError> {
        self.note_run(format::run(self.sync, &self.logs.boot))?;
        let seen = self.storage().get(Space::Meta, format::SEEN)?;
        if let Some(seen) = seen {
            // One that cannot be read may have been any.
            self.ages.compare(format::number(&seen).unwrap_or(u64::MAX));
        }
        self.reserve_stamps(newest)
    }

    /// Notes that stamps beyond `newest` are given out: the next run starts beyond all of them.
    ///
    /// # Errors
    ///
    /// An error of the storage. Then call [`Writer::retry`].
    pub(crate) fn reserve_stamps(&mut self, newest: Stamp) -> Result<(), StorageError> {
        if newest.0 + STAMPS_AHEAD / 2 < self.stamps {
            return Ok(());
        }
        let stamps = newest.0 + STAMPS_AHEAD;
        let note = Write::put(Space::Meta, format::STAMPS, stamps.to_be_bytes());
        self.storage().commit(&[note])?;
        self.storage().sync()?;
        self.stamps = stamps;
        Ok(())
    }

    pub(super) fn storage(&self) -> &dyn Storage {
        &*self.logs.storage
    }

    /// Notes durably what this run promises, and under which epoch.
    fn note_run(&self, run: Vec<u8>) -> Result<(), StorageError> {
        let mut writes = vec![
            Write::put(Space::Meta, format::EPOCH, format::epoch_value(self.logs.epoch())),
            Write::put(Space::Meta, format::RUN, run),
        ];
        let seed = self.logs.holder_seed();
        writes.extend(seed.map(|seed| Write::put(Space::Meta, format::HOLDER_SEED, seed)));
        self.storage().commit(&writes)?;
        self.storage().sync()
    }

    /// Syncs what was committed, if that is promised.
    pub(super) fn sync_if_promised(&self) -> Result<(), StorageError> {
        if self.sync == SyncPolicy::Always { self.storage().sync() } else { Ok(()) }
    }

    /// Notes that nothing is lost, and leaves little that the next start has to do. Call it last,
    /// or [`Writer::begin_run`] before anything else.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn end_run(&self) -> Result<(), StorageError> {
        // First what the note is about, then the note.
        self.storage().sync()?;
        self.storage().commit(&[Write::put(Space::Meta, format::RUN, format::CLEAN)])?;
        self.storage().sync()?;
        // Last: if it fails, the end was clean nevertheless.
        self.storage().settle()
    }

    /// Makes entries in their order, and changes of other state, in one commit, and returns when
    /// all are as safe as the policy says. Left out are entries of which nothing can be known:
    /// [`Appended::Unreadable`].
    ///
    /// # Errors
    ///
    /// An error of the storage. The entries may be stored, and have their ids; call
    /// [`Writer::retry`] until it acknowledges them, before anything else is appended.
    pub fn append(
        &mut self,
        now_ms: u64,
        entries: &[Entry],
        changes: Vec<Write>,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Vec<Appended>, StorageError> {
        let now = self.ages.read(now_ms);
        let messages = entries.iter().map(Entry::count).sum();
        let trims_left = TRIMMED_PER_COMMIT + messages * TRIMMED_PER_PUBLICATION;
        let mut group = Group::of(messages, changes, trims_left);
        // An earlier time would hide from the next run that a visit is due.
        if !self.ages.must_visit && now.wall_ms.abs_diff(self.seen_ms) > SEEN_EVERY_MS {
            self.seen_ms = now.wall_ms;
            group.batch.put(Space::Meta, format::SEEN, now.wall_ms.to_be_bytes());
        }
        let mut appended = Vec::with_capacity(entries.len());
        for entry in entries {
            appended.push(match self.add(&mut group, now, entry, next_stamp) {
                Err(error @ StorageError::Damaged(_)) => {
                    group.batch.unreadable.note(entry.channel(), &error);
                    Appended::Unreadable
                }
                added => added?,
            });
        }
        for (name, channel) in &mut group.channels {
            channel.store_if_needed(&mut group.batch, name);
        }
        if group.erases {
            self.erasures.add(&self.logs.rewriting, &mut group.batch, now.wall_ms);
        }
        let states = group.batch.states_after(self.states);
        if states != self.states {
            group.batch.put(Space::Meta, format::STATES, states.encode());
            self.states = states;
        }
        let WriteBatch { charged, writes, .. } = &mut group.batch;
        let held = self.logs.room.write(charged.drain(), writes);
        self.logs.room.note(held);
        self.key_work.extend(group.batch.key_work.drain(..));
        debug_assert!(self.pending.is_none(), "`retry` comes first");
        let channels = Arc::new(group.channels);
        *self.logs.unacknowledged() = Arc::clone(&channels);
        self.newest_number += group.new_channels;
        self.names.add(group.new_channels);
        self.unreadable.append(group.batch.unreadable);
        self.earliest = self.earliest.with(group.batch.earliest);
        self.has_erased |= group.has_erased;
        let (writes, messages) = (group.batch.writes, group.messages);
        self.pending = Some(Pending { writes, channels, appended, messages });
        self.finish()
    }

    /// Commits what is pending.
    fn finish(&mut self) -> Result<Vec<Appended>, StorageError> {
        let Some(pending) = &self.pending else { return Ok(Vec::new()) };
        if !pending.writes.is_empty() {
            self.storage().commit(&pending.writes)?;
        }
        // Duplicates, too, answer for a message: the one that they repeat may not be synced yet.
        self.sync_if_promised()?;
        let Some(Pending { channels, appended, .. }) = self.pending.take() else {
            return Ok(Vec::new());
        };
        // Readers look at it under the lock, so that this is the last one.
        self.logs.acknowledge();
        self.remember(Arc::unwrap_or_clone(channels));
        Ok(appended)
    }

    /// Keeps heads that were committed in memory.
    pub(super) fn remember(&mut self, channels: ChannelMap<GroupChannel>) {
        if self.heads.len() + channels.len() > HEADS_MAX {
            self.heads.clear();
        }
        // Where one begins that is not there, others decide that are forgotten.
        let is_there = |(_, channel): &(ChannelName, GroupChannel)| channel.head.number > 0;
        let channels = channels.into_iter().filter(is_there);
        self.heads.extend(channels.map(|(name, channel)| (name, channel.known())));
    }

    /// Makes writing possible again after an error, and acknowledges what was appended then, if
    /// anything was.
    ///
    /// The same changes are committed once more: that is right whether they are there or not. Only
    /// the stamps are others, as nobody has seen the first ones.
    ///
    /// # Errors
    ///
    /// An error of the storage. Try again later.
    pub fn retry(
        &mut self,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Vec<Appended>, StorageError> {
        self.heads.clear();
        self.earliest = Earliest::UNKNOWN;
        self.storage().recover()?;
        if let Some(Pending { writes, channels, appended, messages }) = &mut self.pending {
            self.logs.retries.fetch_add(1, Ordering::SeqCst);
            let contents = appended.iter_mut().flat_map(Appended::contents_mut);
            for (content, new) in contents.zip(messages) {
                let stamped = content.with_stamp(next_stamp());
                let erased = new.is_erased.then(|| stamped.without_body());
                let stored = erased.as_ref().unwrap_or(&stamped);
                writes[new.write].value = Some(Scratch::default().content(stored));
                *content = Arc::new(stamped);
            }
            raise_lost(writes, channels, appended);
        }
        self.finish()
    }

    /// Adds an entry to a group. Fails without any effect if what has to be known for that cannot
    /// be read.
    fn add(
        &self,
        group: &mut Group,
        now: AgeNow,
        entry: &Entry,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Appended, StorageError> {
        let (publication, retention) = match entry {
            Entry::Publication(publication, retention) => (publication, retention),
            Entry::Change(change, retention) => {
                return self.change(group, now, change, retention, next_stamp);
            }
            Entry::Erase(name, what, retention) => {
                return self.erase(group, now, name, *what, retention, next_stamp);
            }
            Entry::Due(due, retention) => {
                return self.do_due(group, now, due, retention.as_ref(), next_stamp);
            }
        };
        let name = &publication.channel;
        let key = publication.idempotency_key.as_ref().map(|key| format::key(name, key.scoped()));
        if let Some(key) = &key
            && let Some(known) = self.known_key(group, key)?
            && self.is_known(now, known)
        {
            if self.ages.published_ms(now, known.at_ms).is_none() {
                // It would be known until then.
                group.remember(key, KnownKey { at_ms: now.wall_ms, ..known });
            }
            let epoch = self.logs.epoch();
            return Ok(Appended::Known(MessageId { epoch, offset: known.offset }));
        }
        if self.channel(&mut group.channels, name)?.head.has_ended {
            return Ok(PublishError::Ended.into());
        }
        let publication = match self.admit(group, publication)? {
            Ok(publication) => publication,
            Err(refused) => return Ok(refused.into()),
        };
        let messages = slice::from_ref(&*publication);
        if let Err(refused) = self.check_keys(group, now, name, messages)? {
            return Ok(refused.into());
        }
        let content = self.add_message(group, now, &publication, retention, next_stamp)?;
        if let Some(key) = key {
            group.remember(&key, KnownKey { offset: content.id.offset, at_ms: now.wall_ms });
        }
        Ok(Appended::New(content))
    }

    /// Adds a message to a group, which knows its key. Fails without any effect, and not if the
    /// group knows the channel.
    pub(super) fn add_message(
        &self,
        group: &mut Group,
        now: AgeNow,
        publication: &Publication,
        retention: &Retention,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Arc<Content>, StorageError> {
        let name = &publication.channel;
        let Group { batch, channels, messages, new_channels, .. } = &mut *group;
        let channel = match channels.get_mut(name) {
            Some(channel) => channel,
            None => self.channel(channels, name)?,
        };
        let head = &mut channel.head;
        let (mut previous, was_empty) = (head.offset, head.offset == head.floor);
        if head.newest_ms == 0 {
            // Those who follow it have missed nothing since they began, where the mark may have
            // been lower.
            let followed = self.followed_head(name);
            previous = followed.map_or(previous, |followed| followed.min(previous));
        }
        self.number(batch, new_channels, name, head);
        let content = Content {
            id: MessageId { epoch: self.logs.epoch(), offset: head.offset + 1 },
            stamp: next_stamp(),
            previous,
            time_ms: clock::from_wall_ms(now.time_after(head.newest_ms)),
            channel: name.clone(),
            body: publication.body.clone(),
            content_type: publication.content_type.clone(),
            extras: Extras::new(publication.excluded, publication.attributes.clone()),
            expires_ms: publication.expires_in_ms.and_then(|in_ms| {
                NonZeroU64::new(clock::from_wall_ms(now.wall_ms).saturating_add(in_ms))
            }),
        };
        let value = batch.scratch.content(&content);
        let measure = format::measure_content(&content, value.len());
        head.add(content.id.offset, &measure);
        channel.new.push(measure);
        messages.push(NewMessage { write: batch.writes.len(), is_erased: false });
        let at = batch.scratch.message(name, content.id.offset);
        batch.put(Space::Messages, at, value);
        self.note_key(batch, name, channel, (&content, publication.holder));
        Writer::note_reach(batch, name, &channel.head);
        if was_empty || !channel.head.is_within(retention, now) {
            let due = 1..=now.aged_ms;
            let is_due = channel.head.expires_ms.is_some_and(|at_ms| due.contains(&at_ms));
            let note = match (was_empty, is_due) {
                // One that says when an empty log is forgotten is of no message.
                (true, _) => Note::Outdated,
                (false, true) => Note::Due,
                (false, false) => Note::Later,
            };
            self.trim(batch, (name, channel), retention, now, note);
        }
        Ok(Arc::new(content))
    }

    /// A group's state of a channel, which is read if the group does not know it.
    pub(super) fn channel<'g>(
        &self,
        channels: &'g mut ChannelMap<GroupChannel>,
        name: &ChannelName,
    ) -> Result<&'g mut GroupChannel, StorageError> {
        Ok(match channels.entry(name.clone()) {
            MapEntry::Occupied(known) => known.into_mut(),
            MapEntry::Vacant(unknown) => unknown.insert(match self.heads.get(name) {
                Some(known) => GroupChannel::busy(*known),
                None => GroupChannel::read(self.logs.committed_head(name)?),
            }),
        })
    }

    /// Gives a channel that is new its number, and its place in lists.
    pub(super) fn number(
        &self,
        batch: &mut WriteBatch,
        new_channels: &mut u64,
        name: &ChannelName,
        head: &mut LogHead,
    ) {
        if head.number == 0 {
            *new_channels += 1;
            head.number = self.newest_number + *new_channels;
            let name = batch.scratch.name(name);
            batch.put(Space::Numbers, head.number.to_be_bytes(), name);
        }
    }

    /// True if an idempotency key is known still.
    pub(super) fn is_known(&self, now: AgeNow, known: KnownKey) -> bool {
        let published_ms = self.ages.published_ms(now, known.at_ms);
        published_ms.is_none_or(|at_ms| at_ms.saturating_add(IDEMPOTENCY_MS) > now.aged_ms)
    }

    pub(super) fn known_key(
        &self,
        group: &Group,
        key: &[u8],
    ) -> Result<Option<KnownKey>, StorageError> {
        if let Some(known) = group.keys.get(key) {
            return Ok(Some(*known));
        }
        let known = self.storage().get(Space::Keys, key)?;
        known.map(|value| KnownKey::decode(&value).map_err(unreadable)).transpose()
    }

    /// The reads that have failed since the last call.
    pub(crate) fn take_unreadable(&mut self) -> Unreadable {
        std::mem::take(&mut self.unreadable)
    }

    /// Looks whether the storage is still where it was.
    ///
    /// # Errors
    ///
    /// It is not.
    pub fn check(&self) -> Result<(), StorageError> {
        self.storage().check()
    }

    /// Frees memory, if nothing was written for a while.
    pub(crate) fn give_back(&self) {
        self.storage().give_back();
    }

    /// Bytes on the disk.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn bytes(&self) -> Result<u64, StorageError> {
        self.storage().bytes()
    }

    /// Syncs what [`SyncPolicy::Interval`] has not.
    ///
    /// # Errors
    ///
    /// An error of the storage. Then call [`Writer::retry`].
    pub fn sync(&mut self) -> Result<(), StorageError> {
        self.storage().sync()
    }
}
