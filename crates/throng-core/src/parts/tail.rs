//! The messages of a channel that were delivered since its oldest open part was opened.
//!
//! Of those with keys only the newest of each key is kept, so that a state is not lost because much
//! is published while it is read.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::entry_count::EntryCount;
use crate::id::MessageId;
use crate::message::Content;
use crate::rules::{Rule, StateLimits};

/// How much is read for a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of messages without keys.
    pub messages: usize,
    /// The maximum size of these messages, in bytes.
    pub bytes: usize,
    /// The limits of the channel's state, which is read beside them.
    pub state: StateLimits,
}

impl Limits {
    /// How far a subscriber of a channel with this rule may lag behind.
    pub fn of_lag(rule: &Rule) -> Limits {
        Limits { messages: rule.max_lag_messages, bytes: rule.max_lag_bytes, state: rule.state }
    }
}

/// The bytes of an entry beside its message.
const ENTRY_BYTES: usize = size_of::<(u64, Arc<Content>)>();

/// The bytes of an entry with a key beside its message and twice the key.
const KEYED_ENTRY_BYTES: usize = 2 * ENTRY_BYTES + size_of::<(Box<str>, u64)>();

#[derive(Debug, Default)]
pub(super) struct Tail {
    /// Messages without keys, by their places.
    plain: VecDeque<(u64, Arc<Content>)>,
    plain_bytes: usize,
    /// How many of them are blanks, as an [`EntryCount`] has them.
    plain_blanks: usize,
    /// The newest message of each key, by its place.
    keyed: BTreeMap<u64, Arc<Content>>,
    /// The places of those, by their keys.
    places: HashMap<Box<str>, u64>,
    keyed_bytes: usize,
    /// The place of the next message.
    next: u64,
    newest: Option<MessageId>,
    /// A part that was opened before this place lacks messages without keys.
    plain_lost: u64,
    /// The same of messages with keys.
    keyed_lost: u64,
    /// The lag that a subscriber may have.
    limits: Option<Limits>,
}

fn keyed_bytes(content: &Content) -> usize {
    content.weight_bytes() + 2 * content.key().map_or(0, str::len) + KEYED_ENTRY_BYTES
}

impl Tail {
    /// The place at which a part is opened now.
    pub(super) fn open(&mut self, limits: Limits) -> u64 {
        self.limits = Some(limits);
        self.next
    }

    pub(super) fn append(&mut self, content: &Arc<Content>) {
        let place = self.next;
        self.next += 1;
        self.newest = Some(content.id);
        match content.key() {
            None => {
                self.plain_bytes += content.weight_bytes();
                self.plain_blanks += usize::from(content.is_blank());
                self.plain.push_back((place, Arc::clone(content)));
            }
            Some(key) => {
                let before = self.places.insert(key.into(), place);
                if let Some(superseded) = before.and_then(|before| self.keyed.remove(&before)) {
                    self.keyed_bytes -= keyed_bytes(&superseded);
                }
                self.keyed_bytes += keyed_bytes(content);
                self.keyed.insert(place, Arc::clone(content));
            }
        }
        let Some(Limits { messages, bytes, state }) = self.limits else { return };
        while self.plain_entries().exceeds(messages) || self.plain_bytes > bytes {
            let Some(lost) = self.drop_plain() else { break };
            self.plain_lost = lost + 1;
        }
        // A value and a tombstone may be there of as many keys as the state may have.
        let messages = messages.saturating_add(state.max_keys.saturating_mul(2));
        let bytes = bytes.saturating_add(state.max_bytes.saturating_mul(2));
        while self.keyed.len() > messages || self.keyed_bytes > bytes {
            let Some(lost) = self.drop_keyed() else { break };
            self.keyed_lost = lost + 1;
        }
    }

    fn plain_entries(&self) -> EntryCount {
        let messages = (self.plain.len() - self.plain_blanks) as u64;
        EntryCount { messages, blanks: self.plain_blanks as u64 }
    }

    /// Drops the oldest message without a key. Returns its place.
    fn drop_plain(&mut self) -> Option<u64> {
        let (place, oldest) = self.plain.pop_front()?;
        self.plain_bytes -= oldest.weight_bytes();
        self.plain_blanks -= usize::from(oldest.is_blank());
        Some(place)
    }

    /// Drops the oldest message with a key. Returns its place.
    fn drop_keyed(&mut self) -> Option<u64> {
        let (place, oldest) = self.keyed.pop_first()?;
        self.keyed_bytes -= keyed_bytes(&oldest);
        self.places.remove(oldest.key().unwrap_or_default());
        Some(place)
    }

    /// Drops what no part needs: the oldest one was opened at this place.
    pub(super) fn close_before(&mut self, oldest: Option<u64>) {
        let is_before = |place: Option<u64>| {
            place.is_some_and(|place| oldest.is_none_or(|oldest| place < oldest))
        };
        while is_before(self.plain.front().map(|(place, _)| *place)) {
            self.drop_plain();
        }
        while is_before(self.keyed.first_key_value().map(|(place, _)| *place)) {
            self.drop_keyed();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.plain_bytes + self.plain.len() * ENTRY_BYTES + self.keyed_bytes
    }

    /// The newest message that was delivered since a place.
    pub(super) fn newest_since(&self, place: u64) -> Option<MessageId> {
        self.newest.filter(|_| self.next > place)
    }

    /// True if more messages without keys were delivered since a place than a subscriber may lag
    /// behind.
    pub(super) fn has_lost_plain(&self, place: u64) -> bool {
        self.plain_lost > place
    }

    /// The same of messages with keys.
    pub(super) fn has_lost_keyed(&self, place: u64) -> bool {
        self.keyed_lost > place
    }

    /// True if it has messages with keys, so that it may lack some that those have superseded.
    pub(super) fn is_sparse(&self) -> bool {
        !self.keyed.is_empty()
    }

    /// The messages since a place that are here, in their order.
    pub(super) fn since(&self, place: u64) -> Vec<Arc<Content>> {
        let skipped = self.plain.partition_point(|(before, _)| *before < place);
        let plain = self.plain.range(skipped..).map(|(place, content)| (*place, content));
        let keyed = self.keyed.range(place..).map(|(place, content)| (*place, content));
        let mut all: Vec<_> = plain.chain(keyed).collect();
        all.sort_unstable_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, content)| Arc::clone(content)).collect()
    }
}
