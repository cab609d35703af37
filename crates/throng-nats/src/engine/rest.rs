//! The node at rest: no message is delivered, and nothing waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use throng_core::Epoch;

use crate::journal::HeldState;

/// How long the thread of the connection may take to stop delivering: a message may wait for room.
const HOLD_TIMEOUT: Duration = Duration::from_secs(3);

/// State since messages are held, and its epoch.
#[derive(Default)]
pub(super) struct Holding {
    held: Mutex<Option<(Option<Epoch>, HeldState)>>,
    changed: Condvar,
}

impl Holding {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<(Option<Epoch>, HeldState)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The journal reports no more messages.
    pub(super) fn is(&self, epoch: Option<Epoch>, held: HeldState) {
        *self.lock() = Some((epoch, held));
        self.changed.notify_all();
    }

    /// Waits until that is so. Returns whether it is.
    pub(super) fn wait(&self) -> bool {
        let until = Instant::now() + HOLD_TIMEOUT;
        let mut held = self.lock();
        while held.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(held, left);
            held = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Counts those that there are.
pub(super) struct CountGuard(Arc<AtomicUsize>);

impl CountGuard {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> CountGuard {
        count.fetch_add(1, Ordering::AcqRel);
        CountGuard(Arc::clone(count))
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
