//! Tokens that were verified lately, so that the same token costs one hash when it comes again.
//!
//! An entry says that the signature held and what the claims were. Everything that can change since
//! is checked at each hit: the time, whether the key is still in the key set, and whether the token
//! is revoked. The latter two are looked up only after the key set or the revocations have changed;
//! an entry remembers for which of their versions it was checked.
//!
//! Only accepted tokens get in, so that clients without a token cannot fill the cache. An entry is
//! found by the SHA-256 of the whole token: with a weaker hash, a client could construct a text
//! that has the hash of another client's token, and get that client's identity.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use ring::digest::{SHA256, digest};

use crate::token::Identity;

/// The most shards. A shard is locked for some 50 ns, so that threads hardly ever meet in one.
const SHARDS_MAX: usize = 64;

/// The least entries that make a shard worth having.
const SHARD_ENTRIES_MIN: usize = 64;

/// The SHA-256 of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TokenHash([u8; 32]);

impl TokenHash {
    pub(crate) fn of(token: &str) -> TokenHash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        TokenHash(hash)
    }

    fn word(&self, at: usize) -> u64 {
        let bytes = &self.0[8 * at..8 * (at + 1)];
        u64::from_le_bytes(bytes.try_into().expect("a slice of eight bytes"))
    }
}

/// The versions of what can make a verified token invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Versions {
    pub keys: u64,
    pub revocations: u64,
}

/// Counters of a cache since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounts {
    /// Tokens that were found and still valid.
    pub hits: u64,
    /// Tokens that were not found, or not valid any more.
    pub misses: u64,
    /// Entries that gave way to newer ones.
    pub evictions: u64,
    pub entries: usize,
}

/// Verified tokens. Bounded; shared by all threads.
#[derive(Debug)]
pub(crate) struct TokenCache {
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug, Default)]
struct Shard {
    /// The slots of the entries, by the first word of the hash.
    index: HashTable<u32>,
    slots: Vec<Slot>,
    max_slots: usize,
    /// The slot where the search for the next victim begins.
    hand: usize,
    counts: CacheCounts,
}

#[derive(Debug)]
struct Slot {
    hash: TokenHash,
    /// `None` if the entry was removed.
    identity: Option<Arc<Identity>>,
    checked: Versions,
    /// Found since the hand went by.
    is_used: bool,
}

const _: () = assert!(size_of::<Slot>() == 64);

impl TokenCache {
    /// A cache of `max_entries` entries, rounded up to a multiple of the number of shards. With 0
    /// nothing is cached.
    pub(crate) fn new(max_entries: usize) -> TokenCache {
        let shards = (max_entries / SHARD_ENTRIES_MIN).clamp(1, SHARDS_MAX);
        let max_slots = max_entries.div_ceil(shards);
        let shard = || Mutex::new(Shard { max_slots, ..Shard::default() });
        TokenCache { shards: std::iter::repeat_with(shard).take(shards).collect() }
    }

    fn shard(&self, hash: &TokenHash) -> MutexGuard<'_, Shard> {
        let at = hash.word(1) % self.shards.len() as u64;
        self.shards[at as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claims of the token with this hash, if it is cached and valid at `now_s`. `is_trusted`
    /// is asked if one of the versions has changed since the entry was checked.
    pub(crate) fn find(
        &self,
        hash: &TokenHash,
        now_s: u64,
        current: Versions,
        is_trusted: impl FnOnce(&Identity) -> bool,
    ) -> Option<Arc<Identity>> {
        self.shard(hash).find(hash, now_s, current, is_trusted)
    }

    /// True if the token with this hash is there, valid or not. Does not count as a look.
    pub(crate) fn contains(&self, hash: &TokenHash) -> bool {
        self.shard(hash).position(hash).is_some()
    }

    /// Remembers what a token says, which held for `checked`.
    pub(crate) fn insert(&self, hash: TokenHash, identity: &Arc<Identity>, checked: Versions) {
        let identity = Some(Arc::clone(identity));
        self.shard(&hash).insert(Slot { hash, identity, checked, is_used: false });
    }

    /// The sums over all shards.
    pub(crate) fn counts(&self) -> CacheCounts {
        let mut sums = CacheCounts::default();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            sums.hits += shard.counts.hits;
            sums.misses += shard.counts.misses;
            sums.evictions += shard.counts.evictions;
            sums.entries += shard.index.len();
        }
        sums
    }
}

impl Shard {
    fn find(
        &mut self,
        hash: &TokenHash,
        now_s: u64,
        current: Versions,
        is_trusted: impl FnOnce(&Identity) -> bool,
    ) -> Option<Arc<Identity>> {
        let Some(at) = self.position(hash) else {
            self.counts.misses += 1;
            return None;
        };
        let slot = &mut self.slots[at];
        let identity = slot.identity.as_ref().expect("the index has occupied slots only");
        // Expiry comes by itself; trust is lost only with a change of the keys or revocations.
        let is_valid =
            identity.is_current(now_s) && (slot.checked == current || is_trusted(identity));
        if !is_valid {
            self.counts.misses += 1;
            self.remove(at);
            return None;
        }
        self.counts.hits += 1;
        slot.checked = current;
        slot.is_used = true;
        slot.identity.clone()
    }

