//! `throng flood agent`: waits for a coordinator, and has a fleet for it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use async_nats::{Message, Subscriber};
use futures_util::StreamExt as _;
use throng_host::proc;

use super::counts::{PublishCounts, TallyCounts};
use super::meeting::{Group, Meeting, encode};
use super::message::{Answer, Ask, Begin, Call, Cost, Here, Question};
use super::split::Part;
use super::{AgentsError, VERSION, clock};
use crate::clients::{Fleet, PublishSeen, Share};
use crate::marker::now_ns;
use crate::plan::Plan;
use crate::publish;
use crate::tally::Tally;
use throng_units::format;

/// A coordinator asks at least once a second; one that has not for so long is gone, and the
/// clients are not left behind.
const COORDINATOR_LOST: Duration = Duration::from_secs(15);

/// So often it is asked whether to stop.
const STEP: Duration = Duration::from_millis(100);

/// For the last answer.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(1);

/// Bytes of publishes in one answer: well below the 1 MiB that a NATS server takes.
const ANSWER_BYTES_MAX: usize = 400_000;

/// Memory is read so rarely, because reading it holds up the process.
const MEMORY_EVERY: Duration = Duration::from_secs(5);

/// What an agent is told by its command line.
pub struct Setting<'a> {
    /// The NATS server.
    pub nats: &'a str,
    /// Only coordinators of this group are heard.
    pub group: &'a str,
    /// Names it in reports; the machine and process unless given.
    pub name: Option<String>,
    /// It ends with the first run.
    pub is_once: bool,
    /// Turns the text of a plan into this machine's part of it, or says why it cannot be.
    pub plan: &'a dyn Fn(&str, Part) -> Result<Plan, String>,
    /// Says what happens, a line each.
    pub say: &'a dyn Fn(&str),
    /// Asked often: whether to end.
    pub is_stopped: &'a dyn Fn() -> bool,
}

/// How an agent ended that was not stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// As it was to.
    Done,
    /// Its coordinator was lost.
    Lost,
}

/// Serves coordinators until it is stopped, or for one run.
pub fn serve(setting: &Setting<'_>) -> Result<End, AgentsError> {
    let group = Group::new(setting.group)?;
    let meeting = Meeting::connect(setting.nats)?;
    let id = nuid();
    let host = clock::host_name();
    let pid = std::process::id();
    let name = setting.name.clone().unwrap_or_else(|| format!("{host}-{pid}"));
    let mut agent = Agent { setting, name, host, id, duty: None };
    meeting.runtime.block_on(async {
        let client = &meeting.client;
        let subscribe = |subject: String| client.subscribe(subject);
        let refuse = |error: async_nats::SubscribeError| meeting.server_error(error);
        let calls = subscribe(group.call()).await.map_err(refuse)?;
        let questions = subscribe(group.agent(&agent.id)).await.map_err(refuse)?;
        client.flush().await.map_err(|error| meeting.server_error(error))?;
        (setting.say)(&format!(
            "agent {} waits for a coordinator at {} in group {:?}",
            agent.name,
            meeting.url,
            group.name()
        ));
        let ended = agent.listen(&meeting, calls, questions).await;
        // The last answer is on its way, unless the NATS server has gone first.
        let _ = tokio::time::timeout(FAREWELL_TIME_MAX, client.flush()).await;
        ended
    })
}

fn nuid() -> String {
    // Process and time: no two processes of a machine share both, and machines have their name.
    let machine = format!("{}{}", clock::boot_id(), clock::host_name());
    let hash = machine.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}-{:x}-{:x}", std::process::id(), now_ns())
}

struct Agent<'a> {
    setting: &'a Setting<'a>,
    name: String,
    host: String,
    id: String,
    duty: Option<Duty>,
}

/// A run that it takes part in.
struct Duty {
    run: u32,
    fleet: Fleet,
    asked_at: Instant,
    /// Publishes that did not fit into the last answer.
    rest: VecDeque<PublishSeen>,
    memory_at: Option<Instant>,
    /// Processor time before it began.
    cpu_before_ns: u64,
    subscribed: u64,
    received: u64,
}

