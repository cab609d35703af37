//! Metrics of fetching key sets.

use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::clock;

use super::FetchError;
use crate::outcomes::Outcomes;

/// The words for what comes of a fetch.
const OUTCOMES: [&str; 8] =
    [FETCHED, "connect", "tls", "timeout", "too_large", "protocol", "status", "bad_set"];

const FETCHED: &str = "fetched";

/// Counts fetches by their outcome, and knows the age of each set.
#[derive(Debug)]
pub struct KeySetMetrics {
    outcomes: Outcomes<{ OUTCOMES.len() }>,
    sets: Mutex<Vec<SetFetches>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct SetFetches {
    /// When it was fetched last, by the steady clock; `None` if the first good fetch is to come.
    fetched_ms: Option<u64>,
    is_failing: bool,
}

impl Default for KeySetMetrics {
    fn default() -> KeySetMetrics {
        KeySetMetrics { outcomes: Outcomes::new(&OUTCOMES), sets: Mutex::default() }
    }
}

impl KeySetMetrics {
    /// How many fetches there were, by the word for their outcome.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.outcomes.get()
    }

    /// The time since the oldest of the sets was fetched, in seconds; `None` if one never was. A
    /// growing age says that a URL is down.
    pub fn age_s(&self) -> Option<u64> {
        let oldest_ms = self.sets().iter().map(|set| set.fetched_ms).min().flatten()?;
        Some(clock::now_ms().saturating_sub(oldest_ms) / 1000)
    }

    pub(super) fn add_set(&self) {
        self.sets().push(SetFetches::default());
    }

    /// True if the last fetch of any set failed.
    pub fn is_failing(&self) -> bool {
        self.sets().iter().any(|set| set.is_failing)
    }

    fn sets(&self) -> MutexGuard<'_, Vec<SetFetches>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn failed(&self, at: usize, error: &FetchError) {
        self.outcomes.count(error.label());
        self.sets()[at].is_failing = true;
    }

    pub(super) fn fetched(&self, at: usize, now_ms: u64) {
        self.outcomes.count(FETCHED);
        self.sets()[at] = SetFetches { fetched_ms: Some(now_ms), is_failing: false };
    }
}