    fn position(&self, hash: &TokenHash) -> Option<usize> {
        let is_same = |&at: &u32| self.slots[at as usize].hash == *hash;
        self.index.find(hash.word(0), is_same).map(|&at| at as usize)
    }

    fn remove(&mut self, at: usize) {
        let word = self.slots[at].hash.word(0);
        if let Ok(found) = self.index.find_entry(word, |&index| index as usize == at) {
            found.remove();
        }
        self.slots[at].identity = None;
        self.slots[at].is_used = false;
    }

    fn insert(&mut self, slot: Slot) {
        if let Some(at) = self.position(&slot.hash) {
            self.slots[at] = slot;
            return;
        }
        if self.max_slots == 0 {
            return;
        }
        let at = if self.slots.len() < self.max_slots {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let at = self.victim();
            self.slots[at] = slot;
            at
        };
        let Shard { index, slots, .. } = self;
        let word = |&at: &u32| slots[at as usize].hash.word(0);
        index.insert_unique(slots[at].hash.word(0), at as u32, word);
    }

    /// Frees a slot that was not used since the hand went by. Ends within two rounds, as the first
    /// clears all marks.
    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[at].is_used) {
                if self.slots[at].identity.is_some() {
                    self.counts.evictions += 1;
                    self.remove(at);
                }
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::keys::Key;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const ONE: Versions = Versions { keys: 1, revocations: 1 };

    fn identity(expires_s: u32) -> Arc<Identity> {
        let key = Key::from_secret(None, Algorithm::Hs256, &[7; 32]).unwrap();
        Arc::new(Identity {
            names: None,
            name_bytes: 0,
            token_id: None,
            grants: Arc::default(),
            key: key.fingerprint(),
            expires_s,
            valid_from_s: 0,
            issued_s: 0,
            is_narrowed: false,
        })
    }

    fn unasked(_: &Identity) -> bool {
        panic!("nothing has changed")
    }

    #[test]
    fn a_token_is_found_until_it_expires() {
        let cache = TokenCache::new(10);
        let hash = TokenHash::of("a.b.c");
        assert!(cache.find(&hash, 1, ONE, unasked).is_none());
        cache.insert(hash, &identity(100), ONE);
        assert!(cache.find(&hash, 99, ONE, unasked).is_some());
        assert!(cache.find(&TokenHash::of("a.b.d"), 99, ONE, unasked).is_none());
        assert!(cache.find(&hash, 100, ONE, unasked).is_none());
        assert!(cache.find(&hash, 99, ONE, unasked).is_none(), "an expired entry is dropped");
        let expected = CacheCounts { hits: 1, misses: 4, evictions: 0, entries: 0 };
        assert_eq!(cache.counts(), expected);
    }

    #[test]
    fn a_change_of_keys_or_revocations_is_looked_up_once() {
        let cache = TokenCache::new(10);
        let hash = TokenHash::of("a.b.c");
        cache.insert(hash, &identity(100), ONE);
        for current in [Versions { keys: 2, ..ONE }, Versions { keys: 2, revocations: 2 }] {
            let mut asked = 0;
            for _ in 0..2 {
                let found = cache.find(&hash, 1, current, |_| {
                    asked += 1;
                    true
                });
                assert!(found.is_some());
            }
            assert_eq!(asked, 1);
        }
        assert!(cache.find(&hash, 1, Versions { keys: 3, revocations: 2 }, |_| false).is_none());
        assert_eq!(cache.counts().entries, 0, "what is not trusted is dropped");
    }

    #[test]
    fn a_cache_of_nothing_remembers_nothing() {
        let cache = TokenCache::new(0);
        let hash = TokenHash::of("a.b.c");
        cache.insert(hash, &identity(100), ONE);
        assert!(cache.find(&hash, 1, ONE, unasked).is_none());
    }

    #[test]
    fn what_is_used_outlives_what_is_not() {
        let cache = TokenCache::new(50);
        let used = TokenHash::of("used");
        cache.insert(used, &identity(100), ONE);
        for number in 0..1000 {
            cache.insert(TokenHash::of(&number.to_string()), &identity(100), ONE);
            assert!(cache.find(&used, 1, ONE, unasked).is_some(), "after {number}");
        }
        let counts = cache.counts();
        assert_eq!((counts.entries, counts.evictions), (50, 951));
    }

    proptest! {
        /// Against a map: whatever is found is what was inserted last, and the limit holds.
        #[test]
        fn finds_what_was_inserted(
            steps in prop::collection::vec((any::<bool>(), 0..40_u32, 1..50_u32), 0..300),
            max_entries in 1..20_usize,
        ) {
            let cache = TokenCache::new(max_entries);
            let mut inserted = HashMap::new();
            for (inserts, token, expires_s) in steps {
                let hash = TokenHash::of(&token.to_string());
                if inserts {
                    cache.insert(hash, &identity(expires_s), ONE);
                    inserted.insert(token, expires_s);
                    prop_assert!(cache.find(&hash, 0, ONE, unasked).is_some());
                } else if let Some(found) = cache.find(&hash, 25, ONE, unasked) {
                    prop_assert!(found.expires_s() > 25);
                    prop_assert_eq!(Some(&found.expires_s()), inserted.get(&token));
                }
                prop_assert!(cache.counts().entries <= max_entries);
            }
        }
    }
}
