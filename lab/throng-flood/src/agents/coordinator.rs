//! The coordinator: finds agents, divides the plan among them, runs it, and publishes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;

use super::clients::{AgentClients, AgentHandle};
use super::clock::{self, Offset, RoundTrip};
use super::message::{AgentCommand, AgentInfo, BeginRun, Discovery, Reply, RunCommand};
use super::nats::{AgentRequest, Group, NatsConnection, encode};
use super::split::AgentShare;
use super::{AgentsError, VERSION};
use crate::marker::{new_run, now_ns};
use crate::plan::Plan;
use crate::publish::{PublisherSettings, Publishers};
use crate::report::Report;
use crate::report::live::Moment;
use crate::runner::{Observer, RunContext, run_phases};
use crate::streams::StreamCounters;
use crate::streams::stream_count;
use throng_units::format;

/// How often agents are called until enough have replied.
const CALL_EVERY: Duration = Duration::from_millis(500);

/// How often the coordinator checks whether to stop waiting.
const STEP: Duration = Duration::from_millis(50);

/// How long an agent may take to start its threads, or to close its clients.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(30);

/// How many round trips measure an offset. The fastest of them is hardly delayed.
const ROUND_TRIPS: usize = 100;

/// How long a reply about the time may take.
const CLOCK_TIME_MAX: Duration = Duration::from_secs(2);

/// Which agents to use.
pub(crate) struct GatherOptions<'a> {
    /// The URL of the NATS server.
    pub(crate) nats: &'a str,
    /// The group of the agents.
    pub group: &'a str,
    /// How many agents to use.
    pub agents: usize,
    /// How long to wait for them.
    pub wait: Duration,
}

/// The agents of a run.
pub(crate) struct Coordinator {
    nats: NatsConnection,
    group: Group,
    found: Vec<AgentInfo>,
}

impl Coordinator {
    /// Waits until enough agents have replied.
    pub(crate) fn gather(
        options: &GatherOptions<'_>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Coordinator, AgentsError> {
        let group = Group::new(options.group)?;
        let nats = NatsConnection::connect(options.nats)?;
        let found = nats.runtime.block_on(gather(&nats, &group, options, is_stopped))?;
        Ok(Coordinator { nats, group, found })
    }

    /// Runs the plan, which is also given as TOML. Fails if the run cannot start.
    pub(crate) fn run(
        &self,
        plan: &Plan,
        toml: &str,
        observer: &mut dyn Observer,
    ) -> Result<Report, String> {
        let run = new_run();
        let clients = plan.max_clients();
        let mut members = self.members(clients);
        for member in &mut members {
            member.offset = self.other_clock(run, member).map_err(|error| error.to_string())?;
        }
        let begun = self.begin(run, &members, toml, clients).and_then(|()| {
            let counters =
                Arc::new(StreamCounters::new(stream_count(plan.target.streams, clients)));
            let publishers = plan.max_rate().map(|max_rate| {
                let counters = Arc::clone(&counters);
                let target = &plan.target;
                let max_clients = clients;
                Publishers::start(&PublisherSettings {
                    target,
                    run,
                    counters,
                    max_clients,
                    max_rate,
                })
            });
            Ok((counters, publishers.transpose().map_err(|error| error.to_string())?))
        });
        let (counters, publishers) = match begun {
            Ok(begun) => begun,
            Err(reason) => {
                self.end(run, &members);
                return Err(reason);
            }
        };
        let client_set = AgentClients::new(&self.nats, run, Arc::clone(&counters), members);
        let mut observer = AgentsObserver { observer, client_set: &client_set };
        // One machine cannot measure what several do.
        let context = RunContext { client_set: &client_set, counters, publishers, machine: None };
        let mut report = run_phases(plan, context, &mut observer);
        if client_set.is_empty() {
            report.cut_short = Some(if self.nats.is_connected() {
                "all agents were lost".to_owned()
            } else {
                format!("the NATS server at {} is gone", self.nats.url)
            });
        }
        self.end(run, &client_set.members);
        self.note_clocks(run, &client_set.members);
        report.warnings.extend(client_set.warnings());
        report.agents =
            client_set.members.into_iter().map(|member| member.state.into_inner().report).collect();
        add_costs(&mut report);
        Ok(report)
    }

