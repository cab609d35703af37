//! Long-poll clients, controlled step by step: connect, wait until the server counts them all,
//! publish one message, wait until all have a response.
//!
//! A flood publishes at fixed times. These benchmarks measure how long one message takes to answer
//! all clients, so all must be waiting when it is published; the channel's presence confirms it. As
//! in the originals, no client polls again before all are answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use throng_flood::ClientCounts;
use throng_flood::ClientPool;
use throng_flood::StreamCounters;
use throng_flood::plan::{Options, TargetOptions, Transport};
use throng_flood::{Mark, now_ns};
use throng_units::format::count;
use ureq::Agent;

use crate::context::{Abort, Context, plan};
use crate::flood::ramp;

/// The channel that all clients follow.
const CHANNEL: &str = "everybody";

/// The polls; `wait` is longer than any step.
const PATH: &str = "/channels/everybody?wait=300";

/// How often progress is checked. Measured times are the clients' own and do not depend on it.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A step fails after this long without progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of publishes and presence requests.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// The long-poll clients of a benchmark.
pub(crate) struct Pollers {
    clients: ClientPool,
    streams: Arc<StreamCounters>,
    agent: Agent,
    url: String,
    /// Number of marked messages so far.
    marked: u32,
    failures: BTreeMap<String, u64>,
}

/// Times of connecting all clients of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connected {
    /// From the first connection attempt to the last request.
    pub(crate) seconds: f64,
    /// The slowest single connection.
    pub(crate) slowest_ms: f64,
}

/// Times of answering all clients of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answered {
    /// From the publish to the first response.
    pub(crate) first_ms: f64,
    /// From the publish to the last response.
    pub(crate) last_ms: f64,
    /// From the first response to the last.
    pub(crate) span_ms: f64,
}

#[derive(Debug, Deserialize)]
struct Presence {
    connections: usize,
}

impl Pollers {
    /// Prepares up to `max` clients for the context's server, without connecting them.
    pub(crate) fn new(context: &Context<'_>, max: usize) -> Result<Pollers, Abort> {
        let url = context.url();
        let target = TargetOptions {
            url: Some(format!("{url}{PATH}")),
            transport: Some(Transport::LongPoll),
            ..TargetOptions::default()
        };
        let phases = Some(vec![ramp(max)]);
        let plan = plan(Options { target, phases, ..Options::default() })?;
        let clients =
            ClientPool::start(&plan, max).map_err(|error| Abort::Failed(error.to_string()))?;
        let streams = clients.counters();
        let config = Agent::config_builder().proxy(None).timeout_global(Some(RESPONSE_TIMEOUT));
        let agent = config.build().into();
        Ok(Pollers { clients, streams, agent, url, marked: 0, failures: BTreeMap::new() })
    }

    /// Connects or closes clients up to `to`, with at most `in_flight` concurrent attempts, and
    /// waits until the server counts them all.
    pub(crate) fn connect(
        &mut self,
        context: &mut Context<'_>,
        to: usize,
        in_flight: usize,
    ) -> Result<Connected, Abort> {
        let before = self.take_counts().states.active;
        let mut all = ClientCounts::default();
        self.clients.ramp(to, None, in_flight);
        let mut progress = Progress::new();
        loop {
            let counts = self.take_counts();
            let active = counts.states.active;
            progress.observe((active, counts.states.closed));
            all.merge(&counts);
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

    /// Publishes a message without a mark, and waits until all clients have a response.
    pub(crate) fn publish(
        &mut self,
        context: &mut Context<'_>,
        body: &[u8],
        to: usize,
    ) -> Result<Answered, Abort> {
        self.hold();
        let sent_ns = now_ns();
        self.send(body)?;
        self.await_answers(context, to, sent_ns, |counts| counts.unmarked)
    }

    /// Publishes a marked message, which [`audit`](Self::audit) checks, and waits until all clients
    /// have a response.
    pub(crate) fn publish_marked(
        &mut self,
        context: &mut Context<'_>,
        size: usize,
        to: usize,
    ) -> Result<Answered, Abort> {
        self.hold();
        self.marked += 1;
        self.streams.published(0, self.marked);
        let (run, sent_ns) = (self.clients.run(), now_ns());
        let mut body = Vec::new();
        Mark { run, stream: 0, sequence: self.marked, intended_ns: sent_ns }
            .write_payload(size, &mut body);
        self.send(&body)?;
        self.await_answers(context, to, sent_ns, |counts| counts.received)
    }

    /// Faults of the marked messages, and all failures so far.
    pub(crate) fn audit(&mut self) -> Vec<String> {
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

    /// Closes all clients.
    pub(crate) fn stop(self) {
        self.clients.stop();
    }

    /// Keeps clients from polling again, which would slow the responses to others.
    fn hold(&mut self) {
        self.clients.hold_polls(true);
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

    fn send(&self, body: &[u8]) -> Result<(), Abort> {
        let url = format!("{}/channels/{CHANNEL}", self.url);
        let sent = self.agent.post(&url).content_type("text/plain").send(body);
        sent.map(drop).map_err(|error| Abort::Failed(format!("the message was refused: {error}")))
    }

    fn await_answers(
        &mut self,
        context: &mut Context<'_>,
        to: usize,
        sent_ns: u64,
        counted: fn(&ClientCounts) -> u64,
    ) -> Result<Answered, Abort> {
        let mut all = ClientCounts::default();
        let mut progress = Progress::new();
        while counted(&all) < to as u64 {
            all.merge(&self.take_counts());
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
        self.clients.hold_polls(false);
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
            let presence = self.agent.get(&url).call().and_then(|mut response| {
                let text = response.body_mut().read_to_string()?;
                serde_json::from_str::<Presence>(&text)
                    .map_err(|error| ureq::Error::Io(std::io::Error::other(error)))
            });
            let Ok(Presence { connections }) = presence else {
                context.check()?;
                return Err(self.failed("the presence request failed"));
            };
            if connections == to {
                return Ok(());
            }
            progress.observe((connections as u64, 0));
            if progress.is_stalled() {
                let (found, to) = (count(connections as u64), count(to as u64));
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
