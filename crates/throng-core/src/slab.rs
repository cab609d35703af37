//! Storage with stable indices.
//!
//! Values live in pages that never move: growing copies nothing, and a million entries waste at
//! most one page. A vacant entry links to the page's next vacant one. For a value with a niche, an
//! entry is as large as the value.
//!
//! Empty pages are freed, except one, so that a table whose length varies around a page boundary
//! does not allocate each time. An insert uses an empty page only if all others are full.

use std::ops::{Index, IndexMut};

use crate::prefetch::prefetch;

/// A page of 1,024 entries of 24 to 32 bytes: the allocator loses up to a page of memory, of 4 KiB,
/// at each of its ends, among what is freed around it.
const PAGE_BITS: u32 = 10;
const PAGE_ENTRIES: usize = 1 << PAGE_BITS;

/// Marks the end of a list of pages.
const NO_PAGE: u32 = u32::MAX;

#[derive(Debug)]
enum Entry<T> {
    Occupied(T),
    /// The page's next vacant entry; at the end of the list, the number of its entries.
    Vacant(u32),
}

#[derive(Debug)]
struct Page<T> {
    /// The entries used since the page was allocated.
    entries: Vec<Entry<T>>,
    vacant: u32,
    length: u32,
    /// Neighbours in the list of partly filled pages, or in the list of freed pages.
    before: u32,
    next: u32,
}

impl<T> Page<T> {
    fn new() -> Page<T> {
        Page { entries: Vec::new(), vacant: 0, length: 0, before: NO_PAGE, next: NO_PAGE }
    }

    fn insert(&mut self, value: T) {
        let at = self.vacant as usize;
        if at == self.entries.len() {
            if at == 0 {
                self.entries.reserve_exact(PAGE_ENTRIES);
            }
            self.entries.push(Entry::Occupied(value));
            self.vacant += 1;
        } else {
            let Entry::Vacant(next) = self.entries[at] else {
                unreachable!("the list holds vacant entries")
            };
            self.entries[at] = Entry::Occupied(value);
            self.vacant = next;
        }
        self.length += 1;
    }

    /// Stores a value in a vacant entry, also behind those used so far.
    fn insert_at(&mut self, at: usize, value: T) {
        if at == self.vacant as usize {
            return self.insert(value);
        }
        if self.entries.is_empty() {
            self.entries.reserve_exact(PAGE_ENTRIES);
        }
        let length = self.entries.len();
        if at > length {
            // The list of vacant entries ends with `length`, which is the first of the new ones.
            self.entries.extend((length + 1..at).map(|next| Entry::Vacant(next as u32)));
            self.entries.push(Entry::Vacant(at as u32 + 1));
            self.entries.push(Entry::Occupied(value));
        } else {
            debug_assert!(at == length || matches!(self.entries[at], Entry::Vacant(_)));
            // The vacant entry whose link leads here leads to the next one from now on.
            let next = match self.entries.get(at) {
                Some(Entry::Vacant(next)) => *next,
                _ => length as u32 + 1,
            };
            let before = self.vacant_before(at);
            self.entries[before] = Entry::Vacant(next);
            if at == length {
                self.entries.push(Entry::Occupied(value));
            } else {
                self.entries[at] = Entry::Occupied(value);
            }
        }
        self.length += 1;
    }

    /// The vacant entry that links to this one, or to the end, which is not the first of the list.
    fn vacant_before(&self, at: usize) -> usize {
        let mut before = self.vacant as usize;
        while let Some(Entry::Vacant(next)) = self.entries.get(before)
            && *next as usize != at
        {
            before = *next as usize;
        }
        before
    }

    fn remove(&mut self, at: usize) -> Option<T> {
        let entry = self.entries.get_mut(at)?;
        if matches!(entry, Entry::Vacant(_)) {
            return None;
        }
        let vacant = Entry::Vacant(self.vacant);
        let Entry::Occupied(value) = std::mem::replace(entry, vacant) else {
            unreachable!("checked above")
        };
        self.vacant = at as u32;
        self.length -= 1;
        Some(value)
    }
}

/// A table of values whose indices stay the same while it grows and shrinks.
#[derive(Debug)]
pub struct Slab<T> {
    pages: Vec<Page<T>>,
    /// The first page that is neither empty nor full.
    partly_filled: u32,
    /// The first page whose memory is freed.
    freed: u32,
    /// The empty page that keeps its memory.
    spare: u32,
    length: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        let (partly_filled, freed, spare) = (NO_PAGE, NO_PAGE, NO_PAGE);
        Slab { pages: Vec::new(), partly_filled, freed, spare, length: 0 }
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    /// The value at `index`, which must be in use.
    #[inline]
    #[track_caller]
    fn index(&self, index: u32) -> &T {
        self.get(index).expect("the index is in use")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    #[track_caller]
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.get_mut(index).expect("the index is in use")
    }
}

