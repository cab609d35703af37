//! The samples of the last quarter of an hour.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::columns::{self, Row};
use super::sample::{self, Sample};

/// How many samples are kept: a quarter of an hour.
pub(crate) const SAMPLES_MAX: usize = 900;

/// The newest sample, and the chart values of the last ones.
#[derive(Debug, Default)]
pub(crate) struct StatusHistory(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    newest: Option<Sample>,
    /// Chart values, oldest first; the last row is that of `newest`.
    rows: VecDeque<Row>,
}

impl StatusHistory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a sample and drops the oldest one beyond [`SAMPLES_MAX`].
    pub(super) fn add(&self, sample: Sample) {
        let mut state = self.state();
        if state.rows.len() == SAMPLES_MAX {
            state.rows.pop_front();
        }
        state.rows.push_back(columns::row(&sample));
        state.newest = Some(sample);
    }

    /// The newest sample as JSON, with up to `history` of the last ones by column; `None` before
    /// the first sample.
    pub(crate) fn json(&self, history: Option<usize>) -> Option<Vec<u8>> {
        let state = self.state();
        let columns = history.map(|count| {
            let skipped = state.rows.len().saturating_sub(count);
            columns::columns(state.rows.iter().skip(skipped))
        });
        let newest = state.newest.clone()?;
        drop(state);
        Some(sample::with_history(&newest, columns))
    }
}