    fn members(&self, clients: usize) -> Vec<AgentHandle> {
        let agents = self.found.len();
        let member = |(agent, info): (usize, &AgentInfo)| {
            let subject = self.group.agent(&info.id);
            AgentHandle::new(info.clone(), subject, AgentShare { agent, agents }, clients)
        };
        self.found.iter().enumerate().map(member).collect()
    }

    /// The offset of an agent's clock; `None` if it has the same clock.
    fn other_clock(&self, run: u32, member: &AgentHandle) -> Result<Option<Offset>, AgentsError> {
        let offset = self
            .offset(run, member)
            .map_err(|reason| AgentsError::Refused { agent: member.info.name.clone(), reason })?;
        // A time namespace on the same machine has an offset of its own.
        let is_same = member.info.boot_id == clock::boot_id() && !member.info.boot_id.is_empty();
        Ok(Some(offset).filter(|offset| !(is_same && offset.may_be_none())))
    }

    fn offset(&self, run: u32, member: &AgentHandle) -> Result<Offset, String> {
        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let request = AgentRequest::new(
                0,
                &member.subject,
                &RunCommand { run, command: AgentCommand::Clock },
            );
            let asked_ns = now_ns();
            let answer = self.nats.ask(vec![request], CLOCK_TIME_MAX).pop();
            let answered_ns = now_ns();
            match answer {
                Some((_, Ok(Reply::Clock { now_ns: theirs_ns }))) => {
                    trips.push(RoundTrip { asked_ns, theirs_ns, answered_ns });
                }
                Some((_, Ok(Reply::Refused(reason)) | Err(reason))) => return Err(reason),
                _ => return Err("it does not report its time".to_owned()),
            }
        }
        Offset::of(&trips).ok_or_else(|| "it does not report its time".to_owned())
    }

    fn begin(
        &self,
        run: u32,
        members: &[AgentHandle],
        toml: &str,
        clients: usize,
    ) -> Result<(), String> {
        let requests = members.iter().enumerate().map(|(number, member)| {
            let begin = BeginRun {
                plan: toml.to_owned(),
                agent: member.share.agent,
                agents: member.share.agents,
                clients,
                clock_ahead_ns: member.offset.map_or(0, |offset| offset.ahead_ns),
            };
            let command = AgentCommand::Begin(Box::new(begin));
            AgentRequest::new(number, &member.subject, &RunCommand { run, command })
        });
        for (number, answer) in self.nats.ask(requests.collect(), BEGIN_TIME_MAX) {
            let reason = match answer {
                Ok(Reply::Done) => continue,
                Ok(Reply::Refused(reason)) | Err(reason) => reason,
                Ok(_) => "its answer belongs to another command".to_owned(),
            };
            let agent = members[number].info.name.clone();
            return Err(AgentsError::Refused { agent, reason }.to_string());
        }
        Ok(())
    }

    fn end(&self, run: u32, members: &[AgentHandle]) {
        let remaining = members.iter().filter(|member| member.state.borrow().report.lost.is_none());
        let requests = remaining.map(|member| {
            AgentRequest::new(0, &member.subject, &RunCommand { run, command: AgentCommand::End })
        });
        // An agent that misses it ends the run by itself when no more commands come.
        let _ = self.nats.ask::<Reply>(requests.collect(), BEGIN_TIME_MAX);
    }

    /// Measures the offsets again, because clocks may drift.
    fn note_clocks(&self, run: u32, members: &[AgentHandle]) {
        for member in members {
            let Some(before) = member.offset else { continue };
            let is_there = member.state.borrow().report.lost.is_none();
            let after = is_there.then(|| self.offset(run, member).ok()).flatten();
            member.state.borrow_mut().report.clock = Some(before.clock(after));
        }
    }
}

/// Stops a run that has lost all its agents.
struct AgentsObserver<'a> {
    observer: &'a mut dyn Observer,
    client_set: &'a AgentClients<'a>,
}

