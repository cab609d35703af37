//! The report of a run: its data, and how it is shown.
//!
//! The data is built by the runner; this module knows neither the plan nor the target.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `model` | the data, stored as JSON |
//! | [`summary`] | what several views say about a report: faults, distributions, memory |
//! | [`live`] | the view while the run goes on |
//! | [`table`] | the terminal view at the end |
//! | [`csv`] | for spreadsheets |
//! | [`html`] | one page with charts |
//! | [`compare`] | several runs side by side, on a terminal or a page |

pub(crate) mod compare;
pub(crate) mod csv;
#[cfg(test)]
mod fixture;
pub(crate) mod html;
pub mod live;
mod model;
pub mod summary;
pub(crate) mod table;

pub use model::{
    AgentReport, AssertionResult, ClockReport, Cost, MachineCost, PhaseReport, Report,
    RunDescription, Sample, TlsTotals, Totals, VERSION,
};
pub use throng_report::{Distribution, Environment};
