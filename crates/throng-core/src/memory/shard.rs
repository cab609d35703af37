//! A part of the channels, behind one lock.

mod append;
mod change;
pub(super) mod elsewhere;
pub(super) mod frozen;
pub(super) mod list;
pub(super) mod seal;
mod state;
mod volatile;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::atomic::Ordering;

use hashbrown::HashTable;

use super::channel::{Channel, Follower, Followers};
use super::forgotten::Forgotten;
use super::idempotency::Idempotency;
use super::shared::Shared;
use crate::ages::Ages;
use crate::engine::{Audience, Follow, Followed, History};
use crate::events::Event;
use crate::id::{ChannelId, LocalId, WorkerId};
use crate::log::Log;
use crate::name::{ChannelName, is_presence_key};
use crate::names::Names;
use crate::prefetch::prefetch;
use crate::read_marker::{Mark, MarkerKey, ReadMarker};
use crate::reading::{HistoryQuery, StartAt};
use crate::slab::Slab;

/// Bits of a channel's id that name its shard.
pub(super) const SHARD_BITS: u32 = 6;

/// Tables with a smaller capacity are not worth shrinking.
const TABLE_MIN: usize = 256;

/// The workers to wake once the lock is released.
pub(super) type Wake = Vec<WorkerId>;

/// A channel's name with its hash.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hashed<'a> {
    pub(super) name: &'a ChannelName,
    pub(super) hash: u64,
}

#[derive(Debug)]
pub(super) struct Shard {
    /// The shard's number, which is a part of its channels' ids.
    number: u32,
    channels: Slab<Channel>,
    /// Slots of `channels`, by the hash of their names.
    by_name: HashTable<u32>,
    /// Slots of channels that another process had in another journal, by the hash of their names.
    /// Each is only there for the subscriptions of that time, until they have ended.
    left: HashTable<u32>,
    /// Slots of channels whose journal has delivered their end.
    ended: HashSet<u32>,
    names: Names,
    idempotency: Idempotency,
    /// The channels that have a log, by the age of their oldest message.
    ages: Ages,
    /// When to look for expired values in the channels with keys: time and slot.
    looks: BinaryHeap<Reverse<(u64, u32)>>,
    forgotten: Forgotten,
}

impl Shard {
    pub(super) fn new(number: u32) -> Shard {
        Shard {
            number,
            channels: Slab::default(),
            by_name: HashTable::new(),
            left: HashTable::new(),
            ended: HashSet::new(),
            names: Names::default(),
            idempotency: Idempotency::default(),
            ages: Ages::default(),
            looks: BinaryHeap::new(),
            forgotten: Forgotten::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.channels.len()
    }

    /// Capacity of the tables, in channels.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.channels.extent() as usize + self.by_name.capacity() + self.ages.capacity()
    }

    /// No message here is older than this; `None` if there are no messages.
    pub(super) fn oldest_bound_ms(&self) -> Option<u64> {
        self.ages.bound_ms()
    }

    /// The name of the channel in `slot`; `None` if it was forgotten.
    pub(super) fn name(&self, slot: u32) -> Option<ChannelName> {
        let channel = self.channels.get(slot)?;
        Some(self.names.name(channel.name))
    }

    pub(super) fn is_named(&self, slot: u32, name: &ChannelName) -> bool {
        self.channels.get(slot).is_some_and(|channel| self.names.is(channel.name, name.key()))
    }

    fn id(&self, slot: u32) -> ChannelId {
        ChannelId(slot << SHARD_BITS | self.number)
    }

    fn find(&self, Hashed { name, hash }: Hashed<'_>) -> Option<u32> {
        let is_named = |&slot: &u32| self.names.is(self.channels[slot].name, name.key());
        self.by_name.find(hash, is_named).copied()
    }

    /// The channel with this name that another process had in another journal.
    fn find_left(&self, Hashed { name, hash }: Hashed<'_>) -> Option<u32> {
        let is_named = |&slot: &u32| self.names.is(self.channels[slot].name, name.key());
        self.left.find(hash, is_named).copied()
    }

