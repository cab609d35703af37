//! Long-poll clients, controlled step by step: connect, wait until the server counts them all,
//! publish one message, wait until all have a response.
//!
//! A flood publishes at fixed times. Here one message has to answer all clients, so all must be
//! waiting when it is published; the channel's presence confirms it. As in the originals, no client
//! polls again before all are answered.
//!
//! Numbers of the file: `steps` of clients; `bytes` of a message; `marked` if every message is
//! audited, otherwise one at the end is; `reconnect` if all clients connect anew, and at once, for
//! each of the three rounds of a step. Figures, one a step: `clients`, `memory`, `connect`,
//! `slowest`, `first`, `last`, `span`; and `jump`, `overflows`, `retransmits` and `dropped` of all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_flood::{
    ClientCommand, ClientCounts, ClientPool, ClientSet as _, Mark, StreamCounters, now_ns,
};
use throng_host::proc;
use throng_units::format::count;

use crate::context::{Abort, Context};
use crate::expression::{Figure, median};
use crate::file::Run;
use crate::http::Http;
use crate::plan::IN_FLIGHT;

/// Rounds of each step; medians are reported.
const ROUNDS: usize = 3;

/// Size of the audited message at the end of a run whose messages have no mark.
const MARKED_BYTES: usize = 50;

/// The channel that all clients follow.
const CHANNEL: &str = "everybody";

/// How often progress is checked. Measured times are the clients' own and do not depend on it.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A step fails after this long without progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of publishes and presence requests.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// A message to publish.
#[derive(Debug, Clone, Copy)]
struct Message {
    bytes: usize,
    /// Every client's copy is audited.
    is_marked: bool,
}

/// The figures of a round.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    /// Absent if nobody connected.
    connect_ms: Option<f64>,
    slowest_ms: Option<f64>,
    memory: Option<f64>,
    answered: Answered,
}

/// The long-poll clients of a benchmark.
struct Pollers {
    clients: ClientPool,
    streams: Arc<StreamCounters>,
    http: Http,
    url: String,
    /// Number of marked messages so far.
    marked: u32,
    failures: BTreeMap<String, u64>,
}

/// Times of connecting all clients of a step.
#[derive(Debug, Clone, Copy)]
struct Connected {
    /// From the first connection attempt to the last request.
    seconds: f64,
    /// The slowest single connection.
    slowest_ms: f64,
}

/// Times of answering all clients of a step, from the publish; the span is that from the first
/// response to the last.
#[derive(Debug, Clone, Copy, Default)]
struct Answered {
    first_ms: f64,
    last_ms: f64,
    span_ms: f64,
}

/// Makes all steps.
pub(super) fn run(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let reconnects = run.given("reconnect") == Some(1.0);
    let message = Message {
        bytes: run.given("bytes").unwrap_or_default() as usize,
        is_marked: run.given("marked") == Some(1.0),
    };
    context.serve(run)?;
    let mut pollers = Pollers::new(context, run)?;
    // The first client makes the server allocate what it allocates only once.
    pollers.round(context, message, 1, Some(1))?;
    pollers.connect(context, 0, 1)?;
    let base = context.memory();
    let before = proc::handshakes();
    let (mut slowest, mut connects) = (0.0, Vec::new());
    for &step in &run.steps {
        let clients = context.part(step);
        let in_flight = if reconnects { clients } else { IN_FLIGHT.min(clients) };
        let mut rounds = Vec::new();
        for nth in 0..ROUNDS {
            let connects = (reconnects || nth == 0).then_some(in_flight);
            rounds.push(pollers.round(context, message, clients, connects)?);
            if reconnects {
                pollers.connect(context, 0, clients)?;
            }
        }
        let step = give(context, &rounds, base, clients);
        slowest = f64::max(slowest, step.slowest_ms.unwrap_or_default());
        connects.extend(step.connect_ms);
    }
    if !message.is_marked {
        let message = Message { bytes: MARKED_BYTES, is_marked: true };
        pollers.publish(context, message, context.size.connections)?;
    }
    pollers.audit().into_iter().for_each(|fault| context.outcome.fail(fault));
    pollers.clients.stop();
    let jumps = connects.windows(2).map(|two| two[1] - two[0]);
    context.give([("jump", Some(jumps.fold(0.0, f64::max)))]);
    // Counters of the whole machine; unreadable in some containers.
    let after = before.zip(proc::handshakes());
    let more = after.map(|(before, after)| {
        let more = |before: u64, after: u64| after.saturating_sub(before) as f64;
        let overflows = more(before.listen_overflows, after.listen_overflows);
        (overflows, more(before.syn_retransmits, after.syn_retransmits))
    });
    context.give([
        ("overflows", more.map(|(overflows, _)| overflows)),
        ("retransmits", more.map(|(_, retransmits)| retransmits)),
        ("dropped", more.is_none_or(|(_, retransmits)| retransmits > 0.0).then_some(slowest)),
    ]);
    Ok(())
}

