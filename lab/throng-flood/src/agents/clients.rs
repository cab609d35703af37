//! The clients of all agents, for the runner.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::clock::Offset;
use super::message::{AgentCommand, AgentInfo, Reply, RunCommand};
use super::nats::{AgentRequest, NatsConnection};
use super::split::AgentShare;
use super::updates::CounterUpdates;
use crate::audit::Audit;
use crate::clients::PublishDeliveries;
use crate::counts::{ClientCounts, States};
use crate::failure::Failure;
use crate::marker::now_ns;
use crate::report::AgentReport;
use crate::report::summary::signed_milliseconds;
use crate::runner::ClientSet;
use crate::streams::StreamCounters;
use throng_units::format;

/// An agent that does not reply for this long is lost.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// The clients of all agents.
pub(super) struct AgentClients<'a> {
    pub(super) nats: &'a NatsConnection,
    pub(super) run: u32,
    pub(super) counters: Arc<StreamCounters>,
    pub(super) members: Vec<AgentHandle>,
    /// The counters as they were last sent.
    updates: RefCell<CounterUpdates>,
    /// Failures of lost agents' clients, which are added to the next counts.
    pending: RefCell<ClientCounts>,
}

/// An agent that takes part in the run.
pub(super) struct AgentHandle {
    pub(super) info: AgentInfo,
    pub(super) subject: String,
    pub(super) share: AgentShare,
    /// The offset of its clock before the run; `None` if it is the same clock.
    pub(super) offset: Option<Offset>,
    pub(super) state: RefCell<AgentState>,
}

/// The state of an agent, from its replies.
#[derive(Debug, Default)]
pub(super) struct AgentState {
    pub(super) report: AgentReport,
    states: States,
    /// How many clients it was to have after the last ramp.
    clients: usize,
    audit: Audit,
}

impl AgentHandle {
    pub(super) fn new(
        info: AgentInfo,
        subject: String,
        share: AgentShare,
        clients: usize,
    ) -> AgentHandle {
        let report = AgentReport {
            name: info.name.clone(),
            host: info.host.clone(),
            clients: share.of(clients) as u64,
            ..AgentReport::default()
        };
        let state = RefCell::new(AgentState { report, ..AgentState::default() });
        AgentHandle { info, subject, share, offset: None, state }
    }

    fn is_lost(&self) -> bool {
        self.state.borrow().report.lost.is_some()
    }
}

