//! The logs of channels on a storage. One writer appends; readers read beside it.
//!
//! # Invariants
//!
//! * Offsets of a channel count up by one. The messages after its `floor` up to its head are there,
//!   and no others.
//! * An id that was given to a message is given to no other one: what has the id survives, or the
//!   epoch changes (see [`Logs::open`]).
//! * Times on the storage are by the machine's clock: the other one begins anew in each process.
//! * A message, its channel's head and its idempotency key are one commit.

mod format;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::Arc;

use throng_core::frozen::ThawError;
use throng_core::{
    ChannelName, Content, Epoch, IDEMPOTENCY_MS, MessageId, Publication, Retention, Stamp, clock,
};

use crate::promise::Sync;
use crate::storage::{Order, Space, Storage, StorageError, Write};
use format::{Head, KnownKey};

/// Channels whose heads the writer keeps in memory.
const HEADS_MAX: usize = 65_536;

/// Entries that one step of [`Writer::expire`] removes: some milliseconds of work.
const EXPIRED_PER_STEP: usize = 1_000;

/// How the last run ended, and what it promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The epoch of all channels.
    pub epoch: Epoch,
    /// Whether acknowledged messages may have been lost, so that the epoch is new.
    pub may_have_lost: bool,
}

/// The logs of all channels.
pub struct Logs {
    storage: Arc<dyn Storage>,
    epoch: Epoch,
    boot: String,
}

/// What an append made of a publication.
#[derive(Debug, Clone)]
pub enum Appended {
    /// It is the newest message of its channel.
    New(Arc<Content>),
    /// Its idempotency key was known: this is the message that was published with it.
    Known(MessageId),
}

/// A part of a channel's log.
#[derive(Debug)]
pub struct Part {
    /// The id of the newest message.
    pub head: MessageId,
    /// The offset of the newest message that is no longer there.
    pub floor: u64,
    /// The messages, oldest first.
    pub messages: Vec<Content>,
    /// Whether there are more in the direction of the reading.
    pub has_more: bool,
}

fn unreadable(error: ThawError) -> StorageError {
    StorageError::Failed(format!("an entry cannot be read: {error}"))
}

impl Logs {
    /// Opens the logs of a storage. `boot` names the time since the machine was started: while it
    /// is the same, nothing is lost that was committed.
    ///
    /// The epoch stays, unless acknowledged messages may be missing: if the machine has ended and
    /// the last run did not sync before it acknowledged, nor end cleanly. Their ids would be given
    /// to others.
    ///
    /// # Errors
    ///
    /// What the storage reports; a format that this build does not know.
    pub fn open(storage: Arc<dyn Storage>, boot: &str) -> Result<(Logs, Opened), StorageError> {
        format::check_version(&*storage)?;
        let known = storage.get(Space::Meta, format::EPOCH)?.map(|value| format::epoch(&value));
        let run = storage.get(Space::Meta, format::RUN)?;
        if run.as_deref().is_some_and(|run| run != format::CLEAN) {
            // A sync may have failed before the process ended.
            storage.recover()?;
        }
        let is_safe = run.is_none_or(|run| {
            run == format::CLEAN
                || run.starts_with(format::SYNCED)
                || [Sync::Interval, Sync::Never].iter().any(|sync| run == format::run(*sync, boot))
        });
        let known = known.transpose().map_err(unreadable)?;
        let may_have_lost = known.is_some() && !is_safe;
        let epoch = known.filter(|_| is_safe).unwrap_or_else(Epoch::random);
        let logs = Logs { storage, epoch, boot: boot.to_owned() };
        Ok((logs, Opened { epoch, may_have_lost }))
    }

    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// The epoch of all channels.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Begins to write. Call it once.
    ///
    /// # Errors
    ///
    /// What the storage reports.
    pub fn writer(self: &Arc<Logs>, sync: Sync) -> Result<Writer, StorageError> {
        let writer = Writer { logs: Arc::clone(self), sync, heads: HashMap::new(), pending: None };
        let run = format::run(sync, &writer.logs.boot);
        writer.note_run(run)?;
        Ok(writer)
    }

    fn head(&self, name: &ChannelName) -> Result<Head, StorageError> {
        match self.storage.get(Space::Heads, &format::name(name))? {
            None => Ok(Head::default()),
            Some(value) => Head::decode(&value).map_err(unreadable),
        }
    }

    /// The id of a channel's newest message.
    ///
    /// # Errors
    ///
    /// What the storage reports.
    pub fn newest(&self, name: &ChannelName) -> Result<MessageId, StorageError> {
        Ok(MessageId { epoch: self.epoch(), offset: self.head(name)?.offset })
    }

