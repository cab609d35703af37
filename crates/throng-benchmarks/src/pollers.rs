//! Long-polls, a step at a time: connect so many, wait until the server knows them all, say
//! something once, wait until all are answered.
//!
//! A flood publishes at fixed times, whoever waits. Here the question is how long one message takes
//! to answer everybody, so everybody must be waiting before it is sent: that the server counts them
//! all in its presence says so. And nobody asks again before all are answered, as the clients of
//! the originals did not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use throng_flood::clients::ClientPool;
use throng_flood::counts::ClientCounts;
use throng_flood::marker::{Mark, now_ns};
use throng_flood::plan::{Options, TargetOptions, Transport};
use throng_flood::streams::StreamCounters;
use throng_units::format::count;
use ureq::Agent;

use crate::measures::ramp;
use crate::stage::{Cut, Stage};

/// The channel that all follow.
const CHANNEL: &str = "everybody";

/// Polls wait longer than any step takes: a server answers them empty after this.
const PATH: &str = "/channels/everybody?wait=300";

/// Clients and answers are asked for so often: fine enough for a progress, and the times that are
/// told are the clients' own.
const STEP: Duration = Duration::from_millis(2);

/// Nothing has happened for so long: nothing will.
const STANDSTILL: Duration = Duration::from_secs(30);

/// An answer of the server to a plain request must come within this.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The clients.
pub struct Pollers {
    fleet: ClientPool,
    board: Arc<StreamCounters>,
    agent: Agent,
    url: String,
    /// Messages with a mark so far.
    marked: u32,
    failures: BTreeMap<String, u64>,
}

/// All have connected.
#[derive(Debug, Clone, Copy)]
pub struct Connected {
    /// From the start of the first connect to the last request sent.
    pub seconds: f64,
    /// The slowest single connect.
    pub slowest_ms: f64,
}

/// All have been answered.
#[derive(Debug, Clone, Copy)]
pub struct Answered {
    /// From the sending of the message to the first answer …
    pub first_ms: f64,
    /// … and to the last.
    pub last_ms: f64,
    /// From the first answer to the last.
    pub span_ms: f64,
}

#[derive(Debug, Deserialize)]
struct Presence {
    connections: usize,
}

impl Pollers {
    /// For up to `most` clients of the stage's server; nobody connects yet.
    pub fn new(stage: &Stage<'_>, most: usize) -> Result<Pollers, Cut> {
        let url = stage.url();
        let target = TargetOptions {
            url: Some(format!("{url}{PATH}")),
            transport: Some(Transport::LongPoll),
            ..TargetOptions::default()
        };
        let phases = Some(vec![ramp(most)]);
        let plan =
            Options { target, phases, ..Options::default() }.into_plan().map_err(|errors| {
                let said: Vec<_> = errors.into_iter().map(|each| each.message).collect();
                Cut::Failed(said.join("; "))
            })?;
        let fleet =
            ClientPool::start(&plan, most).map_err(|error| Cut::Failed(error.to_string()))?;
        let board = fleet.counters();
        let config = Agent::config_builder().proxy(None).timeout_global(Some(ANSWER_TIMEOUT));
        let agent = config.build().into();
        Ok(Pollers { fleet, board, agent, url, marked: 0, failures: BTreeMap::new() })
    }

    /// Brings the clients to `to`, with so many connects under way at once, and waits until the
    /// server knows them all.
    pub fn connect(
        &mut self,
        stage: &mut Stage<'_>,
        to: usize,
        in_flight: usize,
    ) -> Result<Connected, Cut> {
        let mut all = self.look();
        let before = all.states.active;
        all = ClientCounts::default();
        self.fleet.ramp(to, None, in_flight);
        let mut patience = Patience::new();
        loop {
            let tally = self.look();
            let active = tally.states.active;
            patience.seen((active, tally.states.closed));
            all.merge(&tally);
            if tally.states.connecting == 0 && active == to as u64 {
                break;
            }
            if patience.is_over() {
                let to = count(to as u64);
                return Err(self.failed(&format!("{} of {to} clients connected", count(active))));
            }
            stage.check()?;
            thread::sleep(STEP);
        }
        self.await_presence(stage, to)?;
        let slowest_ns = if to as u64 > before { all.connect.max() } else { 0 };
        Ok(Connected {
            seconds: all.connecting.seconds().unwrap_or_default(),
            slowest_ms: slowest_ns as f64 / 1e6,
        })
    }

    /// Says something without a mark, and waits until all clients have an answer.
    pub fn say(&mut self, stage: &mut Stage<'_>, body: &[u8], to: usize) -> Result<Answered, Cut> {
        self.hold();
        let sent_ns = now_ns();
        self.publish(body)?;
        self.await_answers(stage, to, sent_ns, |tally| tally.unmarked)
    }

