//! What the workers share when they leave for another process.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::assembly::Assembly;

/// How long a worker waits for the other process to take what it sends.
pub(super) const CHANNEL_TIMEOUT: Duration = Duration::from_secs(30);

/// What the workers share about those of another process that succeed them.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    /// The channels of the workers to those that succeed them, in order; none without an upgrade
    /// under way.
    channels: Mutex<Vec<OwnedFd>>,
    /// While set, no connection goes to the control plane, and no TLS handshake begins.
    pub(super) is_held: Arc<AtomicBool>,
    pub(super) assembly: Assembly,
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
