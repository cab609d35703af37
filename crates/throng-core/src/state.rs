//! The state of a channel: the newest message of each key.
//!
//! A publication with a key takes the place of the earlier one with that key. Its log keeps the
//! newest of each, however old it is and whatever the retention of other messages says, until a
//! tombstone removes the key, or it expires. Superseded messages are kept as others are: for
//! history, and no longer.
//!
//! A subscription is never sent what was superseded before it began. So one that resumes gets the
//! newest value of every key that has changed meanwhile, with tombstones for those that are gone;
//! and it is whole if no other message, and no tombstone, has been dropped since.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::id::MessageId;
use crate::message::Message;
use crate::publication::{Publication, PublishError};
use crate::rules::StateLimits;
use crate::subscriptions::CURSOR_REACH;

/// For how long a tombstone is kept beyond the retention, in milliseconds: a client that was away
/// for longer is told of a gap, and gets the whole state.
pub const TOMBSTONE_MS: u64 = 60 * 60 * 1000;

/// Tombstones that a log keeps beyond its retention, however few keys it may have. Otherwise these
/// are as many as it may have keys.
pub const TOMBSTONES_MIN: usize = 32;

/// The same of a state that forgets soon: half a megabyte with all that belongs to them.
const SOON_TOMBSTONES_MAX: usize = 1_000;

/// For how long such a state keeps them, in milliseconds: longer than a client takes to come back.
const SOON_TOMBSTONE_MS: u64 = 60_000;

/// Keys that a page looks at beyond those that it shows, at most.
pub const KEYS_LOOKED_AT_MAX: usize = 4_096;

/// How far the head of a channel gets beyond a value before that is published again: subscriptions
/// could soon not begin before it.
pub const RENEWED_AFTER: u64 = CURSOR_REACH / 2;

/// Bytes that a key takes in an index, besides its text.
const KEY_BYTES: usize = 64;

/// The bytes that the value of a key counts as.
pub fn value_bytes(key: &str, message_bytes: usize) -> usize {
    message_bytes + key.len() + KEY_BYTES
}

/// The tombstones that a log keeps beyond its retention: how many, and for how long in
/// milliseconds.
pub(crate) fn tombstones(limits: StateLimits) -> (usize, u64) {
    if limits.forgets_soon {
        return (SOON_TOMBSTONES_MAX, SOON_TOMBSTONE_MS);
    }
    (limits.max_keys.max(TOMBSTONES_MIN), TOMBSTONE_MS)
}

/// The value of a key, as limits count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyValue {
    pub bytes: u64,
    /// True if it has not expired.
    pub can_be_read: bool,
}

/// The values of the keys that the messages of one change set or remove, before and after it.
///
/// A change is made as a whole, so limits judge what is there at its end: it may set new keys in
/// the place of others that it removes.
#[derive(Debug)]
pub struct KeyChange<'m> {
    max: StateLimits,
    keys: HashMap<&'m str, [Option<KeyValue>; 2]>,
}

impl<'m> KeyChange<'m> {
    /// The keys of these messages, of a channel with these limits. `value_of` returns the value
    /// that a key has before.
    ///
    /// # Errors
    ///
    /// The channel may have no keys, or a message removes a key that has no value when its turn
    /// comes; or that of `value_of`.
    pub fn of<E>(
        messages: &'m [Publication],
        max: StateLimits,
        mut value_of: impl FnMut(&str) -> Result<Option<KeyValue>, E>,
    ) -> Result<Result<KeyChange<'m>, PublishError>, E> {
        let mut keys = HashMap::<&str, _>::new();
        for message in messages {
            let Some(key) = message.key() else { continue };
            if max.max_keys == 0 {
                return Ok(Err(PublishError::NoState));
            }
            let [_, now] = match keys.entry(key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert([value_of(key)?; 2]),
            };
            if !message.removes_key() {
                let bytes = value_bytes(key, message.weight_bytes()) as u64;
                *now = Some(KeyValue { bytes, can_be_read: true });
            } else if now.take_if(|value| value.can_be_read).is_none() {
                return Ok(Err(PublishError::NoKey));
            }
        }
        Ok(Ok(KeyChange { max, keys }))
    }

    /// Checks that the channel's state, which has so many keys and bytes before, keeps to its
    /// limits, unless it grows in neither. Returns the bytes by which it grows.
    ///
    /// # Errors
    ///
    /// It does not.
    pub fn check(&self, keys: u64, bytes: u64) -> Result<u64, PublishError> {
        let sum = |at: usize, of: fn(&KeyValue) -> u64| -> u64 {
            self.keys.values().filter_map(|both| both[at].as_ref()).map(of).sum()
        };
        let after = |all: u64, of| (all + sum(1, of)).saturating_sub(sum(0, of));
        let (keys_after, bytes_after) = (after(keys, |_| 1), after(bytes, |value| value.bytes));
        let is_over = |after: u64, before, max: usize| after > before && after > max as u64;
        if is_over(keys_after, keys, self.max.max_keys)
            || is_over(bytes_after, bytes, self.max.max_bytes)
        {
            return Err(PublishError::StateFull);
        }
        Ok(bytes_after.saturating_sub(bytes))
    }
}

/// A page of a channel's state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyQuery {
    /// The beginning of the keys.
    pub prefix: Box<str>,
    /// The keys after this one; `None`: from the first one.
    pub after: Option<Box<str>>,
    /// The maximum number of keys.
    pub limit: usize,
    /// True if only the key matters that is the prefix.
    pub is_of_one: bool,
}

impl KeyQuery {
    /// The query for one key.
    pub fn one(key: &str) -> KeyQuery {
        KeyQuery { prefix: key.into(), after: None, limit: 1, is_of_one: true }
    }
}

/// The messages of a page, in the order of their keys.
#[derive(Debug)]
pub struct KeyPage {
    /// The id of the channel's newest message.
    pub head: MessageId,
    pub messages: Vec<Arc<Message>>,
    /// The key after which the next page goes on, if there may be one.
    pub next: Option<Box<str>>,
}

impl KeyPage {
    /// The message that has set this key, which is the prefix of the page.
    pub fn one(&self, key: &str) -> Option<&Arc<Message>> {
        // It comes before all longer ones.
        self.messages.first().filter(|message| message.key() == Some(key))
    }
}