    /// Says something with a mark, by which [`audit`](Self::audit) knows who has got it.
    pub fn say_marked(
        &mut self,
        stage: &mut Stage<'_>,
        size: usize,
        to: usize,
    ) -> Result<Answered, Cut> {
        self.hold();
        self.marked += 1;
        self.board.published(0, self.marked);
        let (run, sent_ns) = (self.fleet.run(), now_ns());
        let mut body = Vec::new();
        Mark { run, stream: 0, sequence: self.marked, intended_ns: sent_ns }
            .write_payload(size, &mut body);
        self.publish(&body)?;
        self.await_answers(stage, to, sent_ns, |tally| tally.received)
    }

    /// What is wrong with the messages with a mark, and every failure so far; empty if nothing is.
    pub fn audit(&mut self) -> Vec<String> {
        self.look();
        let audit = self.fleet.audit(vec![u64::from(self.marked)].into());
        let wrong = [
            (audit.lost, "lost"),
            (audit.missed, "gone too early"),
            (audit.duplicated, "twice"),
            (audit.reordered, "out of order"),
        ];
        let mut faults: Vec<String> = wrong
            .into_iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, what)| {
                format!("{} of {} answers: {what}", count(number), count(audit.expected))
            })
            .collect();
        faults.extend(
            self.failures
                .iter()
                .map(|(reason, number)| format!("{} connections failed: {reason}", count(*number))),
        );
        faults
    }

    /// Closes all.
    pub fn end(self) {
        self.fleet.stop();
    }

    /// Nobody asks again before all are answered: asking would take time from answering.
    fn hold(&mut self) {
        self.fleet.hold_polls(true);
        // The threads have heard it when they have answered this.
        self.look();
    }

    /// What has happened since the last look.
    fn look(&mut self) -> ClientCounts {
        let tally = self.fleet.counts();
        for (failure, number) in &tally.failures {
            *self.failures.entry(failure.to_string()).or_default() += number;
        }
        tally
    }

    fn publish(&self, body: &[u8]) -> Result<(), Cut> {
        let url = format!("{}/channels/{CHANNEL}", self.url);
        let sent = self.agent.post(&url).content_type("text/plain").send(body);
        sent.map(drop).map_err(|error| Cut::Failed(format!("the message was refused: {error}")))
    }

    fn await_answers(
        &mut self,
        stage: &mut Stage<'_>,
        to: usize,
        sent_ns: u64,
        counted: fn(&ClientCounts) -> u64,
    ) -> Result<Answered, Cut> {
        let mut all = ClientCounts::default();
        let mut patience = Patience::new();
        while counted(&all) < to as u64 {
            all.merge(&self.look());
            patience.seen((counted(&all), 0));
            if patience.is_over() {
                let (found, to) = (count(counted(&all)), count(to as u64));
                return Err(self.failed(&format!("{found} of {to} clients were answered")));
            }
            stage.check()?;
            thread::sleep(STEP);
        }
        let first_ns = all.arriving.first_ns().unwrap_or(sent_ns);
        let last_ns = all.arriving.last_ns().unwrap_or(sent_ns);
        // Everybody has asked again before the next message.
        self.fleet.hold_polls(false);
        self.await_presence(stage, to)?;
        let extra = counted(&self.look());
        if extra > 0 {
            stage.outcome.fail(format!("{} answers too many", count(extra)));
        }
        let ms = |ns: u64| ns as f64 / 1e6;
        Ok(Answered {
            first_ms: ms(first_ns.saturating_sub(sent_ns)),
            last_ms: ms(last_ns.saturating_sub(sent_ns)),
            span_ms: ms(last_ns.saturating_sub(first_ns)),
        })
    }

    fn await_presence(&mut self, stage: &mut Stage<'_>, to: usize) -> Result<(), Cut> {
        let url = format!("{}/channels/{CHANNEL}/presence?limit=1", self.url);
        let mut patience = Patience::new();
        loop {
            let presence = self.agent.get(&url).call().and_then(|mut response| {
                let text = response.body_mut().read_to_string()?;
                serde_json::from_str::<Presence>(&text)
                    .map_err(|error| ureq::Error::Io(std::io::Error::other(error)))
            });
            let Ok(Presence { connections }) = presence else {
                stage.check()?;
                return Err(self.failed("the server does not say who is there"));
            };
            if connections == to {
                return Ok(());
            }
            patience.seen((connections as u64, 0));
            if patience.is_over() {
                let (found, to) = (count(connections as u64), count(to as u64));
                return Err(self.failed(&format!("the server knows of {found} of {to} clients")));
            }
            stage.check()?;
            thread::sleep(STEP);
        }
    }

    fn failed(&mut self, what: &str) -> Cut {
        let faults = self.audit();
        let why =
            if faults.is_empty() { String::new() } else { format!(": {}", faults.join("; ")) };
        Cut::Failed(format!("{what}{why}"))
    }
}

/// How long something is waited for that does not change any more.
struct Patience {
    seen: Option<(u64, u64)>,
    changed: Instant,
}

impl Patience {
    fn new() -> Patience {
        Patience { seen: None, changed: Instant::now() }
    }

    fn seen(&mut self, state: (u64, u64)) {
        if self.seen != Some(state) {
            (self.seen, self.changed) = (Some(state), Instant::now());
        }
    }

    fn is_over(&self) -> bool {
        self.changed.elapsed() >= STANDSTILL
    }
}
