//! Idempotency keys that nodes have published with: this one, and others as far as they have said
//! so.
//!
//! The stream knows the keys of the last five minutes on all nodes. But when its servers are
//! restarted, they learn them again from the messages that are still stored: the key of a message
//! that its channel has dropped since is forgotten. Nodes still know it.

use std::collections::VecDeque;

use hashbrown::HashMap;
use throng_core::IDEMPOTENCY_MS;

use super::super::report::StoredKeys;

/// Keys that are remembered, at most: some 60 MB, for a million keys in five minutes. Beyond it the
/// oldest are forgotten, which the stream knows still, unless its servers are restarted.
const KEYS_MAX: usize = 1 << 20;

/// Identifies a key, with its channel and its publisher.
pub(super) type KeyId = [u8; 16];

#[derive(Debug, Default)]
pub(super) struct KnownKeys {
    /// The sequence of the message, and when it was stored.
    by_id: HashMap<KeyId, (u64, u64), foldhash::fast::RandomState>,
    /// The same keys, in the order in which they were added.
    oldest: VecDeque<(u64, KeyId)>,
    /// The epoch of their sequences; `None` before the first one.
    epoch: Option<u64>,
    /// True once the stream has said so.
    is_certain: bool,
}

impl KnownKeys {
    /// The sequence of the message that was published with this key.
    pub(super) fn find(&self, now_ms: u64, id: &KeyId) -> Option<u64> {
        let (sequence, stored_ms) = self.by_id.get(id)?;
        (now_ms.saturating_sub(*stored_ms) < IDEMPOTENCY_MS).then_some(*sequence)
    }

    /// A message with this key is stored; or was, if the key is known already.
    pub(super) fn add(&mut self, now_ms: u64, id: KeyId, sequence: u64) {
        if self.find(now_ms, &id).is_some() {
            return;
        }
        self.by_id.insert(id, (sequence, now_ms));
        self.oldest.push_back((now_ms, id));
        if self.oldest.len() > KEYS_MAX {
            self.forget_oldest();
        }
    }

    /// Other nodes have published with these keys. Keys of another epoch than the stream's do not
    /// count.
    pub(super) fn hear(&mut self, keys: &StoredKeys) {
        if self.epoch != Some(keys.epoch) {
            if self.is_certain {
                return;
            }
            self.begin(keys.epoch);
            self.is_certain = false;
        }
        keys.keys.iter().for_each(|key| self.add(keys.stored_ms, key.id, key.sequence));
    }

    /// An epoch begins, or is known now: keys of another one name nothing.
    pub(super) fn begin(&mut self, epoch: u64) {
        if self.epoch != Some(epoch) {
            *self = KnownKeys { epoch: Some(epoch), ..KnownKeys::default() };
        }
        self.is_certain = true;
    }

    /// Forgets keys whose time is over.
    pub(super) fn tick(&mut self, now_ms: u64) {
        while let Some((stored_ms, _)) = self.oldest.front()
            && now_ms.saturating_sub(*stored_ms) >= IDEMPOTENCY_MS
        {
            self.forget_oldest();
        }
        if self.oldest.is_empty() && self.oldest.capacity() > 0 {
            // Their memory is given back.
            (self.by_id, self.oldest) = (HashMap::default(), VecDeque::new());
        }
    }

    fn forget_oldest(&mut self) {
        let Some((added_ms, id)) = self.oldest.pop_front() else { return };
        // It may have been published with anew since.
        if self.by_id.get(&id).is_some_and(|(_, stored_ms)| *stored_ms == added_ms) {
            self.by_id.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::report::KnownKey;
    use super::*;

    fn id(number: u32) -> KeyId {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_le_bytes());
        id
    }

    #[test]
    fn a_key_is_known_for_five_minutes_from_its_first_message_on() {
        let mut keys = KnownKeys::default();
        keys.add(1_000, id(1), 7);
        keys.add(2_000, id(1), 9);
        assert_eq!(keys.find(1_000 + IDEMPOTENCY_MS - 1, &id(1)), Some(7));
        assert_eq!(keys.find(1_000 + IDEMPOTENCY_MS, &id(1)), None);
        // Before the old one was dropped, it begins anew.
        keys.add(1_000 + IDEMPOTENCY_MS, id(1), 11);
        keys.tick(1_000 + IDEMPOTENCY_MS);
        assert_eq!(keys.find(2_000 + IDEMPOTENCY_MS, &id(1)), Some(11));
        keys.tick(2_000 + 2 * IDEMPOTENCY_MS);
        assert!(keys.by_id.is_empty() && keys.oldest.capacity() == 0);
    }

    #[test]
    fn the_oldest_of_too_many_are_forgotten() {
        let mut keys = KnownKeys::default();
        for number in 0..=KEYS_MAX as u32 {
            keys.add(1, id(number), 7);
        }
        assert_eq!((keys.find(1, &id(0)), keys.find(1, &id(1))), (None, Some(7)));
        assert_eq!(keys.by_id.len(), KEYS_MAX);
    }

    #[test]
    fn keys_of_other_nodes_count_in_their_epoch() {
        let heard = |epoch, number| StoredKeys {
            epoch,
            stored_ms: 1_000,
            keys: vec![KnownKey { id: id(number), sequence: 7 }],
        };
        let mut keys = KnownKeys::default();
        keys.hear(&heard(5, 1));
        keys.begin(5);
        assert_eq!(keys.find(2_000, &id(1)), Some(7), "it was heard before the stream was open");
        keys.hear(&heard(6, 2));
        keys.hear(&heard(5, 3));
        assert_eq!((keys.find(2_000, &id(2)), keys.find(2_000, &id(3))), (None, Some(7)));
        assert_eq!(keys.find(1_000 + IDEMPOTENCY_MS, &id(3)), None);
        keys.begin(6);
        assert_eq!(keys.find(2_000, &id(1)), None);
        let mut early = KnownKeys::default();
        early.hear(&heard(5, 1));
        early.hear(&heard(6, 2));
        assert_eq!((early.find(2_000, &id(1)), early.find(2_000, &id(2))), (None, Some(7)));
    }
}
