//! Runs the phases of a plan, takes a sample every second, and writes the report.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | this one | [`run_phases`] |
//! | `state` | the state of a run, the samples of each second, and what its caller sees of it |
//! | `phases` | what happens in each phase |
//! | `completion` | waits for outstanding deliveries, and audits |
//! | `measurements` | the measurements of a phase and of the run |
//! | `resources` | processor time and memory of both sides |
//! | `warnings` | what makes measurements doubtful |
//!
//! # Invariants
//!
//! * [`run_phases`] always ends with a report, also if it is stopped or reaches the deadline.
//! * Counts are added once, to their phase and to the run.

mod completion;
mod measurements;
mod phases;
mod resources;
mod state;
mod warnings;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::clients::ClientSet;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::publish::Publishers;
use crate::report::{Report, VERSION};
use crate::streams::StreamCounters;
use state::Runner;

pub(crate) use resources::{ResourceMonitor, ResourceSample};
pub use state::Observer;

/// Runs the phases of a plan with the clients of `run`, and publishes. `machine` is there if both
/// sides are on it. The caller adds environment and assertions to the report.
///
/// # Errors
///
/// Why publishing is impossible.
pub(crate) fn run_phases<C: ClientSet>(
    plan: &Plan,
    client_set: &C,
    run: u32,
    counters: Arc<StreamCounters>,
    machine: Option<Machine>,
    observer: &mut dyn Observer,
) -> Result<Report, String> {
    let publishers =
        Publishers::of_plan(plan, run, &counters).map_err(|error| error.to_string())?;
    let mut runner = Runner::new(plan, client_set, counters, publishers, machine, observer);
    let mut report = Report {
        version: VERSION,
        name: plan.name.clone(),
        started_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        plan: serde_json::to_value(plan.without_secrets()).unwrap_or_default(),
        ..Report::default()
    };
    for (index, phase) in plan.phases.iter().enumerate() {
        if let Err(end) = runner.run_phase(index, phase) {
            report.cut_short = Some(runner.end_message(end));
            break;
        }
    }
    Ok(runner.finish(report))
}
