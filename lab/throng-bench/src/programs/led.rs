//! Clients that are led step by step: all connect, a message is published, all have it.
//!
//! A flood publishes at fixed times; here, the next step begins when the last one is done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use throng_flood::report::Totals;
use throng_flood::{
    ClientCommand, ClientCounts, ClientPool, ClientSet as _, Mark, StreamCounters, now_ns,
};
use throng_units::format::count;

use crate::context::{Abort, Context};
use crate::faults::faults;
use crate::file::Run;

/// How often progress is checked. Measured times are the clients' own and do not depend on it.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A step fails after this long without progress.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// How far a step is.
pub(super) struct Progress {
    pub(super) state: (u64, u64),
    /// The failure if the state no longer changes.
    pub(super) sentence: String,
}

/// The clients.
pub(super) struct Led {
    pub(super) clients: ClientPool,
    streams: Arc<StreamCounters>,
    /// Number of marked messages so far.
    marked: u32,
    failures: BTreeMap<String, u64>,
}

impl Led {
    /// Prepares the clients of a run for the context's server, without connecting them.
    pub(super) fn new(context: &Context<'_>, run: &Run) -> Result<Led, Abort> {
        let plan = context.plan(run, &context.target(run))?;
        let clients = ClientPool::start(&plan, context.size.connections);
        let clients = clients.map_err(|error| Abort::Failed(error.to_string()))?;
        let streams = clients.counters();
        Ok(Led { clients, streams, marked: 0, failures: BTreeMap::new() })
    }

    /// Connects or closes clients up to `to`, with at most `in_flight` concurrent attempts.
    pub(super) fn connect(
        &mut self,
        context: &mut Context<'_>,
        to: usize,
        in_flight: usize,
    ) -> Result<ClientCounts, Abort> {
        self.clients.command(ClientCommand::Ramp { to, rate: None, in_flight });
        let mut all = ClientCounts::default();
        self.step(context, |led| {
            let counts = led.take_counts();
            let states = counts.states;
            all += &counts;
            if states.connecting == 0 && states.active == to as u64 {
                return Ok(None);
            }
            let to = count(to as u64);
            let sentence = format!("{} of {to} clients connected", count(states.active));
            Ok(Some(Progress { state: (states.active, states.closed), sentence }))
        })?;
        Ok(all)
    }

    /// A message of so many bytes, intended for now, whose copies are audited.
    pub(super) fn marked(&mut self, bytes: usize) -> Vec<u8> {
        self.marked += 1;
        self.streams.published(0, self.marked);
        let (run, sequence, intended_ns) = (self.clients.run(), self.marked, now_ns());
        let mut payload = Vec::new();
        Mark { run, stream: 0, sequence, intended_ns }.write_payload(bytes, &mut payload);
        payload
    }

    /// Waits until so many messages have arrived, as `counted` counts them.
    pub(super) fn await_messages(
        &mut self,
        context: &mut Context<'_>,
        messages: u64,
        counted: impl Fn(&ClientCounts) -> u64,
    ) -> Result<ClientCounts, Abort> {
        let mut all = ClientCounts::default();
        self.step(context, |led| {
            all += &led.take_counts();
            let found = counted(&all);
            let sentence = format!("{} of {} messages arrived", count(found), count(messages));
            Ok((found < messages).then_some(Progress { state: (found, 0), sentence }))
        })?;
        Ok(all)
    }

    /// Calls `look` until it returns `None`. Fails with its error, or if there is no more progress.
    pub(super) fn step(
        &mut self,
        context: &mut Context<'_>,
        mut look: impl FnMut(&mut Led) -> Result<Option<Progress>, String>,
    ) -> Result<(), Abort> {
        let (mut last, mut changed) = (None, Instant::now());
        loop {
            let looked = look(self);
            if looked.is_err() {
                context.check()?;
            }
            let Progress { state, sentence } = match looked {
                Ok(None) => return Ok(()),
                Ok(Some(found)) => found,
                Err(reason) => return Err(self.failed(&reason)),
            };
            if last != Some(state) {
                (last, changed) = (Some(state), Instant::now());
            } else if changed.elapsed() >= PROGRESS_TIMEOUT {
                return Err(self.failed(&sentence));
            }
            context.check()?;
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Takes what the clients counted since the last call.
    pub(super) fn take_counts(&mut self) -> ClientCounts {
        let counts = self.clients.counts();
        for (failure, number) in &counts.failures {
            *self.failures.entry(failure.to_string()).or_default() += number;
        }
        counts
    }

    /// Ends all clients. The faults of marked messages, and all failures, fail the benchmark.
    pub(super) fn end(mut self, context: &mut Context<'_>) {
        self.faults().into_iter().for_each(|fault| context.outcome.fail(fault));
        self.clients.stop();
    }

    fn faults(&mut self) -> Vec<String> {
        self.take_counts();
        let audit = self.clients.audit(vec![u64::from(self.marked)].into());
        faults(&Totals {
            expected: audit.expected,
            lost: audit.lost,
            missed: audit.missed,
            duplicated: audit.duplicated,
            reordered: audit.reordered,
            failures: self.failures.clone(),
            ..Totals::default()
        })
    }

    fn failed(&mut self, what: &str) -> Abort {
        let faults = [vec![what.to_owned()], self.faults()].concat();
        Abort::Failed(faults.join("; "))
    }
}
