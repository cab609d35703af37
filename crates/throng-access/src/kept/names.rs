//! Named sets: users with their channels, or channels with their followers.

use hashbrown::HashTable;
use throng_core::slab::Slab;

use super::id_set::IdSet;

/// A name and its set.
#[derive(Debug)]
struct Named {
    name: Box<str>,
    set: IdSet,
}

/// Sets by name, each with an id. Those that become empty are forgotten, and their ids reused.
#[derive(Debug, Default)]
pub(super) struct NamedSets {
    slab: Slab<Named>,
    by_name: HashTable<u32>,
    hasher: foldhash::quality::RandomState,
}

impl NamedSets {
    fn hash(&self, name: &str) -> u64 {
        std::hash::BuildHasher::hash_one(&self.hasher, name)
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// The id of a name that has a set.
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        let is_named = |&id: &u32| *self.slab[id].name == *name;
        self.by_name.find(self.hash(name), is_named).copied()
    }

    /// The id of a name, whose set may be new and empty. Something has to be inserted, or the name
    /// [forgotten](NamedSets::forget_if_empty).
    pub(super) fn find_or_add(&mut self, name: &str) -> u32 {
        if let Some(id) = self.find(name) {
            return id;
        }
        let hash = self.hash(name);
        let id = self.slab.insert(Named { name: name.into(), set: IdSet::default() });
        let NamedSets { slab, by_name, hasher } = self;
        let hash_of = |&id: &u32| std::hash::BuildHasher::hash_one(hasher, &*slab[id].name);
        by_name.insert_unique(hash, id, hash_of);
        id
    }

    /// The name with this id, which has a set.
    pub(super) fn name(&self, id: u32) -> &str {
        &self.slab[id].name
    }

    /// All names with their sets.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &IdSet)> {
        self.slab.iter().map(|(_, named)| (&*named.name, &named.set))
    }

    pub(super) fn set(&self, id: u32) -> &IdSet {
        &self.slab[id].set
    }

    pub(super) fn set_mut(&mut self, id: u32) -> &mut IdSet {
        &mut self.slab[id].set
    }

    /// Forgets a name whose set is empty.
    pub(super) fn forget_if_empty(&mut self, id: u32) {
        if !self.slab[id].set.is_empty() {
            return;
        }
        let hash = self.hash(&self.slab[id].name);
        if let Ok(entry) = self.by_name.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        self.slab.remove(id);
        let NamedSets { slab, by_name, hasher } = self;
        if by_name.capacity() > 1024 && by_name.len() * 4 < by_name.capacity() {
            let hash_of = |&id: &u32| std::hash::BuildHasher::hash_one(hasher, &*slab[id].name);
            by_name.shrink_to(by_name.len() * 2, hash_of);
        }
    }
}
