//! The retained messages of one channel.
//!
//! Invariant: offsets grow, and each message's `previous` is the offset of the one before it, in
//! the log or dropped from it. `floor`, the offset of the newest message that was dropped, tells
//! whether a reader that stands at an offset can be made whole.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::message::Message;
use crate::rules::Retention;

/// The tail of a channel's log.
#[derive(Debug, Default)]
pub struct Log {
    messages: VecDeque<Arc<Message>>,
    bytes: usize,
}

impl Log {
    /// Adds the newest message. Returns the growth in bytes.
    pub fn append(&mut self, message: Arc<Message>) -> usize {
        let bytes = message.weight_bytes();
        debug_assert!(self.messages.back().is_none_or(|last| last.id.offset == message.previous));
        self.bytes += bytes;
        self.messages.push_back(message);
        bytes
    }

    /// Drops what `retention` does not cover at `now_ms`. Returns the bytes given back.
    pub fn trim(&mut self, retention: &Retention, now_ms: u64) -> usize {
        let before = self.bytes;
        while let Some(first) = self.messages.front() {
            let is_over = self.messages.len() > retention.messages_max
                || self.bytes > retention.bytes_max
                || first.time_ms.saturating_add(retention.age_ms_max) <= now_ms;
            if !is_over {
                break;
            }
            self.bytes -= first.weight_bytes();
            self.messages.pop_front();
        }
        if self.messages.capacity() > 32 && self.messages.len() * 4 < self.messages.capacity() {
            self.messages.shrink_to(self.messages.len() * 2);
        }
        before - self.bytes
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// How many messages are kept.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Bytes kept, by `Message::weight_bytes`.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The offset of the newest message that is no longer there; `None` if the log is empty.
    pub fn floor(&self) -> Option<u64> {
        self.messages.front().map(|first| first.previous)
    }

    /// The kept messages after `offset`, oldest first.
    pub fn after(
        &self,
        offset: u64,
    ) -> impl DoubleEndedIterator<Item = &Arc<Message>> + ExactSizeIterator {
        let from = self.messages.partition_point(|message| message.id.offset <= offset);
        self.messages.range(from..)
    }

    /// The kept messages before `offset`, oldest first.
    pub fn before(
        &self,
        offset: u64,
    ) -> impl DoubleEndedIterator<Item = &Arc<Message>> + ExactSizeIterator {
        let to = self.messages.partition_point(|message| message.id.offset < offset);
        self.messages.range(..to)
    }
}
