//! The channels that this node follows: how far each is, and its newest messages.
//!
//! An entry is made when the first subscription of a channel asks for its start, and goes some time
//! after the last one has ended. The journal knows it by a number that is not used again soon, so
//! that a late report finds no other channel.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use hashbrown::{HashMap, HashTable};
use throng_core::{ChannelId, ChannelName, Content, Epoch, Fetched, Retention, Ticket};

use super::collect::content;
use super::hold::Hold;
use super::rest::Counted;
use super::tail::Tail;
use crate::api::message::StoredMessage;

/// A subscription that waits until its channel is followed.
pub(super) struct Waiting {
    pub(super) hold: Hold,
    pub(super) ticket: Ticket<Fetched>,
    pub(super) now_ms: u64,
    pub(super) _counted: Counted,
}

/// A followed channel.
pub(super) struct Entry {
    pub(super) name: ChannelName,
    /// Up to here all messages were delivered to the subscribers of this node.
    pub(super) head: u64,
    /// The newest message that was delivered; 0 without one.
    pub(super) newest: u64,
    /// When the newest message was published.
    pub(super) time_ms: u64,
    /// The newest messages; `None` if none has come since the head.
    tail: Option<Box<Tail>>,
    pub(super) waiting: Vec<Waiting>,
    /// Subscriptions that ask for their start.
    pub(super) holds: u32,
    /// Whether the head is known.
    pub(super) is_live: bool,
    /// Whether messages between the head and the next one are lost.
    pub(super) has_gap: bool,
    /// Whether it may have subscribers from before the stream lost messages.
    pub(super) is_stale: bool,
}

// With its place in both tables, its name, and what the journal and the memory engine know of it:
// below 400 bytes.
const _: () = assert!(size_of::<Entry>() <= 80);

impl Entry {
    /// The messages in memory, oldest first.
    pub(super) fn cached(&self) -> impl ExactSizeIterator<Item = &Arc<Content>> {
        self.tail.as_deref().map(Tail::messages).unwrap_or_default()
    }

    /// Whether all messages after an offset are in memory.
    pub(super) fn has_after(&self, offset: u64) -> bool {
        let floor = self.tail.as_ref().map_or(self.head, |tail| tail.floor());
        (floor..=self.head).contains(&offset)
    }
}

/// All followed channels.
pub(super) struct Followed {
    entries: HashMap<u32, Entry, foldhash::fast::RandomState>,
    by_name: HashTable<u32>,
    hasher: foldhash::fast::RandomState,
    next_id: u32,
    /// Entries with a tail, the oldest tail first. Some are gone.
    tails: VecDeque<u32>,
    messages: u64,
    bytes: usize,
    max_bytes: usize,
}

