//! Parts of logs that were read from a journal, and wait for who has asked for them.
//!
//! Between the reading of a part and the subscription that starts with it, messages may be
//! delivered. Each channel with an open part has a **tail** for those, from before the oldest of
//! its parts is read. So what is acknowledged before a part is opened is in the part, and what is
//! delivered after that is in the tail.
//!
//! A part that several ask for at a time is read once ([`Parts::ask`]).
//!
//! All parts together take a limited memory, which the first that come must not use up: a client
//! gets a quarter of it, and nothing more while half of it is used, so that the other half is for
//! those who hold nothing.
//!
//! Locks are taken in this order: a shard's, the table, a tail.

mod pot;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::id::MessageId;
use crate::later::{AskerId, Ticket};
use crate::memory::Backlog;
use crate::message::{Content, Message};
use crate::name::ChannelName;
use crate::reading::{Fetched, Reading, StartAt};
pub use pot::PartsMetrics;
use pot::{Pot, Room};
pub use tail::Limits;
use tail::Tail;

/// Bytes of all open parts where nothing says how much memory there is.
pub const OPEN_BYTES_MAX: usize = 256 << 20;

/// An empty table with room for more than these channels is given back.
const CHANNELS_KEPT: usize = 1_024;

/// The start of a subscription.
#[derive(Debug, Clone)]
pub struct Start {
    /// The id of the newest message.
    pub head: MessageId,
    /// The offset after which the subscription starts.
    pub cursor: u64,
    /// Whether all messages after its position are here; `None` if it has none.
    pub is_recovered: Option<bool>,
    /// True if messages may lack that later ones have superseded.
    pub is_sparse: bool,
    /// True if the channel has ended.
    pub is_ended: bool,
    /// The messages after the cursor up to the head, oldest first.
    pub messages: Vec<Arc<Content>>,
}

/// A page of history.
#[derive(Debug, Clone)]
pub struct Page {
    /// The id of the newest message.
    pub head: MessageId,
    /// The messages of the page, oldest first.
    pub messages: Vec<Arc<Content>>,
    /// True if there are more in the direction of the query.
    pub has_more: bool,
    /// True if the channel has ended.
    pub is_ended: bool,
    /// As in [`History::is_recovered`](crate::History::is_recovered).
    pub is_recovered: Option<bool>,
}

/// A part of a log, once it is read.
#[derive(Debug)]
pub enum Part {
    Start(Start),
    Page(Page),
}

impl Part {
    fn bytes(&self) -> usize {
        let (Part::Start(Start { messages, .. }) | Part::Page(Page { messages, .. })) = self;
        messages.iter().map(|message| message.weight_bytes()).sum()
    }
}

