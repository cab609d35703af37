//! The clients of all agents, as the conductor sees them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::clock::Offset;
use super::meeting::{Letter, Meeting};
use super::message::{Answer, Ask, Here, Question};
use super::news::News;
use super::split::Part;
use crate::audit::Audit;
use crate::clients::{Board, PublishSeen};
use crate::conductor::Crowd;
use crate::marker::now_ns;
use crate::report::Agent;
use crate::report::summary::signed_milliseconds;
use crate::tally::{Failure, States, Tally};
use throng_units::format;

/// An agent that leaves a question unanswered for so long is lost.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// The clients of all agents.
pub(super) struct AgentCrowd<'a> {
    pub(super) meeting: &'a Meeting,
    pub(super) run: u32,
    pub(super) board: Arc<Board>,
    pub(super) members: Vec<Member>,
    /// What agents know of the board.
    news: RefCell<News>,
    /// What is to be told with the next tally: clients of agents that are lost.
    pending: RefCell<Tally>,
}

/// An agent that takes part.
pub(super) struct Member {
    pub(super) here: Here,
    pub(super) subject: String,
    pub(super) part: Part,
    /// Its clock before the run; `None` if it is this one.
    pub(super) offset: Option<Offset>,
    pub(super) seen: RefCell<Seen>,
}

/// What an agent has told.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) report: Agent,
    states: States,
    /// Clients that it is to have.
    to: usize,
    audit: Audit,
}

impl Member {
    pub(super) fn new(here: Here, subject: String, part: Part, clients: usize) -> Member {
        let report = Agent {
            name: here.name.clone(),
            host: here.host.clone(),
            clients: part.of(clients) as u64,
            ..Agent::default()
        };
        let seen = RefCell::new(Seen { report, ..Seen::default() });
        Member { here, subject, part, offset: None, seen }
    }

    fn is_lost(&self) -> bool {
        self.seen.borrow().report.lost.is_some()
    }
}

