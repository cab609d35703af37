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

use std::time::Duration;

use serde_json::Value;
use throng_flood::{ClientCommand, ClientCounts, ClientSet as _, now_ns};
use throng_host::proc;
use throng_units::format::count;

use super::led::{Led, Progress};
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

/// Timeout of publishes and presence requests.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// A message to publish.
#[derive(Debug, Clone, Copy)]
struct Message {
    bytes: usize,
    /// Every client's copy is audited.
    is_marked: bool,
}

/// The figures of a round, in milliseconds and bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    /// From the first connection attempt to the last request; absent if nobody connected.
    connect: Option<f64>,
    /// The slowest single connection.
    slowest: Option<f64>,
    memory: Option<f64>,
    /// From the publish to the first response, to the last, and between them.
    first: f64,
    last: f64,
    span: f64,
}

/// The long-poll clients of a benchmark.
struct Pollers {
    led: Led,
    http: Http,
    url: String,
}

/// Makes all steps.
pub(super) fn run(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let reconnects = run.given("reconnect") == Some(1.0);
    let message = Message {
        bytes: run.given("bytes").unwrap_or_default() as usize,
        is_marked: run.given("marked") == Some(1.0),
    };
    context.serve(run)?;
    let (http, url) = (Http::new(RESPONSE_TIMEOUT), context.url());
    let mut pollers = Pollers { led: Led::new(context, run)?, http, url };
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
        slowest = f64::max(slowest, step.slowest.unwrap_or_default());
        connects.extend(step.connect);
    }
    if !message.is_marked {
        let message = Message { bytes: MARKED_BYTES, is_marked: true };
        pollers.publish(context, message, context.size.connections)?;
    }
    pollers.led.end(context);
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
        connect: middle(|round| round.connect),
        slowest: most(|round| round.slowest),
        memory: each,
        ..Round::default()
    };
    for (name, value) in [
        ("clients", Some(clients as f64)),
        ("memory", step.memory),
        ("connect", step.connect),
        ("slowest", step.slowest),
        ("first", middle(|round| Some(round.first))),
        ("last", middle(|round| Some(round.last))),
        ("span", middle(|round| Some(round.span))),
    ] {
        context.give_one(name, Figure::of(value, clients));
    }
    step
}

impl Pollers {
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
            round = self.connect(context, clients, in_flight)?;
            round.memory = context.memory();
        }
        let answered = self.publish(context, message, clients)?;
        Ok(Round {
            connect: round.connect,
            slowest: round.slowest,
            memory: round.memory,
            ..answered
        })
    }

    /// Connects or closes clients up to `to`, with at most `in_flight` concurrent attempts, and
    /// waits until the server counts them all.
    fn connect(
        &mut self,
        context: &mut Context<'_>,
        to: usize,
        in_flight: usize,
    ) -> Result<Round, Abort> {
        let before = self.led.take_counts().states.active;
        let all = self.led.connect(context, to, in_flight)?;
        self.await_presence(context, to)?;
        let slowest_ns = if to as u64 > before { all.connect.max() } else { 0 };
        Ok(Round {
            connect: Some(all.connecting.seconds().unwrap_or_default() * 1e3),
            slowest: Some(slowest_ns as f64 / 1e6),
            ..Round::default()
        })
    }

    /// Publishes a message of so many bytes, and waits until all clients have a response.
    fn publish(
        &mut self,
        context: &mut Context<'_>,
        message: Message,
        to: usize,
    ) -> Result<Round, Abort> {
        // Clients that poll again would slow the responses to others.
        self.led.clients.command(ClientCommand::HoldPolls(true));
        // The threads have processed the command when they answer this.
        self.led.take_counts();
        let sent_ns = now_ns();
        let body = if message.is_marked {
            self.led.marked(message.bytes)
        } else {
            vec![b'x'; message.bytes]
        };
        let sent = self.http.post(&format!("{}/channels/{CHANNEL}", self.url), &body, None);
        sent.map_err(|error| Abort::Failed(format!("the message was refused: {error}")))?;
        let counted = |counts: &ClientCounts| {
            if message.is_marked { counts.received } else { counts.unmarked }
        };
        let all = self.led.await_messages(context, to as u64, counted)?;
        let first_ns = all.arriving.first_ns().unwrap_or(sent_ns);
        let last_ns = all.arriving.last_ns().unwrap_or(sent_ns);
        // All clients must wait again before the next message.
        self.led.clients.command(ClientCommand::HoldPolls(false));
        self.await_presence(context, to)?;
        let extra = counted(&self.led.take_counts());
        if extra > 0 {
            context.outcome.fail(format!("{} surplus responses", count(extra)));
        }
        let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
        Ok(Round {
            first: ms(sent_ns, first_ns),
            last: ms(sent_ns, last_ns),
            span: ms(first_ns, last_ns),
            ..Round::default()
        })
    }

    fn await_presence(&mut self, context: &mut Context<'_>, to: usize) -> Result<(), Abort> {
        let url = format!("{}/channels/{CHANNEL}/presence?limit=1", self.url);
        self.led.step(context, |_| {
            let presence = self.http.get(&url).ok();
            let presence = presence.and_then(|text| serde_json::from_str::<Value>(&text).ok());
            let found = presence.and_then(|it| it["connections"].as_u64());
            let found = found.ok_or_else(|| "the presence request failed".to_owned())?;
            let (counted, to) = (count(found), count(to as u64));
            let sentence = format!("the server counts {counted} of {to} clients");
            Ok((counted != to).then_some(Progress { state: (found, 0), sentence }))
        })
    }
}