/// Adds the figures of a step: medians, but the maximum of the slowest connections, and of memory:
/// the server grows in the first round and may shrink later.
fn give(context: &mut Context<'_>, rounds: &[Round], base: Option<f64>, clients: usize) -> Round {
    let middle = |of: fn(&Round) -> Option<f64>| median(rounds.iter().filter_map(of).collect());
    let most = |of: fn(&Round) -> Option<f64>| rounds.iter().filter_map(of).reduce(f64::max);
    let memory = most(|round| round.memory);
    let each = base.zip(memory).map(|(base, now)| (now - base) / clients as f64);
    let step = Round {
        connect_ms: middle(|round| round.connect_ms),
        slowest_ms: most(|round| round.slowest_ms),
        memory: each,
        answered: Answered::default(),
    };
    for (name, value) in [
        ("clients", Some(clients as f64)),
        ("memory", step.memory),
        ("connect", step.connect_ms),
        ("slowest", step.slowest_ms),
        ("first", middle(|round| Some(round.answered.first_ms))),
        ("last", middle(|round| Some(round.answered.last_ms))),
        ("span", middle(|round| Some(round.answered.span_ms))),
    ] {
        context.give_one(name, Figure::of(value, clients));
    }
    step
}

impl Pollers {
    /// Prepares the clients of a run for the context's server, without connecting them.
    fn new(context: &Context<'_>, run: &Run) -> Result<Pollers, Abort> {
        let plan = context.plan(run, &context.target(run))?;
        let clients = ClientPool::start(&plan, context.size.connections);
        let clients = clients.map_err(|error| Abort::Failed(error.to_string()))?;
        let streams = clients.counters();
        let (http, url) = (Http::new(RESPONSE_TIMEOUT), context.url());
        Ok(Pollers { clients, streams, http, url, marked: 0, failures: BTreeMap::new() })
    }

    /// Connects all clients, if they connect in this round with so many attempts at a time, and
    /// publishes one message to them.
    fn round(
        &mut self,
        context: &mut Context<'_>,
        message: Message,
        clients: usize,
        connects: Option<usize>,
    ) -> Result<Round, Abort> {
        let mut round = Round::default();
        if let Some(in_flight) = connects {
            let connected = self.connect(context, clients, in_flight)?;
            round.connect_ms = Some(connected.seconds * 1e3);
            round.slowest_ms = Some(connected.slowest_ms);
            round.memory = context.memory();
        }
        round.answered = self.publish(context, message, clients)?;
        Ok(round)
    }

    /// Connects or closes clients up to `to`, with at most `in_flight` concurrent attempts, and
    /// waits until the server counts them all.
    fn connect(
        &mut self,
        context: &mut Context<'_>,
        to: usize,
        in_flight: usize,
    ) -> Result<Connected, Abort> {
        let before = self.take_counts().states.active;
        let mut all = ClientCounts::default();
        self.clients.command(ClientCommand::Ramp { to, rate: None, in_flight });
        let mut progress = Progress::new();
        loop {
            let counts = self.take_counts();
            let active = counts.states.active;
            progress.observe((active, counts.states.closed));
            all += &counts;
            if counts.states.connecting == 0 && active == to as u64 {
                break;
            }
            if progress.is_stalled() {
                let to = count(to as u64);
                return Err(self.failed(&format!("{} of {to} clients connected", count(active))));
            }
            context.check()?;
            thread::sleep(POLL_INTERVAL);
        }
        self.await_presence(context, to)?;
        let slowest_ns = if to as u64 > before { all.connect.max() } else { 0 };
        Ok(Connected {
            seconds: all.connecting.seconds().unwrap_or_default(),
            slowest_ms: slowest_ns as f64 / 1e6,
        })
    }

    /// Publishes a message of so many bytes, and waits until all clients have a response.
    /// [`audit`](Self::audit) checks marked ones.
    fn publish(
        &mut self,
        context: &mut Context<'_>,
        message: Message,
        to: usize,
    ) -> Result<Answered, Abort> {
        self.hold();
        let mut body = vec![b'x'; message.bytes];
        if message.is_marked {
            self.marked += 1;
            self.streams.published(0, self.marked);
        }
        let sent_ns = now_ns();
        if message.is_marked {
            let (run, sequence) = (self.clients.run(), self.marked);
            body.clear();
            Mark { run, stream: 0, sequence, intended_ns: sent_ns }
                .write_payload(message.bytes, &mut body);
        }
        let sent = self.http.post(&format!("{}/channels/{CHANNEL}", self.url), &body, None);
        sent.map_err(|error| Abort::Failed(format!("the message was refused: {error}")))?;
        self.await_answers(context, message, to, sent_ns)
    }