impl<'a> AgentCrowd<'a> {
    pub(super) fn new(
        meeting: &'a Meeting,
        run: u32,
        board: Arc<Board>,
        members: Vec<Member>,
    ) -> AgentCrowd<'a> {
        let news = RefCell::new(News::new(board.streams()));
        AgentCrowd { meeting, run, board, members, news, pending: RefCell::default() }
    }

    /// Whether all agents are lost.
    pub(super) fn is_empty(&self) -> bool {
        self.members.iter().all(Member::is_lost)
    }

    /// Asks all that are there, after they know what the board says; who does not answer is lost.
    fn ask(&self, ask: impl Fn(&Member) -> Ask) -> Vec<(&Member, Answer)> {
        self.tell_news();
        self.send(|_| true, ask)
    }

    fn send(
        &self,
        to: impl Fn(usize) -> bool,
        ask: impl Fn(&Member) -> Ask,
    ) -> Vec<(&Member, Answer)> {
        let there = self.members.iter().enumerate();
        let there = there.filter(|(number, member)| to(*number) && !member.is_lost());
        let letters = there.map(|(number, member)| {
            Letter::new(number, &member.subject, &Question { run: self.run, ask: ask(member) })
        });
        let mut answers = Vec::new();
        for (number, answer) in self.meeting.ask(letters.collect(), ANSWER_TIME_MAX) {
            let member = &self.members[number];
            match answer {
                Ok(Answer::Refused(reason)) => self.lose(member, reason),
                Ok(answer) => answers.push((member, answer)),
                Err(reason) => self.lose(member, reason),
            }
        }
        answers
    }

    fn tell_news(&self) {
        let news = self.news.borrow_mut().read(&self.board);
        self.tell(news);
    }

    /// What the board says; returns when all have answered, before it is read again.
    fn tell(&self, news: Vec<Ask>) {
        for part in news {
            self.send(|_| true, |_| part.clone());
        }
    }

    /// Its clients count as failures, and the run goes on without them.
    fn lose(&self, member: &Member, reason: String) {
        let mut seen = member.seen.borrow_mut();
        let (mut pending, states) = (self.pending.borrow_mut(), seen.states);
        let there = states.active + states.connecting;
        // Those that it was to open and never will.
        let missing = (seen.to as u64).saturating_sub(there + states.closed);
        pending.attempts += missing;
        fail(&mut pending, there + missing);
        seen.states = States { closed: there + missing + states.closed, ..States::default() };
        seen.report.lost = Some(reason);
    }

    /// The clients of lost agents that others would have opened now.
    fn miss(&self, to: usize) {
        for member in self.members.iter().filter(|member| member.is_lost()) {
            let mut seen = member.seen.borrow_mut();
            let part = member.part.of(to);
            let missing = part.saturating_sub(std::mem::replace(&mut seen.to, part)) as u64;
            let mut pending = self.pending.borrow_mut();
            // Those that had failed are tried once more in a ramp: these fail once more.
            let again = if missing > 0 { part as u64 } else { 0 };
            pending.attempts += again;
            fail(&mut pending, again);
        }
    }

    fn told_publishes(&self, answers: Vec<(&Member, Answer)>) -> Vec<PublishSeen> {
        let mut all: BTreeMap<(u32, u32), PublishSeen> = BTreeMap::new();
        let mut answers = answers;
        while !answers.is_empty() {
            let mut more = vec![false; self.members.len()];
            for (member, answer) in answers {
                let Answer::Publishes { publishes, has_more } = answer else { continue };
                more[member.part.agent] = has_more;
                for seen in publishes.into_iter().filter_map(|counts| counts.into_seen()) {
                    match all.entry((seen.stream, seen.sequence)) {
                        std::collections::btree_map::Entry::Occupied(mut entry) => {
                            entry.get_mut().merge(&seen);
                        }
                        std::collections::btree_map::Entry::Vacant(entry) => {
                            entry.insert(seen);
                        }
                    }
                }
            }
            answers = self.send(|number| more[number], |_| Ask::MorePublishes);
        }
        all.into_values().collect()
    }

    /// Sentences for the report.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for member in &self.members {
            let seen = member.seen.borrow();
            let name = &seen.report.name;
            if let Some(reason) = &seen.report.lost {
                warnings.push(format!(
                    "the agent {name} was lost in the middle of the run ({reason}): its {} count \
                     as failed, and what it received after its last audit is not in the audit",
                    format::counted(seen.states.closed, "client", "clients"),
                ));
            }
            if let Some(offset) = member.offset {
                let us = |ns: u64| format::milliseconds(ns as f64 / 1e6);
                let drift = seen.report.clock.as_ref().and_then(|clock| clock.drift_ms);
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

fn fail(tally: &mut Tally, clients: u64) {
    if clients > 0 {
        *tally.failures.entry(Failure::AgentLost).or_default() += clients;
    }
}

impl Crowd for AgentCrowd<'_> {
    fn ramp(&self, to: usize, rate: Option<f64>, in_flight: usize) {
        self.miss(to);
        for member in self.members.iter().filter(|member| !member.is_lost()) {
            member.seen.borrow_mut().to = member.part.of(to);
        }
        self.ask(|member| {
            let part = member.part;
            let rate = rate.map(|rate| part.rate(rate));
            Ask::Ramp { to: part.of(to), rate, in_flight: part.in_flight(in_flight) }
        });
    }

    fn churn(&self, rate: f64) {
        self.ask(|member| Ask::Churn { rate: member.part.rate(rate) });
    }

    fn storm(&self, in_flight: usize) {
        self.ask(|member| Ask::Storm { in_flight: member.part.in_flight(in_flight) });
    }

    fn slow(&self, share: f64, is_slow: bool) {
        self.ask(|_| Ask::Slow { share, is_slow });
    }

    fn tally(&self) -> Tally {
        for (member, answer) in self.ask(|_| Ask::Tally) {
            let Answer::Tally(counts) = answer else { continue };
            let Some(tally) = counts.into_tally() else {
                self.lose(member, "its tally cannot be read".to_owned());
                continue;
            };
            let mut seen = member.seen.borrow_mut();
            seen.states = tally.states;
            seen.report.subscribed += tally.subscribed;
            seen.report.received += tally.received;
            self.pending.borrow_mut().merge(&tally);
        }
        let mut all = self.pending.take();
        all.states = States::default();
        for member in &self.members {
            let states = member.seen.borrow().states;
            all.states.connecting += states.connecting;
            all.states.active += states.active;
            all.states.closed += states.closed;
        }
        all
    }

    fn publishes(&self, age: Duration) -> Vec<PublishSeen> {
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        // The same ones of all agents, or a publish would come in two parts.
        let until_ns = if age_ns == 0 { u64::MAX } else { now_ns().saturating_sub(age_ns) };
        let answers = self.ask(|_| Ask::Publishes { until_ns });
        self.told_publishes(answers)
    }

    fn audit(&self, _sent: Arc<[u64]>) -> Audit {
        // Agents know it from the board, which is told before any question.
        for (member, answer) in self.ask(|_| Ask::Audit) {
            if let Answer::Audit(audit) = answer {
                member.seen.borrow_mut().audit = audit;
            }
        }
        let mut all = Audit::default();
        self.members.iter().for_each(|member| all += member.seen.borrow().audit);
        all
    }

    fn busiest(&self) -> f64 {
        let mut busiest = 0.0_f64;
        for (member, answer) in self.ask(|_| Ask::Cost) {
            let Answer::Cost(cost) = answer else { continue };
            busiest = busiest.max(cost.busiest);
            let report = &mut member.seen.borrow_mut().report;
            report.cpu_s = cost.cpu_ns.map_or(report.cpu_s, |ns| ns as f64 / 1e9);
            report.pss_bytes = cost.pss_bytes.or(report.pss_bytes);
        }
        busiest
    }

    fn publishing(&self, is_publishing: bool) {
        let news = self.news.borrow_mut().publishing(is_publishing, &self.board);
        self.tell(news);
    }

    fn keep_told(&self) {
        if self.news.borrow().is_due() {
            self.tell_news();
        }
    }
}