    /// True if another process had the channel in another journal.
    fn is_left(&self, shared: &Shared, slot: u32) -> bool {
        // Mostly there are none.
        !self.left.is_empty()
            && self.channels.get(slot).is_some_and(|channel| {
                let hash = shared.hash(self.names.get(channel.name));
                self.left.find(hash, |&other| other == slot).is_some()
            })
    }

    /// The channel that probably has a name, which is not looked at.
    pub(super) fn guess(&self, Hashed { hash, .. }: Hashed<'_>) -> Option<u32> {
        self.by_name.iter_hash(hash).next().copied()
    }

    /// A worker's id of a channel; `None` if the channel has another name, or the worker does not
    /// follow it.
    pub(super) fn local(&self, slot: u32, name: &ChannelName, worker: WorkerId) -> Option<LocalId> {
        let channel = self.channels.get(slot)?;
        let followers = channel.followers.as_slice();
        let found = followers.iter().find(|follower| follower.worker == worker)?;
        self.names.is(channel.name, name.key()).then_some(found.local)
    }

    /// Begins to load a channel.
    pub(super) fn prefetch(&self, slot: u32) {
        self.channels.prefetch(slot);
    }

    /// Begins to load the followers of a channel, which is loaded.
    pub(super) fn prefetch_followers(&self, slot: u32) {
        let Some(channel) = self.channels.get(slot) else { return };
        // The address alone: whether there are any is not known before they are loaded.
        prefetch(channel.followers.as_slice().as_ptr());
    }

    pub(super) fn has(&self, name: Hashed<'_>) -> bool {
        self.find(name).is_some()
    }

    fn find_or_create(&mut self, shared: &Shared, name: Hashed<'_>) -> u32 {
        if let Some(slot) = self.find(name) {
            return slot;
        }
        let channel = self.new_channel(shared, name);
        let slot = self.channels.insert(channel);
        self.index(shared, name.hash, slot);
        slot
    }

    /// A channel without messages and followers.
    fn new_channel(&mut self, shared: &Shared, Hashed { name, hash }: Hashed<'_>) -> Channel {
        if name.is_presence() {
            shared.presence_logs.fetch_add(1, Ordering::Relaxed);
        }
        let rule = shared.rules.find(name);
        // A journal remembers the offsets of its channels.
        let is_elsewhere = shared.rules.get(rule).journal.is_some();
        Channel {
            head: if is_elsewhere { 0 } else { self.forgotten.begin(hash) },
            log: None,
            followers: Followers::None,
            name: self.names.add(name),
            order: crate::listing::order_prefix(name.name()),
            rule,
        }
    }

    fn index(&mut self, shared: &Shared, hash: u64, slot: u32) {
        let Shard { channels, names, by_name, .. } = self;
        let hash_of = |&other: &u32| shared.hash(names.get(channels[other].name));
        by_name.insert_unique(hash, slot, hash_of);
    }

    fn forget(&mut self, shared: &Shared, slot: u32) {
        let key = self.names.get(self.channels[slot].name);
        if is_presence_key(key) {
            shared.presence_logs.fetch_sub(1, Ordering::Relaxed);
        }
        let hash = shared.hash(key);
        if let Ok(entry) = self.by_name.find_entry(hash, |&other| other == slot) {
            entry.remove();
        }
        let left = self.left.find_entry(hash, |&other| other == slot);
        let was_left = left.map(|entry| entry.remove()).is_ok();
        if !self.ended.is_empty() {
            self.ended.remove(&slot);
        }
        let Some(channel) = self.channels.remove(slot) else { return };
        // A journal remembers the offsets of its channels.
        if shared.rules.get(channel.rule).journal.is_none() && !was_left {
            self.forgotten.forget(hash, channel.head);
        }
        self.names.forget(channel.name);
        if self.names.should_pack() {
            let Shard { channels, names, .. } = self;
            names.pack(channels.iter_mut().map(|channel| &mut channel.name));
        }
    }

