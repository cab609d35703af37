//! The coordinator: finds agents, divides the plan among them, runs it, and publishes.

use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::clients::{AgentClients, AgentHandle};
use super::connection::{Connection, GREETING_BYTES_MAX, GREETING_TIME_MAX, Role, Secret};
use super::message::{AgentCommand, AgentInfo, Greeting};
use super::{VERSION, reason};
use crate::clients::{ClientSet as _, ClientShare};
use crate::marker::new_run;
use crate::plan::Plan;
use crate::report::Report;
use crate::runner::{Observer, run_phases};
use crate::streams::StreamCounters;

/// How often agents that are not there, or busy, are tried again.
const RETRY_EVERY: Duration = Duration::from_millis(250);

const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);

/// Why an agent cannot be used.
enum Unusable {
    /// It may be usable later.
    Absent(String),
    Forever(String),
}

/// The agents of a run.
pub(crate) struct Coordinator {
    agents: Vec<AgentHandle>,
}

impl Coordinator {
    /// Connects to the agents at these addresses, each `host:port`. Waits until all are there.
    pub(crate) fn gather(
        addresses: &[String],
        secret: &Secret,
        wait: Duration,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Coordinator, String> {
        let began = Instant::now();
        let mut found: Vec<Option<AgentHandle>> = addresses.iter().map(|_| None).collect();
        loop {
            let mut reasons = Vec::new();
            for (first, (found, address)) in found.iter_mut().zip(addresses).enumerate() {
                if is_stopped() {
                    return Err("stopped while waiting for agents".to_owned());
                }
                // An agent ends a connection on which nothing comes.
                let is_there = |agent: &AgentHandle| agent.ask::<u64>(&AgentCommand::Clock).is_ok();
                if found.as_ref().is_some_and(is_there) {
                    continue;
                }
                let whole = ClientShare::whole(0, 0);
                let share = ClientShare { first, step: addresses.len(), ..whole };
                *found = match greet(address, secret, share) {
                    Ok(agent) => Some(agent),
                    Err(Unusable::Forever(reason)) => return Err(reason),
                    Err(Unusable::Absent(reason)) => {
                        reasons.push(format!("{address}: {reason}"));
                        None
                    }
                };
            }
            if reasons.is_empty() {
                return Ok(Coordinator { agents: found.into_iter().flatten().collect() });
            }
            if began.elapsed() >= wait {
                let there = addresses.len() - reasons.len();
                return Err(format!(
                    "{there} of {} agents are there after {} s: {}",
                    addresses.len(),
                    wait.as_secs(),
                    reasons.join("; "),
                ));
            }
            thread::sleep(RETRY_EVERY);
        }
    }

    /// Runs the plan, which is also given as TOML. Fails if the run cannot start.
    pub(crate) fn run(
        self,
        plan: &Plan,
        toml: &str,
        observer: &mut dyn Observer,
    ) -> Result<Report, String> {
        let (run, clients) = (new_run(), plan.max_clients());
        let counters = Arc::new(StreamCounters::new(plan.target.stream_count(clients)));
        let mut client_set = AgentClients::new(Arc::clone(&counters), self.agents);
        let report = client_set.begin(run, toml, clients).and_then(|()| {
            // One machine cannot measure what several do.
            run_phases(plan, &client_set, run, counters, None, observer)
        });
        client_set.end();
        let mut report = report?;
        if client_set.is_gone() {
            report.cut_short = Some("all agents were lost".to_owned());
        }
        report.warnings.extend(client_set.warnings());
        report.agents = client_set.into_reports();
        add_costs(&mut report);
        Ok(report)
    }
}

/// Connects to an agent. Both sides prove that they know the secret.
fn greet(address: &str, secret: &Secret, share: ClientShare) -> Result<AgentHandle, Unusable> {
    let absent = |error: std::io::Error| Unusable::Absent(reason(&error));
    let addresses = address.to_socket_addrs().map_err(absent)?;
    let mut socket = Err(ErrorKind::AddrNotAvailable.into());
    for address in addresses {
        socket = socket.or_else(|_| TcpStream::connect_timeout(&address, CONNECT_TIME_MAX));
    }
    let deadline = Instant::now() + GREETING_TIME_MAX;
    let mut connection =
        Connection::open(socket.map_err(absent)?, secret, Role::Coordinator, deadline)
            .map_err(absent)?;
    let program = env!("CARGO_PKG_VERSION").to_owned();
    let greeting = Greeting { version: VERSION, program: program.clone() };
    connection.send(&greeting, deadline).map_err(absent)?;
    let info: AgentInfo =
        connection.receive(GREETING_BYTES_MAX, deadline).map_err(|error| match error.kind() {
            // An agent closes the connection of a stranger.
            ErrorKind::UnexpectedEof | ErrorKind::PermissionDenied => {
                let reason = "has another secret: see --secret-file";
                Unusable::Forever(format!("the agent at {address} {reason}"))
            }
            _ => absent(error),
        })?;
    if info.version != VERSION {
        return Err(Unusable::Forever(format!(
            "the agent {} is of version {} ({}) and this is version {VERSION} ({program}): run the \
             same one on all machines",
            info.name, info.version, info.program,
        )));
    }
    if info.is_busy {
        return Err(Unusable::Absent("it takes part in another run".to_owned()));
    }
    Ok(AgentHandle::new(info, connection, share))
}

/// Adds the costs of the agents: the generator is all processes together.
fn add_costs(report: &mut Report) {
    let total = &mut report.total;
    let generator = &mut total.generator;
    generator.cpu_s += report.agents.iter().map(|agent| agent.cpu_s).sum::<f64>();
    generator.cpu_us_per_delivery =
        (total.received > 0).then(|| generator.cpu_s * 1e6 / total.received as f64);
    let agents = report.agents.iter().filter_map(|agent| agent.pss_bytes).sum::<u64>();
    generator.pss_bytes = generator.pss_bytes.map(|own| own + agents);
    // The memory of agents at the start is unknown.
    generator.bytes_per_client = None;
    for phase in &mut report.phases {
        // Of the coordinator only, which has no clients.
        phase.totals.generator.cpu_us_per_delivery = None;
        phase.totals.generator.bytes_per_client = None;
    }
}
