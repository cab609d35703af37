//! The messages of one channel that some subscription still lacks, and the fan-out pass that offers
//! them.

use std::collections::vec_deque::Iter;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::runs::Runs;
use super::subscription::SubscriptionId;
use crate::attributes::Erasure;
use crate::entry_count::EntryCount;
use crate::message::Message;

/// A fan-out pass: it goes around a channel's circular list until it has visited every subscription
/// since the last append.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// The next subscription to visit; `None` means the list's first.
    pub(super) next: Option<SubscriptionId>,
    /// Visits until every subscription has been visited since the last append.
    pub(super) visits_left: u32,
    /// The channel's head when the pass last visited the list's first subscription. When it comes
    /// there again, all have been offered the messages up to here.
    pub(super) wrap_head: u64,
    /// True if the channel is in the table's queue of passes.
    pub(super) is_queued: bool,
}

/// State of a channel while some subscription lacks a message.
///
/// Invariant: `messages` is the log from `floor` (exclusive) to the channel's head (inclusive),
/// without a hole but for messages that later ones have superseded.
#[derive(Debug, Default)]
pub(super) struct ReplayBuffer {
    messages: VecDeque<Arc<Message>>,
    bytes: usize,
    /// How many of the messages are blanks, as an [`EntryCount`] has them.
    blanks: usize,
    /// The offset of the newest message that is no longer here. A cursor below it has a gap.
    floor: u64,
    /// The offset of the newest message with a key that was dropped. A subscription that begins
    /// with the state and has not got that far lacks it. A backlog lowers it, like `floor`.
    keyed_floor: u64,
    /// All subscriptions that are not blocked have been offered the messages up to this offset.
    offered: u64,
    /// Bytes of the messages after `offered`.
    pending_bytes: usize,
    /// The encodings of messages up to this offset are dropped.
    unencoded_to: u64,
    /// Messages may lack up to this offset that later ones have superseded; 0: none does.
    sparse_to: u64,
    /// True if some message has had a key.
    has_keys: bool,
    /// The messages with keys that have come since those that they supersede were dropped.
    new_keys: usize,
    /// The messages up to this offset are reported as complete, or were never in flight. A message
    /// that is offered again does not complete again.
    completed: u64,
    /// Subscriptions that are held. While there are any, `offered` stays.
    pub(super) held: u32,
    /// The head before the first message that the channel's pace holds back; `None` if it holds
    /// none.
    pub(super) held_back_from: Option<u64>,
    /// True if the table's list of buffers with blocked bytes has this one.
    pub(super) is_listed: bool,
    pub(super) pass: Pass,
    pub(super) runs: Runs,
}

impl ReplayBuffer {
    /// An empty buffer of a channel whose newest message has the offset `head`.
    pub(super) fn new(head: u64) -> ReplayBuffer {
        ReplayBuffer {
            floor: head,
            offered: head,
            completed: head,
            pass: Pass { wrap_head: head, ..Pass::default() },
            ..ReplayBuffer::default()
        }
    }

    /// The buffer of a channel that is being thawed, without its messages. Everything in it counts
    /// as offered until a subscription that lacks some of it is thawed.
    pub(super) fn thawed(floor: u64, head: u64, is_sparse: bool) -> ReplayBuffer {
        let sparse_to = if is_sparse { head } else { 0 };
        ReplayBuffer { floor, sparse_to, has_keys: is_sparse, ..ReplayBuffer::new(head) }
    }

    /// Adds the next message of a buffer that is being thawed. Returns its bytes.
    pub(super) fn thaw_message(&mut self, message: Arc<Message>) -> usize {
        debug_assert!(message.id.offset <= self.offered);
        let bytes = self.count(&message);
        self.note_key(&message);
        self.messages.push_back(message);
        bytes
    }

    /// Counts a message that is added. Returns its bytes.
    fn count(&mut self, message: &Message) -> usize {
        let bytes = message.weight_bytes();
        self.bytes += bytes;
        self.blanks += usize::from(message.is_blank());
        bytes
    }

