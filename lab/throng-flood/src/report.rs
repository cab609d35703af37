//! The report of a run: its data, and how it is shown.
//!
//! The data is built by the runner; this module knows neither the plan nor the target.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `model` | the data, stored as JSON |
//! | [`statements`] | sentences that several views share: faults, distributions, memory |
//! | [`live`] | the view while the run goes on |
//! | [`samples`] | values of each second, for charts and as CSV |
//! | [`charts`] | the charts of a run and of several runs |
//! | [`page`] | the report at the end, for a terminal and as an HTML page |
//! | [`compare`] | several runs side by side |

mod charts;
pub(crate) mod compare;
#[cfg(test)]
mod fixture;
pub mod live;
mod model;
pub(crate) mod page;
pub(crate) mod samples;
pub mod statements;

pub use model::{
    AgentReport, AssertionResult, ClockReport, Cost, MachineCost, PhaseReport, Report,
    RunDescription, Sample, TlsTotals, Totals, VERSION,
};
pub use throng_report::{Distribution, Environment};

/// Named at the bottom of pages.
const COMMAND: &str = "throng flood";
