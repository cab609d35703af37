//! The grants of one worker's connections, each kept once.
//!
//! A connection keeps a [`GrantsId`]. Each worker has a table of its own, so that neither a look-up
//! nor a release takes a lock.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use throng_core::slab::Slab;

use super::Grants;

/// The place of grants in a [`GrantsTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GrantsId(pub(crate) u32);

/// Places of grants are below this. A worker has fewer connections, each of which holds one.
pub(crate) const GRANTS_IDS_MAX: u32 = 1 << 24;

/// Counts how many connections hold each grants, and forgets those that no connection holds.
#[derive(Debug, Default)]
pub struct GrantsTable {
    entries: Slab<Entry>,
    /// The indices of `entries`, by content.
    index: HashTable<u32>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Entry {
    grants: Arc<Grants>,
    holders: u32,
}

impl GrantsTable {
    /// The id of `grants` for one more holder, which must give it to [`GrantsTable::release`].
    pub fn hold(&mut self, grants: &Arc<Grants>) -> GrantsId {
        let hash = self.hasher.hash_one(grants);
        let entries = &mut self.entries;
        let is_same = |&at: &u32| {
            let known = &entries[at].grants;
            Arc::ptr_eq(known, grants) || known == grants
        };
        if let Some(&at) = self.index.find(hash, is_same) {
            entries[at].holders += 1;
            return GrantsId(at);
        }
        debug_assert!(entries.len() + 1 < GRANTS_IDS_MAX as usize);
        let at = entries.insert(Entry { grants: Arc::clone(grants), holders: 1 });
        self.index.insert_unique(hash, at, |&at| self.hasher.hash_one(&entries[at].grants));
        GrantsId(at)
    }

    /// The grants with this id, which a holder must still hold.
    pub fn get(&self, id: GrantsId) -> &Arc<Grants> {
        &self.entries[id.0].grants
    }

    /// Gives up what one call of [`GrantsTable::hold`] got.
    pub fn release(&mut self, id: GrantsId) {
        let entry = self.entries.get_mut(id.0);
        debug_assert!(entry.is_some(), "released more often than held");
        let Some(entry) = entry else { return };
        entry.holders -= 1;
        if entry.holders > 0 {
            return;
        }
        let hash = self.hasher.hash_one(&entry.grants);
        if let Ok(found) = self.index.find_entry(hash, |&at| at == id.0) {
            found.remove();
        }
        self.entries.remove(id.0);
    }

    /// How many different grants are held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if no grants are held.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grants(number: usize) -> Arc<Grants> {
        Arc::new(Grants::from_claim(&format!(r#"{{"subscribe": ["c{number}"]}}"#)).unwrap())
    }

    #[test]
    fn equal_grants_share_an_id() {
        let mut table = GrantsTable::default();
        let id = table.hold(&grants(1));
        assert_eq!(table.hold(&grants(1)), id);
        assert_ne!(table.hold(&grants(2)), id);
        assert_eq!(table.len(), 2);
    }

    proptest! {
        /// Against a list of what is held: ids stay valid, and nothing is kept that is not held.
        #[test]
        fn holds_what_is_held(steps in prop::collection::vec((any::<bool>(), 0..8_usize), 0..200)) {
            let mut table = GrantsTable::default();
            let mut held: Vec<(GrantsId, usize)> = Vec::new();
            for (releases, number) in steps {
                if releases && !held.is_empty() {
                    let (id, _) = held.swap_remove(number % held.len());
                    table.release(id);
                } else {
                    held.push((table.hold(&grants(number)), number));
                }
                for &(id, number) in &held {
                    prop_assert_eq!(table.get(id), &grants(number));
                }
                let different: std::collections::BTreeSet<_> =
                    held.iter().map(|&(_, number)| number).collect();
                prop_assert_eq!(table.len(), different.len());
                prop_assert_eq!(table.index.len(), different.len());
            }
        }
    }
}