impl<T> Slab<T> {
    /// The size of one entry in bytes.
    pub const ENTRY_BYTES: usize = std::mem::size_of::<Entry<T>>();

    /// The index that the next [`Slab::insert`] returns.
    pub fn next_index(&self) -> u32 {
        if let Some(page) = self.pages.get(self.partly_filled as usize) {
            return self.partly_filled << PAGE_BITS | page.vacant;
        }
        let empty = [self.spare, self.freed].into_iter().find(|&at| at != NO_PAGE);
        empty.unwrap_or(self.pages.len() as u32) << PAGE_BITS
    }

    /// Stores `value` and returns its index.
    pub fn insert(&mut self, value: T) -> u32 {
        let index = self.next_index();
        let at = index >> PAGE_BITS;
        if at != self.partly_filled {
            if at == self.spare {
                self.spare = NO_PAGE;
            } else if at == self.freed {
                unlink(&mut self.pages, &mut self.freed, at);
            } else {
                self.pages.push(Page::new());
            }
            link(&mut self.pages, &mut self.partly_filled, at);
        }
        let page = &mut self.pages[at as usize];
        page.insert(value);
        if page.length as usize == PAGE_ENTRIES {
            unlink(&mut self.pages, &mut self.partly_filled, at);
        }
        self.length += 1;
        index
    }

    /// Stores `value` at `index`, for a value that has to keep the index that it had elsewhere.
    /// Allocates the table of pages up to there. Returns the value if the entry is in use.
    pub fn insert_at(&mut self, index: u32, value: T) -> Result<(), T> {
        if self.get(index).is_some() {
            return Err(value);
        }
        let at = index >> PAGE_BITS;
        while self.pages.len() <= at as usize {
            let last = self.pages.len() as u32;
            self.pages.push(Page::new());
            link(&mut self.pages, &mut self.freed, last);
        }
        // An empty page is the spare one or in `freed`, never in `partly_filled`.
        if self.pages[at as usize].length == 0 {
            if at == self.spare {
                self.spare = NO_PAGE;
            } else {
                unlink(&mut self.pages, &mut self.freed, at);
            }
            link(&mut self.pages, &mut self.partly_filled, at);
        }
        let page = &mut self.pages[at as usize];
        page.insert_at(index as usize & (PAGE_ENTRIES - 1), value);
        if page.length as usize == PAGE_ENTRIES {
            unlink(&mut self.pages, &mut self.partly_filled, at);
        }
        self.length += 1;
        Ok(())
    }

    /// Removes the value at `index`; `None` if the entry is vacant.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let at = index >> PAGE_BITS;
        let page = self.pages.get_mut(at as usize)?;
        let was_full = page.length as usize == PAGE_ENTRIES;
        let value = page.remove(index as usize & (PAGE_ENTRIES - 1))?;
        let is_empty = page.length == 0;
        self.length -= 1;
        if was_full {
            link(&mut self.pages, &mut self.partly_filled, at);
        }
        if is_empty {
            self.empty(at);
        }
        Some(value)
    }

    /// The value at `index`; `None` if the entry is vacant.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let page = self.pages.get(index as usize >> PAGE_BITS)?;
        match page.entries.get(index as usize & (PAGE_ENTRIES - 1))? {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant(_) => None,
        }
    }

    /// The value at `index`, mutable; `None` if the entry is vacant.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let page = self.pages.get_mut(index as usize >> PAGE_BITS)?;
        match page.entries.get_mut(index as usize & (PAGE_ENTRIES - 1))? {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant(_) => None,
        }
    }

    /// Begins to load the value at `index`, if there is one.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        if let Some(page) = self.pages.get(index as usize >> PAGE_BITS)
            && let Some(entry) = page.entries.get(index as usize & (PAGE_ENTRIES - 1))
        {
            prefetch(std::ptr::from_ref(entry));
        }
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// True if the slab holds no value.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// An upper bound of the indices in use. It falls when the last pages are freed.
    pub fn extent(&self) -> u32 {
        self.pages.last().map_or(0, |last| {
            ((self.pages.len() - 1) << PAGE_BITS) as u32 + last.entries.len() as u32
        })
    }

    /// All values with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..self.extent()).filter_map(|index| Some((index, self.get(index)?)))
    }

    /// All values, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let entries = self.pages.iter_mut().flat_map(|page| &mut page.entries);
        entries.filter_map(|entry| match entry {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant(_) => None,
        })
    }

    /// Makes a page that has lost its last value the spare one, and frees the former spare page.
    fn empty(&mut self, at: u32) {
        unlink(&mut self.pages, &mut self.partly_filled, at);
        let page = &mut self.pages[at as usize];
        page.entries.clear();
        page.vacant = 0;
        let before = std::mem::replace(&mut self.spare, at);
        // There was no spare page.
        let Some(page) = self.pages.get_mut(before as usize) else { return };
        page.entries = Vec::new();
        link(&mut self.pages, &mut self.freed, before);
        // The table of pages ends with one that has memory.
        while self.pages.last().is_some_and(|last| last.entries.capacity() == 0) {
            let last = self.pages.len() as u32 - 1;
            unlink(&mut self.pages, &mut self.freed, last);
            self.pages.pop();
        }
        if self.pages.len() * 4 < self.pages.capacity() {
            self.pages.shrink_to(self.pages.len() * 2);
        }
    }
}