    /// Drops the oldest messages of any channel, and forgets the oldest ends of those that have
    /// none, while all logs together exceed their limit, and no other shard is known to have older
    /// ones.
    pub(super) fn evict(&mut self, shared: &Shared, others_oldest_ms: u64) {
        let Shard { ages, channels, .. } = self;
        // The last turn drops nothing, but brings the bound up to date that other threads read.
        while let Some(slot) = ages.oldest(|slot| oldest_ms(channels, slot)) {
            let is_oldest = ages.bound_ms().is_some_and(|bound_ms| bound_ms <= others_oldest_ms);
            let channel = &mut channels[slot];
            let Some(log) = channel.log.as_mut().filter(|_| is_oldest && shared.is_over()) else {
                return;
            };
            if log.bare_end_ms().is_some() {
                shared.forget_end(log);
            } else {
                shared.shrink(log, Log::drop_oldest);
                shared.evicted.fetch_add(1, Ordering::Relaxed);
            }
            // The next tick forgets the channel if it has no followers either.
            channel.drop_log_if_unused(shared);
        }
    }

    pub(super) fn follow(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        hash: u64,
        follow: &Follow<'_>,
    ) -> Followed {
        let slot = self.find_or_create(shared, Hashed { name: follow.channel, hash });
        let id = self.id(slot);
        let local = self.add_follower(shared, now_ms, slot, follow);
        let channel = &mut self.channels[slot];
        // Between two ticks the log may keep messages that are too old to be read.
        channel.expire(shared, now_ms);
        let (cursor, is_recovered) = match follow.start {
            StartAt::Live => (channel.head, None),
            StartAt::Last(count) => (channel.before_last(count), None),
            StartAt::After(id) => channel.after(shared.epoch, self.forgotten.advance(hash, id)),
            StartAt::Since(position) => channel.since(shared, position),
            StartAt::From(time_ms) => (channel.before_time(time_ms), None),
            StartAt::State => (channel.start(), None),
        };
        // Under the same lock as `add`: no message is both in the backlog and posted, and none in
        // neither.
        let after = |log: &mut Box<Log>| log.backlog(cursor, follow.start == StartAt::State);
        let backlog = channel.log.as_mut().map(after).unwrap_or_default();
        let followed = Followed {
            channel: id,
            local,
            rule: channel.rule,
            head: shared.message_id(channel.head),
            cursor: shared.message_id(cursor),
            is_recovered,
            is_sparse: channel.log.as_ref().is_some_and(|log| log.has_keys()),
            is_ended: channel.is_ended(),
            are_offsets_consecutive: shared.are_offsets_consecutive(),
            backlog,
        };
        shared.keep_latest(follow.start, followed)
    }

    /// Counts one more subscription of a channel. Returns the worker's id for it.
    fn add_follower(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        slot: u32,
        follow: &Follow<'_>,
    ) -> LocalId {
        let was_followed = !self.left.is_empty() && self.is_followed_elsewhere(shared, slot);
        let channel = &mut self.channels[slot];
        let is_first = channel.followers.is_empty();
        let local = channel.followers.add(follow.worker, follow.local_if_new);
        if is_first
            && !was_followed
            && !follow.channel.is_presence()
            && let Some(events) = &shared.events
        {
            events.notify(now_ms, Event::Occupied(follow.channel));
        }
        self.notify_count(shared, now_ms, slot);
        let channel = &self.channels[slot];
        if shared.rules.get(channel.rule).presence_events {
            shared.presence.watched.mark(follow.channel.key());
        }
        local
    }

    pub(super) fn unfollow(&mut self, shared: &Shared, now_ms: u64, slot: u32, worker: WorkerId) {
        let Some(channel) = self.channels.get_mut(slot) else {
            debug_assert!(false, "a followed channel is not forgotten");
            return;
        };
        channel.followers.remove(worker);
        self.mark_presence(shared, slot);
        self.notify_count(shared, now_ms, slot);
        self.notify_if_vacated(shared, now_ms, slot);
        self.forget_if_unused(shared, now_ms, slot);
    }

