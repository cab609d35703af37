//! The coordinator: finds agents, deals the plan out, conducts it, and publishes itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;

use super::clock::{self, Offset, RoundTrip};
use super::crowd::{AgentCrowd, Member};
use super::meeting::{Group, Letter, Meeting, encode};
use super::message::{Answer, Ask, Begin, Call, Here, Question};
use super::split::Part;
use super::{AgentsError, VERSION};
use crate::clients::Board;
use crate::clients::board::stream_count;
use crate::conductor::{Stage, conduct};
use crate::marker::now_ns;
use crate::plan::Plan;
use crate::publish::{Publishers, Setting as PublisherSetting};
use crate::report::Report;
use crate::report::live::Moment;
use crate::run::Watch;
use throng_units::format;

/// Agents are called so often until enough have answered.
const CALL_EVERY: Duration = Duration::from_millis(500);

/// So often it is asked whether to stop waiting.
const STEP: Duration = Duration::from_millis(50);

/// An agent starts its threads, or closes its clients.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(30);

/// Questions for the time, one after the other: the fastest of so many is hardly held up.
const ROUND_TRIPS: usize = 100;

/// An answer about the time takes so long at most.
const CLOCK_TIME_MAX: Duration = Duration::from_secs(2);

/// Where agents are to be found, and how many.
pub struct Setting<'a> {
    /// The NATS server.
    pub nats: &'a str,
    /// Agents of this group.
    pub group: &'a str,
    /// So many.
    pub agents: usize,
    /// They are waited for so long.
    pub wait: Duration,
}

/// Agents that are there.
pub struct Coordinator {
    meeting: Meeting,
    group: Group,
    found: Vec<Here>,
}

impl Coordinator {
    /// Waits until enough agents are there.
    pub fn gather(
        setting: &Setting<'_>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Coordinator, AgentsError> {
        let group = Group::new(setting.group)?;
        let meeting = Meeting::connect(setting.nats)?;
        let found = meeting.runtime.block_on(gather(&meeting, &group, setting, is_stopped))?;
        Ok(Coordinator { meeting, group, found })
    }

    /// Runs the plan, whose text is `toml`; why it could not begin.
    pub fn run(&self, plan: &Plan, toml: &str, watch: &mut dyn Watch) -> Result<Report, String> {
        // Two runs of one machine do not begin in the same nanosecond.
        let run = (now_ns() ^ u64::from(std::process::id()) << 16) as u32;
        let clients = plan.clients_max();
        let mut members = self.members(clients);
        for member in &mut members {
            member.offset = self.other_clock(run, member).map_err(|error| error.to_string())?;
        }
        let begun = self.begin(run, &members, toml, clients).and_then(|()| {
            let board = Arc::new(Board::new(stream_count(plan.target.streams, clients)));
            let publishers = plan.rate_max().map(|rate_max| {
                let board = Arc::clone(&board);
                let target = &plan.target;
                let clients_max = clients;
                Publishers::start(&PublisherSetting { target, run, board, clients_max, rate_max })
            });
            Ok((board, publishers.transpose().map_err(|error| error.to_string())?))
        });
        let (board, publishers) = match begun {
            Ok(begun) => begun,
            Err(reason) => {
                self.end(run, &members);
                return Err(reason);
            }
        };
        let crowd = AgentCrowd::new(&self.meeting, run, Arc::clone(&board), members);
        let mut watch = Watching { watch, crowd: &crowd };
        // What several machines do is not for one to tell.
        let stage = Stage { crowd: &crowd, board, publishers, machine: None };
        let mut report = conduct(plan, stage, &mut watch);
        if crowd.is_empty() {
            report.cut_short = Some(match self.meeting.is_connected() {
                true => "all agents were lost".to_owned(),
                false => format!("the NATS server at {} is gone", self.meeting.url),
            });
        }
        self.end(run, &crowd.members);
        self.note_clocks(run, &crowd.members);
        report.warnings.extend(crowd.warnings());
        report.agents =
            crowd.members.into_iter().map(|member| member.seen.into_inner().report).collect();
        add_costs(&mut report);
        Ok(report)
    }

