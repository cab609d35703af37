//! What the fetching of key sets counts.

use std::sync::{Mutex, PoisonError};

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
    /// When each set was fetched last, by the steady clock; its URL's first good fetch is to come
    /// where it is `None`.
    fetched_ms: Mutex<Vec<Option<u64>>>,
}

impl Default for KeySetMetrics {
    fn default() -> KeySetMetrics {
        KeySetMetrics { outcomes: Outcomes::new(&OUTCOMES), fetched_ms: Mutex::default() }
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
        let fetched = self.fetched_ms.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest_ms = fetched.iter().copied().min().flatten()?;
        Some(clock::now_ms().saturating_sub(oldest_ms) / 1000)
    }

    pub(super) fn add_set(&self) {
        self.fetched_ms.lock().unwrap_or_else(PoisonError::into_inner).push(None);
    }

    pub(super) fn failed(&self, error: &FetchError) {
        self.outcomes.count(error.label());
    }

    pub(super) fn fetched(&self, at: usize, now_ms: u64) {
        self.outcomes.count(FETCHED);
        self.fetched_ms.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(now_ms);
    }
}
