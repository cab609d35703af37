//! The clients of all agents, for the runner.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::clock::{Offset, RoundTrip};
use super::connection::{Connection, MESSAGE_BYTES_MAX};
use super::message::{AgentCommand, AgentCost, AgentInfo, BeginRun};
use super::updates::CounterUpdates;
use super::{ANSWER_TIME_MAX, reason};
use crate::audit::Audit;
use crate::clients::{ClientCommand, ClientSet, ClientShare, PublishDeliveries};
use crate::counts::{ClientCounts, States};
use crate::failure::Failure;
use crate::marker::now_ns;
use crate::report::AgentReport;
use crate::report::statements::signed_milliseconds;
use crate::streams::StreamCounters;
use throng_units::format;

/// How long an agent may take to start its threads, or to close its clients.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(30);

/// How long it takes to read a reply that has arrived while another agent was waited for.
const BUFFERED_TIME_MAX: Duration = Duration::from_millis(250);

/// How many round trips measure an offset. The fastest of them is hardly delayed.
const ROUND_TRIPS: usize = 100;

/// The clients of all agents.
pub(super) struct AgentClients {
    agents: Vec<AgentHandle>,
    /// The counters as they were last sent.
    updates: RefCell<CounterUpdates>,
    /// Failures of lost agents' clients, which are added to the next counts.
    pending: RefCell<ClientCounts>,
}

/// An agent that takes part in the run.
pub(super) struct AgentHandle {
    share: ClientShare,
    /// The offset of its clock before the run; `None` if it is the same clock.
    offset: Option<Offset>,
    connection: RefCell<Connection>,
    state: RefCell<AgentState>,
}

/// The state of an agent, from its replies.
#[derive(Debug, Default)]
struct AgentState {
    report: AgentReport,
    states: States,
    /// How many clients it was to have after the last ramp.
    clients: usize,
    audit: Audit,
}

impl AgentHandle {
    pub(super) fn new(info: AgentInfo, connection: Connection, share: ClientShare) -> AgentHandle {
        let AgentInfo { name, host, .. } = info;
        let report = AgentReport { name, host, ..AgentReport::default() };
        let state = RefCell::new(AgentState { report, ..AgentState::default() });
        AgentHandle { share, offset: None, connection: RefCell::new(connection), state }
    }

    fn is_lost(&self) -> bool {
        self.state.borrow().report.lost.is_some()
    }

    /// Sends a command, whose reply has to be [received](Self::receive).
    fn send(&self, command: &AgentCommand) -> Result<(), String> {
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        let sent = self.connection.borrow_mut().send(command, deadline);
        sent.map_err(|error| reason(&error))
    }

    fn receive<T: DeserializeOwned>(&self, deadline: Instant) -> Result<T, String> {
        let mut connection = self.connection.borrow_mut();
        let reply = connection.receive(MESSAGE_BYTES_MAX, deadline);
        reply.unwrap_or_else(|error| Err(reason(&error)))
    }

    /// Sends a command and waits for its reply.
    pub(super) fn ask<T: DeserializeOwned>(&self, command: &AgentCommand) -> Result<T, String> {
        self.send(command)?;
        self.receive(Instant::now() + ANSWER_TIME_MAX)
    }

    /// The offset of its clock.
    fn offset(&self) -> Result<Offset, String> {
        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let asked_ns = now_ns();
            let theirs_ns = self.ask(&AgentCommand::Clock)?;
            trips.push(RoundTrip { asked_ns, theirs_ns, answered_ns: now_ns() });
        }
        Offset::of(&trips).ok_or_else(|| "it does not report its time".to_owned())
    }
}

impl AgentClients {
    pub(super) fn new(counters: Arc<StreamCounters>, agents: Vec<AgentHandle>) -> AgentClients {
        let updates = RefCell::new(CounterUpdates::new(counters));
        AgentClients { agents, updates, pending: RefCell::default() }
    }

