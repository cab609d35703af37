//! `throng flood agent`, and the coordinator's options.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use super::allowance;
use super::arguments::{AgentArguments, CoordinatorArguments, SecretArguments};
use super::error::{CommandError, EXIT_FAILED, EXIT_USAGE};
use super::interrupts::{Interrupts, interrupts};
use crate::agents::agent::{Agent, AgentEnd, AgentState};
use crate::agents::bounds::Bounds;
use crate::agents::clock::host_name;
use crate::agents::connection::Secret;
use crate::agents::coordinator::Coordinator;
use crate::clients::ClientShare;
use crate::plan::{Options, Plan};
use throng_units::format::counted;
use throng_units::paint::{Ink, Paint, sanitized};

/// The variable with the secret, unless a file has it.
const SECRET_VARIABLE: &str = "THRONG_FLOOD_SECRET";

/// `throng flood agent`.
pub(super) fn agent(arguments: &AgentArguments) -> Result<ExitCode, CommandError> {
    let secret = secret(&arguments.secret)?;
    let listen = arguments.listen;
    if secret.is_none() && !listen.ip().is_loopback() {
        let reason = format!("{listen} is not loopback: give --secret-file or {SECRET_VARIABLE}");
        return Err(CommandError::new(EXIT_USAGE, reason));
    }
    let listener = TcpListener::bind(listen).map_err(|error| {
        CommandError::new(EXIT_FAILED, format!("cannot listen at {listen}: {error}"))
    })?;
    let interrupts = interrupts()?;
    let name = arguments.name.clone();
    let sources: Vec<IpAddr> =
        arguments.source.iter().flat_map(|source| source.0.clone()).collect();
    let agent = Arc::new(Agent {
        name: name.unwrap_or_else(|| format!("{}-{}", host_name(), std::process::id())),
        secret: secret.unwrap_or_else(Secret::none),
        bounds: Bounds {
            clients_max: arguments.max_clients.map(|count| count.0),
            targets: arguments.allow_target.clone(),
        },
        plan: Box::new(move |toml, share| own_part(toml, share, &sources)),
        say,
        state: AgentState::default(),
    });
    match agent.serve(&listener, arguments.once, &|| interrupts.is_stopped()) {
        Ok(AgentEnd::Done) => Ok(ExitCode::SUCCESS),
        Ok(AgentEnd::Lost) => Ok(EXIT_FAILED.into()),
        Err(error) => Err(CommandError::new(EXIT_FAILED, error)),
    }
}

/// The secret of a file, else of the environment; `None` if neither is given.
fn secret(arguments: &SecretArguments) -> Result<Option<Secret>, CommandError> {
    let (origin, text) = match (&arguments.secret_file, std::env::var(SECRET_VARIABLE)) {
        (Some(path), _) => (path.display().to_string(), std::fs::read(path)),
        (None, Ok(text)) => (SECRET_VARIABLE.to_owned(), Ok(text.into_bytes())),
        (None, Err(_)) => return Ok(None),
    };
    let secret = text.map_err(|error| error.to_string()).and_then(|text| Secret::new(&text));
    let refused = |reason| CommandError::new(EXIT_USAGE, format!("{origin}: {reason}"));
    secret.map(Some).map_err(refused)
}

/// Connects to the agents of the options.
pub(super) fn gather(
    arguments: &CoordinatorArguments,
    interrupts: &Interrupts,
) -> Result<Coordinator, CommandError> {
    let agents = &arguments.agents;
    if let Some(twice) =
        (1..agents.len()).find(|&number| agents[..number].contains(&agents[number]))
    {
        let reason = format!("--agents: {} is given twice", agents[twice]);
        return Err(CommandError::new(EXIT_USAGE, reason));
    }
    let secret = secret(&arguments.secret)?.unwrap_or_else(Secret::none);
    say(&format!("waiting for {}", counted(agents.len() as u64, "agent", "agents")));
    let agents: Vec<String> = agents.iter().map(ToString::to_string).collect();
    Coordinator::gather(&agents, &secret, arguments.agents_wait.0, &|| interrupts.is_stopped())
        .map_err(|error| CommandError::new(EXIT_FAILED, error))
}

/// The plan for agents, without what concerns the coordinator's machine only.
pub(super) fn plan_for_others(plan: &Plan) -> String {
    let options = Options { server_pid: None, assertions: None, ..plan.options.clone() };
    Plan { options, ..plan.clone() }.toml()
}

/// This machine's part of a plan, if the machine allows it.
fn own_part(toml: &str, part: ClientShare, addresses: &[IpAddr]) -> Result<Plan, String> {
    let plan = Plan::from_toml(Path::new("the coordinator's plan"), toml.to_owned());
    let mut plan = part.plan(plan.map_err(|errors| errors.replace('\n', "; "))?);
    if !addresses.is_empty() {
        plan.sources.addresses = addresses.to_vec();
    }
    let (allowance, refusal) = allowance::allowance(&plan);
    refusal.map_or(Ok(()), Err)?;
    say(&allowance.summary());
    Ok(plan)
}

/// Prints a line to standard error.
fn say(line: &str) {
    eprintln!("{}", Paint::on(&io::stderr()).ink(Ink::Dim, sanitized(line)));
}
