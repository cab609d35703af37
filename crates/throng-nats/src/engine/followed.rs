//! The channels that this node follows: how far each is, and its newest messages.
//!
//! An entry is made when the first subscription of a channel asks for its start, and goes some time
//! after the last one has ended. The journal knows it by a number that is not used again soon, so
//! that a late report finds no other channel.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::iter;
use std::sync::Arc;

use hashbrown::HashTable;
use throng_core::names::NameRef;
use throng_core::{ChannelId, ChannelName, Content, Epoch, Fetched, Retention, Ticket};

use super::collect::content;
use super::hold::ChannelHold;
use super::rest::CountGuard;
use super::tail::ChannelTail;
use crate::api::message::StoredMessage;
use crate::journal::ErasedMessages;
use crate::names::NamesByNumber;

/// A subscription that waits until its channel is followed.
pub(super) struct WaitingPart {
    pub(super) hold: ChannelHold,
    pub(super) ticket: Ticket<Fetched>,
    pub(super) now_ms: u64,
    pub(super) _counted: CountGuard,
}

/// Those of one channel. Most have one, and hundred thousands may wait at a time.
struct Queue {
    first: WaitingPart,
    others: Vec<WaitingPart>,
}

pub(super) struct FollowedEntry {
    id: u32,
    name: NameRef,
    /// Up to here all messages were delivered to the subscribers of this node.
    pub(super) head: u64,
    /// The newest message that was delivered; 0 without one.
    pub(super) newest: u64,
    /// When the newest message was published.
    pub(super) time_ms: u64,
    /// The newest messages; `None` if none has come since the head.
    tail: Option<Box<ChannelTail>>,
    waiting: Option<Box<Queue>>,
    /// Subscriptions that ask for their start.
    pub(super) holds: u32,
    pub(super) is_live: bool,
    /// True if messages between the head and the next one are lost.
    pub(super) has_gap: bool,
    /// True if it may have subscribers from before the stream lost messages.
    pub(super) is_stale: bool,
    /// Only looked at if it may end.
    end: End,
}

/// Whether a channel has ended, as far as its delivered messages say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Unknown,
    /// It had not when it was read after them.
    Not,
    /// The newest one is the notice of it.
    Told,
}

// A channel also has its name, and a place in both indexes. The journal's state of it is about as
// large.
const _: () = assert!(size_of::<FollowedEntry>() <= 56);

impl FollowedEntry {
    /// The messages in memory, oldest first.
    pub(super) fn cached(&self) -> impl ExactSizeIterator<Item = &Arc<Content>> {
        self.tail.as_deref().map(ChannelTail::messages).unwrap_or_default()
    }

    /// True if it is known that the channel had not ended at its head.
    pub(super) fn is_open(&self) -> bool {
        self.end == End::Not
    }

    /// True if all messages after an offset are in memory.
    pub(super) fn has_after(&self, offset: u64) -> bool {
        let floor = self.tail.as_ref().map_or(self.head, |tail| tail.floor());
        (floor..=self.head).contains(&offset)
    }

    /// Lets a subscription wait until the channel is followed.
    pub(super) fn wait(&mut self, waiting: WaitingPart) {
        match &mut self.waiting {
            Some(queue) => queue.others.push(waiting),
            None => {
                self.waiting = Some(Box::new(Queue { first: waiting, others: Vec::new() }));
            }
        }
    }

    /// The subscriptions that wait, which do so no more.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = WaitingPart> + use<> {
        let queue = self.waiting.take().map(|queue| *queue);
        queue.into_iter().flat_map(|Queue { first, others }| iter::once(first).chain(others))
    }
}

pub(super) struct Followed {
    /// In any order.
    entries: Vec<FollowedEntry>,
    names: NamesByNumber,
    /// Places in `entries`, by the hash of the id.
    by_id: HashTable<u32>,
    /// The same, by the hash of the name.
    by_name: HashTable<u32>,
    hasher: foldhash::fast::RandomState,
    next_id: u32,
    /// Ids of entries with a tail, the oldest tail first. Some are gone.
    tails: VecDeque<u32>,
    messages: u64,
    bytes: usize,
    max_bytes: usize,
}

