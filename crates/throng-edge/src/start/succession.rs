//! State shared by workers that leave for another process.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::assembly::Assembly;
use crate::sys::process::{release_unused_memory, return_memory_at_once};

/// Frozen bytes of all workers after which what the tables have freed goes back to the kernel. Each
/// time takes a few milliseconds, and the allocator's locks.
const RETURN_BYTES: usize = 2 << 20;

/// How long a worker waits for the other process to take what it sends.
pub(super) const CHANNEL_TIMEOUT: Duration = Duration::from_secs(30);

/// State that workers share about their successors in another process.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    /// The channels of the workers to those that succeed them, in order; none without an upgrade
    /// under way.
    channels: Mutex<Vec<OwnedFd>>,
    /// While set, no connection goes to the control plane, and no TLS handshake begins.
    pub(super) is_held: Arc<AtomicBool>,
    pub(super) assembly: Assembly,
    pub(super) freezing: Freezing,
    /// The same for the thread that accepts for the workers.
    is_accepting_held: Mutex<bool>,
    is_accepting_released: Condvar,
}

impl Succession {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_accepting_held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_channels(&self, channels: Vec<OwnedFd>) {
        *self.channels.lock().unwrap_or_else(PoisonError::into_inner) = channels;
    }

    pub(super) fn with_channels<T>(&self, each: impl FnOnce(&[OwnedFd]) -> T) -> T {
        each(&self.channels.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until connections may be accepted for the workers: while the guard is there,
    /// [`Succession::hold`] waits.
    pub(super) fn await_permission(&self) -> MutexGuard<'_, bool> {
        let held = self.is_accepting_released.wait_while(self.lock(), |is_held| *is_held);
        held.unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds both, or releases them.
    pub(super) fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::SeqCst);
        *self.lock() = is_held;
        self.is_accepting_released.notify_all();
    }
}

/// Lets workers freeze one after the other on each core, so that the tables of few are there beside
/// what they were written to, and returns their memory.
#[derive(Debug, Default)]
pub(super) struct Freezing {
    /// The workers that freeze now.
    active: Mutex<usize>,
    has_ended: Condvar,
    /// Bytes that were frozen since memory was returned.
    bytes: AtomicUsize,
    /// True if the allocator returns memory at once.
    returns_at_once: AtomicBool,
}

/// A worker's turn to freeze.
pub(super) struct Turn<'f>(&'f Freezing);

impl Freezing {
    /// Workers are about to freeze: what they free is not to be kept.
    pub(super) fn begin_all(&self) {
        self.returns_at_once.store(true, Ordering::Relaxed);
        return_memory_at_once(true);
    }

    /// They go on, if they have frozen.
    pub(super) fn end_all(&self) {
        if self.returns_at_once.swap(false, Ordering::Relaxed) {
            return_memory_at_once(false);
        }
    }

    /// Waits until fewer than `most` workers freeze.
    pub(super) fn begin(&self, most: usize) -> Turn<'_> {
        let active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.has_ended.wait_while(active, |active| *active >= most.max(1));
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn(self)
    }
}

impl Turn<'_> {
    /// As many bytes were frozen, about as many as were freed.
    pub(super) fn frozen(&self, bytes: usize) {
        if self.0.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes >= RETURN_BYTES {
            self.0.bytes.store(0, Ordering::Relaxed);
            release_unused_memory();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.active.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.has_ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn few_workers_freeze_at_a_time_and_all_have_their_turns() {
        let (freezing, most) = (Freezing::default(), 3);
        let (active, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    let turn = freezing.begin(most);
                    assert!(active.fetch_add(1, Ordering::SeqCst) < most);
                    turn.frozen(RETURN_BYTES / 2);
                    std::thread::yield_now();
                    active.fetch_sub(1, Ordering::SeqCst);
                    drop(turn);
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!((done.into_inner(), *freezing.active.lock().unwrap()), (20, 0));
        // Also with an impossible limit.
        drop(freezing.begin(0));
    }
}
