//! Storage with stable indices.
//!
//! Values live in pages that never move, so growing costs neither a copy nor a moment with two
//! copies in memory, and a million entries waste at most one page. A vacant entry links to the next
//! vacant one; for a value with a niche the two kinds of entry cost no tag.

const PAGE_BITS: u32 = 8;
const PAGE_ENTRIES: usize = 1 << PAGE_BITS;

#[derive(Debug)]
enum Entry<T> {
    Occupied(T),
    /// The next vacant entry, or the length of the slab at the end of the chain.
    Vacant(u32),
}

/// A growing table of values.
#[derive(Debug)]
pub struct Slab<T> {
    pages: Vec<Vec<Entry<T>>>,
    /// Entries ever used.
    extent: u32,
    vacant: u32,
    length: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { pages: Vec::new(), extent: 0, vacant: 0, length: 0 }
    }
}

impl<T> Slab<T> {
    /// Bytes that one entry takes.
    pub const ENTRY_BYTES: usize = std::mem::size_of::<Entry<T>>();

    /// The index that the next [`Slab::insert`] returns.
    pub fn next_index(&self) -> u32 {
        self.vacant
    }

    /// Stores `value`.
    pub fn insert(&mut self, value: T) -> u32 {
        let index = self.vacant;
        if index == self.extent {
            if self.extent as usize == self.pages.len() * PAGE_ENTRIES {
                self.pages.push(Vec::with_capacity(PAGE_ENTRIES));
            }
            self.pages[index as usize >> PAGE_BITS].push(Entry::Occupied(value));
            self.extent += 1;
            self.vacant = self.extent;
        } else {
            let entry = self.entry_mut(index);
            let Entry::Vacant(next) = *entry else {
                unreachable!("the chain holds vacant entries")
            };
            *entry = Entry::Occupied(value);
            self.vacant = next;
        }
        self.length += 1;
        index
    }

    /// Takes out the value at `index`.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        self.get(index)?;
        let vacant = Entry::Vacant(self.vacant);
        let Entry::Occupied(value) = std::mem::replace(self.entry_mut(index), vacant) else {
            unreachable!("checked above")
        };
        self.vacant = index;
        self.length -= 1;
        Some(value)
    }

    /// The value at `index`.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let page = self.pages.get(index as usize >> PAGE_BITS)?;
        match page.get(index as usize & (PAGE_ENTRIES - 1))? {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant(_) => None,
        }
    }

    /// The value at `index`, to change.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let page = self.pages.get_mut(index as usize >> PAGE_BITS)?;
        match page.get_mut(index as usize & (PAGE_ENTRIES - 1))? {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant(_) => None,
        }
    }

    /// Values stored.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Every index in use lies below.
    pub fn extent(&self) -> u32 {
        self.extent
    }

    /// All values with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..self.extent).filter_map(|index| Some((index, self.get(index)?)))
    }

    /// All values, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.pages.iter_mut().flatten().filter_map(|entry| match entry {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant(_) => None,
        })
    }

    fn entry_mut(&mut self, index: u32) -> &mut Entry<T> {
        &mut self.pages[index as usize >> PAGE_BITS][index as usize & (PAGE_ENTRIES - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((any::<bool>(), 0u32..600), 0..2000)) {
            let mut slab = Slab::default();
            let mut model = HashMap::new();
            for (is_insert, number) in steps {
                if is_insert {
                    let expected = slab.next_index();
                    let index = slab.insert(number);
                    prop_assert_eq!(index, expected);
                    prop_assert!(model.insert(index, number).is_none());
                } else {
                    prop_assert_eq!(slab.remove(number), model.remove(&number));
                }
                prop_assert_eq!(slab.len(), model.len());
            }
            let all: HashMap<_, _> = slab.iter().map(|(index, value)| (index, *value)).collect();
            prop_assert_eq!(all, model);
        }
    }
}
