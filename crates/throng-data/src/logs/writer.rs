//! Writing: appends, with retention and idempotency keys, and what expires.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::Arc;

use throng_core::{
    ChannelName, Content, IDEMPOTENCY_MS, MessageId, Publication, Retention, Stamp, clock,
};

use super::format::{self, Head, KnownKey, Measure};
use super::reader::{Logs, unreadable};
use crate::promise::Sync;
use crate::storage::{Order, Space, Storage, StorageError, Write};

/// Channels whose heads the writer keeps in memory.
const HEADS_MAX: usize = 65_536;

/// Entries that one step of [`Writer::expire`] removes: some milliseconds of work.
const EXPIRED_PER_STEP: usize = 1_000;

/// Stamps that are reserved at a time: so many that a run seldom notes more than one reservation,
/// and few beside the 2^62 that there are.
const STAMPS_AHEAD: u64 = 1 << 40;

/// What an append made of a publication.
#[derive(Debug, Clone)]
pub enum Appended {
    /// It is the newest message of its channel.
    New(Arc<Content>),
    /// Its idempotency key was known: this is the message that was published with it.
    Known(MessageId),
}

/// Appends to the logs. There is one.
pub struct Writer {
    logs: Arc<Logs>,
    sync: Sync,
    /// Heads of channels that were written lately.
    heads: HashMap<ChannelName, Head>,
    /// The number of the newest channel.
    newest_number: u64,
    /// The stamp up to which stamps may be given out without another note.
    stamps: u64,
    /// What an error has kept from being acknowledged.
    pending: Option<Pending>,
}

/// A commit that is to be acknowledged.
struct Pending {
    writes: Vec<Write>,
    heads: HashMap<ChannelName, Head>,
    appended: Vec<Appended>,
    /// Where the new messages are, in `writes` and in `appended`.
    messages: Vec<(usize, usize)>,
}

/// What one commit is made of.
#[derive(Default)]
struct Group {
    writes: Vec<Write>,
    /// New heads, which have not been committed.
    heads: HashMap<ChannelName, Head>,
    /// New idempotency keys.
    keys: HashMap<Vec<u8>, KnownKey>,
    /// New messages by their keys: an append may drop one of its own group.
    measures: HashMap<Vec<u8>, Measure>,
    /// The newest acknowledged offsets of the channels of the group.
    acknowledged: HashMap<ChannelName, u64>,
    /// Where the new messages are, as in [`Pending::messages`].
    messages: Vec<(usize, usize)>,
    /// How many channels are new.
    new_channels: u64,
}

impl Group {
    fn put(&mut self, space: Space, key: Vec<u8>, value: Vec<u8>) {
        self.writes.push(Write { space, key, value: Some(value) });
    }

    fn remove(&mut self, space: Space, key: Vec<u8>) {
        self.writes.push(Write { space, key, value: None });
    }
}

impl Writer {
    /// Begins to write. Call it once.
    ///
    /// # Errors
    ///
    /// What the storage reports.
    pub fn begin(logs: &Arc<Logs>, sync: Sync, newest: Stamp) -> Result<Writer, StorageError> {
        let mut writer = Writer {
            logs: Arc::clone(logs),
            sync,
            heads: HashMap::new(),
            newest_number: logs.newest_number()?,
            stamps: 0,
            pending: None,
        };
        writer.note_run(format::run(sync, &writer.logs.boot))?;
        writer.reserve_stamps(newest)?;
        Ok(writer)
    }

    /// Notes that stamps beyond `newest` are given out: the next run starts beyond all of them.
    ///
    /// # Errors
    ///
    /// What the storage reports. Then call [`Writer::retry`].
    pub(crate) fn reserve_stamps(&mut self, newest: Stamp) -> Result<(), StorageError> {
        if newest.0 + STAMPS_AHEAD / 2 < self.stamps {
            return Ok(());
        }
        let stamps = newest.0 + STAMPS_AHEAD;
        let (space, key) = (Space::Meta, format::STAMPS.to_vec());
        let value = Some(stamps.to_be_bytes().to_vec());
        self.storage().commit(vec![Write { space, key, value }])?;
        self.storage().sync()?;
        self.stamps = stamps;
        Ok(())
    }

