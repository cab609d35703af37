//! The values of the charts of the status page, one row for each second.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many rows are kept: a quarter of an hour.
pub(crate) const ROWS_MAX: usize = 900;

/// The values of one sample, by column; NaN stands for none.
pub(crate) type ChartRow = Box<[f64]>;

/// The rows of the last quarter of an hour, which may have begun in another process.
#[derive(Debug, Default)]
pub(crate) struct Charts(Mutex<ChartsState>);

#[derive(Debug, Default)]
struct ChartsState {
    names: Vec<String>,
    /// The oldest first.
    rows: VecDeque<ChartRow>,
}

impl Charts {
    fn state(&self) -> MutexGuard<'_, ChartsState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with these columns. The rows that are there come from a process which may have had
    /// others: they are found by name.
    pub(crate) fn begin(&self, names: &[&str]) {
        let mut state = self.state();
        let place = |name: &&str| state.names.iter().position(|other| other == name);
        let places: Vec<_> = names.iter().map(place).collect();
        for row in &mut state.rows {
            let value = |at: &Option<usize>| at.and_then(|at| row.get(at)).copied();
            *row = places.iter().map(|at| value(at).unwrap_or(f64::NAN)).collect();
        }
        state.names = names.iter().map(|&name| name.to_owned()).collect();
    }

    /// Adds the newest row, and drops the oldest one beyond [`ROWS_MAX`].
    pub(crate) fn push(&self, row: ChartRow) {
        let mut state = self.state();
        if state.rows.len() == ROWS_MAX {
            state.rows.pop_front();
        }
        state.rows.push_back(row);
    }

    /// Up to `count` of the newest rows, oldest first.
    pub(crate) fn newest(&self, count: usize) -> Vec<ChartRow> {
        let state = self.state();
        let skipped = state.rows.len().saturating_sub(count);
        state.rows.iter().skip(skipped).cloned().collect()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.state().names.clone()
    }

    /// Goes on with the rows of another process, oldest first, before [`Charts::begin`].
    pub(crate) fn resume(&self, names: Vec<String>, rows: Vec<ChartRow>) {
        let surplus = rows.len().saturating_sub(ROWS_MAX);
        *self.state() = ChartsState { names, rows: rows.into_iter().skip(surplus).collect() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_another_process_keep_the_columns_that_this_one_knows() {
        let charts = Charts::default();
        let row = |value: usize| ChartRow::from([-1.0, value as f64]);
        let names = ["unknown", "a"].map(str::to_owned);
        charts.resume(names.into(), (0..=ROWS_MAX).map(row).collect());
        charts.begin(&["a", "new"]);
        charts.push(ChartRow::from([7.0, 8.0]));
        let rows = charts.newest(usize::MAX);
        assert_eq!(
            (rows.len(), rows[0][0], &*rows[ROWS_MAX - 1]),
            (ROWS_MAX, 2.0, &[7.0, 8.0][..])
        );
        assert!(rows[0][1].is_nan());
        assert_eq!(charts.newest(2)[0][0], ROWS_MAX as f64);
    }
}