    fn members(&self, clients: usize) -> Vec<Member> {
        let agents = self.found.len();
        let member = |(agent, here): (usize, &Here)| {
            let subject = self.group.agent(&here.id);
            Member::new(here.clone(), subject, Part { agent, agents }, clients)
        };
        self.found.iter().enumerate().map(member).collect()
    }

    /// The agent's clock, unless it is this machine's.
    fn other_clock(&self, run: u32, member: &Member) -> Result<Option<Offset>, AgentsError> {
        let offset = self
            .offset(run, member)
            .map_err(|reason| AgentsError::Refused { agent: member.here.name.clone(), reason })?;
        // A namespace of time on the same machine has an offset of its own.
        let is_same = member.here.boot_id == clock::boot_id() && !member.here.boot_id.is_empty();
        Ok(Some(offset).filter(|offset| !(is_same && offset.may_be_none())))
    }

    fn offset(&self, run: u32, member: &Member) -> Result<Offset, String> {
        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let letter = Letter::new(0, &member.subject, &Question { run, ask: Ask::Clock });
            let asked_ns = now_ns();
            let answer = self.meeting.ask(vec![letter], CLOCK_TIME_MAX).pop();
            let answered_ns = now_ns();
            match answer {
                Some((_, Ok(Answer::Clock { now_ns: theirs_ns }))) => {
                    trips.push(RoundTrip { asked_ns, theirs_ns, answered_ns });
                }
                Some((_, Ok(Answer::Refused(reason)) | Err(reason))) => return Err(reason),
                _ => return Err("it does not tell its time".to_owned()),
            }
        }
        Offset::of(&trips).ok_or_else(|| "it does not tell its time".to_owned())
    }

    fn begin(
        &self,
        run: u32,
        members: &[Member],
        toml: &str,
        clients: usize,
    ) -> Result<(), String> {
        let letters = members.iter().enumerate().map(|(number, member)| {
            let begin = Begin {
                plan: toml.to_owned(),
                agent: member.part.agent,
                agents: member.part.agents,
                clients,
                clock_ahead_ns: member.offset.map_or(0, |offset| offset.ahead_ns),
            };
            let ask = Ask::Begin(Box::new(begin));
            Letter::new(number, &member.subject, &Question { run, ask })
        });
        for (number, answer) in self.meeting.ask(letters.collect(), BEGIN_TIME_MAX) {
            let reason = match answer {
                Ok(Answer::Done) => continue,
                Ok(Answer::Refused(reason)) | Err(reason) => reason,
                Ok(_) => "it has answered something else".to_owned(),
            };
            let agent = members[number].here.name.clone();
            return Err(AgentsError::Refused { agent, reason }.to_string());
        }
        Ok(())
    }

    fn end(&self, run: u32, members: &[Member]) {
        let there = members.iter().filter(|member| member.seen.borrow().report.lost.is_none());
        let letters =
            there.map(|member| Letter::new(0, &member.subject, &Question { run, ask: Ask::End }));
        // Whoever does not hear it ends by itself when nobody asks any more.
        let _ = self.meeting.ask::<Answer>(letters.collect(), BEGIN_TIME_MAX);
    }

    /// Asks for the clocks once more: they may have moved apart.
    fn note_clocks(&self, run: u32, members: &[Member]) {
        for member in members {
            let Some(before) = member.offset else { continue };
            let is_there = member.seen.borrow().report.lost.is_none();
            let after = is_there.then(|| self.offset(run, member).ok()).flatten();
            member.seen.borrow_mut().report.clock = Some(before.clock(after));
        }
    }
}

/// Ends a run that has no clients any more.
struct Watching<'a> {
    watch: &'a mut dyn Watch,
    crowd: &'a AgentCrowd<'a>,
}

