//! What the processes before this one have counted, so that no metric goes back when it takes over.

use std::collections::HashMap;
use std::sync::OnceLock;

/// What is added to the samples of `/metrics`, by their names with labels. Those that workers and
/// logs know themselves are not here.
#[derive(Debug, Default)]
pub(crate) struct Carried(OnceLock<HashMap<Box<str>, f64>>);

impl Carried {
    /// Whether there was a process before this one.
    pub(crate) fn has_any(&self) -> bool {
        self.0.get().is_some()
    }

    /// What is added to this sample.
    pub(crate) fn of(&self, sample: &str) -> f64 {
        self.0.get().and_then(|counts| counts.get(sample)).copied().unwrap_or(0.0)
    }

    /// Adds these from now on. Only the first call has an effect.
    pub(crate) fn set(&self, counts: HashMap<Box<str>, f64>) {
        let _ = self.0.set(counts);
    }
}
