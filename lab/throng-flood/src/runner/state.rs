//! The state of a run, and the samples of each second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::measurements::{Measurements, over_readers};
use super::resources::{ResourceMonitor, ResourceSample, ResourceSpan};
use super::warnings::Warnings;
use crate::audit::Audit;
use crate::clients::ClientSet;
use crate::counts::{ClientCounts, ReaderAge, States};
use crate::machine::Machine;
use crate::marker::now_ns;
use crate::plan::{Network, Plan};
use crate::publish::Publishers;
use crate::report::live::Moment;
use crate::report::{Distribution, PhaseReport, Report, Sample, Totals};
use crate::streams::StreamCounters;
use throng_host::proc;

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// How often the runner checks whether to stop.
const STEP: Duration = Duration::from_millis(50);

/// How often it polls the clients while it waits for something.
const POLL_STEP: Duration = Duration::from_millis(20);

/// Why a run ends early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyEnd {
    /// The caller asked for it.
    Stopped,
    /// The plan's deadline.
    Deadline,
}

/// Observes a run: the live view, and the caller's Ctrl-C.
pub trait Observer {
    /// Called every second.
    fn on_sample(&mut self, on_sample: &Moment<'_>);

    /// Called often. Whether the run should end now, with the report so far.
    fn should_stop(&mut self) -> bool {
        false
    }
}

/// The schedule of a phase, for its rates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sending {
    /// The number of scheduled messages.
    pub(super) count: u64,
    /// Messages per second.
    pub(super) rate: f64,
}

/// The state of a run.
pub(super) struct Runner<'a, C: ClientSet> {
    pub(super) plan: &'a Plan,
    pub(super) client_set: &'a C,
    pub(super) counters: Arc<StreamCounters>,
    pub(super) publishers: Option<Publishers>,
    observer: &'a mut dyn Observer,
    started: Instant,
    /// Set once the run is ending, which nothing interrupts.
    pub(super) is_ending: bool,

    resources: ResourceMonitor,
    /// The resources at the start of the run, of the phase, and of the current second.
    start: ResourceSample,
    phase_start: ResourceSample,
    second_start: ResourceSample,

    pub(super) total: Measurements,
    pub(super) phase: Measurements,
    /// The states of the clients, and when they were read.
    pub(super) states: States,
    /// The ages of clients that follow several channels.
    pub(super) readers: Vec<ReaderAge>,
    pub(super) polled_at: Instant,
    /// The last audit, over the whole run.
    pub(super) audit: Audit,
    /// The audit at the start of the phase.
    pub(super) audit_before: Audit,
    /// Deliveries that are given up.
    pub(super) lost_for_good: u64,
    second: Second,
    pub(super) warnings: Warnings,
    /// The last sequence of each stream whose deliveries are counted.
    counted: Box<[u32]>,

    /// The name of the current phase in reports.
    pub(super) phase_name: String,
    /// The number of the current phase, from 1.
    pub(super) phase_number: usize,
    /// The number of clients that the plan asks for at this time.
    pub(super) clients: usize,
    /// The connect limit of the last ramp.
    pub(super) in_flight: usize,
    /// Messages scheduled so far.
    pub(super) scheduled: u64,
    /// How long the runner waits for the deliveries of a message before it counts them.
    pub(super) publish_age: Duration,
    pub(super) recovered_s: Option<f64>,
    pub(super) sending: Option<Sending>,

    series: Vec<Sample>,
    phases: Vec<PhaseReport>,
}

/// Counts of the current second.
#[derive(Debug, Default)]
struct Second {
    pub(super) clients: ClientCounts,
    published: u64,
}

impl<'a, C: ClientSet> Runner<'a, C> {
    pub(super) fn new(
        plan: &'a Plan,
        client_set: &'a C,
        counters: Arc<StreamCounters>,
        publishers: Option<Publishers>,
        machine: Option<Machine>,
        observer: &'a mut dyn Observer,
    ) -> Runner<'a, C> {
        let mut resources = ResourceMonitor::new(&plan.server_pids, machine);
        let start = resources.read_all();
        let now = Instant::now();
        let streams = counters.streams() as usize;
        Runner {
            plan,
            client_set,
            counters,
            publishers,
            observer,
            started: now,
            is_ending: false,
            resources,
            start,
            phase_start: start,
            second_start: start,
            total: Measurements::default(),
            phase: Measurements::default(),
            states: States::default(),
            readers: Vec::new(),
            polled_at: now,
            audit: Audit::default(),
            audit_before: Audit::default(),
            lost_for_good: 0,
            second: Second::default(),
            warnings: Warnings::default(),
            counted: vec![0; streams].into(),
            phase_name: String::new(),
            phase_number: 0,
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

    /// Waits until a time, or until the run must end early.
    pub(super) fn wait_until(&mut self, until: Instant) -> Result<(), EarlyEnd> {
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
            self.client_set.send_updates();
            std::thread::sleep((until.min(second) - now).min(STEP));
        }
    }