impl Observer for AgentsObserver<'_> {
    fn on_sample(&mut self, moment: &Moment<'_>) {
        self.observer.on_sample(moment);
    }

    fn should_stop(&mut self) -> bool {
        self.observer.should_stop() || self.client_set.is_empty()
    }
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

async fn gather(
    nats: &NatsConnection,
    group: &Group,
    options: &GatherOptions<'_>,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Vec<AgentInfo>, AgentsError> {
    let inbox = nats.client.new_inbox();
    let subscribed = nats.client.subscribe(inbox.clone()).await;
    let mut answers = subscribed.map_err(|error| nats.server_error(error))?;
    let program = env!("CARGO_PKG_VERSION").to_owned();
    let call = encode(&Discovery { version: VERSION, program });
    let mut found: Vec<AgentInfo> = Vec::new();
    let mut busy = std::collections::BTreeSet::new();
    let (began, mut called_at) = (Instant::now(), None::<Instant>);
    while found.len() < options.agents {
        if is_stopped() {
            return Err(AgentsError::Stopped);
        }
        if began.elapsed() >= options.wait {
            return Err(too_few(found.len(), busy.len(), options));
        }
        if called_at.is_none_or(|at| at.elapsed() >= CALL_EVERY) {
            called_at = Some(Instant::now());
            let body = call.clone().into();
            let called = nats.client.publish_with_reply(group.call(), inbox.clone(), body).await;
            called.map_err(|error| nats.server_error(error))?;
        }
        let Ok(Some(message)) = tokio::time::timeout(STEP, answers.next()).await else { continue };
        let Some(info) = read_info(&message.payload)? else { continue };
        if info.is_busy {
            busy.insert(info.id);
        } else if found.iter().all(|known| known.id != info.id) {
            found.push(info);
        }
    }
    // The same agents get the same parts each time.
    found.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    Ok(found)
}

/// Parses a reply; `None` if it is not one, such as the notice that no agent listens.
fn read_info(payload: &[u8]) -> Result<Option<AgentInfo>, AgentsError> {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(payload) else { return Ok(None) };
    let word = |key: &str| value.get(key).and_then(|word| word.as_str()).unwrap_or("?").to_owned();
    let version = value.get("version").and_then(serde_json::Value::as_u64);
    if version != Some(VERSION.into()) {
        let version = version.map_or_else(|| "?".to_owned(), |version| version.to_string());
        return Err(AgentsError::Version {
            agent: word("name"),
            theirs: format!("{version} ({})", word("program")),
            ours: format!("{VERSION} ({})", env!("CARGO_PKG_VERSION")),
        });
    }
    Ok(serde_json::from_value(value).ok())
}

fn too_few(found: usize, busy: usize, options: &GatherOptions<'_>) -> AgentsError {
    let hint = match (busy, found) {
        (0, 0) => ": start `throng flood agent` with the same --nats and --group".to_owned(),
        (0, _) => String::new(),
        (busy, _) => {
            let are = if busy == 1 { "takes" } else { "take" };
            format!("; {} {are} part in another run", format::counted(busy as u64, "more", "more"))
        }
    };
    AgentsError::TooFew {
        found,
        wanted: options.agents,
        seconds: options.wait.as_secs(),
        group: options.group.to_owned(),
        hint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_an_error() {
        let theirs = br#"{"version":7,"program":"9.9","name":"a","whatever":[]}"#;
        let words = read_info(theirs).expect_err("another version").to_string();
        assert!(
            words.contains("the agent a is of version 7 (9.9) and this is version 2"),
            "{words}"
        );
        assert!(read_info(b"").expect("no answer").is_none());
        assert!(read_info(b"{}").is_err());
    }

    #[test]
    fn too_few_agents_are_an_error() {
        let options =
            GatherOptions { nats: "", group: "g", agents: 3, wait: Duration::from_secs(5) };
        let words = |found, busy| too_few(found, busy, &options).to_string();
        assert_eq!(words(2, 0), "2 of 3 agents are there after 5 s (group \"g\")");
        assert!(words(0, 0).ends_with("with the same --nats and --group"));
        assert!(words(1, 1).ends_with("; 1 more takes part in another run"));
    }
}
