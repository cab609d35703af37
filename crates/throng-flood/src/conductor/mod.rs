//! Runs a plan: one phase after the other, a sample each second, and at the end a report.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | this one | the run's state and its passing time: samples, the end before the end |
//! | `phases` | what is done in each phase |
//! | `settle` | the wait for what is still on its way, and the audit |
//! | `count` | what is counted in a phase and in the run |
//! | `meter` | what both sides cost |
//! | `doubts` | what makes figures doubtful |
//! | `crowd` | what is needed of the clients |
//!
//! # Invariants
//!
//! * Whatever happens, [`conduct`] ends, and with a report: stopped, over the deadline or not.
//! * Each tally is counted once, in its phase and in the run.

mod count;
mod crowd;
mod doubts;
mod meter;
mod phases;
mod settle;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use throng_host::proc;

use crate::audit::Audit;
use crate::clients::Board;
use crate::machine::whole::Machine;
use crate::plan::{Network, Plan};
use crate::publish::Publishers;
use crate::report::live::Moment;
use crate::report::{Distribution, PhaseReport, Report, Sample, Totals, VERSION};
use crate::run::Watch;
use crate::tally::{States, Tally};
use count::Count;
pub use crowd::Crowd;
use doubts::Doubts;
use meter::{Meter, Reading, Span};
use phases::Sending;

const SECOND: Duration = Duration::from_secs(1);

/// So often it is asked whether the run is to stop.
const STEP: Duration = Duration::from_millis(50);

/// While something is awaited, clients are asked so often how it stands.
const CLOSE_STEP: Duration = Duration::from_millis(20);

/// Why a run ends before its plan does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The caller's wish.
    Stopped,
    /// The plan's deadline.
    Deadline,
}

/// What a run has besides its plan.
pub struct Stage<'a, C: Crowd> {
    /// The clients.
    pub crowd: &'a C,
    /// What publishers and clients tell each other.
    pub board: Arc<Board>,
    /// The publishers, if anything is published.
    pub publishers: Option<Publishers>,
    /// The machine, if both sides are on it.
    pub machine: Option<Machine>,
}

/// Runs the plan's phases. The environment and the assertions of the report are left to the caller.
pub fn conduct<C: Crowd>(plan: &Plan, stage: Stage<'_, C>, watch: &mut dyn Watch) -> Report {
    let mut conductor = Conductor::new(plan, stage, watch);
    let mut report = Report {
        version: VERSION,
        name: plan.name.clone(),
        started_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        plan: serde_json::to_value(plan.without_secrets()).unwrap_or_default(),
        ..Report::default()
    };
    for (index, phase) in plan.phases.iter().enumerate() {
        if let Err(cut) = conductor.run_phase(index, phase) {
            report.cut_short = Some(conductor.cut_in_words(cut));
            break;
        }
    }
    conductor.finish(report)
}

struct Conductor<'a, C: Crowd> {
    plan: &'a Plan,
    crowd: &'a C,
    board: Arc<Board>,
    publishers: Option<Publishers>,
    watch: &'a mut dyn Watch,
    started: Instant,
    /// Set when the run is being ended: nothing cuts that short.
    is_ending: bool,

    meter: Meter,
    /// The first reading of the run, of the phase, and the last one of a second.
    start: Reading,
    phase_start: Reading,
    second_start: Reading,

    total: Count,
    phase: Count,
    /// Client states when they were last looked at, and when that was.
    states: States,
    looked_at: Instant,
    /// The last audit, which is of the whole run.
    audit: Audit,
    /// The one at the start of the phase.
    audit_before: Audit,
    /// Deliveries that are not waited for any more.
    lost_for_good: u64,
    second: Second,
    doubts: Doubts,
    /// Of each stream, the last sequence whose publish is counted.
    told: Box<[u32]>,

    /// The name of the phase and its place.
    phase_name: String,
    phase_place: usize,
    /// Clients that there shall be.
    clients: usize,
    /// Connects under way at once, at most, as the last ramp said.
    in_flight: usize,
    /// Messages scheduled so far.
    scheduled: u64,
    /// How long the publishes of the phase are kept open for deliveries.
    publish_age: Duration,
    recovered_s: Option<f64>,
    sending: Option<Sending>,

    series: Vec<Sample>,
    phases: Vec<PhaseReport>,
}