    /// Measures the clocks, and starts the threads of all agents. Fails if one refuses.
    pub(super) fn begin(&mut self, run: u32, plan: &str, clients: usize) -> Result<(), String> {
        let refused = |agent: &AgentHandle, reason: String| {
            format!("the agent {} cannot take part: {reason}", agent.state.borrow().report.name)
        };
        for agent in &mut self.agents {
            agent.state.get_mut().report.clients = agent.share.of(clients) as u64;
            let offset = agent.offset().map_err(|reason| refused(agent, reason))?;
            agent.offset = Some(offset).filter(|offset| !offset.may_be_none());
            let clock_ahead_ns = agent.offset.map_or(0, |offset| offset.ahead_ns);
            agent.share = ClientShare { run, total: clients, clock_ahead_ns, ..agent.share };
        }
        for agent in &self.agents {
            let begin = BeginRun { share: agent.share, plan: plan.to_owned() };
            let sent = agent.send(&AgentCommand::Begin(Box::new(begin)));
            sent.map_err(|reason| refused(agent, reason))?;
        }
        self.agents.iter().try_for_each(|agent| {
            let begun = agent.receive::<()>(Instant::now() + BEGIN_TIME_MAX);
            begun.map_err(|reason| refused(agent, reason))
        })
    }

    /// Ends the run of all agents, and measures their clocks again, because clocks may drift.
    pub(super) fn end(&self) {
        for agent in self.agents.iter().filter(|agent| !agent.is_lost()) {
            // An agent that misses it ends the run with the connection.
            let _ = agent.send(&AgentCommand::End);
        }
        for agent in &self.agents {
            let is_ended =
                !agent.is_lost() && agent.receive::<()>(Instant::now() + BEGIN_TIME_MAX).is_ok();
            if let Some(before) = agent.offset {
                let after = is_ended.then(|| agent.offset().ok()).flatten();
                agent.state.borrow_mut().report.clock = Some(before.clock(after));
            }
        }
    }

    pub(super) fn into_reports(self) -> Vec<AgentReport> {
        self.agents.into_iter().map(|agent| agent.state.into_inner().report).collect()
    }

    /// Sends a command to all agents, after an update of the counters, and waits for their replies.
    fn ask<T: DeserializeOwned>(
        &self,
        command: impl Fn(ClientShare) -> AgentCommand,
    ) -> Vec<(&AgentHandle, T)> {
        let update = self.updates.borrow_mut().read();
        self.update(update);
        self.exchange(command)
    }

    /// Sends a command to all agents that are not lost. Agents that do not reply are.
    fn exchange<T: DeserializeOwned>(
        &self,
        command: impl Fn(ClientShare) -> AgentCommand,
    ) -> Vec<(&AgentHandle, T)> {
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        let agents: Vec<_> = self.agents.iter().filter(|agent| !agent.is_lost()).collect();
        let sent: Vec<_> = agents.iter().map(|agent| agent.send(&command(agent.share))).collect();
        let mut replies = Vec::with_capacity(agents.len());
        for (agent, sent) in agents.into_iter().zip(sent) {
            let deadline = deadline.max(Instant::now() + BUFFERED_TIME_MAX);
            match sent.and_then(|()| agent.receive(deadline)) {
                Ok(reply) => replies.push((agent, reply)),
                Err(reason) => self.lose(agent, reason),
            }
        }
        replies
    }

    /// Sends an update. Returns when all agents have replied, before the counters are read again.
    fn update(&self, update: Option<AgentCommand>) {
        if let Some(update) = update {
            self.exchange::<()>(|_| update.clone());
        }
    }

    /// Counts the clients of a lost agent as failures. The run continues without them.
    fn lose(&self, agent: &AgentHandle, reason: String) {
        agent.connection.borrow().close();
        let mut state = agent.state.borrow_mut();
        let (mut pending, states) = (self.pending.borrow_mut(), state.states);
        let open = states.active + states.connecting;
        // Clients that the agent was to open, and cannot open any more.
        let missing = (state.clients as u64).saturating_sub(open + states.closed);
        pending.attempts += missing;
        fail(&mut pending, open + missing);
        state.states = States { closed: open + missing + states.closed, ..States::default() };
        state.report.lost = Some(reason);
    }

    /// Counts clients of lost agents that would have been opened by now.
    fn count_missing(&self, to: usize) {
        for agent in self.agents.iter().filter(|agent| agent.is_lost()) {
            let mut state = agent.state.borrow_mut();
            let own = agent.share.of(to);
            let missing = own.saturating_sub(std::mem::replace(&mut state.clients, own)) as u64;
            let mut pending = self.pending.borrow_mut();
            // A ramp retries failed clients, so these fail once more.
            let again = if missing > 0 { own as u64 } else { 0 };
            pending.attempts += again;
            fail(&mut pending, again);
        }
    }