impl Watch for Watching<'_> {
    fn moment(&mut self, moment: &Moment<'_>) {
        self.watch.moment(moment);
    }

    fn stop(&mut self) -> bool {
        self.watch.stop() || self.crowd.is_empty()
    }
}

/// The generator is all processes.
fn add_costs(report: &mut Report) {
    let total = &mut report.total;
    let generator = &mut total.generator;
    generator.cpu_s += report.agents.iter().map(|agent| agent.cpu_s).sum::<f64>();
    generator.cpu_us_per_delivery =
        (total.received > 0).then(|| generator.cpu_s * 1e6 / total.received as f64);
    let agents = report.agents.iter().filter_map(|agent| agent.pss_bytes).sum::<u64>();
    generator.pss_bytes = generator.pss_bytes.map(|own| own + agents);
    // What agents had at the start is not known.
    generator.bytes_per_client = None;
    for phase in &mut report.phases {
        // The coordinator's alone, which has no clients.
        phase.totals.generator.cpu_us_per_delivery = None;
        phase.totals.generator.bytes_per_client = None;
    }
}

async fn gather(
    meeting: &Meeting,
    group: &Group,
    setting: &Setting<'_>,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Vec<Here>, AgentsError> {
    let inbox = meeting.client.new_inbox();
    let subscribed = meeting.client.subscribe(inbox.clone()).await;
    let mut answers = subscribed.map_err(|error| meeting.server_error(error))?;
    let program = env!("CARGO_PKG_VERSION").to_owned();
    let call = encode(&Call { version: VERSION, program });
    let mut found: Vec<Here> = Vec::new();
    let mut busy = std::collections::BTreeSet::new();
    let (began, mut called_at) = (Instant::now(), None::<Instant>);
    while found.len() < setting.agents {
        if is_stopped() {
            return Err(AgentsError::Stopped);
        }
        if began.elapsed() >= setting.wait {
            return Err(too_few(found.len(), busy.len(), setting));
        }
        if called_at.is_none_or(|at| at.elapsed() >= CALL_EVERY) {
            called_at = Some(Instant::now());
            let body = call.clone().into();
            let called = meeting.client.publish_with_reply(group.call(), inbox.clone(), body).await;
            called.map_err(|error| meeting.server_error(error))?;
        }
        let Ok(Some(message)) = tokio::time::timeout(STEP, answers.next()).await else { continue };
        let Some(here) = read_here(&message.payload)? else { continue };
        if here.is_busy {
            busy.insert(here.id);
        } else if found.iter().all(|known| known.id != here.id) {
            found.push(here);
        }
    }
    // The same agents have the same parts each time.
    found.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
    Ok(found)
}

/// `None` for what is no answer at all, such as that nobody listens.
fn read_here(payload: &[u8]) -> Result<Option<Here>, AgentsError> {
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

fn too_few(found: usize, busy: usize, setting: &Setting<'_>) -> AgentsError {
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
        wanted: setting.agents,
        seconds: setting.wait.as_secs(),
        group: setting.group.to_owned(),
        hint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_named() {
        let theirs = br#"{"version":7,"program":"9.9","name":"a","whatever":[]}"#;
        let words = read_here(theirs).expect_err("another version").to_string();
        assert!(
            words.contains("the agent a is of version 7 (9.9) and this is version 1"),
            "{words}"
        );
        assert!(read_here(b"").expect("no answer").is_none());
        assert!(read_here(b"{}").is_err());
    }

    #[test]
    fn too_few_are_counted() {
        let setting = Setting { nats: "", group: "g", agents: 3, wait: Duration::from_secs(5) };
        let words = |found, busy| too_few(found, busy, &setting).to_string();
        assert_eq!(words(2, 0), "2 of 3 agents are there after 5 s (group \"g\")");
        assert!(words(0, 0).ends_with("with the same --nats and --group"));
        assert!(words(1, 1).ends_with("; 1 more takes part in another run"));
    }
}
