//! Keeps workers that come from another process waiting for its last word.

use std::sync::{Condvar, Mutex, PoisonError};

/// Keeps workers that have arrived from acting until the process that they come from has ended its
/// own.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Whether they may act; `None` until that is decided.
    is_open: Mutex<Option<bool>>,
    changed: Condvar,
}

impl Gate {
    /// Decides for all workers.
    pub(super) fn decide(&self, is_open: bool) {
        let mut state = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        state.get_or_insert(is_open);
        self.changed.notify_all();
    }

    /// Waits for the decision.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *state {
                Some(is_open) => return is_open,
                None => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Whether they will never act.
    pub(super) fn is_shut(&self) -> bool {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) == Some(false)
    }
}