impl Agent<'_> {
    async fn listen(
        &mut self,
        meeting: &Meeting,
        mut calls: Subscriber,
        mut questions: Subscriber,
    ) -> Result<End, AgentsError> {
        let mut step = tokio::time::interval(STEP);
        loop {
            let (message, is_call) = tokio::select! {
                message = calls.next() => (message, true),
                message = questions.next() => (message, false),
                _ = step.tick() => {
                    if (self.setting.is_stopped)() {
                        return Ok(End::Done);
                    }
                    if self.is_coordinator_lost() && self.setting.is_once {
                        return Ok(End::Lost);
                    }
                    continue;
                }
            };
            let Some(message) = message else {
                return Err(meeting.server_error("the connection was closed"));
            };
            let Some(reply) = message.reply.clone() else { continue };
            let (answer, is_over) = match is_call {
                true => (self.called(&message), false),
                false => self.asked(&message),
            };
            let Some(answer) = answer else { continue };
            let sent = meeting.client.publish(reply, answer.into()).await;
            sent.map_err(|error| meeting.server_error(error))?;
            if is_over && self.setting.is_once {
                return Ok(End::Done);
            }
        }
    }

    /// Ends a run whose coordinator has not asked for long.
    fn is_coordinator_lost(&mut self) -> bool {
        let is_late = |duty: &Duty| duty.asked_at.elapsed() >= COORDINATOR_LOST;
        if !self.duty.as_ref().is_some_and(is_late) {
            return false;
        }
        let clients = self.end_run();
        (self.setting.say)(&format!(
            "the coordinator has not asked for {} s: {clients}",
            COORDINATOR_LOST.as_secs()
        ));
        true
    }

    fn called(&mut self, message: &Message) -> Option<Vec<u8>> {
        let call: Call = serde_json::from_slice(&message.payload).ok()?;
        if call.version != VERSION {
            (self.setting.say)(&format!(
                "a coordinator of version {} ({}) called; this is version {VERSION} ({}): run the \
                 same one on all machines",
                call.version,
                call.program,
                env!("CARGO_PKG_VERSION"),
            ));
        }
        Some(encode(&Here {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            id: self.id.clone(),
            name: self.name.clone(),
            host: self.host.clone(),
            boot_id: clock::boot_id(),
            is_busy: self.duty.is_some(),
        }))
    }

    /// The answer, and whether the run is over with it.
    fn asked(&mut self, message: &Message) -> (Option<Vec<u8>>, bool) {
        let question: Question = match serde_json::from_slice(&message.payload) {
            Ok(question) => question,
            Err(error) => {
                let words = format!("the question cannot be read: {error}");
                return (Some(encode(&Answer::Refused(words))), false);
            }
        };
        if self.duty.as_ref().is_some_and(|duty| duty.run != question.run) {
            return (Some(encode(&Answer::Refused("it takes part in another run".into()))), false);
        }
        let is_over = matches!(question.ask, Ask::End);
        let answer = match question.ask {
            Ask::Clock => {
                self.duty.iter_mut().for_each(|duty| duty.asked_at = Instant::now());
                Answer::Clock { now_ns: now_ns() }
            }
            Ask::Begin(begin) => self.begin(question.run, &begin),
            Ask::End => {
                if self.duty.is_some() {
                    let clients = self.end_run();
                    (self.setting.say)(&format!("the run is over: {clients}"));
                }
                Answer::Done
            }
            ask => match &mut self.duty {
                Some(duty) => duty.answer(ask),
                None => Answer::Refused("it does not take part any more".to_owned()),
            },
        };
        (Some(encode(&answer)), is_over)
    }

    fn begin(&mut self, run: u32, begin: &Begin) -> Answer {
        let part = Part { agent: begin.agent, agents: begin.agents };
        let fleet = (self.setting.plan)(&begin.plan, part).and_then(|plan| {
            let share = Share {
                run,
                first: begin.agent,
                step: begin.agents,
                total: begin.clients,
                clock_ahead_ns: begin.clock_ahead_ns,
            };
            let own = plan.clients_max();
            Fleet::start_share(&plan, own, share).map_err(|error| error.to_string())
        });
        let fleet = match fleet {
            Ok(fleet) => fleet,
            Err(reason) => {
                (self.setting.say)(&format!("a run was refused: {reason}"));
                return Answer::Refused(reason);
            }
        };
        (self.setting.say)(&format!(
            "run {run:08x}: agent {} of {}, up to {}",
            begin.agent + 1,
            begin.agents,
            format::counted(part.of(begin.clients) as u64, "client", "clients"),
        ));
        self.duty = Some(Duty {
            run,
            fleet,
            asked_at: Instant::now(),
            rest: VecDeque::new(),
            memory_at: None,
            cpu_before_ns: proc::cpu_ns(std::process::id()).unwrap_or_default(),
            subscribed: 0,
            received: 0,
        });
        Answer::Done
    }

    /// Stops the clients; what there was to say of them.
    fn end_run(&mut self) -> String {
        let Some(mut duty) = self.duty.take() else { return String::new() };
        duty.count(&duty.fleet.tally());
        duty.fleet.stop();
        format!(
            "{} were subscribed, {} received",
            format::counted(duty.subscribed, "client", "clients"),
            format::counted(duty.received, "message", "messages"),
        )
    }
}

