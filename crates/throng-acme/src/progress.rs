//! How each name stands, for metrics and status.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// How the certificate for one name stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameState {
    /// The DNS name.
    pub name: String,
    /// When the next attempt begins: to renew, or again after a failure.
    pub next: Option<SystemTime>,
    /// Attempts that have failed since the last success.
    pub failures: u32,
    /// Why the last of them has failed.
    pub error: Option<String>,
}

/// How all names stand, and what was counted since the start.
#[derive(Debug, Default)]
pub struct Progress(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    names: Vec<NameState>,
    obtained: u64,
    failed: u64,
}

impl Progress {
    pub(crate) fn set(&self, names: Vec<NameState>) {
        self.state().names = names;
    }

    /// Counts an attempt that has ended.
    pub(crate) fn count(&self, is_obtained: bool) {
        let mut state = self.state();
        *(if is_obtained { &mut state.obtained } else { &mut state.failed }) += 1;
    }

    /// The state of each name.
    pub fn names(&self) -> Vec<NameState> {
        self.state().names.clone()
    }

    /// How many attempts had this outcome: obtained, failed.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state();
        (state.obtained, state.failed)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
