//! Empties the allocator's cache of a worker's thread after a storm of TLS handshakes.
//!
//! glibc caches up to seven freed chunks of each small size for every thread (tcache), and
//! `malloc_trim` does not touch them. The chunks that a storm leaves in the cache are scattered
//! over the memory that it used, and each of them pins a page. A thread's cache is freed when the
//! thread ends. So a worker allocates all chunks that its cache may hold, and a short-lived thread
//! frees them.

use std::thread;

/// A storm is at least this many handshakes.
const HANDSHAKES_MIN: u64 = 64;

/// The defaults of glibc's cache: 64 sizes from 24 to 1,032 bytes, seven chunks of each.
const SIZE_MIN: usize = 24;
const SIZE_STEP: usize = 16;
const SIZES: usize = 64;
const KEPT_MAX: usize = 7;

/// Recognizes the end of a storm of handshakes.
#[derive(Debug, Default)]
pub(super) struct Spare {
    /// The handshakes that had ended when the cache was last emptied, and at the last tick.
    emptied: u64,
    last: u64,
}

impl Spare {
    /// Empties the cache if a storm of handshakes is over. `ended` is the number of all that have
    /// ended so far. Call it once a tick.
    pub(super) fn tick(&mut self, ended: u64) {
        if self.is_due(ended) {
            empty_cache();
        }
    }

    fn is_due(&mut self, ended: u64) -> bool {
        let is_calm = std::mem::replace(&mut self.last, ended) == ended;
        let is_due = is_calm && ended - self.emptied >= HANDSHAKES_MIN;
        if is_due {
            self.emptied = ended;
        }
        is_due
    }
}

/// Moves the cached chunks of this thread to one that ends: at most a quarter of a megabyte.
fn empty_cache() {
    let sizes = (0..SIZES).map(|nth| SIZE_MIN + nth * SIZE_STEP);
    let chunks: Vec<Vec<u8>> =
        sizes.flat_map(|size| (0..KEPT_MAX).map(move |_| Vec::with_capacity(size))).collect();
    // If no thread can be started, they go back to this cache.
    let _ = thread::Builder::new().name("spare memory".into()).spawn(move || drop(chunks));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_emptied_after_each_storm_and_not_during_it() {
        let mut spare = Spare::default();
        let counts = [0, 0, 30, 30, 70, 500, 900, 900, 900, 940, 940, 970, 970];
        let due: Vec<bool> = counts.map(|count| spare.is_due(count)).into();
        let when: Vec<usize> = (0..counts.len()).filter(|nth| due[*nth]).collect();
        assert_eq!(when, [7, 12]);
    }
}