/// A part of a channel's log, for those that asked.
#[derive(Debug)]
pub struct OpenPart {
    reading: Reading,
    part: OnceLock<Part>,
    /// The messages delivered in the channel since its oldest part was opened.
    tail: Arc<Mutex<Tail>>,
    /// Where in the tail this part was opened.
    opened_at: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenPart {
    /// The part, once it is read.
    pub fn part(&self) -> Option<&Part> {
        self.part.get()
    }

    /// The start of a subscription now, of a log whose offsets are consecutive or not. Call it
    /// under the lock of the channel's shard.
    pub fn backlog(&self, start: &Start, are_offsets_consecutive: bool) -> Backlog {
        let Start { head, cursor, is_recovered, is_sparse, is_ended, messages } = start.clone();
        let backlog = |messages| Backlog {
            head,
            cursor,
            are_offsets_consecutive,
            is_recovered,
            is_sparse,
            is_ended,
            messages,
        };
        let tail = lock(&self.tail);
        let newest = tail.newest_since(self.opened_at);
        let newest = newest.filter(|newest| newest.offset > head.offset);
        let Some(newest) = newest else {
            return backlog(with_encodings(messages));
        };
        let (is_recovered, is_over) = match self.reading {
            // With the next message, whatever has come since it was read.
            Reading::Start(StartAt::Live) => (is_recovered, true),
            // It passes over messages without keys.
            Reading::Start(StartAt::State) => (is_recovered, tail.has_lost_keyed(self.opened_at)),
            _ if self.has_lost(&tail) => (is_recovered.map(|_| false), true),
            _ => (is_recovered, false),
        };
        if is_over {
            let cursor = newest.offset;
            return Backlog { head: newest, cursor, is_recovered, ..backlog(Vec::new()) };
        }
        let mut all = messages;
        let late = tail.since(self.opened_at).into_iter();
        let late: Vec<_> = late.filter(|late| late.id.offset > head.offset).collect();
        // After its end a channel takes none but these, and others only once it is opened again.
        let is_of_server = |late: &Content| late.erasure().is_some() || late.removes_key();
        let last = late.iter().rfind(|late| !is_of_server(late));
        let is_ended = last.map_or(is_ended, |last| last.is_end());
        let is_sparse = is_sparse || tail.is_sparse();
        all.extend(late);
        Backlog { head: newest, is_recovered, is_sparse, is_ended, ..backlog(with_encodings(all)) }
    }

    fn has_lost(&self, tail: &Tail) -> bool {
        tail.has_lost_plain(self.opened_at) || tail.has_lost_keyed(self.opened_at)
    }

    /// True if the part is of no use any more to a subscription to a state, because more has come
    /// since than is kept: nothing would tell a client which keys it lacks.
    pub(crate) fn lacks_keys(&self) -> bool {
        let tail = lock(&self.tail);
        match (self.reading, self.part()) {
            (Reading::Start(StartAt::State), _) => tail.has_lost_keyed(self.opened_at),
            (Reading::Start(StartAt::Live), _) | (_, None | Some(Part::Page(_))) => false,
            (_, Some(Part::Start(start))) => {
                (start.is_sparse || tail.is_sparse()) && self.has_lost(&tail)
            }
        }
    }
}

fn with_encodings(messages: Vec<Arc<Content>>) -> Vec<Arc<Message>> {
    messages.into_iter().map(|content| Arc::new(Message::from(content))).collect()
}

/// The open parts of a channel.
#[derive(Debug, Default)]
struct Channel {
    /// In the order in which they were opened.
    parts: BTreeMap<u64, Arc<OpenPart>>,
    /// Those that were read.
    read: HashMap<Reading, BTreeSet<u64>>,
    /// Those that are being read, for whoever asks for the same meanwhile.
    asked: HashMap<Reading, Asked>,
    tail: Arc<Mutex<Tail>>,
}

#[derive(Debug)]
struct Asked {
    hold: Weak<Hold>,
    tickets: Vec<Ticket<Fetched>>,
}

#[derive(Debug, Default)]
struct Table {
    channels: HashMap<ChannelName, Channel>,
    pot: Pot,
    next: u64,
}

/// The open parts of all channels.
#[derive(Debug)]
pub struct Parts {
    table: Mutex<Table>,
    /// The number of open parts, readable without the lock.
    open: AtomicUsize,
}

impl Default for Parts {
    fn default() -> Parts {
        Parts::new(OPEN_BYTES_MAX)
    }
}

impl Parts {
    /// Parts that take this much memory at most.
    pub fn new(max_bytes: usize) -> Parts {
        let table = Table { pot: Pot::new(max_bytes), ..Table::default() };
        Parts { table: Mutex::new(table), open: AtomicUsize::new(0) }
    }

    /// Opens a part, with its tail. The part is read afterwards.
    pub fn open(
        self: &Arc<Self>,
        channel: &ChannelName,
        reading: Reading,
        limits: Limits,
        asker: AskerId,
    ) -> HeldPart {
        self.open_in(&mut lock(&self.table), channel, reading, limits, asker)
    }

    fn open_in(
        self: &Arc<Self>,
        table: &mut Table,
        name: &ChannelName,
        reading: Reading,
        limits: Limits,
        asker: AskerId,
    ) -> HeldPart {
        let number = table.next;
        table.next += 1;
        let channel = table.channels.entry(name.clone()).or_default();
        let opened_at = lock(&channel.tail).open(limits);
        let (part, tail) = (OnceLock::new(), Arc::clone(&channel.tail));
        let part = Arc::new(OpenPart { reading, part, tail, opened_at });
        channel.parts.insert(number, Arc::clone(&part));
        self.open.fetch_add(1, Ordering::SeqCst);
        let (parts, channel) = (Arc::clone(self), name.clone());
        let granted = Mutex::new(Granted { charged: 0, is_reserved: false, limits });
        HeldPart(Arc::new(Hold { parts, channel, part, number, asker, granted }))
    }

