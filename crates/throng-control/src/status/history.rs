//! The samples of the last quarter of an hour.

use std::sync::{Arc, Mutex, PoisonError};

use super::columns;
use super::sample::{self, Sample};
use crate::charts::{Charts, ROWS_MAX};

/// How many samples are kept: a quarter of an hour.
pub(crate) const SAMPLES_MAX: usize = ROWS_MAX;

/// The newest sample, and the chart values of the last ones.
#[derive(Debug)]
pub(crate) struct StatusHistory {
    newest: Mutex<Option<Sample>>,
    charts: Arc<Charts>,
}

impl StatusHistory {
    /// The samples behind those that the charts have.
    pub(crate) fn new(charts: Arc<Charts>) -> StatusHistory {
        charts.begin(&columns::names());
        StatusHistory { newest: Mutex::default(), charts }
    }

    /// Adds a sample and drops the oldest one beyond [`SAMPLES_MAX`].
    pub(super) fn add(&self, sample: Sample) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        self.charts.push(columns::row(&sample));
        *newest = Some(sample);
    }

    /// The newest sample as JSON, with up to `history` of the last ones by column; `None` before
    /// the first sample.
    pub(crate) fn json(&self, history: Option<usize>) -> Option<Vec<u8>> {
        // Held for both, so that the last row belongs to the newest sample.
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = history.map(|count| self.charts.newest(count));
        let newest = newest.clone()?;
        let columns = rows.map(|rows| columns::columns(rows.iter()));
        Some(sample::with_history(&newest, columns))
    }
}
