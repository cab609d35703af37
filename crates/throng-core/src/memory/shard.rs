//! A part of the channels, behind one lock.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use hashbrown::HashTable;

use super::Shared;
use super::channel::{Channel, Followers};
use super::idempotency::{Idempotency, Key};
use super::names::Names;
use crate::ages::Ages;
use crate::engine::{
    Audience, Follow, Followed, History, HistoryQuery, Publication, PublishError, Published,
    StartAt,
};
use crate::id::MessageId;
use crate::log::{Kept, Log};
use crate::message::{Content, InFlight, Message};
use crate::name::{ChannelName, Kind};
use crate::slab::Slab;
use crate::worker_queue::Notification;
use crate::{ChannelId, WorkerId};

/// A table for fewer names than this is not worth shrinking.
const TABLE_MIN: usize = 256;

/// The workers to wake once the lock is released.
#[derive(Debug, Default)]
pub(super) struct Wake(Vec<WorkerId>);

impl Wake {
    pub(super) fn each(&self, wake: impl Fn(WorkerId)) {
        self.0.iter().for_each(|&worker| wake(worker));
    }
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    channels: Slab<Channel>,
    by_name: HashTable<u32>,
    names: Names,
    idempotency: Idempotency,
    /// The channels that have a log.
    ages: Ages,
    /// No offset up to this one may be given to a channel that is new here.
    forgotten_head: u64,
}

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.channels.len()
    }

    /// Room in the tables, in channels.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.channels.extent() as usize + self.by_name.capacity() + self.ages.capacity()
    }

    /// Nothing that is kept here is older; `None` if nothing is kept.
    pub(super) fn oldest_bound_ms(&self) -> Option<u64> {
        self.ages.bound_ms()
    }

    pub(super) fn name(&self, slot: u32) -> Option<ChannelName> {
        let channel = self.channels.get(slot)?;
        Some(ChannelName::from_key(self.names.get(channel.name)))
    }

    fn find(&self, hash: u64, name: &ChannelName) -> Option<u32> {
        let is_it = |&slot: &u32| {
            self.channels.get(slot).is_some_and(|channel| self.names.is(channel.name, name.key()))
        };
        self.by_name.find(hash, is_it).copied()
    }

    fn find_or_create(
        &mut self,
        shared: &Shared,
        hash: u64,
        name: &ChannelName,
        hash_of: impl Fn(&str) -> u64,
    ) -> u32 {
        if let Some(slot) = self.find(hash, name) {
            return slot;
        }
        let slot = self.channels.insert(Channel {
            head: self.forgotten_head,
            log: None,
            followers: Followers::None,
            name: self.names.add(name),
            rule: shared.rules.find(name),
        });
        let Shard { channels, names, by_name, .. } = self;
        by_name.insert_unique(hash, slot, |&other| {
            channels.get(other).map_or(0, |channel| hash_of(names.get(channel.name)))
        });
        slot
    }

    fn forget(&mut self, slot: u32, hash_of: impl Fn(&str) -> u64) {
        let Some(channel) = self.channels.get(slot) else { return };
        let hash = hash_of(self.names.get(channel.name));
        if let Ok(entry) = self.by_name.find_entry(hash, |&other| other == slot) {
            entry.remove();
        }
        let Some(channel) = self.channels.remove(slot) else { return };
        self.forgotten_head = self.forgotten_head.max(channel.head);
        self.names.forget(channel.name);
        if self.names.wants_packing() {
            let Shard { channels, names, .. } = self;
            names.pack(channels.iter_mut().map(|channel| &mut channel.name));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one call site, and each is one thing")]
    pub(super) fn publish(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        hash: u64,
        publication: Publication,
        id_of: impl Fn(u32) -> ChannelId,
        hash_of: impl Fn(&str) -> u64,
        wake: &mut Wake,
    ) -> Result<Published, PublishError> {
        let kind = publication.channel.kind();
        let key = publication
            .idempotency_key
            .as_deref()
            .map(|key| self.idempotency.key(publication.channel.key(), key));
        let find = |key| self.idempotency.find(now_ms, key, &shared.keys);
        if let Some(offset) = key.and_then(find) {
            shared.duplicates.fetch_add(1, Ordering::Relaxed);
            let id = MessageId { epoch: shared.epoch, offset };
            return Ok(Published { id, subscribers: 0, is_duplicate: true });
        }
        let slot = match self.find(hash, &publication.channel) {
            Some(slot) => slot,
            None if shared
                .rules
                .get(shared.rules.find(&publication.channel))
                .retention
                .is_none() =>
            {
                self.forgotten_head += 1;
                let offset = self.forgotten_head;
                return Ok(self.published(shared, now_ms, kind, key, offset, 0));
            }
            None => self.find_or_create(shared, hash, &publication.channel, hash_of),
        };
        let Some(channel) = self.channels.get_mut(slot) else { unreachable!("it was found") };
        let followers = channel.followers.as_slice();
        if followers.iter().any(|f| !shared.queues[usize::from(f.worker.0)].has_room()) {
            shared.busy.fetch_add(1, Ordering::Relaxed);
            return Err(PublishError::Busy);
        }
        let id = MessageId { epoch: shared.epoch, offset: channel.head + 1 };
        let Publication { channel: name, body, content_type, excluded, .. } = publication;
        // The threads that publish have a clock each, and expiry goes by the oldest message.
        let newest_ms = channel.log.as_ref().and_then(|log| log.newest_ms()).unwrap_or(0);
        let content = Arc::new(Content {
            id,
            previous: channel.head,
            time_ms: now_ms.max(newest_ms),
            channel: name,
            body,
            content_type,
            excluded,
        });
        let message = (!followers.is_empty()).then(|| {
            let content = Arc::clone(&content);
            Arc::new(match kind {
                // The status page does not measure itself.
                Kind::Internal => Message::from(content),
                _ => Message::tracked(content, InFlight::to(followers.len())),
            })
        });
        for (follower, message) in followers.iter().zip(std::iter::repeat(&message).flatten()) {
            shared.queues[usize::from(follower.worker.0)].post(Notification::Message {
                local: follower.local,
                channel: id_of(slot),
                message: Arc::clone(message),
            });
            wake.0.push(follower.worker);
        }
        let subscribers = channel.followers.subscribers();
        channel.head = id.offset;
        self.keep(shared, slot, content, message.as_ref(), now_ms);
        Ok(self.published(shared, now_ms, kind, key, id.offset, subscribers))
    }

    /// Appends to the channel's log as far as its rule says.
    fn keep(
        &mut self,
        shared: &Shared,
        slot: u32,
        content: Arc<Content>,
        message: Option<&Arc<Message>>,
        now_ms: u64,
    ) {
        let Some(channel) = self.channels.get_mut(slot) else { return };
        if shared.rules.get(channel.rule).retention.is_none() {
            return;
        }
        let time_ms = content.time_ms;
        let is_first = channel.log.is_none();
        let log = channel.log.get_or_insert_with(Box::default);
        let bytes = log.append(content, message.map_or(Weak::new(), Arc::downgrade));
        shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        shared.messages.fetch_add(1, Ordering::Relaxed);
        expire(shared, channel, now_ms);
        if is_first && channel.log.is_some() {
            let Shard { ages, channels, .. } = self;
            ages.add(time_ms, slot, |slot| oldest_ms(channels, slot));
        }
    }

    /// Drops the oldest messages, whatever their channel, while all logs together are over their
    /// limit and none of the other shards' is older, as far as is known of them.
    pub(super) fn evict(&mut self, shared: &Shared, others_oldest_ms: u64) {
        let Shard { ages, channels, .. } = self;
        // Looked for once more at the end, so that the bound which others go by is up to date.
        while let Some(slot) = ages.oldest(|slot| oldest_ms(channels, slot)) {
            let is_oldest = ages.bound_ms().is_some_and(|bound_ms| bound_ms <= others_oldest_ms);
            let Some(channel) = channels.get_mut(slot) else { return };
            let Some(log) = channel.log.as_mut().filter(|_| is_oldest && shared.is_over()) else {
                return;
            };
            give_back(shared, log, Log::drop_oldest);
            shared.evicted.fetch_add(1, Ordering::Relaxed);
            if log.is_empty() {
                // The channel itself goes with the next housekeeping.
                channel.log = None;
            }
        }
    }

    fn published(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        kind: Kind,
        key: Option<Key>,
        offset: u64,
        subscribers: u64,
    ) -> Published {
        if let Some(key) = key {
            self.idempotency.remember(now_ms, key, offset, &shared.keys);
        }
        // What the server tells itself is nobody's message.
        shared.published.fetch_add(u64::from(kind != Kind::Internal), Ordering::Relaxed);
        let id = MessageId { epoch: shared.epoch, offset };
        Published { id, subscribers, is_duplicate: false }
    }

    pub(super) fn follow(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        hash: u64,
        follow: Follow<'_>,
        hash_of: impl Fn(&str) -> u64,
    ) -> (u32, Followed) {
        let slot = self.find_or_create(shared, hash, follow.channel, hash_of);
        let Some(channel) = self.channels.get_mut(slot) else { unreachable!("it was found") };
        expire(shared, channel, now_ms);
        let local = channel.followers.add(follow.worker, follow.local_if_new);
        let (from, is_recovered) = match follow.start {
            StartAt::Live => (channel.head, None),
            StartAt::Last(count) => (last(channel, count), None),
            StartAt::After(id) => after(shared, channel, id),
        };
        let backlog = match &mut channel.log {
            Some(log) => log.after(from).map(Kept::message).collect(),
            None => Vec::new(),
        };
        let id = |offset| MessageId { epoch: shared.epoch, offset };
        let followed = Followed {
            channel: ChannelId(slot),
            local,
            rule: channel.rule,
            head: id(channel.head),
            cursor: id(from),
            is_recovered,
            backlog,
        };
        (slot, followed)
    }

    pub(super) fn unfollow(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        slot: u32,
        worker: WorkerId,
        hash_of: impl Fn(&str) -> u64,
    ) {
        let Some(channel) = self.channels.get_mut(slot) else { return };
        channel.followers.remove(worker);
        expire(shared, channel, now_ms);
        if channel.is_forgettable() {
            self.forget(slot, hash_of);
        }
    }

    pub(super) fn history(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        hash: u64,
        name: &ChannelName,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        let slot = self.find(hash, name);
        let Some(channel) = slot.and_then(|slot| self.channels.get_mut(slot)) else {
            let head = MessageId { epoch: shared.epoch, offset: self.forgotten_head };
            let is_recovered = match query {
                HistoryQuery::After(id) => Some(id == head),
                _ => None,
            };
            return History { head, messages: Vec::new(), has_more: false, is_recovered };
        };
        expire(shared, channel, now_ms);
        let head = MessageId { epoch: shared.epoch, offset: channel.head };
        let (from, is_recovered) = match query {
            HistoryQuery::After(id) => after(shared, channel, id),
            _ => (0, None),
        };
        let Some(log) = &mut channel.log else {
            return History { head, messages: Vec::new(), has_more: false, is_recovered };
        };
        let (messages, has_more): (Vec<_>, bool) = match query {
            HistoryQuery::After(_) => {
                let all = log.after(from);
                let has_more = all.len() > limit;
                (all.take(limit).map(Kept::message).collect(), has_more)
            }
            HistoryQuery::Newest | HistoryQuery::Before(_) => {
                let end = match query {
                    HistoryQuery::Before(id) if id.epoch == shared.epoch => id.offset,
                    _ => u64::MAX,
                };
                let all = log.before(end);
                let skipped = all.len().saturating_sub(limit);
                (all.skip(skipped).map(Kept::message).collect(), skipped > 0)
            }
        };
        History { head, messages, has_more, is_recovered }
    }

    pub(super) fn audience(
        &self,
        hash: u64,
        name: &ChannelName,
        id_of: impl Fn(u32) -> ChannelId,
    ) -> Audience {
        let Some(slot) = self.find(hash, name) else { return Audience::default() };
        let Some(channel) = self.channels.get(slot) else { return Audience::default() };
        let workers = channel.followers.as_slice().iter();
        Audience {
            subscribers: channel.followers.subscribers(),
            workers: workers.map(|f| (f.worker, f.local, id_of(slot))).collect(),
        }
    }

    /// Expires messages and keys, and forgets channels.
    pub(super) fn tick(&mut self, shared: &Shared, now_ms: u64, hash_of: impl Fn(&str) -> u64) {
        self.idempotency.expire(now_ms, &shared.keys);
        for slot in 0..self.channels.extent() {
            let Some(channel) = self.channels.get_mut(slot) else { continue };
            expire(shared, channel, now_ms);
            if channel.is_forgettable() {
                self.forget(slot, &hash_of);
            }
        }
        self.shrink(hash_of);
    }

    /// Gives back the memory of tables that have become mostly empty.
    fn shrink(&mut self, hash_of: impl Fn(&str) -> u64) {
        let Shard { channels, names, by_name, ages, .. } = self;
        if by_name.capacity() > TABLE_MIN && by_name.len() * 4 < by_name.capacity() {
            by_name.shrink_to(by_name.len() * 2, |&slot| {
                channels.get(slot).map_or(0, |channel| hash_of(names.get(channel.name)))
            });
        }
        if ages.wants_tidying(channels.len()) {
            ages.tidy(|slot| oldest_ms(channels, slot));
        }
    }
}

fn oldest_ms(channels: &Slab<Channel>, slot: u32) -> Option<u64> {
    channels.get(slot)?.log.as_ref()?.oldest_ms()
}

/// Drops what the channel's rule no longer covers.
fn expire(shared: &Shared, channel: &mut Channel, now_ms: u64) {
    let Some(log) = &mut channel.log else { return };
    let retention = shared.rules.get(channel.rule).retention;
    give_back(shared, log, |log| log.trim(&retention, now_ms));
    if log.is_empty() {
        channel.log = None;
    }
}

fn give_back(shared: &Shared, log: &mut Log, trim: impl FnOnce(&mut Log) -> usize) {
    let before = log.len();
    let bytes = trim(log);
    shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
    shared.messages.fetch_sub((before - log.len()) as u64, Ordering::Relaxed);
}

/// The cursor before the last `count` messages.
fn last(channel: &Channel, count: usize) -> u64 {
    let Some(log) = &channel.log else { return channel.head };
    match count {
        0 => channel.head,
        _ => log.before_last(count).unwrap_or(channel.floor()),
    }
}

/// The cursor of one who has everything up to `id`, and whether nothing is missing after it. An id
/// that this log never gave out, from another epoch or ahead of the head, has a gap: what is kept
/// follows.
fn after(shared: &Shared, channel: &Channel, id: MessageId) -> (u64, Option<bool>) {
    let is_known = id.epoch == shared.epoch && id.offset <= channel.head;
    let is_recovered = is_known && id.offset >= channel.floor();
    (if is_recovered { id.offset } else { channel.floor() }, Some(is_recovered))
}