impl<'a> AgentClients<'a> {
    pub(super) fn new(
        nats: &'a NatsConnection,
        run: u32,
        counters: Arc<StreamCounters>,
        members: Vec<AgentHandle>,
    ) -> AgentClients<'a> {
        let updates = RefCell::new(CounterUpdates::new(counters.streams()));
        AgentClients { nats, run, counters, members, updates, pending: RefCell::default() }
    }

    /// Whether all agents are lost.
    pub(super) fn is_empty(&self) -> bool {
        self.members.iter().all(AgentHandle::is_lost)
    }

    /// Sends a command to all agents, after an update of the counters. Agents that do not reply
    /// are lost.
    fn ask(&self, ask: impl Fn(&AgentHandle) -> AgentCommand) -> Vec<(&AgentHandle, Reply)> {
        self.update_agents();
        self.send(|_| true, ask)
    }

    /// Sends a command to those agents that `to` selects and that are not lost.
    fn send(
        &self,
        to: impl Fn(usize) -> bool,
        ask: impl Fn(&AgentHandle) -> AgentCommand,
    ) -> Vec<(&AgentHandle, Reply)> {
        let addressed = self.members.iter().enumerate();
        let addressed = addressed.filter(|(number, member)| to(*number) && !member.is_lost());
        let requests = addressed.map(|(number, member)| {
            AgentRequest::new(
                number,
                &member.subject,
                &RunCommand { run: self.run, command: ask(member) },
            )
        });
        let mut answers = Vec::new();
        for (number, answer) in self.nats.ask(requests.collect(), ANSWER_TIME_MAX) {
            let member = &self.members[number];
            match answer {
                Ok(Reply::Refused(reason)) => self.lose(member, reason),
                Ok(answer) => answers.push((member, answer)),
                Err(reason) => self.lose(member, reason),
            }
        }
        answers
    }

    fn update_agents(&self) {
        let updates = self.updates.borrow_mut().read(&self.counters);
        self.send_each(updates);
    }

    /// Sends updates. Returns when all agents have replied, before the counters are read again.
    fn send_each(&self, updates: Vec<AgentCommand>) {
        for update in updates {
            self.send(|_| true, |_| update.clone());
        }
    }

    /// Counts the clients of a lost agent as failures. The run continues without them.
    fn lose(&self, member: &AgentHandle, reason: String) {
        let mut state = member.state.borrow_mut();
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
        for member in self.members.iter().filter(|member| member.is_lost()) {
            let mut state = member.state.borrow_mut();
            let own = member.share.of(to);
            let missing = own.saturating_sub(std::mem::replace(&mut state.clients, own)) as u64;
            let mut pending = self.pending.borrow_mut();
            // A ramp retries failed clients, so these fail once more.
            let again = if missing > 0 { own as u64 } else { 0 };
            pending.attempts += again;
            fail(&mut pending, again);
        }
    }

    /// The deliveries of each message, of all agents together. Asks for more until all are there.
    fn merge_publishes(&self, answers: Vec<(&AgentHandle, Reply)>) -> Vec<PublishDeliveries> {
        let mut all: BTreeMap<(u32, u32), PublishDeliveries> = BTreeMap::new();
        let mut answers = answers;
        while !answers.is_empty() {
            let mut more = vec![false; self.members.len()];
            for (member, answer) in answers {
                let Reply::Publishes { publishes, has_more } = answer else { continue };
                more[member.share.agent] = has_more;
                for state in publishes.into_iter().filter_map(|counts| counts.into_deliveries()) {
                    match all.entry((state.stream, state.sequence)) {
                        std::collections::btree_map::Entry::Occupied(mut entry) => {
                            entry.get_mut().merge(&state);
                        }
                        std::collections::btree_map::Entry::Vacant(entry) => {
                            entry.insert(state);
                        }
                    }
                }
            }
            answers = self.send(|number| more[number], |_| AgentCommand::MorePublishes);
        }
        all.into_values().collect()
    }

    /// Warnings for the report.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for member in &self.members {
            let state = member.state.borrow();
            let name = &state.report.name;
            if let Some(reason) = &state.report.lost {
                warnings.push(format!(
                    "the agent {name} was lost in the middle of the run ({reason}): its {} count \
                     as failed, and what it received after its last audit is not in the audit",
                    format::counted(state.states.closed, "client", "clients"),
                ));
            }
            if let Some(offset) = member.offset {
                let us = |ns: u64| format::milliseconds(ns as f64 / 1e6);
                let drift = state.report.clock.as_ref().and_then(|clock| clock.drift_ms);
                let drift = drift.map_or_else(
                    || "not known after the run".to_owned(),
                    |ms| format!("{} more after the run", signed_milliseconds(ms)),
                );
                warnings.push(format!(
                    "the agent {name} has another clock than the publisher: it was {} ahead ± {}, \
                     {drift}; its latencies are corrected by that and no surer than that",
                    signed_milliseconds(offset.ahead_ns as f64 / 1e6),
                    us(offset.uncertainty_ns),
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

impl ClientSet for AgentClients<'_> {
    fn ramp(&self, to: usize, rate: Option<f64>, in_flight: usize) {
        self.count_missing(to);
        for member in self.members.iter().filter(|member| !member.is_lost()) {
            member.state.borrow_mut().clients = member.share.of(to);
        }
        self.ask(|member| {
            let share = member.share;
            let rate = rate.map(|rate| share.rate(rate));
            AgentCommand::Ramp { to: share.of(to), rate, in_flight: share.in_flight(in_flight) }
        });
    }

    fn churn(&self, rate: f64) {
        self.ask(|member| AgentCommand::Churn { rate: member.share.rate(rate) });
    }

    fn storm(&self, in_flight: usize) {
        self.ask(|member| AgentCommand::Storm { in_flight: member.share.in_flight(in_flight) });
    }

    fn slow(&self, share: f64, is_slow: bool) {
        self.ask(|_| AgentCommand::Slow { share, is_slow });
    }

    fn counts(&self) -> ClientCounts {
        for (member, answer) in self.ask(|_| AgentCommand::Counts) {
            let Reply::Counts(counts) = answer else { continue };
            let Some(counts) = counts.into_counts() else {
                self.lose(member, "its counts cannot be read".to_owned());
                continue;
            };
            let mut state = member.state.borrow_mut();
            state.states = counts.states;
            state.report.subscribed += counts.subscribed;
            state.report.received += counts.received;
            self.pending.borrow_mut().merge(&counts);
        }
        let mut all = self.pending.take();
        all.states = States::default();
        for member in &self.members {
            let states = member.state.borrow().states;
            all.states.connecting += states.connecting;
            all.states.active += states.active;
            all.states.closed += states.closed;
        }
        all
    }

    fn publishes(&self, age: Duration) -> Vec<PublishDeliveries> {
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        // The same limit for all agents, so that no message is returned in two parts.
        let until_ns = if age_ns == 0 { u64::MAX } else { now_ns().saturating_sub(age_ns) };
        let answers = self.ask(|_| AgentCommand::Publishes { until_ns });
        self.merge_publishes(answers)
    }

    fn audit(&self, _sent: Arc<[u64]>) -> Audit {
        // Agents have the counters, which are updated before any command.
        for (member, answer) in self.ask(|_| AgentCommand::Audit) {
            if let Reply::Audit(audit) = answer {
                member.state.borrow_mut().audit = audit;
            }
        }
        let mut all = Audit::default();
        self.members.iter().for_each(|member| all += member.state.borrow().audit);
        all
    }

    fn busiest(&self) -> f64 {
        let mut busiest = 0.0_f64;
        for (member, answer) in self.ask(|_| AgentCommand::Cost) {
            let Reply::Cost(cost) = answer else { continue };
            busiest = busiest.max(cost.busiest);
            let report = &mut member.state.borrow_mut().report;
            report.cpu_s = cost.cpu_ns.map_or(report.cpu_s, |ns| ns as f64 / 1e9);
            report.pss_bytes = cost.pss_bytes.or(report.pss_bytes);
        }
        busiest
    }

    fn publishing(&self, is_publishing: bool) {
        let updates = self.updates.borrow_mut().publishing(is_publishing, &self.counters);
        self.send_each(updates);
    }

    fn send_updates(&self) {
        if self.updates.borrow().is_due() {
            self.update_agents();
        }
    }
}
