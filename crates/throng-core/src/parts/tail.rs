//! The messages of a channel that were delivered since its oldest open part was opened.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::message::Content;
use crate::rules::Rule;

/// How much is read for a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of messages.
    pub messages: usize,
    /// The maximum size of the messages, in bytes.
    pub bytes: usize,
}

impl Limits {
    /// How far a subscriber of a channel with this rule may lag behind.
    pub fn of_lag(rule: &Rule) -> Limits {
        Limits { messages: rule.max_lag_messages, bytes: rule.max_lag_bytes }
    }
}

/// The bytes of an entry beside its message.
const ENTRY_BYTES: usize = size_of::<Arc<Content>>();

#[derive(Debug, Default)]
pub(super) struct Tail {
    messages: VecDeque<Arc<Content>>,
    bytes: usize,
    /// How many messages were dropped before those that are here.
    first: u64,
    /// The lag that a subscriber may have.
    limits: Option<Limits>,
}

fn entry_bytes(content: &Content) -> usize {
    content.weight_bytes() + ENTRY_BYTES
}

impl Tail {
    /// The place at which a part is opened now.
    pub(super) fn open(&mut self, limits: Limits) -> u64 {
        self.limits = Some(limits);
        self.first + self.messages.len() as u64
    }

    pub(super) fn append(&mut self, content: &Arc<Content>) {
        self.bytes += entry_bytes(content);
        self.messages.push_back(Arc::clone(content));
        let is_over = |tail: &Tail| {
            let entries = tail.messages.len();
            let bytes = tail.bytes - entries * ENTRY_BYTES;
            tail.limits.is_some_and(|max| entries > max.messages || bytes > max.bytes)
        };
        // The newest one says where a subscription goes on.
        while self.messages.len() > 1 && is_over(self) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(oldest) = self.messages.pop_front() {
            self.bytes -= entry_bytes(&oldest);
            self.first += 1;
        }
    }

    /// Drops what no part needs: the oldest one was opened at this place.
    pub(super) fn close_before(&mut self, oldest: Option<u64>) {
        while !self.messages.is_empty() && oldest.is_none_or(|oldest| self.first < oldest) {
            self.drop_oldest();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn newest(&self) -> Option<&Arc<Content>> {
        self.messages.back()
    }

    /// True if anything was delivered since a place.
    pub(super) fn has_since(&self, place: u64) -> bool {
        self.first + self.messages.len() as u64 > place
    }

    /// True if more was delivered since a place than a subscriber may lag behind.
    pub(super) fn has_lost(&self, place: u64) -> bool {
        let is_too_large = || {
            let limits = self.limits.unwrap_or(Limits { messages: 0, bytes: 0 });
            let bytes = self.messages.iter().map(|message| message.weight_bytes()).sum::<usize>();
            self.messages.len() > limits.messages || bytes > limits.bytes
        };
        // With one message nothing is dropped, however large it is.
        self.first > place || (self.messages.len() == 1 && is_too_large())
    }

    /// The messages since a place that are here.
    pub(super) fn since(&self, place: u64) -> impl Iterator<Item = &Arc<Content>> {
        let skipped = usize::try_from(place.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.messages.iter().skip(skipped)
    }
}
