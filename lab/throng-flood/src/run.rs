//! A run, from its plan to its report.

use crate::agents::coordinator::Coordinator;
use crate::clients::ClientPool;
use crate::machine::{self, Machine, is_loopback};
use crate::plan::Plan;
use crate::report::{Report, RunDescription, VERSION};
use crate::runner::{Observer, run_phases};

/// Runs the plan. There is a report in any case: [`Report::cut_short`] says what went wrong.
pub fn run(plan: Plan, observer: &mut dyn Observer) -> Report {
    let outcome = execute(&plan, observer);
    completed(&plan, outcome)
}

/// Runs the plan, which is also given as TOML, with the clients of several machines.
pub(crate) fn run_with(
    coordinator: Coordinator,
    plan: &Plan,
    toml: &str,
    observer: &mut dyn Observer,
) -> Report {
    completed(plan, coordinator.run(plan, toml, observer))
}

fn completed(plan: &Plan, outcome: Result<Report, String>) -> Report {
    let mut report = outcome.unwrap_or_else(|reason| Report {
        version: VERSION,
        name: plan.name.clone(),
        plan: serde_json::to_value(plan.without_secrets()).unwrap_or_default(),
        cut_short: Some(reason),
        ..Report::default()
    });
    report.environment = machine::environment(is_loopback(plan));
    plan.network.name().clone_into(&mut report.environment.network);
    report.description = describe(plan);
    report.assertions =
        plan.assertions.iter().map(|assertion| assertion.evaluate(&report)).collect();
    report
}

/// The report of a run that started, or why it could not start.
fn execute(plan: &Plan, observer: &mut dyn Observer) -> Result<Report, String> {
    let is_here = is_loopback(plan) || !plan.server_pids.is_empty();
    let machine =
        is_here.then(|| Machine::watch(machine::server(plan), || observer.should_stop())).flatten();
    let pool = ClientPool::start(plan, plan.max_clients()).map_err(|error| error.to_string())?;
    let report = run_phases(plan, &pool, pool.run(), pool.counters(), machine, observer);
    pool.stop();
    report
}

/// What the plan tests. The command line is not known here.
fn describe(plan: &Plan) -> RunDescription {
    RunDescription {
        target: plan.target.url.text().to_owned(),
        transport: plan.target.transport.to_string(),
        profile: plan.profile.name().to_owned(),
        clients: plan.max_clients() as u64,
        command: String::new(),
        plan: plan.without_secrets().toml(),
    }
}
