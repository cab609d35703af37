//! Counts of the processes before this one, so that no metric goes back when it takes over.

use std::collections::HashMap;
use std::sync::OnceLock;

/// Numbers to add to the samples of `/metrics`, by their names with labels. Samples that workers
/// and logs know themselves are not here.
#[derive(Debug, Default)]
pub(crate) struct CarriedCounts(OnceLock<HashMap<Box<str>, f64>>);

impl CarriedCounts {
    /// True if there was a process before this one.
    pub(crate) fn has_any(&self) -> bool {
        self.0.get().is_some()
    }

    /// The number to add to this sample.
    pub(crate) fn of(&self, sample: &str) -> f64 {
        self.0.get().and_then(|counts| counts.get(sample)).copied().unwrap_or(0.0)
    }

    /// Adds these from now on. Only the first call has an effect.
    pub(crate) fn set(&self, counts: HashMap<Box<str>, f64>) {
        let _ = self.0.set(counts);
    }
}