impl Followed {
    /// All tails together have at most `max_bytes`.
    pub(super) fn new(max_bytes: usize) -> Followed {
        Followed {
            entries: HashMap::default(),
            by_name: HashTable::new(),
            hasher: foldhash::fast::RandomState::default(),
            next_id: 0,
            tails: VecDeque::new(),
            messages: 0,
            bytes: 0,
            max_bytes,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Messages in memory, and their bytes.
    pub(super) fn cached(&self) -> (u64, usize) {
        (self.messages, self.bytes)
    }

    fn find(&self, name: &ChannelName) -> Option<u32> {
        let is_it = |id: &u32| self.entries.get(id).is_some_and(|entry| entry.name == *name);
        self.by_name.find(self.hasher.hash_one(name.key()), is_it).copied()
    }

    pub(super) fn get(&self, name: &ChannelName) -> Option<&Entry> {
        self.entries.get(&self.find(name)?)
    }

    pub(super) fn entry(&mut self, id: ChannelId) -> Option<&mut Entry> {
        self.entries.get_mut(&id.0)
    }

    /// The entry of a channel, and whether it is new: then the journal has to follow it.
    pub(super) fn add(&mut self, name: &ChannelName) -> (ChannelId, &mut Entry, bool) {
        let known = self.find(name);
        let id = known.unwrap_or_else(|| self.insert(name));
        let entry = self.entries.entry(id).or_insert_with(|| Entry::new(name));
        (ChannelId(id), entry, known.is_none())
    }

    fn insert(&mut self, name: &ChannelName) -> u32 {
        while self.entries.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.entries.insert(id, Entry::new(name));
        let (entries, hasher) = (&self.entries, &self.hasher);
        let hash_of =
            |id: &u32| entries.get(id).map_or(0, |entry| hasher.hash_one(entry.name.key()));
        self.by_name.insert_unique(hasher.hash_one(name.key()), id, hash_of);
        id
    }

    /// Removes a channel without subscriptions that ask for their start.
    pub(super) fn remove(&mut self, name: &ChannelName) -> Option<Entry> {
        let id = self.find(name)?;
        if self.entries.get(&id).is_some_and(|entry| entry.holds > 0) {
            return None;
        }
        let hash = self.hasher.hash_one(name.key());
        if let Ok(place) = self.by_name.find_entry(hash, |other| *other == id) {
            place.remove();
        }
        self.forget_tail(id);
        self.entries.remove(&id)
    }

    /// All entries, for what concerns each.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.values_mut()
    }

    /// The channel is followed: all messages after `head` come from now on. Returns the
    /// subscriptions that have waited for it.
    pub(super) fn joined(&mut self, id: ChannelId, head: u64) -> Vec<Waiting> {
        let Some(entry) = self.entries.get_mut(&id.0) else { return Vec::new() };
        if entry.is_live {
            return Vec::new();
        }
        (entry.head, entry.newest) = (head, 0);
        (entry.is_live, entry.has_gap) = (true, false);
        std::mem::take(&mut entry.waiting)
    }

    /// Messages between the head and the next one are lost.
    pub(super) fn has_gap(&mut self, id: ChannelId) {
        self.forget_tail(id.0);
        if let Some(entry) = self.entries.get_mut(&id.0) {
            entry.has_gap = true;
        }
    }

    /// Takes the next message of a channel, and keeps it as the rule says.
    pub(super) fn append(
        &mut self,
        id: ChannelId,
        (epoch, stored, time_ms): (Epoch, StoredMessage, u64),
        retention: impl FnOnce(&ChannelName) -> Retention,
    ) -> Option<Arc<Content>> {
        let entry = self.entries.get_mut(&id.0).filter(|entry| entry.is_live)?;
        debug_assert!(stored.sequence > entry.head, "each message is reported once");
        let before = entry.head;
        // After a gap, an offset that no message has, so that each subscriber sees the hole.
        let previous = if entry.has_gap { stored.sequence - 1 } else { before };
        entry.has_gap = false;
        entry.time_ms = entry.time_ms.max(time_ms);
        (entry.head, entry.newest) = (stored.sequence, stored.sequence);
        let content = Arc::new(content(&entry.name, epoch, stored, previous, entry.time_ms));
        let retention = retention(&entry.name);
        if !retention.is_none() {
            if entry.tail.is_none() {
                self.tails.push_back(id.0);
            }
            let tail = entry.tail.get_or_insert_with(|| Box::new(Tail::new(previous)));
            let (messages, bytes) = (tail.len() as u64, tail.bytes());
            tail.append(&content, &retention);
            self.messages = self.messages + tail.len() as u64 - messages;
            self.bytes = self.bytes + tail.bytes() - bytes;
            self.limit(self.max_bytes);
        }
        Some(content)
    }

    /// Drops the oldest tails while all have more bytes than these.
    pub(super) fn limit(&mut self, max_bytes: usize) {
        while self.bytes > max_bytes
            && let Some(id) = self.tails.pop_front()
        {
            self.forget_tail(id);
        }
    }

    /// Forgets all tails: they belong to an epoch that is over.
    pub(super) fn forget_tails(&mut self) {
        self.limit(0);
        self.tails.clear();
    }

    fn forget_tail(&mut self, id: u32) {
        let tail = self.entries.get_mut(&id).and_then(|entry| entry.tail.take());
        if let Some(tail) = tail {
            self.messages -= tail.len() as u64;
            self.bytes -= tail.bytes();
        }
        // Each has one place in the queue while it has a tail.
        if self.tails.len() > 2 * self.entries.len() + 64 {
            let entries = &self.entries;
            let mut seen = hashbrown::HashSet::<u32, foldhash::fast::RandomState>::default();
            self.tails.retain(|id| {
                entries.get(id).is_some_and(|entry| entry.tail.is_some()) && seen.insert(*id)
            });
        }
    }
}

impl Entry {
    fn new(name: &ChannelName) -> Entry {
        Entry {
            name: name.clone(),
            head: 0,
            newest: 0,
            time_ms: 0,
            tail: None,
            waiting: Vec::new(),
            holds: 0,
            is_live: false,
            has_gap: false,
            is_stale: false,
        }
    }
}
