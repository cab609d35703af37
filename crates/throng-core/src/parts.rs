//! Parts of logs that were read from a journal, and wait for who has asked for them.
//!
//! Between the reading of a part and the subscription that starts with it, messages may be
//! delivered. Each open part has a **tail** for those, from before it is read. So what is
//! acknowledged before the tail is there is in the part, and what is delivered after that is in the
//! tail.
//!
//! Locks are taken in this order: a shard's, the table, a tail.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::id::MessageId;
use crate::memory::Backlog;
use crate::message::{Content, Message};
use crate::name::ChannelName;
use crate::reading::{Reading, StartAt};

/// Bytes of all open parts. Beyond it nothing is read until some of them are closed.
const OPEN_BYTES_MAX: usize = 256 << 20;

/// An empty table with room for more than these channels is given back.
const CHANNELS_KEPT: usize = 1_024;

/// What a subscription starts with.
#[derive(Debug, Clone)]
pub struct Start {
    /// The id of the newest message.
    pub head: MessageId,
    /// The offset after which the subscription starts.
    pub cursor: u64,
    /// Whether all messages after its position are here; `None` if it has none.
    pub is_recovered: Option<bool>,
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
    /// Whether there are more in the direction of the query.
    pub has_more: bool,
    /// As in [`History::is_recovered`](crate::History::is_recovered).
    pub is_recovered: Option<bool>,
}

/// How much is read for a subscription.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The maximum number of messages.
    pub messages: usize,
    /// The maximum size of the messages, in bytes.
    pub bytes: usize,
}

/// What was read.
#[derive(Debug)]
pub enum Part {
    /// For a subscription.
    Start(Start),
    /// For a page of history.
    Page(Page),
}

impl Part {
    fn bytes(&self) -> usize {
        let (Part::Start(Start { messages, .. }) | Part::Page(Page { messages, .. })) = self;
        messages.iter().map(|message| message.weight_bytes()).sum()
    }
}

/// Messages that were delivered since the tail was opened.
#[derive(Debug, Default)]
struct Tail {
    messages: Vec<Arc<Content>>,
    bytes: usize,
    /// There were more than a subscriber may lag behind.
    is_over: bool,
}

/// A part of a channel's log, for one that asked.
#[derive(Debug)]
pub struct OpenPart {
    reading: Reading,
    limits: Limits,
    part: OnceLock<Part>,
    tail: Mutex<Tail>,
}

impl OpenPart {
    /// What was read, once it was.
    pub fn part(&self) -> Option<&Part> {
        self.part.get()
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, content: &Arc<Content>) {
        let mut tail = self.tail();
        if tail.is_over {
            return;
        }
        tail.bytes += content.weight_bytes();
        tail.messages.push(Arc::clone(content));
        if tail.messages.len() > self.limits.messages || tail.bytes > self.limits.bytes {
            *tail = Tail { is_over: true, ..Tail::default() };
            // Where the subscription goes on.
            tail.messages.push(Arc::clone(content));
        }
    }

    /// What a subscription starts with now, of a log whose offsets are consecutive or not. Call it
    /// under the lock of the channel's shard.
    pub fn backlog(&self, start: &Start, are_offsets_consecutive: bool) -> Backlog {
        let Start { head, cursor, is_recovered, messages } = start.clone();
        let tail = self.tail();
        let mut all = messages;
        all.extend(tail.messages.iter().filter(|late| late.id.offset > head.offset).cloned());
        let head = all
            .last()
            .map_or(head, |last| if last.id.offset > head.offset { last.id } else { head });
        if let Reading::Start(StartAt::Live) = self.reading {
            // With the next message, whatever has come since it was read.
            return Backlog {
                head,
                cursor: head.offset,
                are_offsets_consecutive,
                is_recovered,
                messages: Vec::new(),
            };
        }
        if tail.is_over {
            let is_recovered = is_recovered.map(|_| false);
            return Backlog {
                head,
                cursor: head.offset,
                are_offsets_consecutive,
                is_recovered,
                messages: Vec::new(),
            };
        }
        let messages = all.into_iter().map(|content| Arc::new(Message::from(content))).collect();
        Backlog { head, cursor, are_offsets_consecutive, is_recovered, messages }
    }
}