    /// The oldest messages after an offset: at most `limit`, of about `max_bytes`, at least one.
    ///
    /// # Errors
    ///
    /// What the storage reports.
    pub fn after(
        &self,
        name: &ChannelName,
        offset: u64,
        (limit, max_bytes): (usize, usize),
    ) -> Result<Part, StorageError> {
        self.read(name, (offset, u64::MAX), Order::Up, (limit, max_bytes))
    }

    /// The newest messages before an offset, as [`Logs::after`].
    ///
    /// # Errors
    ///
    /// What the storage reports.
    pub fn before(
        &self,
        name: &ChannelName,
        offset: u64,
        (limit, max_bytes): (usize, usize),
    ) -> Result<Part, StorageError> {
        self.read(name, (0, offset), Order::Down, (limit, max_bytes))
    }

    /// Reads messages after one offset and before another.
    fn read(
        &self,
        name: &ChannelName,
        (after, before): (u64, u64),
        order: Order,
        (limit, max_bytes): (usize, usize),
    ) -> Result<Part, StorageError> {
        let (epoch, head) = (self.epoch(), self.head(name)?);
        // What is committed after the head was read is not part of it: it comes as a notification.
        let last = before.saturating_sub(1).min(head.offset);
        let first = after.max(head.floor).saturating_add(1);
        let (mut messages, mut bytes, mut broken) = (Vec::new(), 0, None);
        let mut has_more = false;
        if first <= last {
            let range = (format::message(name, first), format::message(name, last + 1));
            let mut each = |_: &[u8], value: &[u8]| {
                if messages.len() >= limit || (bytes >= max_bytes && !messages.is_empty()) {
                    has_more = true;
                    return ControlFlow::Break(());
                }
                bytes += value.len();
                match format::content(value, epoch, name) {
                    Ok(content) => messages.push(content),
                    Err(error) => {
                        broken = Some(unreadable(error));
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            };
            self.storage.scan(Space::Messages, (&range.0, &range.1), order, &mut each)?;
        }
        if let Some(error) = broken {
            return Err(error);
        }
        if order == Order::Down {
            messages.reverse();
        }
        let head_id = MessageId { epoch, offset: head.offset };
        Ok(Part { head: head_id, floor: head.floor, messages, has_more })
    }
}

/// Appends to the logs. There is one.
pub struct Writer {
    logs: Arc<Logs>,
    sync: Sync,
    /// Heads of channels that were written lately.
    heads: HashMap<ChannelName, Head>,
    /// What an error has kept from being acknowledged.
    pending: Option<Pending>,
}

/// A commit that is to be acknowledged.
struct Pending {
    writes: Vec<Write>,
    heads: HashMap<ChannelName, Head>,
    appended: Vec<Appended>,
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
    sizes: HashMap<Vec<u8>, (u64, u64)>,
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
            appended.push(self.add(&mut group, now_ms, publication, retention, next_stamp)?);
        }
        let heads = std::mem::take(&mut group.heads);
        for (name, head) in &heads {
            group.put(Space::Heads, format::name(name), head.encode());
        }
        debug_assert!(self.pending.is_none(), "`retry` comes first");
        self.pending = Some(Pending { writes: group.writes, heads, appended });
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
        if self.heads.len() + heads.len() > HEADS_MAX {
            self.heads.clear();
        }
        self.heads.extend(heads);
        Ok(appended)
    }

    /// Makes writing possible again after an error, and acknowledges what was appended then, if
    /// anything was.
    ///
    /// The same changes are committed once more: that is right whether they are there or not.
    ///
    /// # Errors
    ///
    /// What the storage reports. Try again later.
    pub fn retry(&mut self) -> Result<Vec<Appended>, StorageError> {
        self.heads.clear();
        self.storage().recover()?;
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
            None => self.logs.head(name)?,
        };
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
        group.sizes.insert(message.clone(), (value.len() as u64, head.newest_ms));
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
            let (bytes, time_ms) = match group.sizes.get(&key) {
                Some(known) => *known,
                None => match self.storage().get(Space::Messages, &key)? {
                    Some(value) => {
                        (value.len() as u64, format::time_ms(&value).map_err(unreadable)?)
                    }
                    // Lost with the machine, in an epoch before this one.
                    None => (0, 0),
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
                None => self.logs.head(&name)?,
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

    /// Syncs what [`Sync::Interval`] has not.
    ///
    /// # Errors
    ///
    /// What the storage reports. Then call [`Writer::retry`].
    pub fn sync(&mut self) -> Result<(), StorageError> {
        self.storage().sync()
    }
}