    /// The same of one that is dropped.
    fn uncount(&mut self, message: &Message) -> usize {
        let bytes = message.weight_bytes();
        self.bytes -= bytes;
        self.blanks -= usize::from(message.is_blank());
        bytes
    }

    pub(super) fn messages(&self) -> &VecDeque<Arc<Message>> {
        &self.messages
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn entries(&self) -> EntryCount {
        let messages = (self.messages.len() - self.blanks) as u64;
        EntryCount { messages, blanks: self.blanks as u64 }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    pub(super) fn keyed_floor(&self) -> u64 {
        self.keyed_floor
    }

    pub(super) fn offered(&self) -> u64 {
        self.offered
    }

    pub(super) fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Bytes of the messages that are here for blocked subscriptions only: all others have been
    /// offered them.
    pub(super) fn blocked_bytes(&self) -> usize {
        self.bytes - self.pending_bytes
    }

    /// The time of the oldest message that is here for blocked subscriptions only.
    pub(super) fn oldest_blocked_ms(&self) -> Option<u64> {
        let first = self.messages.front().filter(|first| first.id.offset <= self.offered)?;
        Some(first.time_ms)
    }

    /// Adds the newest message. Returns its bytes.
    pub(super) fn push_back(&mut self, message: &Arc<Message>) -> usize {
        let bytes = self.count(message);
        self.note_key(message);
        self.messages.push_back(Arc::clone(message));
        self.pending_bytes += bytes;
        bytes
    }

    fn note_key(&mut self, message: &Message) {
        if message.key().is_some() {
            self.has_keys = true;
            self.new_keys += 1;
        }
    }

    /// True if some of the messages have keys.
    pub(super) fn has_keys(&self) -> bool {
        self.has_keys
    }

    /// True if messages may lack that later ones have superseded.
    pub(super) fn is_sparse(&self) -> bool {
        self.sparse_to > 0
    }

    /// Messages may lack up to this offset.
    pub(super) fn note_sparse(&mut self, offset: u64) {
        self.sparse_to = self.sparse_to.max(offset);
        self.has_keys = true;
    }

    /// True if the message at this offset, which is beyond the floor, is here.
    pub(super) fn has(&self, offset: u64) -> bool {
        !self.is_sparse()
            || self
                .messages
                .get(self.index_after(offset - 1))
                .is_some_and(|message| message.id.offset == offset)
    }

    /// How many messages lack between two offsets because later ones have superseded them; `None`
    /// if there are some whose number is not known, because offsets are not `consecutive`.
    pub(super) fn superseded_between(
        &self,
        (from, to): (u64, u64),
        are_consecutive: bool,
    ) -> Option<u64> {
        if from >= self.sparse_to {
            return Some(0);
        }
        if are_consecutive {
            let here = self.index_after(to) - self.index_after(from);
            return Some((to - from).saturating_sub(here as u64));
        }
        let here = self.after(from).take_while(|message| message.id.offset <= to);
        let is_whole = here.fold((true, from), |(is_whole, last), message| {
            (is_whole && message.previous <= last, message.id.offset)
        });
        is_whole.0.then_some(0)
    }

    /// Drops messages that all were offered and later ones have superseded, if there may be many.
    /// Returns their bytes.
    ///
    /// Subscriptions that are blocked pass over them. At most an eighth of the messages are
    /// superseded afterwards, so that each one costs a few visits.
    pub(super) fn drop_superseded(&mut self) -> usize {
        if self.new_keys == 0 || self.new_keys * 8 < self.messages.len() {
            return 0;
        }
        self.new_keys = 0;
        self.runs.clear();
        let ReplayBuffer { messages, offered, sparse_to, .. } = self;
        let (mut keys, mut bytes) = (HashSet::with_capacity(messages.len()), 0);
        let is_superseded = |message: &Arc<Message>| {
            let is_newer = message.key().is_some_and(|key| !keys.insert(key.to_owned()));
            is_newer && message.id.offset <= *offered
        };
        let gone: Vec<bool> = messages.iter().rev().map(is_superseded).collect();
        let mut gone = gone.into_iter().rev();
        messages.retain(|message| {
            let is_gone = gone.next().unwrap_or(false);
            if is_gone {
                bytes += message.weight_bytes();
                *sparse_to = (*sparse_to).max(message.id.offset);
            }
            !is_gone
        });
        self.bytes -= bytes;
        self.is_listed &= self.blocked_bytes() > 0;
        bytes
    }

    /// Adds a message before the oldest, as one that was offered. The log goes on after `floor`.
    /// Returns its bytes.
    pub(super) fn push_front(&mut self, message: Arc<Message>, floor: u64) -> usize {
        let bytes = self.count(&message);
        self.has_keys |= message.key().is_some();
        self.messages.push_front(message);
        self.floor = floor;
        self.lower_floor(floor);
        bytes
    }

    /// Adds a message between others, or in the place of its placeholder, unless it is here.
    /// Returns its bytes, and how many of them are pending.
    pub(super) fn insert(&mut self, message: &Arc<Message>) -> (usize, usize) {
        let offset = message.id.offset;
        let at = self.index_after(offset - 1);
        let here = self.messages.get(at).filter(|here| here.id.offset == offset);
        let is_placeholder = here.is_some_and(|here| here.is_without_body());
        if offset <= self.floor || here.is_some() && (!is_placeholder || message.is_without_body())
        {
            return (0, 0);
        }
        self.runs.clear();
        let (is_offered, before) = (offset <= self.offered, self.bytes);
        if is_placeholder && let Some(placeholder) = self.messages.remove(at) {
            self.uncount(&placeholder);
        }
        self.count(message);
        self.messages.insert(at, Arc::new(message.unencoded()));
        let bytes = self.bytes - before;
        let pending_bytes = if is_offered { 0 } else { bytes };
        self.pending_bytes += pending_bytes;
        (bytes, pending_bytes)
    }

    /// Leaves placeholders of the messages that a notice is about, which subscriptions pass over. A
    /// connection that was written part of one keeps it. Returns how many bytes that saves, and how
    /// many of them were pending.
    pub(super) fn erase(&mut self, Erasure { first, last }: Erasure) -> (usize, usize) {
        self.runs.clear();
        let before = (self.bytes, self.pending_bytes);
        let from = self.index_after(first.saturating_sub(1));
        for message in self.messages.range_mut(from..) {
            let offset = message.id.offset;
            if offset > last {
                break;
            }
            let rest = Arc::new(Message::from(Arc::new(message.without_body())));
            let bytes = message.weight_bytes().saturating_sub(rest.weight_bytes());
            self.bytes -= bytes;
            self.blanks += usize::from(!message.is_blank());
            if offset > self.offered {
                self.pending_bytes -= bytes;
            }
            *message = rest;
        }
        (before.0 - self.bytes, before.1 - self.pending_bytes)
    }

    /// Nothing lacks between this offset and the oldest message but what was superseded.
    pub(super) fn lower_floor(&mut self, floor: u64) {
        self.floor = self.floor.min(floor);
        self.keyed_floor = self.keyed_floor.min(floor);
    }

    /// Drops the oldest message. Returns its bytes.
    pub(super) fn pop_front(&mut self) -> usize {
        let first = self.messages.pop_front();
        debug_assert!(first.is_some(), "an empty buffer is within every limit");
        let Some(first) = first else { return 0 };
        let bytes = self.uncount(&first);
        self.floor = first.id.offset;
        if first.key().is_some() {
            self.keyed_floor = self.floor;
        }
        self.is_listed &= self.blocked_bytes() > 0;
        bytes
    }

    /// Drops the messages up to `floor`, which may stand between two messages or after the last.
    /// Returns how many bytes these are, and how many of them were pending.
    pub(super) fn raise_floor(&mut self, floor: u64) -> (usize, usize) {
        let before = (self.bytes, self.pending_bytes);
        while let Some(first) = self.messages.pop_front_if(|first| first.id.offset <= floor) {
            let bytes = self.uncount(&first);
            if first.id.offset > self.offered {
                self.pending_bytes -= bytes;
            }
        }
        (self.floor, self.keyed_floor) = (floor, floor);
        self.offered = self.offered.max(floor);
        self.is_listed &= self.blocked_bytes() > 0;
        (before.0 - self.bytes, before.1 - self.pending_bytes)
    }

    /// Records that the messages up to `offset` are complete. Appends to `completions` when the
    /// engine accepted those for which this worker is the last.
    pub(super) fn complete(&mut self, offset: u64, completions: &mut Vec<u64>) {
        if offset <= self.completed {
            return;
        }
        let news = self.messages.range(self.index_after(self.completed)..);
        let news = news.take_while(|message| message.id.offset <= offset);
        completions.extend(news.filter_map(|message| message.in_flight()?.complete()));
        self.completed = offset;
    }

    /// Records that the messages up to `offset` were offered to all. Returns how many bytes are
    /// pending no more.
    pub(super) fn mark_offered(&mut self, offset: u64, completions: &mut Vec<u64>) -> usize {
        self.complete(offset, completions);
        if offset <= self.offered {
            return 0;
        }
        let news = self.messages.range(self.index_after(self.offered)..);
        let news = news.take_while(|message| message.id.offset <= offset);
        let bytes = news.map(|message| message.weight_bytes()).sum();
        self.offered = offset;
        self.pending_bytes -= bytes;
        bytes
    }

    /// Records that the messages after `offset` have to be offered again. Returns how many bytes
    /// are pending again.
    pub(super) fn offer_again(&mut self, offset: u64) -> usize {
        let offset = offset.max(self.floor);
        self.pass.wrap_head = self.pass.wrap_head.min(offset);
        if offset >= self.offered {
            return 0;
        }
        self.unencoded_to = self.unencoded_to.min(offset);
        let again = self.messages.range(self.index_after(offset)..);
        let again = again.take_while(|message| message.id.offset <= self.offered);
        let bytes = again.map(|message| message.weight_bytes()).sum();
        self.offered = offset;
        self.pending_bytes += bytes;
        self.is_listed &= self.blocked_bytes() > 0;
        bytes
    }

    /// Drops the encodings of all offered messages: their fan-out is over, and few subscriptions
    /// are blocked.
    pub(super) fn drop_encodings(&mut self) {
        if self.unencoded_to >= self.offered {
            return;
        }
        let (from, to) = (self.index_after(self.unencoded_to), self.index_after(self.offered));
        for message in self.messages.range_mut(from..to) {
            drop_encodings_of(message);
        }
        self.unencoded_to = self.offered;
    }

    /// Drops the encodings of the offered messages after `from` up to `to`, and of those behind
    /// them that were encoded in the same write.
    pub(super) fn drop_encodings_between(&mut self, from: u64, to: u64) {
        let first = self.index_after(from);
        for message in self.messages.range_mut(first..) {
            let offset = message.id.offset;
            if offset > self.offered || (offset > to && !message.is_encoded()) {
                break;
            }
            drop_encodings_of(message);
        }
    }

    /// The messages after `cursor`, oldest first.
    pub(super) fn after(&self, cursor: u64) -> Iter<'_, Arc<Message>> {
        self.messages.range(self.index_after(cursor)..)
    }

    /// The index of the first message after `cursor`.
    fn index_after(&self, cursor: u64) -> usize {
        // No message is kept.
        let (Some(first), Some(last)) = (self.messages.front(), self.messages.back()) else {
            return 0;
        };
        // Most subscriptions lack the newest message only.
        if last.previous <= cursor {
            return self.messages.len() - usize::from(last.id.offset > cursor);
        }
        if cursor < first.id.offset {
            return 0;
        }
        let guess = (cursor - first.id.offset) as usize;
        // The guess is right if offsets are consecutive. Otherwise a search finds the index.
        match self.messages.get(guess) {
            Some(message) if message.id.offset == cursor => guess + 1,
            _ => self.messages.partition_point(|message| message.id.offset <= cursor),
        }
    }
}

/// Replaces an encoded message by one with the same content.
fn drop_encodings_of(message: &mut Arc<Message>) {
    if message.is_encoded() {
        *message = Arc::new(message.unencoded());
    }
}