    /// Sets the number of a follower's subscriptions.
    pub(super) fn set_subscribers(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        slot: u32,
        worker: WorkerId,
        subscribers: u32,
    ) {
        let Some(channel) = self.channels.get_mut(slot) else { return };
        let was_followed = !channel.followers.is_empty();
        let before = channel.followers.subscribers();
        channel.followers.set(worker, subscribers);
        let is_other = channel.followers.subscribers() != before;
        self.mark_presence(shared, slot);
        if is_other {
            self.notify_count(shared, now_ms, slot);
        }
        if was_followed {
            self.notify_if_vacated(shared, now_ms, slot);
        }
        self.forget_if_unused(shared, now_ms, slot);
    }

    /// Notes for presence events that the followers of a channel have changed.
    fn mark_presence(&self, shared: &Shared, slot: u32) {
        let channel = &self.channels[slot];
        if shared.rules.get(channel.rule).presence_events {
            shared.presence.watched.mark(self.names.get(channel.name));
        }
    }

    /// Reports the number of a channel's subscribers, where it is wanted.
    fn notify_count(&self, shared: &Shared, now_ms: u64, slot: u32) {
        if let Some(events) = &shared.events
            && events.takes_counts()
            && let Some(name) = self.name(slot)
            && !name.is_presence()
        {
            let count = self.channels[slot].followers.subscribers();
            events.notify(now_ms, Event::Counted(&name, count));
        }
    }

    /// Reports that a channel has lost its last subscriber, if it has none. Under the shard's lock,
    /// so that the events of a channel come in their order.
    fn notify_if_vacated(&self, shared: &Shared, now_ms: u64, slot: u32) {
        if self.channels[slot].followers.is_empty()
            && let Some(events) = &shared.events
            && let Some(name) = self.name(slot)
            && !name.is_presence()
            && (self.left.is_empty() || !self.is_followed_elsewhere(shared, slot))
        {
            events.notify(now_ms, Event::Vacated(&name));
        }
    }

    /// True if the same channel has followers that another process had in another journal, or if
    /// this is that channel, and has followers again where its log is now.
    fn is_followed_elsewhere(&self, shared: &Shared, slot: u32) -> bool {
        let Some(name) = self.name(slot) else { return false };
        let hashed = Hashed { name: &name, hash: shared.hash(name.key()) };
        let all = [self.find(hashed), self.find_left(hashed)].into_iter().flatten();
        let mut others = all.filter(|&other| other != slot);
        others.any(|other| !self.channels[other].followers.is_empty())
    }

    fn forget_if_unused(&mut self, shared: &Shared, now_ms: u64, slot: u32) {
        let channel = &mut self.channels[slot];
        channel.expire(shared, now_ms);
        if channel.is_forgettable() {
            self.forget(shared, slot);
        }
    }

    pub(super) fn history(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        name: Hashed<'_>,
        query: HistoryQuery,
        limit: usize,
    ) -> History {
        let slot = self.find(name);
        if slot.is_none() {
            self.forgotten.look(name.hash);
        }
        let query = match query {
            HistoryQuery::After(id) => HistoryQuery::After(self.forgotten.advance(name.hash, id)),
            other => other,
        };
        let Some(slot) = slot else {
            // A channel that is created now starts here.
            let head = shared.message_id(self.forgotten.head());
            let is_recovered = match query {
                HistoryQuery::After(id) => Some(id == head),
                HistoryQuery::Since(position) => {
                    Some(shared.has_all_since(shared.rules.find(name.name), position))
                }
                HistoryQuery::Newest
                | HistoryQuery::Before(_)
                | HistoryQuery::From(_)
                | HistoryQuery::FirstOfLast(_) => None,
            };
            let (has_more, is_ended) = (false, false);
            return History { head, messages: Vec::new(), has_more, is_ended, is_recovered };
        };
        let channel = &mut self.channels[slot];
        channel.expire(shared, now_ms);
        channel.history(shared, query, limit)
    }