    /// Warnings for the report.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for agent in &self.agents {
            let state = agent.state.borrow();
            let name = &state.report.name;
            if let Some(reason) = &state.report.lost {
                warnings.push(format!(
                    "the agent {name} was lost in the middle of the run ({reason}): its {} count \
                     as failed, and what it received after its last audit is not in the audit",
                    format::counted(state.states.closed, "client", "clients"),
                ));
            }
            if let Some(offset) = agent.offset {
                let drift = state.report.clock.as_ref().and_then(|clock| clock.drift_ms);
                let drift = drift.map_or_else(
                    || "not known after the run".to_owned(),
                    |ms| format!("{} more after the run", signed_milliseconds(ms)),
                );
                warnings.push(format!(
                    "the agent {name} has another clock than the publisher: it was {} ahead ± {}, \
                     {drift}; its latencies are corrected by that and no surer than that",
                    signed_milliseconds(offset.ahead_ns as f64 / 1e6),
                    format::milliseconds(offset.uncertainty_ns as f64 / 1e6),
                ));
            }
        }
        warnings
    }
}

fn fail(counts: &mut ClientCounts, clients: u64) {
    if clients > 0 {
        *counts.failures.entry(Failure::AgentLost).or_default() += clients;
    }
}

impl ClientSet for AgentClients {
    fn command(&self, command: ClientCommand) {
        if let ClientCommand::Ramp { to, .. } = command {
            self.count_missing(to);
            for agent in self.agents.iter().filter(|agent| !agent.is_lost()) {
                agent.state.borrow_mut().clients = agent.share.of(to);
            }
        }
        self.ask::<()>(|share| AgentCommand::Clients(share.command(command)));
    }

    fn counts(&self) -> ClientCounts {
        for (agent, counts) in self.ask::<ClientCounts>(|_| AgentCommand::Counts) {
            let mut state = agent.state.borrow_mut();
            state.states = counts.states;
            state.report.subscribed += counts.subscribed;
            state.report.received += counts.received;
            *self.pending.borrow_mut() += &counts;
        }
        let mut all = self.pending.take();
        all.states = States::default();
        self.agents.iter().for_each(|agent| all.states += &agent.state.borrow().states);
        all
    }

    fn publishes(&self, until_ns: u64) -> Vec<PublishDeliveries> {
        // The same limit for all agents, so that no message is returned in two parts.
        let replies = self.ask::<Vec<PublishDeliveries>>(|_| AgentCommand::Publishes { until_ns });
        let mut all: BTreeMap<(u32, u32), PublishDeliveries> = BTreeMap::new();
        for publish in replies.into_iter().flat_map(|(_, publishes)| publishes) {
            match all.entry((publish.stream, publish.sequence)) {
                Entry::Occupied(mut entry) => entry.get_mut().merge(&publish),
                Entry::Vacant(entry) => _ = entry.insert(publish),
            }
        }
        all.into_values().collect()
    }

    fn audit(&self, _sent: Arc<[u64]>) -> Audit {
        // Agents have the counters, which are updated before any command.
        for (agent, audit) in self.ask(|_| AgentCommand::Audit) {
            agent.state.borrow_mut().audit = audit;
        }
        let mut all = Audit::default();
        self.agents.iter().for_each(|agent| all += &agent.state.borrow().audit);
        all
    }

    fn busiest(&self) -> f64 {
        let mut busiest = 0.0_f64;
        for (agent, cost) in self.ask::<AgentCost>(|_| AgentCommand::Cost) {
            busiest = busiest.max(cost.busiest);
            let report = &mut agent.state.borrow_mut().report;
            report.cpu_s = cost.cpu_s.unwrap_or(report.cpu_s);
            report.pss_bytes = cost.pss_bytes.or(report.pss_bytes);
        }
        busiest
    }

    fn publishing(&self, is_publishing: bool) {
        let update = self.updates.borrow_mut().publishing(is_publishing);
        self.update(Some(update));
    }

    fn is_gone(&self) -> bool {
        self.agents.iter().all(AgentHandle::is_lost)
    }

    fn send_updates(&self) {
        if self.updates.borrow().is_due() {
            let update = self.updates.borrow_mut().read();
            self.update(update);
        }
    }
}
