//! `throng flood agent`, and the coordinator's options.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use super::allowance;
use super::arguments::{AgentArguments, CoordinatorArguments};
use super::error::{CommandError, EXIT_FAILED, EXIT_USAGE};
use super::interrupts::interrupts;
use crate::agents::AgentsError;
use crate::agents::agent::{self, AgentEnd};
use crate::agents::coordinator::{self, Coordinator};
use crate::agents::split::AgentShare;
use crate::plan::{Options, Plan, file};
use throng_units::format::counted;
use throng_units::paint::{Ink, Paint, sanitized};

/// `throng flood agent`.
pub(super) fn agent(arguments: &AgentArguments) -> Result<ExitCode, CommandError> {
    let is_stopped = interrupts()?.is_stopped;
    let addresses: Vec<IpAddr> =
        arguments.source.iter().flat_map(|source| source.0.clone()).collect();
    let ended = agent::serve(&agent::AgentOptions {
        nats: &arguments.nats,
        group: &arguments.group,
        name: arguments.name.clone(),
        is_once: arguments.once,
        plan: &|toml, part| own_part(toml, part, &addresses),
        say: &say,
        is_stopped: &|| is_stopped.load(Ordering::Relaxed),
    });
    match ended.map_err(refusal)? {
        AgentEnd::Done => Ok(ExitCode::SUCCESS),
        AgentEnd::Lost => Ok(EXIT_FAILED.into()),
    }
}

/// Finds the agents that the options ask for.
pub(super) fn gather(
    agents: &CoordinatorArguments,
    is_stopped: &AtomicBool,
) -> Result<Coordinator, CommandError> {
    let setting = coordinator::GatherOptions {
        nats: agents.nats.as_deref().unwrap_or_default(),
        group: &agents.group,
        agents: agents.agents.map_or(0, |count| count.0),
        wait: agents.agents_wait.0,
    };
    if setting.agents == 0 {
        return Err(CommandError::new(EXIT_USAGE, "--agents: there are no agents"));
    }
    let wanted = counted(setting.agents as u64, "agent", "agents");
    say(&format!("waiting for {wanted} of group {:?}", setting.group));
    Coordinator::gather(&setting, &|| is_stopped.load(Ordering::Relaxed)).map_err(refusal)
}

/// The plan for agents, without what concerns the coordinator's machine only.
pub(super) fn plan_for_others(plan: &Plan) -> String {
    let options = Options { server_pid: None, assertions: None, ..plan.options.clone() };
    Plan { options, ..plan.clone() }.toml()
}

/// This machine's part of a plan, if the machine allows it.
fn own_part(toml: &str, part: AgentShare, addresses: &[IpAddr]) -> Result<Plan, String> {
    let (options, file) = file::parse(Path::new("the coordinator's plan"), toml.to_owned())
        .map_err(|error| error.0.join("; "))?;
    let plan = options.into_plan().map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(|error| file.describe(error)).collect();
        lines.join("; ")
    })?;
    let mut plan = part.plan(plan);
    if !addresses.is_empty() {
        plan.sources.addresses = addresses.to_vec();
    }
    let allowance = allowance::allowance(&plan);
    match allowance::refusal(&plan, &allowance) {
        Some(refusal) => Err(refusal),
        None => {
            say(&allowance.summary());
            Ok(plan)
        }
    }
}

fn refusal(error: AgentsError) -> CommandError {
    let is_usage = matches!(error, AgentsError::Group(_));
    CommandError::new(if is_usage { EXIT_USAGE } else { EXIT_FAILED }, error)
}

/// Prints a line to standard error.
fn say(line: &str) {
    eprintln!("{}", Paint::on(&io::stderr()).ink(Ink::Dim, sanitized(line)));
}