    /// The marker of an inbox, after `mark`, with what [`Shard::tell_unread`] returns.
    pub(super) fn read_inbox(
        &mut self,
        shared: &Shared,
        (now_ms, name): (u64, Hashed<'_>),
        of: &MarkerKey,
        mark: Option<Mark>,
    ) -> (ReadMarker, Option<(u64, Wake)>) {
        let before = self.find(name).and_then(|slot| self.channels[slot].log.as_ref());
        let before = before.map_or(0, |log| log.read());
        let marker = self.read_marker(shared, (now_ms, name), before, (mark, of.unread_max()));
        let log = self.find(name).and_then(|slot| self.channels[slot].log.as_mut());
        if let Some(log) = log {
            log.set_read(marker.read.map_or(0, |id| id.offset));
        }
        let mover = mark.and_then(|mark| mark.mover);
        let told = self.tell_unread(shared, (now_ms, name), of, &marker, mover);
        (marker, told)
    }

    /// The marker of a user who has read a log up to an offset, after a mark.
    pub(super) fn read_marker(
        &mut self,
        shared: &Shared,
        (now_ms, name): (u64, Hashed<'_>),
        before: u64,
        (mark, unread_max): (Option<Mark>, u64),
    ) -> ReadMarker {
        let Some(slot) = self.find(name) else { return ReadMarker::default() };
        let channel = &mut self.channels[slot];
        channel.expire(shared, now_ms);
        channel.read_marker(shared.epoch, before, mark, unread_max)
    }

    /// True if a channel has messages.
    pub(super) fn has_log(&self, name: Hashed<'_>) -> bool {
        self.find(name).is_some_and(|slot| self.channels[slot].log.is_some())
    }

    /// A worker's id of a channel that it follows since another process had it in another journal.
    pub(super) fn left_by(
        &self,
        name: Hashed<'_>,
        worker: WorkerId,
    ) -> Option<(ChannelId, LocalId)> {
        let slot = self.find_left(name)?;
        let mut followers = self.channels[slot].followers.as_slice().iter();
        let found = followers.find(|follower| follower.worker == worker)?;
        Some((self.id(slot), found.local))
    }

    pub(super) fn audience(&self, name: Hashed<'_>) -> Audience {
        // A channel that is not here has no followers.
        let Some(slot) = self.find(name) else { return Audience::default() };
        let followers = &self.channels[slot].followers;
        let worker = |follower: &Follower| (follower.worker, follower.local, self.id(slot));
        Audience {
            subscribers: followers.subscribers(),
            workers: followers.as_slice().iter().map(worker).collect(),
        }
    }

    /// Expires messages and keys, and forgets channels.
    pub(super) fn tick(&mut self, shared: &Shared, now_ms: u64) {
        self.idempotency.expire(now_ms, &shared.keys);
        self.idempotency.shrink_to_share(&shared.keys);
        for slot in 0..self.channels.extent() {
            let Some(channel) = self.channels.get_mut(slot) else { continue };
            channel.expire(shared, now_ms);
            if channel.is_forgettable() {
                self.forget(shared, slot);
            }
        }
        self.shrink(shared);
    }

    /// Frees the memory of tables that have become mostly empty.
    fn shrink(&mut self, shared: &Shared) {
        let Shard { channels, names, by_name, left, ages, .. } = self;
        if left.is_empty() && left.capacity() > 0 {
            *left = HashTable::new();
        }
        if by_name.capacity() > TABLE_MIN && by_name.len() * 4 < by_name.capacity() {
            let hash_of = |&slot: &u32| shared.hash(names.get(channels[slot].name));
            by_name.shrink_to(by_name.len() * 2, hash_of);
        }
        if ages.should_rebuild(channels.len()) {
            ages.rebuild(|slot| oldest_ms(channels, slot));
        }
    }
}

fn oldest_ms(channels: &Slab<Channel>, slot: u32) -> Option<u64> {
    channels.get(slot)?.log.as_ref()?.age_ms()
}