impl Duty {
    fn answer(&mut self, ask: Ask) -> Answer {
        self.asked_at = Instant::now();
        let fleet = &self.fleet;
        match ask {
            Ask::Board { published, refused, has_more, is_behind } => {
                let board = fleet.board();
                refused.iter().for_each(|&(stream, sequence)| board.refused(stream, sequence));
                published.iter().for_each(|&(stream, sequence)| board.published(stream, sequence));
                if !has_more {
                    fleet.told(is_behind);
                }
            }
            Ask::Ramp { to, rate, in_flight } => fleet.ramp(to, rate, in_flight),
            Ask::Churn { rate } => fleet.churn(rate),
            Ask::Storm { in_flight } => fleet.storm(in_flight),
            Ask::Slow { share, is_slow } => fleet.slow(share, is_slow),
            Ask::Tally => {
                let tally = fleet.tally();
                self.count(&tally);
                return Answer::Tally(Box::new(TallyCounts::of(&tally)));
            }
            Ask::Cost => return Answer::Cost(self.cost()),
            Ask::Publishes { until_ns } => {
                let publishes = fleet.publishes_until(until_ns);
                self.rest.extend(publishes);
                return self.publishes();
            }
            Ask::MorePublishes => return self.publishes(),
            Ask::Audit => return Answer::Audit(fleet.audit(publish::sent(&fleet.board()))),
            // Answered before it comes here.
            Ask::Clock | Ask::Begin(_) | Ask::End => {}
        }
        Answer::Done
    }

    fn count(&mut self, tally: &Tally) {
        self.subscribed += tally.subscribed;
        self.received += tally.received;
    }

    fn cost(&mut self) -> Cost {
        let pid = std::process::id();
        let is_turn = self.memory_at.is_none_or(|at| at.elapsed() >= MEMORY_EVERY);
        if is_turn {
            self.memory_at = Some(Instant::now());
        }
        Cost {
            busiest: self.fleet.busiest(),
            cpu_ns: proc::cpu_ns(pid).map(|ns| ns.saturating_sub(self.cpu_before_ns)),
            pss_bytes: is_turn.then(|| proc::pss_bytes(pid)).flatten(),
        }
    }

    /// As many as fit into an answer.
    fn publishes(&mut self) -> Answer {
        let (mut publishes, mut bytes) = (Vec::new(), 0);
        while bytes < ANSWER_BYTES_MAX
            && let Some(publish) = self.rest.pop_front()
        {
            let counts = PublishCounts::of(&publish);
            bytes += counts.bytes();
            publishes.push(counts);
        }
        Answer::Publishes { publishes, has_more: !self.rest.is_empty() }
    }
}