    /// Opens a part that is to be read for a ticket. Returns it if it is to be read now: otherwise
    /// it is being read for somebody else, and the ticket is answered with theirs.
    pub fn ask(
        self: &Arc<Self>,
        name: &ChannelName,
        reading: Reading,
        limits: Limits,
        asker: AskerId,
        ticket: Ticket<Fetched>,
    ) -> Option<HeldPart> {
        let mut table = lock(&self.table);
        let asked = table.channels.get_mut(name).and_then(|it| it.asked.get_mut(&reading));
        if let Some(asked) = asked
            && asked.hold.strong_count() > 0
        {
            asked.tickets.push(ticket);
            return None;
        }
        let held = self.open_in(&mut table, name, reading, limits, asker);
        let hold = Arc::downgrade(&held.0);
        let channel = table.channels.entry(name.clone()).or_default();
        let before = channel.asked.insert(reading, Asked { hold, tickets: vec![ticket] });
        drop(table);
        // Its tickets report that no answer comes.
        drop(before);
        Some(held)
    }

    /// The part that was read for this, if it is open.
    pub fn find(&self, channel: &ChannelName, reading: Reading) -> Option<Arc<OpenPart>> {
        let table = lock(&self.table);
        let channel = table.channels.get(channel)?;
        let newest = channel.read.get(&reading)?.last()?;
        channel.parts.get(newest).cloned()
    }

    /// Adds a message to the tail of its channel. Call it under the lock of the channel's shard.
    pub fn append(&self, content: &Arc<Content>) {
        if self.open.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut table = lock(&self.table);
        let Table { channels, pot, .. } = &mut *table;
        if let Some(channel) = channels.get(&content.channel) {
            let mut tail = lock(&channel.tail);
            let before = tail.bytes();
            tail.append(content);
            pot.replace(before, tail.bytes());
        }
    }

    /// The number of open parts.
    #[cfg(any(test, feature = "conformance"))]
    pub(crate) fn len(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// The memory of the parts, and counts of refusals.
    pub fn metrics(&self) -> PartsMetrics {
        lock(&self.table).pot.metrics()
    }
}

/// Keeps a part open until all its clones are dropped.
#[derive(Debug, Clone)]
pub struct HeldPart(Arc<Hold>);

#[derive(Debug)]
struct Hold {
    parts: Arc<Parts>,
    channel: ChannelName,
    part: Arc<OpenPart>,
    number: u64,
    asker: AskerId,
    granted: Mutex<Granted>,
}

/// The bytes that a part may take.
#[derive(Debug)]
struct Granted {
    /// The bytes of the pot that it takes.
    charged: usize,
    /// True if these are for what is being read.
    is_reserved: bool,
    /// How much is to be read at most.
    limits: Limits,
}

impl Granted {
    fn give_back(&mut self, pot: &mut Pot, asker: AskerId) {
        let charged = std::mem::take(&mut self.charged);
        if std::mem::take(&mut self.is_reserved) {
            pot.give_back_reserved(asker, charged);
        } else {
            pot.give_back(asker, charged);
        }
    }
}

/// Whether there is room for what is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserved {
    /// There is room, as [`HeldPart::limits`] say.
    Yes,
    /// Others are being read, and it is not known yet what they leave.
    Later,
    /// Others hold it: nothing may be read.
    No,
}

impl HeldPart {
    /// The channel that the part is of.
    pub fn channel(&self) -> &ChannelName {
        &self.0.channel
    }

    /// The reading to make.
    pub fn reading(&self) -> Reading {
        self.0.part.reading
    }

    /// The part, for its readers.
    pub fn open(&self) -> &Arc<OpenPart> {
        &self.0.part
    }

    /// How much is to be read at most: what was granted, or before that what is wanted.
    pub fn limits(&self) -> Limits {
        lock(&self.0.granted).limits
    }