    /// Waits a little, and reads the clients' counts.
    pub(super) fn wait_briefly(&mut self) -> Result<(), EarlyEnd> {
        let passed = self.wait_until(Instant::now() + POLL_STEP);
        self.poll_clients();
        passed
    }

    fn check(&mut self) -> Result<(), EarlyEnd> {
        if self.is_ending {
            return Ok(());
        }
        if self.observer.should_stop() || self.client_set.is_gone() {
            return Err(EarlyEnd::Stopped);
        }
        if self.started.elapsed() >= self.plan.deadline {
            return Err(EarlyEnd::Deadline);
        }
        Ok(())
    }

    /// Adds what clients and publishers have counted since the last time.
    pub(super) fn poll_clients(&mut self) {
        let mut counts = self.client_set.counts();
        self.readers = std::mem::take(&mut counts.readers);
        let now = Instant::now();
        let time = now - self.polled_at;
        self.polled_at = now;
        self.states = counts.states;
        for count in [&mut self.phase, &mut self.total] {
            count.add_clients(&counts, time);
        }
        self.second.clients += &counts;
        if let Some(publishers) = &self.publishers {
            let counts = publishers.counts();
            for count in [&mut self.phase, &mut self.total] {
                count.publishes += &counts;
            }
            self.second.published += counts.published;
        }
    }

    /// Takes the sample of a second.
    fn sample(&mut self) {
        self.poll_clients();
        self.collect_publishes(now_ns().saturating_sub(self.publish_age.as_nanos() as u64));
        let reading = self.resources.read();
        let span = ResourceSpan { start: self.start, from: self.second_start, to: reading };
        let (server_cores, generator_cores) = span.cores();
        let Second { clients, published } = std::mem::take(&mut self.second);
        self.warnings.second(self.client_set.busiest(), server_cores, generator_cores, &clients);
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
            behind: self.sending.and_then(|_| over_readers(&self.readers, |age| age.behind_us)),
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
        self.observer.on_sample(&Moment {
            phase: &self.phase_name,
            place: (self.phase_number, self.plan.phases.len()),
            clients: self.clients as u64,
            sample,
            failures,
            published: self.total.publishes.published,
            received: self.total.clients.received,
            warnings: self.warnings.warnings(),
        });
    }

    /// Counts the deliveries of messages scheduled up to `until_ns`, which are assumed to be
    /// complete.
    pub(super) fn collect_publishes(&mut self, until_ns: u64) {
        if self.publishers.is_none() {
            return;
        }
        for publish in self.client_set.publishes(until_ns) {
            let Some(counted) = self.counted.get_mut(publish.stream as usize) else { continue };
            if publish.sequence <= *counted {
                self.warnings.stragglers += publish.latencies_us.len();
                continue;
            }
            *counted = publish.sequence;
            self.phase.add_publish(&publish);
            self.total.add_publish(&publish);
        }
    }

    /// Ends the phase and adds it to the report.
    pub(super) fn end_phase(&mut self) {
        self.poll_clients();
        let reading = self.resources.read_all();
        let phase = std::mem::take(&mut self.phase);
        let span = ResourceSpan { start: self.start, from: self.phase_start, to: reading };
        self.warnings.phase(&self.phase_name, &phase);
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

    pub(super) fn finish(mut self, mut report: Report) -> Report {
        let reading = self.phase_start;
        if Instant::now() - self.second_start.at > SECOND / 10 {
            self.sample();
        }
        for &pid in self.plan.server_pids.iter().filter(|&&pid| !proc::exists(pid)) {
            self.warnings.server_ended(pid);
        }
        let span = ResourceSpan { start: self.start, from: self.start, to: reading };
        report.seconds = (reading.at - self.started).as_secs_f64();
        report.total = self.totals(&self.total, &span);
        if let Some(machine) = &mut report.total.machine {
            machine.others = self.resources.others();
        }
        report.phases = self.phases;
        report.series = self.series;
        report.warnings = self.warnings.into_warnings();
        report
    }

    fn totals(&self, count: &Measurements, span: &ResourceSpan) -> Totals {
        let is_tunnel = self.plan.network == Network::Tunnel;
        Totals {
            repeated_packets: is_tunnel.then_some(count.clients.repeated),
            ..count.totals(self.states.active, span)
        }
    }

    pub(super) fn end_message(&self, end: EarlyEnd) -> String {
        // The phase has ended, so the report has its name.
        let phase = self.phases.last().map_or("", |phase| &phase.name);
        match end {
            EarlyEnd::Stopped => format!("stopped in the phase {phase:?}"),
            EarlyEnd::Deadline => format!(
                "the deadline of {:?} was reached in the phase {phase:?}",
                self.plan.deadline
            ),
        }
    }
}