    /// Faults of the marked messages, and all failures so far.
    fn audit(&mut self) -> Vec<String> {
        self.take_counts();
        let audit = self.clients.audit(vec![u64::from(self.marked)].into());
        let wrong = [
            (audit.lost, "lost"),
            (audit.missed, "missed"),
            (audit.duplicated, "duplicated"),
            (audit.reordered, "reordered"),
        ];
        let mut faults: Vec<String> = wrong
            .into_iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, what)| {
                format!("{} of {} responses: {what}", count(number), count(audit.expected))
            })
            .collect();
        faults.extend(
            self.failures
                .iter()
                .map(|(reason, number)| format!("{} connections failed: {reason}", count(*number))),
        );
        faults
    }

    /// Keeps clients from polling again, which would slow the responses to others.
    fn hold(&mut self) {
        self.clients.command(ClientCommand::HoldPolls(true));
        // The threads have processed the command when they answer this.
        self.take_counts();
    }

    /// Takes what the clients counted since the last call.
    fn take_counts(&mut self) -> ClientCounts {
        let counts = self.clients.counts();
        for (failure, number) in &counts.failures {
            *self.failures.entry(failure.to_string()).or_default() += number;
        }
        counts
    }

    fn await_answers(
        &mut self,
        context: &mut Context<'_>,
        message: Message,
        to: usize,
        sent_ns: u64,
    ) -> Result<Answered, Abort> {
        let counted = |counts: &ClientCounts| {
            if message.is_marked { counts.received } else { counts.unmarked }
        };
        let mut all = ClientCounts::default();
        let mut progress = Progress::new();
        while counted(&all) < to as u64 {
            all += &self.take_counts();
            progress.observe((counted(&all), 0));
            if progress.is_stalled() {
                let (found, to) = (count(counted(&all)), count(to as u64));
                return Err(self.failed(&format!("{found} of {to} clients were answered")));
            }
            context.check()?;
            thread::sleep(POLL_INTERVAL);
        }
        let first_ns = all.arriving.first_ns().unwrap_or(sent_ns);
        let last_ns = all.arriving.last_ns().unwrap_or(sent_ns);
        // All clients must wait again before the next message.
        self.clients.command(ClientCommand::HoldPolls(false));
        self.await_presence(context, to)?;
        let extra = counted(&self.take_counts());
        if extra > 0 {
            context.outcome.fail(format!("{} surplus responses", count(extra)));
        }
        let ms = |ns: u64| ns as f64 / 1e6;
        Ok(Answered {
            first_ms: ms(first_ns.saturating_sub(sent_ns)),
            last_ms: ms(last_ns.saturating_sub(sent_ns)),
            span_ms: ms(last_ns.saturating_sub(first_ns)),
        })
    }

    fn await_presence(&mut self, context: &mut Context<'_>, to: usize) -> Result<(), Abort> {
        let url = format!("{}/channels/{CHANNEL}/presence?limit=1", self.url);
        let mut progress = Progress::new();
        loop {
            let presence = self.http.get(&url).ok();
            let presence = presence.and_then(|text| serde_json::from_str::<Value>(&text).ok());
            let Some(found) = presence.and_then(|it| it["connections"].as_u64()) else {
                context.check()?;
                return Err(self.failed("the presence request failed"));
            };
            if found == to as u64 {
                return Ok(());
            }
            progress.observe((found, 0));
            if progress.is_stalled() {
                let (found, to) = (count(found), count(to as u64));
                return Err(self.failed(&format!("the server counts {found} of {to} clients")));
            }
            context.check()?;
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn failed(&mut self, what: &str) -> Abort {
        let faults = self.audit();
        let why =
            if faults.is_empty() { String::new() } else { format!(": {}", faults.join("; ")) };
        Abort::Failed(format!("{what}{why}"))
    }
}

/// Detects a state that no longer changes.
struct Progress {
    state: Option<(u64, u64)>,
    changed: Instant,
}

impl Progress {
    fn new() -> Progress {
        Progress { state: None, changed: Instant::now() }
    }

    fn observe(&mut self, state: (u64, u64)) {
        if self.state != Some(state) {
            (self.state, self.changed) = (Some(state), Instant::now());
        }
    }

    fn is_stalled(&self) -> bool {
        self.changed.elapsed() >= PROGRESS_TIMEOUT
    }
}
