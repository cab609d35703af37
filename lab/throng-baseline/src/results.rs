//! The values of all measurements, one for each side and run.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::measurements::{Goal, MEASUREMENTS, Measurement};
use crate::stats::Summary;

/// The server that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// The raw loop.
    Raw,
    /// The Throng server.
    Throng,
}

impl Side {
    /// Both sides, in an order that alternates from run to run: a machine that becomes slower
    /// affects both alike.
    pub(crate) fn alternating(run: usize) -> [Self; 2] {
        if run.is_multiple_of(2) { [Self::Raw, Self::Throng] } else { [Self::Throng, Self::Raw] }
    }
}

/// The values measured so far.
#[derive(Debug, Default)]
pub(crate) struct Results {
    values: BTreeMap<(String, Side), Vec<f64>>,
    /// Sentences below the table.
    pub(crate) notes: Vec<String>,
}

/// A measurement with its values.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// The same as [`Measurement::key`].
    pub(crate) key: &'static str,
    /// The same as [`Measurement::label`].
    pub(crate) measurement: &'static str,
    /// The same as [`Measurement::unit`].
    pub(crate) unit: &'static str,
    /// The same as [`Measurement::decimals`].
    #[serde(skip)]
    pub(crate) decimals: usize,
    /// Values of the server.
    pub(crate) throng: Option<Summary>,
    /// Values of the raw loop.
    pub(crate) raw: Option<Summary>,
    /// Server divided by raw loop, for each run.
    pub(crate) ratio: Option<Summary>,
    /// The goal of the measurement.
    pub(crate) goal: Goal,
    /// True if the median reaches the goal; `None` without a goal or a value.
    pub(crate) is_reached: Option<bool>,
}

impl Results {
    /// Adds the value of one run. `key` is the key of one of [`MEASUREMENTS`].
    pub(crate) fn add(&mut self, key: &str, side: Side, value: f64) {
        debug_assert!(MEASUREMENTS.iter().any(|known| known.key == key), "no measurement {key}");
        self.values.entry((key.to_owned(), side)).or_default().push(value);
    }

    /// The measurements that have a value, in the order of the report.
    pub(crate) fn rows(&self) -> Vec<Row> {
        MEASUREMENTS.iter().filter_map(|measurement| self.row(measurement)).collect()
    }

    fn row(&self, measurement: &Measurement) -> Option<Row> {
        let values = |side| {
            self.values.get(&(measurement.key.to_owned(), side)).map_or(&[][..], Vec::as_slice)
        };
        let (throng, raw) = (values(Side::Throng), values(Side::Raw));
        let ratios: Vec<f64> = throng
            .iter()
            .zip(raw)
            .filter(|(_, raw)| **raw > 0.0)
            .map(|(throng, raw)| throng / raw)
            .collect();
        let (throng, raw) = (Summary::of(throng), Summary::of(raw));
        if throng.is_none() && raw.is_none() {
            return None;
        }
        let ratio = Summary::of(&ratios);
        let is_reached = match measurement.goal {
            Goal::None => None,
            Goal::AtMost(most) => throng.map(|summary| summary.median <= most),
            Goal::RatioAtLeast(least) => ratio.map(|summary| summary.median >= least),
            Goal::RatioAtMost(most) => ratio.map(|summary| summary.median <= most),
        };
        let Measurement { key, label, unit, decimals, goal } = *measurement;
        Some(Row { key, measurement: label, unit, decimals, throng, raw, ratio, goal, is_reached })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_run_by_run() {
        let mut results = Results::default();
        for (throng, raw) in [(300.0, 100.0), (800.0, 200.0), (100.0, 50.0)] {
            results.add("burst_batch_rate", Side::Throng, throng);
            results.add("burst_batch_rate", Side::Raw, raw);
        }
        let rows = results.rows();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].ratio, Some(Summary { median: 3.0, min: 2.0, max: 4.0 }));
        assert_eq!(rows[0].is_reached, Some(true));
    }

    #[test]
    fn a_goal_needs_a_value() {
        let mut results = Results::default();
        results.add("memory_websocket", Side::Throng, 129.0);
        results.add("burst_batch_rate", Side::Raw, 1.0);
        results.add("publish_rate", Side::Throng, 1.0);
        let reached: Vec<_> = results.rows().iter().map(|row| row.is_reached).collect();
        assert_eq!(reached, [Some(false), None, None]);
    }
}
