//! Counts what comes of requests, by a word for each outcome.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter for each of a list of words.
#[derive(Debug)]
pub(crate) struct Outcomes<const N: usize> {
    words: &'static [&'static str; N],
    counts: [AtomicU64; N],
}

impl<const N: usize> Outcomes<N> {
    pub(crate) fn new(words: &'static [&'static str; N]) -> Self {
        Outcomes { words, counts: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Counts an outcome of the list.
    pub(crate) fn count(&self, outcome: &str) {
        self.add(outcome, 1);
    }

    /// Counts an outcome of the list several times.
    pub(crate) fn add(&self, outcome: &str, number: u64) {
        let at = self.words.iter().position(|word| *word == outcome);
        debug_assert!(at.is_some(), "{outcome} is not in the list");
        if let Some(at) = at {
            self.counts[at].fetch_add(number, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        self.words.iter().copied().zip(counts)
    }
}
