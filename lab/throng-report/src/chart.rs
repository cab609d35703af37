//! The data of charts, as the script of a [page](crate::page) draws them. A chart without values is
//! not drawn.

use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;
use crate::unit::Unit;

/// A chart with its id, which is unique on the page, and its heading.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Chart {
    Lines(Plot),
    /// The shares of latencies, of one distribution.
    Histogram(Latencies),
    /// Latency by the share of values that are higher.
    Percentiles(Latencies),
    /// For each distribution a line from the minimum to the maximum and a bar from p50 to p99.
    Ranges(Latencies),
    Pairs(Pairs),
}

/// A chart of values over time or size.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plot {
    pub id: String,
    pub title: String,
    /// How to read it; may be empty.
    pub note: String,
    pub unit: Unit,
    /// Horizontal axis: `time` (seconds) or `clients`.
    pub x_axis: String,
    /// Whether the vertical axis is logarithmic.
    pub is_log: bool,
    /// Whether the horizontal axis is logarithmic.
    pub is_log_x: bool,
    pub lines: Vec<PlotLine>,
}

/// A line of a plot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlotLine {
    /// Name in the legend.
    pub name: String,
    pub points: Points,
}

/// Points of a line: x, and the value there if it was measured.
pub type Points = Vec<(f64, Option<f64>)>;

/// Latencies of several things, each with its name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latencies {
    pub id: &'static str,
    pub title: &'static str,
    /// How to read it; may be empty.
    pub note: &'static str,
    pub of: Vec<(String, Distribution)>,
}

/// Two values of each thing, on one logarithmic axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pairs {
    pub id: String,
    pub title: String,
    /// How to read it; may be empty.
    pub note: &'static str,
    pub unit: Unit,
    /// Names of the first and the second values.
    pub names: [&'static str; 2],
    pub rows: Vec<Pair>,
}

/// The name of a row, and its values if they were measured.
pub type Pair = (String, Option<f64>, Option<f64>);
