//! A run from its plan to its report.

use std::net::ToSocketAddrs as _;

use throng_host::environment;

use crate::agents::coordinator::Coordinator;
use crate::clients::Fleet;
use crate::conductor::{Stage, conduct};
use crate::machine::whole::{self, Machine};
use crate::plan::{Plan, show};
use crate::publish::recipe::Place;
use crate::publish::{Publishers, Setting};
use crate::report::live::Moment;
use crate::report::{Environment, Report, RunDescription, VERSION};
use crate::template::Values;

/// Who looks on while a run goes: the live view, and the caller's Ctrl-C.
pub trait Watch {
    /// A second has passed.
    fn moment(&mut self, moment: &Moment<'_>);

    /// Asked often: whether the run should end now, with the report so far.
    fn stop(&mut self) -> bool {
        false
    }
}

/// Runs the plan. Whatever goes wrong, there is a report: [`Report::cut_short`] says what.
pub fn run(plan: Plan, watch: &mut dyn Watch) -> Report {
    let outcome = conducted(&plan, watch);
    reported(&plan, outcome)
}

/// Runs the plan, which is also the text `toml`, with the clients on several machines.
pub fn run_with(
    coordinator: &Coordinator,
    plan: &Plan,
    toml: &str,
    watch: &mut dyn Watch,
) -> Report {
    reported(plan, coordinator.run(plan, toml, watch))
}

fn reported(plan: &Plan, outcome: Result<Report, String>) -> Report {
    let mut report = outcome.unwrap_or_else(|reason| Report {
        version: VERSION,
        name: plan.name.clone(),
        plan: serde_json::to_value(plan.without_secrets()).unwrap_or_default(),
        cut_short: Some(reason),
        ..Report::default()
    });
    report.environment = environment(plan);
    report.description = describe(plan);
    report.assertions =
        plan.assertions.iter().map(|assertion| assertion.evaluate(&report)).collect();
    report
}

/// The report of a run that could begin, or why it could not.
fn conducted(plan: &Plan, watch: &mut dyn Watch) -> Result<Report, String> {
    let is_here = is_loopback(plan) || !plan.server_pids.is_empty();
    let machine = is_here.then(|| Machine::watch(whole::server(plan), || watch.stop())).flatten();
    let clients_max = plan.clients_max();
    let fleet = Fleet::start(plan, clients_max).map_err(|error| error.to_string())?;
    let rate_max = plan.rate_max();
    let publishers = rate_max.map(|rate_max| {
        let (run, board) = (fleet.run(), fleet.board());
        Publishers::start(&Setting { target: &plan.target, run, board, clients_max, rate_max })
    });
    let report = match publishers.transpose() {
        Ok(publishers) => {
            let stage = Stage { crowd: &fleet, board: fleet.board(), publishers, machine };
            Ok(conduct(plan, stage, watch))
        }
        Err(error) => Err(error.to_string()),
    };
    fleet.stop();
    report
}

/// What the plan tests. The command line is not known here.
fn describe(plan: &Plan) -> RunDescription {
    RunDescription {
        target: plan.target.url.text().to_owned(),
        transport: plan.target.transport.to_string(),
        profile: plan.profile.name().to_owned(),
        clients: plan.clients_max() as u64,
        command: String::new(),
        plan: show::show(&plan.without_secrets()),
    }
}

fn environment(plan: &Plan) -> Environment {
    let machine = environment::Environment::look();
    Environment {
        kernel: machine.kernel,
        cores: machine.cores,
        processor: machine.processor,
        memory_bytes: machine.memory_bytes,
        descriptors_max: machine.descriptors_max,
        sysctl: machine.sysctl,
        throng: env!("CARGO_PKG_VERSION").to_owned(),
        is_loopback: is_loopback(plan),
        network: plan.network.name().to_owned(),
    }
}

/// Whether the target is on this machine, as far as its address tells.
fn is_loopback(plan: &Plan) -> bool {
    let url = plan.target.url.rendered(&Values::default());
    let Some(place) = Place::of(&url) else { return false };
    let addresses = (place.host, place.port).to_socket_addrs();
    addresses.is_ok_and(|mut addresses| addresses.all(|address| address.ip().is_loopback()))
}