/// The open parts of all channels.
#[derive(Debug, Default)]
pub struct Parts {
    table: Mutex<HashMap<ChannelName, Vec<Arc<OpenPart>>>>,
    /// The number of open parts, readable without the lock.
    open: AtomicUsize,
    bytes: AtomicUsize,
}

impl Parts {
    fn table(&self) -> MutexGuard<'_, HashMap<ChannelName, Vec<Arc<OpenPart>>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a part, with its tail. What it holds is read afterwards.
    pub fn open(
        self: &Arc<Self>,
        channel: &ChannelName,
        reading: Reading,
        limits: Limits,
    ) -> HeldPart {
        let (part, tail) = (OnceLock::new(), Mutex::default());
        let part = Arc::new(OpenPart { reading, limits, part, tail });
        let mut table = self.table();
        // Most channels have one. The first push would make room for four.
        let parts = table.entry(channel.clone()).or_insert_with(|| Vec::with_capacity(1));
        parts.push(Arc::clone(&part));
        self.open.fetch_add(1, Ordering::SeqCst);
        drop(table);
        HeldPart { parts: Arc::clone(self), channel: channel.clone(), part }
    }

    /// The part that was read for this, if it is open.
    pub fn find(&self, channel: &ChannelName, reading: Reading) -> Option<Arc<OpenPart>> {
        let table = self.table();
        let is_wanted = |part: &&Arc<OpenPart>| part.reading == reading && part.part().is_some();
        table.get(channel)?.iter().rfind(is_wanted).cloned()
    }

    /// Adds a message to the tails of its channel. Call it under the lock of the channel's shard.
    pub fn append(&self, content: &Arc<Content>) {
        if self.open.load(Ordering::SeqCst) == 0 {
            return;
        }
        let table = self.table();
        table.get(&content.channel).into_iter().flatten().for_each(|part| part.append(content));
    }

    /// Whether no more may be read for now.
    pub fn are_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > OPEN_BYTES_MAX
    }
}

/// Keeps a part open until it is dropped.
#[derive(Debug)]
pub struct HeldPart {
    parts: Arc<Parts>,
    channel: ChannelName,
    part: Arc<OpenPart>,
}

impl HeldPart {
    /// The channel that the part is of.
    pub fn channel(&self) -> &ChannelName {
        &self.channel
    }

    /// What is to be read.
    pub fn reading(&self) -> Reading {
        self.part.reading
    }

    /// How much is to be read.
    pub fn limits(&self) -> Limits {
        self.part.limits
    }

    /// Notes what was read.
    pub fn fill(&self, part: Part) -> &Arc<OpenPart> {
        self.parts.bytes.fetch_add(part.bytes(), Ordering::Relaxed);
        let is_first = self.part.part.set(part).is_ok();
        debug_assert!(is_first, "a part is read once");
        &self.part
    }
}

impl Drop for HeldPart {
    fn drop(&mut self) {
        let bytes = self.part.part().map_or(0, Part::bytes);
        self.parts.bytes.fetch_sub(bytes, Ordering::Relaxed);
        let mut table = self.parts.table();
        if let Some(parts) = table.get_mut(&self.channel) {
            parts.retain(|part| !Arc::ptr_eq(part, &self.part));
            if parts.is_empty() {
                table.remove(&self.channel);
            }
        }
        if table.is_empty() && table.capacity() > CHANNELS_KEPT {
            *table = HashMap::new();
        }
        self.parts.open.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_parts_leave_no_memory_once_they_are_closed() {
        let parts = Arc::<Parts>::default();
        let limits = Limits { messages: 1, bytes: 1 };
        let open = |number: usize| {
            let channel = ChannelName::channel(&number.to_string());
            parts.open(&channel, Reading::Start(StartAt::Live), limits)
        };
        let held: Vec<_> = (0..4 * CHANNELS_KEPT).map(open).collect();
        assert!(parts.table().capacity() >= held.len());
        drop(held);
        assert!(parts.table().is_empty() && parts.table().capacity() <= CHANNELS_KEPT);
    }
}