    /// True if somebody still waits for what is to be read.
    pub fn is_wanted(&self) -> bool {
        let table = lock(&self.0.parts.table);
        let asked = table.channels.get(self.channel()).and_then(|it| it.asked.get(&self.reading()));
        asked.is_none_or(|asked| asked.tickets.iter().any(Ticket::is_wanted))
    }

    /// Makes room for what is to be read now, of at most `wanted`, and has [`HeldPart::limits`] say
    /// how much there is: less if the client holds nearly all that it may.
    pub fn reserve(&self, wanted: Limits) -> Reserved {
        let mut granted = lock(&self.0.granted);
        let mut table = lock(&self.0.parts.table);
        granted.give_back(&mut table.pot, self.0.asker);
        let bytes = match table.pot.take(self.0.asker, wanted.bytes) {
            Room::Bytes(bytes) => bytes,
            Room::Unknown => return Reserved::Later,
            Room::Full => return Reserved::No,
        };
        let messages = if bytes == 0 { 0 } else { wanted.messages };
        let limits = Limits { messages, bytes, ..wanted };
        *granted = Granted { charged: bytes, is_reserved: true, limits };
        Reserved::Yes
    }

    /// Gives back what was reserved, before the reading goes on later.
    pub fn give_back(&self) {
        let mut granted = lock(&self.0.granted);
        granted.give_back(&mut lock(&self.0.parts.table).pot, self.0.asker);
    }

    /// Notes what was read.
    pub fn fill(&self, part: Part) {
        let Hold { parts, channel, part: open, number, asker, granted } = &*self.0;
        let bytes = part.bytes();
        let is_first = open.part.set(part).is_ok();
        debug_assert!(is_first, "a part is read once");
        let mut granted = lock(granted);
        let mut table = lock(&parts.table);
        granted.give_back(&mut table.pot, *asker);
        table.pot.charge(*asker, bytes);
        granted.charged = bytes;
        if let Some(channel) = table.channels.get_mut(channel) {
            channel.read.entry(open.reading).or_default().insert(*number);
        }
    }

    /// Notes what was read, and answers all that wait for it.
    pub fn answer(&self, part: Part) {
        self.fill(part);
        let mut table = lock(&self.0.parts.table);
        let channel = table.channels.get_mut(self.channel());
        let asked = channel.and_then(|channel| channel.asked.remove(&self.reading()));
        drop(table);
        for ticket in asked.into_iter().flat_map(|asked| asked.tickets) {
            ticket.answer(Fetched::held_by(self.clone()));
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut granted = lock(&self.granted);
        let mut table = lock(&self.parts.table);
        let Table { channels, pot, .. } = &mut *table;
        granted.give_back(pot, self.asker);
        let Entry::Occupied(mut entry) = channels.entry(self.channel.clone()) else { return };
        let channel = entry.get_mut();
        channel.parts.remove(&self.number);
        if let Entry::Occupied(mut read) = channel.read.entry(self.part.reading) {
            read.get_mut().remove(&self.number);
            if read.get().is_empty() {
                read.remove();
            }
        }
        // Nobody reads it any more. Unless somebody else has begun to.
        let is_own = |asked: &Asked| ptr_is(&asked.hold, self);
        let asked = match channel.asked.entry(self.part.reading) {
            Entry::Occupied(asked) if is_own(asked.get()) => Some(asked.remove()),
            _ => None,
        };
        let mut tail = lock(&channel.tail);
        let before = tail.bytes();
        let oldest = channel.parts.first_key_value().map(|(_, part)| part.opened_at);
        tail.close_before(oldest);
        pot.replace(before, tail.bytes());
        drop(tail);
        if channel.parts.is_empty() {
            entry.remove();
        }
        if channels.is_empty() && channels.capacity() > CHANNELS_KEPT {
            *channels = HashMap::new();
        }
        self.parts.open.fetch_sub(1, Ordering::SeqCst);
        drop(table);
        // Its tickets report that no answer comes.
        drop(asked);
    }
}

fn ptr_is(weak: &Weak<Hold>, hold: &Hold) -> bool {
    std::ptr::eq(weak.as_ptr(), std::ptr::from_ref(hold))
}
