//! A sorted set of ids: the channels of a user, or the followers of a channel.
//!
//! Most sets are small, and a few have millions of ids: a sorted list each, which is cut into
//! chunks once it is long, so that an insertion moves little.

/// The most ids of one chunk.
const CHUNK_MAX: usize = 1024;

#[derive(Debug)]
pub(super) enum IdSet {
    /// At most [`CHUNK_MAX`] ids.
    Small(Vec<u32>),
    /// Chunks in order, none of them empty. Boxed once more, so that small sets stay small.
    #[expect(clippy::box_collection, reason = "a Vec would make every set 8 bytes larger")]
    Large(Box<Vec<Vec<u32>>>),
}

impl Default for IdSet {
    fn default() -> IdSet {
        IdSet::Small(Vec::new())
    }
}

impl IdSet {
    fn chunks(&self) -> &[Vec<u32>] {
        match self {
            IdSet::Small(ids) => std::slice::from_ref(ids),
            IdSet::Large(chunks) => chunks,
        }
    }

    /// The index of the chunk that has `id`, or would have it.
    fn chunk_of(chunks: &[Vec<u32>], id: u32) -> usize {
        chunks.partition_point(|chunk| chunk[0] <= id).saturating_sub(1)
    }

    pub(super) fn len(&self) -> usize {
        self.chunks().iter().map(Vec::len).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, IdSet::Small(ids) if ids.is_empty())
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        match self {
            IdSet::Small(ids) => ids.binary_search(&id).is_ok(),
            IdSet::Large(chunks) => chunks[IdSet::chunk_of(chunks, id)].binary_search(&id).is_ok(),
        }
    }

    /// Adds an id. Returns whether it is new.
    pub(super) fn insert(&mut self, id: u32) -> bool {
        match self {
            IdSet::Small(ids) => {
                let Err(at) = ids.binary_search(&id) else { return false };
                insert_at(ids, at, id);
                if ids.len() > CHUNK_MAX {
                    let upper = ids.split_off(CHUNK_MAX / 2);
                    *self = IdSet::Large(Box::new(vec![std::mem::take(ids), upper]));
                }
            }
            IdSet::Large(chunks) => {
                let index = IdSet::chunk_of(chunks, id);
                let chunk = &mut chunks[index];
                let Err(at) = chunk.binary_search(&id) else { return false };
                insert_at(chunk, at, id);
                if chunk.len() > CHUNK_MAX {
                    // Ids mostly come in order: the lower part stays as it is.
                    let is_last = index + 1 == chunks.len();
                    let cut = if is_last { CHUNK_MAX * 7 / 8 } else { CHUNK_MAX / 2 };
                    let upper = chunks[index].split_off(cut);
                    chunks[index].shrink_to_fit();
                    chunks.insert(index + 1, upper);
                }
            }
        }
        true
    }

    /// Removes an id. Returns whether it was there.
    pub(super) fn remove(&mut self, id: u32) -> bool {
        match self {
            IdSet::Small(ids) => {
                let Ok(at) = ids.binary_search(&id) else { return false };
                ids.remove(at);
                shrink(ids);
            }
            IdSet::Large(chunks) => {
                let index = IdSet::chunk_of(chunks, id);
                let chunk = &mut chunks[index];
                let Ok(at) = chunk.binary_search(&id) else { return false };
                chunk.remove(at);
                shrink(chunk);
                if chunk.is_empty() {
                    chunks.remove(index);
                }
                if let [only] = chunks.as_mut_slice() {
                    *self = IdSet::Small(std::mem::take(only));
                }
            }
        }
        true
    }

    /// The ids above `after`, or all of them, in order.
    pub(super) fn above(&self, after: Option<u32>) -> impl Iterator<Item = u32> {
        let chunks = self.chunks();
        let (mut first, mut skipped) = (0, 0);
        if let Some(after) = after.filter(|_| !self.is_empty()) {
            first = IdSet::chunk_of(chunks, after);
            skipped = chunks[first].partition_point(|&id| id <= after);
        }
        chunks[first..].iter().flatten().copied().skip(skipped)
    }
}

/// Grows by an eighth, and not by half of the memory for nothing.
fn insert_at(ids: &mut Vec<u32>, at: usize, id: u32) {
    if ids.len() == ids.capacity() {
        ids.reserve_exact(ids.len() / 8 + 2);
    }
    ids.insert(at, id);
}

fn shrink(ids: &mut Vec<u32>) {
    if ids.len() * 2 < ids.capacity() {
        ids.shrink_to(ids.len() + 2);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const _: () = assert!(size_of::<IdSet>() == 24);

    fn check(set: &IdSet, expected: &BTreeSet<u32>, after: u32) {
        assert_eq!((set.len(), set.is_empty()), (expected.len(), expected.is_empty()));
        assert!(set.above(None).eq(expected.iter().copied()));
        assert!(set.above(Some(after)).eq(expected.range(after + 1..).copied()));
        if let IdSet::Large(chunks) = set {
            assert!(chunks.len() > 1 && chunks.iter().all(|chunk| !chunk.is_empty()));
            assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK_MAX));
        }
    }

    proptest! {
        #[test]
        fn a_set_is_what_a_tree_is(
            steps in prop::collection::vec((0u8..3, 0u32..6000, 1u32..700), 1..60),
        ) {
            let (mut set, mut expected) = (IdSet::default(), BTreeSet::new());
            for (kind, from, count) in steps {
                for id in (from..from + count * 3).step_by(3) {
                    if kind == 0 {
                        prop_assert_eq!(set.remove(id), expected.remove(&id));
                    } else {
                        prop_assert_eq!(set.insert(id), expected.insert(id));
                    }
                    prop_assert_eq!(set.contains(id), kind != 0);
                }
                check(&set, &expected, from);
            }
        }
    }

    #[test]
    fn a_large_set_costs_little_more_than_its_ids() {
        let mut set = IdSet::default();
        (0..1_000_000).for_each(|id| assert!(set.insert(id)));
        let bytes: usize = set.chunks().iter().map(|chunk| chunk.capacity() * 4 + 40).sum();
        assert!(bytes < 5_500_000, "{bytes}");
        (0..1_000_000).for_each(|id| assert!(set.remove(id)));
        assert!(set.is_empty());
    }
}