impl Followed {
    /// All tails together have at most `max_bytes`.
    pub(super) fn new(max_bytes: usize) -> Followed {
        Followed {
            entries: Vec::new(),
            names: NamesByNumber::default(),
            by_id: HashTable::new(),
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

    fn find(&self, name: &ChannelName) -> Option<usize> {
        let is_it = |place: &u32| {
            let entry = &self.entries[*place as usize];
            self.names.is((entry.id, entry.name), name.key())
        };
        let place = self.by_name.find(self.hasher.hash_one(name.key()), is_it);
        place.map(|place| *place as usize)
    }

    fn place(&self, id: u32) -> Option<usize> {
        let is_it = |place: &u32| self.entries[*place as usize].id == id;
        self.by_id.find(self.hasher.hash_one(id), is_it).map(|place| *place as usize)
    }

    pub(super) fn get(&self, name: &ChannelName) -> Option<&FollowedEntry> {
        self.entries.get(self.find(name)?)
    }

    pub(super) fn entry(&mut self, id: ChannelId) -> Option<&mut FollowedEntry> {
        let place = self.place(id.0)?;
        self.entries.get_mut(place)
    }

    /// The entry of a channel, and whether it is new: then the journal has to follow it.
    pub(super) fn add(&mut self, name: &ChannelName) -> (ChannelId, &mut FollowedEntry, bool) {
        let known = self.find(name);
        let place = known.unwrap_or_else(|| self.insert(name));
        let entry = &mut self.entries[place];
        (ChannelId(entry.id), entry, known.is_none())
    }

    fn insert(&mut self, name: &ChannelName) -> usize {
        while self.place(self.next_id).is_some() {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let place = self.entries.len();
        self.entries.push(FollowedEntry::new(id, self.names.add(id, name)));
        let (entries, names, hasher) = (&self.entries, &self.names, &self.hasher);
        self.by_id.insert_unique(hasher.hash_one(id), place as u32, |place| {
            hasher.hash_one(entries[*place as usize].id)
        });
        self.by_name.insert_unique(hasher.hash_one(name.key()), place as u32, |place| {
            let entry = &entries[*place as usize];
            hasher.hash_one(names.key((entry.id, entry.name)))
        });
        place
    }

    /// Removes a channel without subscriptions that ask for their start.
    pub(super) fn remove(&mut self, name: &ChannelName) -> Option<FollowedEntry> {
        let place = self.find(name)?;
        if self.entries[place].holds > 0 {
            return None;
        }
        let id = self.entries[place].id;
        self.forget_tail(id);
        // The last one takes its place, which its indexes have to know.
        let last = self.entries.len() - 1;
        let FollowedEntry { id: last_id, name: last_name, .. } = self.entries[last];
        let last_hash = self.hasher.hash_one(self.names.key((last_id, last_name)));
        for (index, hash, last_hash) in [
            (&mut self.by_id, self.hasher.hash_one(id), self.hasher.hash_one(last_id)),
            (&mut self.by_name, self.hasher.hash_one(name.key()), last_hash),
        ] {
            if let Ok(found) = index.find_entry(hash, |other| *other as usize == place) {
                found.remove();
            }
            if let Some(moved) = index.find_mut(last_hash, |other| *other as usize == last) {
                *moved = place as u32;
            }
        }
        let gone = self.entries.swap_remove(place);
        let others = self.entries.iter_mut().map(|entry| (entry.id, &mut entry.name));
        self.names.forget((id, gone.name), others);
        Some(gone)
    }

    /// All entries with their channels, for what concerns each.
    ///
    /// # Errors
    ///
    /// The first error of `each`, after which no other one is passed to it.
    pub(super) fn each<E>(
        &mut self,
        mut each: impl FnMut(&ChannelName, &mut FollowedEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        let names = &self.names;
        let mut entries = self.entries.iter_mut();
        entries.try_for_each(|entry| each(&names.name((entry.id, entry.name)), entry))
    }

    /// All subscriptions that wait, which do so no more.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = WaitingPart> {
        self.entries.iter_mut().flat_map(FollowedEntry::take_waiting)
    }

    /// The channel is followed: all messages after `head` come from now on. Returns the
    /// subscriptions that have waited for it.
    pub(super) fn joined(
        &mut self,
        id: ChannelId,
        head: u64,
    ) -> impl Iterator<Item = WaitingPart> + use<> {
        let joined = self.entry(id).filter(|entry| !entry.is_live);
        let waiting = joined.map(|entry| {
            (entry.head, entry.newest) = (head, 0);
            (entry.is_live, entry.has_gap) = (true, false);
            entry.end = End::Unknown;
            entry.take_waiting()
        });
        waiting.into_iter().flatten()
    }

    /// The name of a channel.
    pub(super) fn name(&self, id: ChannelId) -> Option<ChannelName> {
        let entry = self.entries.get(self.place(id.0)?)?;
        Some(self.names.name((entry.id, entry.name)))
    }

    /// Messages between the head and the next one are lost. Returns which channel it is.
    pub(super) fn has_gap(&mut self, id: ChannelId) -> Option<ChannelName> {
        self.forget_tail(id.0);
        let entry = self.entry(id)?;
        (entry.has_gap, entry.end) = (true, End::Unknown);
        let name = (entry.id, entry.name);
        Some(self.names.name(name))
    }

    /// A channel had not ended when it was read, after all that was delivered before.
    pub(super) fn is_open(&mut self, name: &ChannelName) {
        let Some(place) = self.find(name) else { return };
        let entry = &mut self.entries[place];
        // The notice of an end may have come since.
        if entry.is_live && entry.end == End::Unknown {
            entry.end = End::Not;
        }
    }

    /// Takes the next message of a channel, and keeps it as the rule says.
    pub(super) fn append(
        &mut self,
        id: ChannelId,
        (epoch, stored, time_ms): (Epoch, StoredMessage, u64),
        retention: impl FnOnce(&ChannelName) -> Retention,
    ) -> Option<Arc<Content>> {
        let place = self.place(id.0)?;
        let entry = self.entries.get_mut(place).filter(|entry| entry.is_live)?;
        debug_assert!(stored.sequence > entry.head, "each message is reported once");
        let before = entry.head;
        // After a gap, an offset that no message has, so that each subscriber sees the hole.
        let previous = if entry.has_gap { stored.sequence - 1 } else { before };
        entry.has_gap = false;
        entry.time_ms = entry.time_ms.max(time_ms);
        (entry.head, entry.newest) = (stored.sequence, stored.sequence);
        let name = self.names.name((entry.id, entry.name));
        let retention = retention(&name);
        let content = Arc::new(content(name, epoch, stored, previous, entry.time_ms));
        if content.erasure().is_none() && !content.removes_key() {
            entry.end = if content.is_end() { End::Told } else { End::Not };
        }
        if !retention.is_none() {
            if entry.tail.is_none() {
                self.tails.push_back(id.0);
            }
            let tail = entry.tail.get_or_insert_with(|| Box::new(ChannelTail::new(previous)));
            let (messages, bytes) = (tail.len() as u64, tail.bytes());
            tail.append(&content, &retention);
            self.messages = self.messages + tail.len() as u64 - messages;
            self.bytes = self.bytes + tail.bytes() - bytes;
            self.limit(self.max_bytes);
        }
        Some(content)
    }

    /// Nobody may be shown these messages any more; `None` if it is not known which.
    pub(super) fn erase(&mut self, erased: Option<&ErasedMessages>) {
        let Some(ErasedMessages { channel, first, last }) = erased else {
            self.entries.iter_mut().for_each(|entry| entry.end = End::Unknown);
            return self.forget_tails();
        };
        let Some(place) = self.find(channel) else { return };
        let entry = &mut self.entries[place];
        if (*first..=*last).contains(&entry.newest) {
            // Whoever reads need not find it.
            entry.newest = 0;
        }
        if let Some(tail) = &mut entry.tail {
            let (messages, bytes) = (tail.len() as u64, tail.bytes());
            tail.erase(*first, *last);
            self.messages = self.messages + tail.len() as u64 - messages;
            self.bytes = self.bytes + tail.bytes() - bytes;
        }
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
        let tail = self.entry(ChannelId(id)).and_then(|entry| entry.tail.take());
        if let Some(tail) = tail {
            self.messages -= tail.len() as u64;
            self.bytes -= tail.bytes();
        }
        // Each has one place in the queue while it has a tail.
        if self.tails.len() > 2 * self.entries.len() + 64 {
            let mut seen = hashbrown::HashSet::<u32, foldhash::fast::RandomState>::default();
            let mut tails = std::mem::take(&mut self.tails);
            tails.retain(|id| {
                let entry = self.place(*id).map(|place| &self.entries[place]);
                entry.is_some_and(|entry| entry.tail.is_some()) && seen.insert(*id)
            });
            self.tails = tails;
        }
    }
}

impl FollowedEntry {
    fn new(id: u32, name: NameRef) -> FollowedEntry {
        FollowedEntry {
            id,
            name,
            head: 0,
            newest: 0,
            time_ms: 0,
            tail: None,
            waiting: None,
            holds: 0,
            is_live: false,
            has_gap: false,
            is_stale: false,
            end: End::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn each_channel_is_found_while_others_come_and_go() {
        let mut followed = Followed::new(1 << 20);
        let mut known = BTreeMap::new();
        let name = |number: u32| ChannelName::user(&format!("customer-{number}"));
        for step in 0..30_000u32 {
            // All numbers, in an order in which each place is left and taken.
            let number = step.wrapping_mul(2_654_435_761) >> 20;
            if known.contains_key(&number) && step % 3 > 0 {
                assert!(followed.remove(&name(number)).is_some());
                known.remove(&number);
            } else {
                let (id, entry, is_new) = followed.add(&name(number));
                assert_eq!(is_new, known.insert(number, id).is_none_or(|before| before != id));
                entry.head = number.into();
            }
        }
        assert!(known.len() > 100 && followed.len() == known.len());
        for (number, id) in &known {
            assert_eq!(
                followed.get(&name(*number)).map(|entry| entry.head),
                Some((*number).into())
            );
            assert_eq!(followed.entry(*id).map(|entry| entry.head), Some((*number).into()));
        }
        let mut names = 0;
        let each = followed.each(|channel, entry| {
            names += 1;
            if *channel == name(entry.head as u32) { Ok(()) } else { Err(entry.head) }
        });
        assert_eq!((each, names), (Ok(()), known.len()));
        assert!(followed.remove(&name(u32::MAX)).is_none());
    }
}
