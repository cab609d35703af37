//! Memory for keys, which is left out of core dumps (`MADV_DONTDUMP`, madvise(2)).
//!
//! # Why `unsafe`
//!
//! The values are in pages of their own, which come from `mmap` and not from the allocator, so that
//! nothing else shares their fate. Every value is written before a reference to it exists, the
//! mapping is as long as the values need, and it is released after they are dropped.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A fixed number of values on pages that no core dump contains.
#[derive(Debug)]
pub(crate) struct KeyPages<T> {
    values: NonNull<T>,
    count: usize,
}

impl<T> KeyPages<T> {
    /// Maps pages for `count` values, which `make` makes. Fails if there is no memory.
    pub(crate) fn new(count: usize, mut make: impl FnMut() -> T) -> io::Result<KeyPages<T>> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096) };
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), Self::bytes(count), access, kind, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping was just made and has this length. If the kernel refuses the advice,
        // the pages work nevertheless.
        unsafe { libc::madvise(address, Self::bytes(count), libc::MADV_DONTDUMP) };
        let values = NonNull::new(address.cast::<T>()).expect("a mapping is not at 0");
        for at in 0..count {
            // SAFETY: within the mapping, which is aligned to pages and holds `count` values.
            unsafe { values.add(at).write(make()) };
        }
        Ok(KeyPages { values, count })
    }

    fn bytes(count: usize) -> usize {
        count * size_of::<T>()
    }
}

impl<T> Deref for KeyPages<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `new` has written all of them, and the mapping lives as long as this value.
        unsafe { NonNull::slice_from_raw_parts(self.values, self.count).as_ref() }
    }
}

impl<T> DerefMut for KeyPages<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the values belong to this one alone.
        unsafe { NonNull::slice_from_raw_parts(self.values, self.count).as_mut() }
    }
}

impl<T> Drop for KeyPages<T> {
    fn drop(&mut self) {
        // SAFETY: the values are there and are not used again; then the mapping of `new` goes, with
        // the length that it was made with.
        unsafe {
            NonNull::slice_from_raw_parts(self.values, self.count).drop_in_place();
            libc::munmap(self.values.as_ptr().cast(), Self::bytes(self.count));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn values_are_kept_and_dropped_once() {
        let value = Rc::new(());
        let mut pages = KeyPages::new(1000, || Some(Rc::clone(&value))).unwrap();
        assert_eq!((pages.len(), Rc::strong_count(&value)), (1000, 1001));
        pages[999] = None;
        assert_eq!(Rc::strong_count(&value), 1000);
        drop(pages);
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn a_core_dump_leaves_the_pages_out() {
        let pages = KeyPages::new(512, || [7_u64; 8]).unwrap();
        let address = pages.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_here = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let hex = |text: &str| usize::from_str_radix(text, 16).ok();
            if let Some((Some(from), Some(to))) = range.map(|(from, to)| (hex(from), hex(to))) {
                is_here = (from..to).contains(&address);
            }
            if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_here) {
                assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
                return;
            }
        }
        panic!("the mapping is not listed");
    }
}