    fn storage(&self) -> &dyn Storage {
        &*self.logs.storage
    }

    /// Notes durably what this run promises, and under which epoch.
    fn note_run(&self, run: Vec<u8>) -> Result<(), StorageError> {
        let put = |key: &[u8], value: Vec<u8>| Write {
            space: Space::Meta,
            key: key.to_vec(),
            value: Some(value),
        };
        self.storage().commit(vec![
            put(format::VERSION_KEY, format::VERSION.to_be_bytes().to_vec()),
            put(format::EPOCH, format::epoch_value(self.logs.epoch())),
            put(format::RUN, run),
        ])?;
        self.storage().sync()
    }

    /// Notes that nothing is lost. Call it last.
    ///
    /// # Errors
    ///
    /// What the storage reports.
    pub fn end_run(self) -> Result<(), StorageError> {
        // First what the note is about, then the note.
        self.storage().sync()?;
        let (space, key) = (Space::Meta, format::RUN.to_vec());
        self.storage().commit(vec![Write { space, key, value: Some(format::CLEAN.to_vec()) }])?;
        self.storage().sync()
    }

    /// Appends publications in their order, each under the retention beside it, makes changes of
    /// other state in the same commit, and returns when all are as safe as [`Sync`] says.
    ///
    /// # Errors
    ///
    /// What the storage reports. The publications may be stored, and have their ids; call
    /// [`Writer::retry`] until it acknowledges them, before anything else is appended.
    pub fn append(
        &mut self,
        now_ms: u64,
        publications: &[(Publication, Retention)],
        changes: Vec<Write>,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Vec<Appended>, StorageError> {
        let now_ms = clock::wall_ms(now_ms);
        let mut group = Group { writes: changes, ..Group::default() };
        let mut appended = Vec::with_capacity(publications.len());
        for (publication, retention) in publications {
            let added = self.add(&mut group, now_ms, publication, retention, next_stamp)?;
            if let (Appended::New(_), Some(message)) = (&added, group.messages.last_mut()) {
                message.1 = appended.len();
            }
            appended.push(added);
        }
        let heads = std::mem::take(&mut group.heads);
        for (name, head) in &heads {
            group.put(Space::Heads, format::name(name), head.encode());
        }
        debug_assert!(self.pending.is_none(), "`retry` comes first");
        *self.logs.unacknowledged() = group.acknowledged;
        self.newest_number += group.new_channels;
        let Group { writes, messages, .. } = group;
        self.pending = Some(Pending { writes, heads, appended, messages });
        self.finish()
    }

    /// Commits what is pending.
    fn finish(&mut self) -> Result<Vec<Appended>, StorageError> {
        let Some(pending) = &self.pending else { return Ok(Vec::new()) };
        if !pending.writes.is_empty() {
            self.storage().commit(pending.writes.clone())?;
        }
        // Duplicates, too, answer for a message: the one that they repeat may not be synced yet.
        if self.sync == Sync::Always {
            self.storage().sync()?;
        }
        let Some(Pending { heads, appended, .. }) = self.pending.take() else {
            return Ok(Vec::new());
        };
        self.logs.unacknowledged().clear();
        if self.heads.len() + heads.len() > HEADS_MAX {
            self.heads.clear();
        }
        self.heads.extend(heads);
        Ok(appended)
    }

    /// Makes writing possible again after an error, and acknowledges what was appended then, if
    /// anything was.
    ///
    /// The same changes are committed once more: that is right whether they are there or not. Only
    /// the stamps are others, as nobody has seen the first ones.
    ///
    /// # Errors
    ///
    /// What the storage reports. Try again later.
    pub fn retry(
        &mut self,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Vec<Appended>, StorageError> {
        self.heads.clear();
        self.storage().recover()?;
        if let Some(Pending { writes, appended, messages, .. }) = &mut self.pending {
            for &mut (write, at) in messages {
                let Appended::New(content) = &appended[at] else { continue };
                let content = content.with_stamp(next_stamp());
                writes[write].value = Some(format::content_value(&content));
                appended[at] = Appended::New(Arc::new(content));
            }
        }
        self.finish()
    }

    fn add(
        &self,
        group: &mut Group,
        now_ms: u64,
        publication: &Publication,
        retention: &Retention,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Appended, StorageError> {
        let name = &publication.channel;
        let epoch = self.logs.epoch();
        let key = publication.idempotency_key.as_deref().map(|key| format::key(name, key));
        if let Some(key) = &key
            && let Some(known) = self.known_key(group, key)?
            && known.at_ms.saturating_add(IDEMPOTENCY_MS) > now_ms
        {
            return Ok(Appended::Known(MessageId { epoch, offset: known.offset }));
        }
        let mut head = match group.heads.get(name).or_else(|| self.heads.get(name)) {
            Some(head) => *head,
            None => self.logs.committed_head(name)?,
        };
        group.acknowledged.entry(name.clone()).or_insert(head.offset);
        if head.number == 0 {
            group.new_channels += 1;
            head.number = self.newest_number + group.new_channels;
            let number = head.number.to_be_bytes().to_vec();
            group.put(Space::Numbers, number, format::name(name));
        }
        let content = Content {
            id: MessageId { epoch, offset: head.offset + 1 },
            stamp: next_stamp(),
            previous: head.offset,
            time_ms: clock::from_wall_ms(now_ms.max(head.newest_ms)),
            channel: name.clone(),
            body: publication.body.clone(),
            content_type: publication.content_type.clone(),
            excluded: publication.excluded,
            expires_ms: publication.expires_in_ms.and_then(|in_ms| {
                NonZeroU64::new(clock::from_wall_ms(now_ms).saturating_add(in_ms))
            }),
        };
        let value = format::content_value(&content);
        let message = format::message(name, content.id.offset);
        (head.offset, head.newest_ms) = (content.id.offset, now_ms.max(head.newest_ms));
        head.bytes += value.len() as u64;
        head.expiring += u64::from(content.expires_ms.is_some());
        let measure = format::measure_content(&content, value.len());
        group.measures.insert(message.clone(), measure);
        group.messages.push((group.writes.len(), 0));
        group.put(Space::Messages, message, value);
        self.trim(group, name, &mut head, retention, now_ms)?;
        group.heads.insert(name.clone(), head);
        if let Some(key) = key {
            let known = KnownKey { offset: content.id.offset, at_ms: now_ms };
            group.put(Space::Keys, key.clone(), known.encode());
            group.put(Space::KeyExpiry, format::at(now_ms + IDEMPOTENCY_MS, &key), Vec::new());
            group.keys.insert(key, known);
        }
        Ok(Appended::New(Arc::new(content)))
    }

    fn known_key(&self, group: &Group, key: &[u8]) -> Result<Option<KnownKey>, StorageError> {
        if let Some(known) = group.keys.get(key) {
            return Ok(Some(*known));
        }
        let known = self.storage().get(Space::Keys, key)?;
        known.map(|value| KnownKey::decode(&value).map_err(unreadable)).transpose()
    }

    /// Drops the oldest messages that the retention does not cover, and notes when the next one
    /// expires.
    fn trim(
        &self,
        group: &mut Group,
        name: &ChannelName,
        head: &mut Head,
        retention: &Retention,
        now_ms: u64,
    ) -> Result<(), StorageError> {
        let mut oldest = None;
        while head.floor < head.offset {
            let key = format::message(name, head.floor + 1);
            let Measure { bytes, time_ms, stamp, is_expiring } = match group.measures.get(&key) {
                Some(known) => *known,
                None => match self.storage().get(Space::Messages, &key)? {
                    Some(value) => format::measure(&value).map_err(unreadable)?,
                    // Lost with the machine, in an epoch before this one.
                    None => Measure::default(),
                },
            };
            let is_over = head.offset - head.floor > retention.max_messages as u64
                || head.bytes > retention.max_bytes as u64
                || time_ms.saturating_add(retention.max_age_ms) <= now_ms;
            if !is_over {
                oldest = Some(time_ms.saturating_add(retention.max_age_ms));
                break;
            }
            group.remove(Space::Messages, key);
            head.floor += 1;
            head.lost = head.lost.max(stamp);
            head.expiring = head.expiring.saturating_sub(u64::from(is_expiring));
            head.bytes = head.bytes.saturating_sub(bytes);
        }
        if head.expires_ms != oldest {
            if let Some(at_ms) = head.expires_ms {
                group.remove(Space::Expiry, format::at(at_ms, &format::name(name)));
            }
            if let Some(at_ms) = oldest {
                group.put(Space::Expiry, format::at(at_ms, &format::name(name)), Vec::new());
            }
            head.expires_ms = oldest;
        }
        Ok(())
    }

    /// Drops messages and idempotency keys whose time is over, some at a time. Returns whether
    /// there may be more.
    ///
    /// # Errors
    ///
    /// What the storage reports. Then call [`Writer::retry`].
    pub fn expire(
        &mut self,
        now_ms: u64,
        retention_of: &dyn Fn(&ChannelName) -> Retention,
    ) -> Result<bool, StorageError> {
        let now_ms = clock::wall_ms(now_ms);
        let mut group = Group::default();
        let due = self.due(Space::Expiry, now_ms)?;
        let keys = self.due(Space::KeyExpiry, now_ms)?;
        let has_more = due.len() + keys.len() >= EXPIRED_PER_STEP;
        for entry in due {
            let name = format::name_of(&entry[format::TIME_BYTES..]).map_err(unreadable)?;
            let mut head = match group.heads.get(&name) {
                Some(head) => *head,
                None => self.logs.committed_head(&name)?,
            };
            if head
                .expires_ms
                .is_some_and(|at_ms| format::at(at_ms, &[]) == entry[..format::TIME_BYTES])
            {
                head.expires_ms = None;
            }
            group.remove(Space::Expiry, entry);
            self.trim(&mut group, &name, &mut head, &retention_of(&name), now_ms)?;
            group.put(Space::Heads, format::name(&name), head.encode());
            group.heads.insert(name, head);
        }
        for entry in keys {
            let key = entry[format::TIME_BYTES..].to_vec();
            // The key may have been used again since.
            let known = self.known_key(&group, &key)?;
            if known.is_some_and(|known| known.at_ms.saturating_add(IDEMPOTENCY_MS) <= now_ms) {
                group.remove(Space::Keys, key);
            }
            group.remove(Space::KeyExpiry, entry);
        }
        if !group.writes.is_empty() {
            self.storage().commit(group.writes)?;
            self.heads.extend(group.heads);
        }
        Ok(has_more)
    }

    /// Keys of a table that is ordered by time, up to now.
    fn due(&self, space: Space, now_ms: u64) -> Result<Vec<Vec<u8>>, StorageError> {
        let mut due = Vec::new();
        let end = format::at(now_ms.saturating_add(1), &[]);
        self.storage().scan(space, (&[], &end), Order::Up, &mut |key, _| {
            due.push(key.to_vec());
            if due.len() < EXPIRED_PER_STEP / 2 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        Ok(due)
    }

    /// Bytes on the disk.
    ///
    /// # Errors
    ///
    /// What the storage reports.
    pub fn bytes(&self) -> Result<u64, StorageError> {
        self.storage().bytes()
    }

    /// Syncs what [`Sync::Interval`] has not.
    ///
    /// # Errors
    ///
    /// What the storage reports. Then call [`Writer::retry`].
    pub fn sync(&mut self) -> Result<(), StorageError> {
        self.storage().sync()
    }
}
