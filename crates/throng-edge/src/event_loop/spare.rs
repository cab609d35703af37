//! Gives back what the allocator keeps for a worker's thread alone.
//!
//! glibc keeps some freed pieces of each small size for the thread that frees them, as many as it
//! may need next, and `malloc_trim` leaves those alone. A storm of handshakes allocates and frees
//! in all of the memory that it takes for a while, so that in the end such pieces are all over it,
//! and each keeps its page. What is freed on a thread that ends is kept for nobody: so, after a
//! storm, such pieces are taken here and freed there.

use std::thread;

/// As many handshakes have to end before it is worth it.
const HANDSHAKES_MIN: u64 = 64;

/// The sizes that glibc keeps for a thread, and how many of each: 24 bytes to 1,032.
const SIZE_MIN: usize = 24;
const SIZE_STEP: usize = 16;
const SIZES: usize = 64;
const KEPT_MAX: usize = 7;

/// Recognizes the end of a storm of handshakes.
#[derive(Debug, Default)]
pub(super) struct Spare {
    /// The handshakes that had ended when memory was given back, and at the last tick.
    given_back: u64,
    last: u64,
}

impl Spare {
    /// Gives memory back if many handshakes have `ended`, and none since the last tick. Call it at
    /// each tick.
    pub(super) fn tick(&mut self, ended: u64) {
        if self.is_due(ended) {
            give_back();
        }
    }

    fn is_due(&mut self, ended: u64) -> bool {
        let is_calm = std::mem::replace(&mut self.last, ended) == ended;
        let is_due = is_calm && ended - self.given_back >= HANDSHAKES_MIN;
        if is_due {
            self.given_back = ended;
        }
        is_due
    }
}

/// Takes as many pieces as may be kept for this thread, and frees them on one that ends: half a
/// megabyte at most, for some tens of microseconds.
fn give_back() {
    let sizes = (0..SIZES).map(|nth| SIZE_MIN + nth * SIZE_STEP);
    let pieces: Vec<Vec<u8>> =
        sizes.flat_map(|size| (0..KEPT_MAX).map(move |_| Vec::with_capacity(size))).collect();
    // Without a thread, they are kept for this one again.
    let _ = thread::Builder::new().name("spare memory".into()).spawn(move || drop(pieces));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_after_each_storm_and_not_meanwhile() {
        let mut spare = Spare::default();
        let counts = [0, 0, 30, 30, 70, 500, 900, 900, 900, 940, 940, 970, 970];
        let due: Vec<bool> = counts.map(|count| spare.is_due(count)).into();
        let when: Vec<usize> = (0..counts.len()).filter(|nth| due[*nth]).collect();
        assert_eq!(when, [7, 12]);
    }
}