/// Counts of the second that has not passed yet.
#[derive(Debug, Default)]
struct Second {
    clients: Tally,
    published: u64,
}

impl<'a, C: Crowd> Conductor<'a, C> {
    fn new(plan: &'a Plan, stage: Stage<'a, C>, watch: &'a mut dyn Watch) -> Conductor<'a, C> {
        let mut meter = Meter::new(&plan.server_pids, stage.machine);
        let start = meter.read_all();
        let now = Instant::now();
        let streams = stage.board.streams() as usize;
        Conductor {
            plan,
            crowd: stage.crowd,
            board: stage.board,
            publishers: stage.publishers,
            watch,
            started: now,
            is_ending: false,
            meter,
            start,
            phase_start: start,
            second_start: start,
            total: Count::default(),
            phase: Count::default(),
            states: States::default(),
            looked_at: now,
            audit: Audit::default(),
            audit_before: Audit::default(),
            lost_for_good: 0,
            second: Second::default(),
            doubts: Doubts::default(),
            told: vec![0; streams].into(),
            phase_name: String::new(),
            phase_place: 0,
            clients: 0,
            in_flight: 1,
            scheduled: 0,
            publish_age: SECOND,
            recovered_s: None,
            sending: None,
            series: Vec::new(),
            phases: Vec::new(),
        }
    }

    /// Lets time pass until `until`, or until something cuts the run short.
    fn pass_until(&mut self, until: Instant) -> Result<(), Cut> {
        loop {
            self.check()?;
            let now = Instant::now();
            if now >= until {
                return Ok(());
            }
            let second = self.second_start.at + SECOND;
            if now >= second {
                self.sample();
                continue;
            }
            self.crowd.keep_told();
            std::thread::sleep((until.min(second) - now).min(STEP));
        }
    }

    /// Lets a little time pass, and looks at the clients.
    fn pass_closely(&mut self) -> Result<(), Cut> {
        let passed = self.pass_until(Instant::now() + CLOSE_STEP);
        self.look();
        passed
    }

    fn check(&mut self) -> Result<(), Cut> {
        if self.is_ending {
            return Ok(());
        }
        if self.watch.stop() {
            return Err(Cut::Stopped);
        }
        if self.started.elapsed() >= self.plan.deadline {
            return Err(Cut::Deadline);
        }
        Ok(())
    }

    /// Takes over what clients and publishers have seen since the last time.
    fn look(&mut self) {
        let tally = self.crowd.tally();
        let now = Instant::now();
        let time = now - self.looked_at;
        self.looked_at = now;
        self.states = tally.states;
        for count in [&mut self.phase, &mut self.total] {
            count.add_clients(&tally, time);
        }
        self.second.clients.merge(&tally);
        if let Some(publishers) = &self.publishers {
            let tally = publishers.tally();
            for count in [&mut self.phase, &mut self.total] {
                count.publishes.merge(&tally);
            }
            self.second.published += tally.published;
        }
    }

    /// A second is over.
    fn sample(&mut self) {
        self.look();
        self.collect_publishes(self.publish_age);
        let reading = self.meter.read();
        let span = Span { start: self.start, from: self.second_start, to: reading };
        let (server_cores, generator_cores) = span.cores();
        let Second { clients, published } = std::mem::take(&mut self.second);
        self.doubts.second(self.crowd.busiest(), server_cores, generator_cores, &clients);
        let sample = Sample {
            at_s: (reading.at - self.started).as_secs_f64(),
            connecting: self.states.connecting,
            active: self.states.active,
            closed: self.states.closed,
            subscribed: clients.subscribed,
            failures: clients.failures.values().sum(),
            published,
            received: clients.received,
            received_bytes: clients.received_bytes,
            heartbeats: clients.pings + clients.heartbeats,
            delivery: Distribution::summary_of(&clients.delivery),
            server_pss_bytes: reading.server_pss_bytes,
            server_cores,
            generator_pss_bytes: reading.generator_pss_bytes,
            generator_cores,
            machine_cores: span.machine_cores(),
            slab_bytes: reading.slab_bytes,
            socket_buffer_bytes: reading.socket_buffer_bytes,
        };
        self.second_start = reading;
        let mut failures = self.total.failures();
        for (reason, count) in self.total.publish_failures() {
            *failures.entry(reason).or_default() += count;
        }
        self.show(&sample, &failures);
        self.series.push(sample);
    }

    fn show(&mut self, sample: &Sample, failures: &BTreeMap<String, u64>) {
        self.watch.moment(&Moment {
            phase: &self.phase_name,
            place: (self.phase_place, self.plan.phases.len()),
            clients: self.clients as u64,
            sample,
            failures,
            published: self.total.publishes.published,
            received: self.total.clients.received,
            warnings: self.doubts.warnings(),
        });
    }

    /// Counts publishes that are older than `age`: their deliveries are taken to be all there.
    fn collect_publishes(&mut self, age: Duration) {
        if self.publishers.is_none() {
            return;
        }
        for publish in self.crowd.publishes(age) {
            let Some(told) = self.told.get_mut(publish.stream as usize) else { continue };
            if publish.sequence <= *told {
                self.doubts.stragglers += publish.latencies_us.len();
                continue;
            }
            *told = publish.sequence;
            self.phase.add_publish(&publish);
            self.total.add_publish(&publish);
        }
    }

    /// Ends the phase: its figures.
    fn end_phase(&mut self) {
        self.look();
        let reading = self.meter.read_all();
        let phase = std::mem::take(&mut self.phase);
        let span = Span { start: self.start, from: self.phase_start, to: reading };
        self.doubts.phase(&self.phase_name, &phase);
        self.phases.push(PhaseReport {
            name: self.phase_name.clone(),
            from_s: (self.phase_start.at - self.started).as_secs_f64(),
            to_s: (reading.at - self.started).as_secs_f64(),
            totals: self.totals(&phase, &span),
            recovered_s: self.recovered_s.take(),
        });
        self.phase_start = reading;
        self.audit_before = self.audit;
    }

    fn finish(mut self, mut report: Report) -> Report {
        let reading = self.phase_start;
        if Instant::now() - self.second_start.at > SECOND / 10 {
            self.sample();
        }
        for &pid in self.plan.server_pids.iter().filter(|&&pid| !proc::exists(pid)) {
            self.doubts.server_ended(pid);
        }
        let span = Span { start: self.start, from: self.start, to: reading };
        report.seconds = (reading.at - self.started).as_secs_f64();
        report.total = self.totals(&self.total, &span);
        if let Some(machine) = &mut report.total.machine {
            machine.others = self.meter.others();
        }
        report.phases = self.phases;
        report.series = self.series;
        report.warnings = self.doubts.into_warnings();
        report
    }

    fn totals(&self, count: &Count, span: &Span) -> Totals {
        let is_tunnel = self.plan.network == Network::Tunnel;
        Totals {
            repeated_packets: is_tunnel.then_some(count.clients.repeated),
            ..count.totals(self.states.active, span)
        }
    }

    fn cut_in_words(&self, cut: Cut) -> String {
        // The phase has ended, so that its name is in its report.
        let phase = self.phases.last().map_or("", |phase| &phase.name);
        match cut {
            Cut::Stopped => format!("stopped in the phase {phase:?}"),
            Cut::Deadline => format!(
                "the deadline of {:?} was reached in the phase {phase:?}",
                self.plan.deadline
            ),
        }
    }
}
