//! Where measurements write down what they found: one value per figure, side and run.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::figures::{FIGURES, Figure, Goal};
use crate::stats::Summary;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The raw loop.
    Raw,
    /// The Throng server.
    Throng,
}

impl Side {
    /// Both sides, in an order that alternates from run to run: a machine that becomes slower
    /// affects both alike.
    pub fn alternating(run: usize) -> [Self; 2] {
        if run.is_multiple_of(2) { [Self::Raw, Self::Throng] } else { [Self::Throng, Self::Raw] }
    }
}

/// The values measured so far.
#[derive(Debug, Default)]
pub struct Ledger {
    values: BTreeMap<(&'static str, Side), Vec<f64>>,
    /// Notes for the reader of the report.
    pub notes: Vec<String>,
}

/// A measurement with its values.
#[derive(Debug, Serialize)]
pub struct Row {
    /// As in [`Figure::key`].
    pub key: &'static str,
    /// As in [`Figure::label`].
    pub figure: &'static str,
    /// As in [`Figure::unit`].
    pub unit: &'static str,
    /// As in [`Figure::decimals`].
    #[serde(skip)]
    pub decimals: usize,
    /// Values of the server.
    pub throng: Option<Summary>,
    /// Values of the raw loop.
    pub raw: Option<Summary>,
    /// Server divided by raw loop, for each run.
    pub ratio: Option<Summary>,
    /// The goal of the measurement.
    pub goal: Goal,
    /// Whether the median reaches the goal; `None` without a goal or a value.
    pub is_reached: Option<bool>,
}

impl Ledger {
    /// Records the value of one run. `key` is one of [`FIGURES`].
    pub fn add(&mut self, key: &'static str, side: Side, value: f64) {
        debug_assert!(FIGURES.iter().any(|figure| figure.key == key), "{key} is no figure");
        self.values.entry((key, side)).or_default().push(value);
    }

    /// The figures that have a value, in the order of the report.
    pub fn rows(&self) -> Vec<Row> {
        FIGURES.iter().filter_map(|figure| self.row(figure)).collect()
    }

    fn row(&self, figure: &Figure) -> Option<Row> {
        let values = |side| self.values.get(&(figure.key, side)).map_or(&[][..], Vec::as_slice);
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
        let is_reached = match figure.goal {
            Goal::None => None,
            Goal::AtMost(most) => throng.map(|found| found.median <= most),
            Goal::RatioAtLeast(least) => ratio.map(|found| found.median >= least),
            Goal::RatioAtMost(most) => ratio.map(|found| found.median <= most),
        };
        let Figure { key, label, unit, decimals, goal } = *figure;
        Some(Row { key, figure: label, unit, decimals, throng, raw, ratio, goal, is_reached })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_run_by_run() {
        let mut ledger = Ledger::default();
        for (throng, raw) in [(300.0, 100.0), (800.0, 200.0), (100.0, 50.0)] {
            ledger.add("burst_batch_rate", Side::Throng, throng);
            ledger.add("burst_batch_rate", Side::Raw, raw);
        }
        let rows = ledger.rows();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].ratio, Some(Summary { median: 3.0, min: 2.0, max: 4.0 }));
        assert_eq!(rows[0].is_reached, Some(true));
    }

    #[test]
    fn a_goal_is_judged_only_where_there_is_a_value() {
        let mut ledger = Ledger::default();
        ledger.add("memory_websocket", Side::Throng, 129.0);
        ledger.add("burst_batch_rate", Side::Raw, 1.0);
        ledger.add("publish_rate", Side::Throng, 1.0);
        let reached: Vec<_> = ledger.rows().iter().map(|row| row.is_reached).collect();
        assert_eq!(reached, [Some(false), None, None]);
    }
}