/// Inserts a page before the `first` of a list.
fn link<T>(pages: &mut [Page<T>], first: &mut u32, at: u32) {
    let next = std::mem::replace(first, at);
    if let Some(page) = pages.get_mut(next as usize) {
        page.before = at;
    }
    (pages[at as usize].before, pages[at as usize].next) = (NO_PAGE, next);
}

/// Removes a page from the list that begins with `first`.
fn unlink<T>(pages: &mut [Page<T>], first: &mut u32, at: u32) {
    let (before, next) = (pages[at as usize].before, pages[at as usize].next);
    match pages.get_mut(before as usize) {
        Some(page) => page.next = next,
        None => *first = next,
    }
    if let Some(page) = pages.get_mut(next as usize) {
        page.before = before;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    impl<T> Slab<T> {
        /// Panics unless each page is in the list for its state.
        fn check(&self) {
            let list = |first: u32| {
                let (mut at, mut before, mut list) = (first, NO_PAGE, Vec::new());
                while let Some(page) = self.pages.get(at as usize) {
                    assert_eq!(page.before, before);
                    list.push(at);
                    (before, at) = (at, page.next);
                }
                list.sort_unstable();
                list
            };
            let pages = |is_one: fn(&Page<T>) -> bool| -> Vec<u32> {
                let all = (0..).zip(&self.pages);
                all.filter(|(_, page)| is_one(page)).map(|(at, _)| at).collect()
            };
            let partly_filled = |page: &Page<T>| (1..PAGE_ENTRIES as u32).contains(&page.length);
            assert_eq!(list(self.partly_filled), pages(partly_filled));
            let without_memory = |page: &Page<T>| page.entries.capacity() == 0;
            assert_eq!(list(self.freed), pages(without_memory));
            let spare = |page: &Page<T>| page.length == 0 && page.entries.capacity() > 0;
            let found = Some(self.spare).filter(|&at| at != NO_PAGE);
            assert_eq!(found.into_iter().collect::<Vec<_>>(), pages(spare));
        }
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(
            steps in prop::collection::vec((0u8..6, 0u32..1500), 0..25),
        ) {
            let mut slab = Slab::default();
            let mut model = HashMap::new();
            for (kind, number) in steps {
                for number in number..number + 200 {
                    if kind == 5 {
                        let is_taken = model.contains_key(&number);
                        let stored = slab.insert_at(number, number);
                        prop_assert_eq!(stored, if is_taken { Err(number) } else { Ok(()) });
                        model.entry(number).or_insert(number);
                    } else if kind < 2 {
                        let expected = slab.next_index();
                        let index = slab.insert(number);
                        prop_assert_eq!(index, expected);
                        prop_assert!(index < slab.extent());
                        prop_assert!(model.insert(index, number).is_none());
                    } else {
                        prop_assert_eq!(slab.remove(number), model.remove(&number));
                    }
                }
                slab.check();
                prop_assert_eq!(slab.len(), model.len());
                let all: HashMap<_, _> = slab.iter().map(|(at, value)| (at, *value)).collect();
                prop_assert_eq!(&all, &model);
                prop_assert_eq!(slab.iter_mut().count(), model.len());
            }
        }
    }

    #[test]
    fn memory_is_freed() {
        let mut slab = Slab::default();
        (0..100_000).for_each(|number| assert_eq!(slab.insert(number), number));
        (1..100_000).for_each(|number| assert_eq!(slab.remove(number), Some(number)));
        let capacity: usize = slab.pages.iter().map(|page| page.entries.capacity()).sum();
        assert!(capacity <= 2 * PAGE_ENTRIES, "{capacity} entries");
        assert!(slab.pages.capacity() < 1000 && slab.get(0) == Some(&0));
        slab.check();
    }
}
