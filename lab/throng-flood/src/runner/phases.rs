//! What happens in each phase.

use std::time::{Duration, Instant};

use super::completion::WaitLimits;
use super::state::{EarlyEnd, Runner, SECOND, Sending};
use crate::clients::{ClientCommand, ClientSet};
use crate::marker::now_ns;
use crate::plan::{Phase, Publishing};
use crate::publish::schedule::Schedule;
use throng_units::format;

/// The delay before the first message, so that all publishing threads have the schedule by then.
const LEAD: Duration = Duration::from_millis(20);

/// How long to wait for publishing connections. Later their problems show up as failed messages.
const OPEN_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a ramp may stand still, beyond the handshake timeout, before it is given up.
const STANDSTILL: Duration = Duration::from_secs(5);

/// About how many messages are kept open for deliveries.
const OPEN_PUBLISHES: f64 = 1000.0;

/// How long a message is kept open for deliveries. One to millions of clients takes half a minute.
const PUBLISH_AGE_MIN: Duration = Duration::from_secs(1);
const PUBLISH_AGE_MAX: Duration = Duration::from_secs(120);

impl<C: ClientSet> Runner<'_, C> {
    /// Runs a phase and ends it, in any case.
    pub(super) fn run_phase(&mut self, index: usize, phase: &Phase) -> Result<(), EarlyEnd> {
        self.phase_name = name(phase);
        self.phase_number = index + 1;
        let outcome = match phase {
            Phase::Ramp { to, rate, in_flight } => self.ramp(*to, *rate, *in_flight),
            Phase::Hold { time, publish } => self.hold(*time, publish.as_ref(), None),
            Phase::Churn { time, rate, publish } => {
                let commands = [*rate, 0.0].map(|rate| ClientCommand::Churn { rate });
                self.hold(*time, publish.as_ref(), Some(commands))
            }
            Phase::Storm { timeout, publish } => self.storm(*timeout, publish.as_ref()),
            &Phase::Slow { share, speed, time, ref publish } => {
                let slow = |is_slow| ClientCommand::Slow { share, is_slow, speed };
                self.hold(time, publish.as_ref(), Some([slow(true), slow(false)]))
            }
        };
        if outcome.is_err() {
            self.is_ending = true;
            if let Some(publishers) = &mut self.publishers {
                publishers.end();
            }
            // Outstanding deliveries get a moment, so that they do not count as lost.
            let _ = self.wait_for_completion(WaitLimits::SHORT);
        }
        if self.sending.is_some() {
            self.client_set.publishing(false);
        }
        self.note_rates();
        self.end_phase();
        outcome
    }

    fn ramp(&mut self, to: usize, rate: Option<f64>, in_flight: usize) -> Result<(), EarlyEnd> {
        self.poll_clients();
        let before = self.states.active + self.states.connecting;
        let attempts_before = self.phase.clients.attempts;
        let outcomes_before = self.outcomes();
        (self.clients, self.in_flight) = (to, in_flight);
        self.client_set.command(ClientCommand::Ramp { to, rate, in_flight });
        let (to, upward) = (to as u64, (to as u64).saturating_sub(before));
        let pause = Duration::try_from_secs_f64(rate.map_or(0.0, |rate| 2.0 / rate));
        let max_standstill =
            self.plan.target.handshake_timeout + STANDSTILL + pause.unwrap_or(Duration::MAX / 4);
        let mut seen = (self.states, attempts_before);
        let mut moved_at = Instant::now();
        loop {
            self.wait_briefly()?;
            let states = self.states;
            let attempts = self.phase.clients.attempts;
            let is_there = states.connecting == 0
                && states.active <= to
                && (states.active == to || attempts - attempts_before >= upward);
            // With `keep`, clients retry until the run ends, so a ramp ends when each has tried.
            let is_tried = self.plan.keep
                && states.connecting + states.active <= to
                && self.outcomes() - outcomes_before >= upward;
            if is_there || is_tried {
                break;
            }
            if seen != (states, attempts) {
                (seen, moved_at) = ((states, attempts), Instant::now());
            } else if moved_at.elapsed() > max_standstill {
                self.warnings.standstill(&self.phase_name, states, to);
                break;
            }
        }
        self.wait_for_completion(WaitLimits::LONG)
    }

    /// Attempts that succeeded or failed in this phase, and connections that failed later.
    fn outcomes(&self) -> u64 {
        let clients = &self.phase.clients;
        clients.subscribed + clients.failures.values().sum::<u64>()
    }

    /// Receives for a while, and publishes, between two commands to the clients.
    fn hold(
        &mut self,
        time: Duration,
        publish: Option<&Publishing>,
        commands: Option<[ClientCommand; 2]>,
    ) -> Result<(), EarlyEnd> {
        commands.into_iter().for_each(|[first, _]| self.client_set.command(first));
        let end = self.begin(time, publish);
        let passed = self.wait_until(end);
        // Before slow clients catch up, and what is in transit arrives.
        self.note_readers();
        commands.into_iter().for_each(|[_, last]| self.client_set.command(last));
        passed?;
        self.end()
    }

    fn storm(&mut self, timeout: Duration, publish: Option<&Publishing>) -> Result<(), EarlyEnd> {
        self.poll_clients();
        let all = self.states.active;
        self.begin(timeout, publish);
        let subscribed_before = self.phase.clients.subscribed;
        let struck_at = Instant::now();
        self.client_set.command(ClientCommand::Storm { in_flight: self.in_flight });
        while struck_at.elapsed() < timeout {
            self.wait_briefly()?;
            let back = self.phase.clients.subscribed - subscribed_before;
            if back >= all && self.states.active >= all {
                self.recovered_s = Some((self.polled_at - struck_at).as_secs_f64());
                break;
            }
        }
        if self.recovered_s.is_none() {
            self.warnings.no_recovery(&self.phase_name, all, self.states.active);
        }
        self.end()
    }

    /// Starts to publish. Returns when the phase ends.
    fn begin(&mut self, time: Duration, publish: Option<&Publishing>) -> Instant {
        let (Some(publishing), Some(publishers)) = (publish, &mut self.publishers) else {
            return Instant::now() + time;
        };
        publishers.open(self.plan.target.handshake_timeout.min(OPEN_TIME_MAX));
        self.client_set.publishing(true);
        let start_ns = now_ns() + LEAD.as_nanos() as u64;
        let end = Instant::now() + LEAD + time;
        let streams = self.counters.streams();
        let schedule =
            Schedule::new(publishing, start_ns, time, streams, self.scheduled, self.plan.seed);
        self.scheduled += schedule.count();
        self.sending = Some(Sending { count: schedule.count(), rate: publishing.rate });
        let age_s = OPEN_PUBLISHES / publishing.rate;
        self.publish_age = Duration::try_from_secs_f64(age_s)
            .unwrap_or(PUBLISH_AGE_MAX)
            .clamp(PUBLISH_AGE_MIN, PUBLISH_AGE_MAX);
        publishers.begin(schedule, publishing.size);
        end
    }

    /// Ends publishing, and waits for outstanding deliveries.
    fn end(&mut self) -> Result<(), EarlyEnd> {
        if let Some(publishers) = &mut self.publishers {
            publishers.end();
        }
        self.wait_for_completion(WaitLimits::LONG)
    }

    /// Keeps the ages of readers as those of the phase, and of the run so far.
    fn note_readers(&mut self) {
        self.poll_clients();
        for measured in [&mut self.phase, &mut self.total] {
            measured.readers.clone_from(&self.readers);
        }
    }

    fn note_rates(&mut self) {
        let Some(Sending { count, rate }) = self.sending.take() else { return };
        let publishes = &self.phase.publishes;
        let (sent, span_s) = (publishes.sent, publishes.sending.seconds().unwrap_or_default());
        // A phase that ended early had fewer messages due than scheduled.
        let count = count.min(publishes.due);
        self.phase.add_rates(count, rate, sent, span_s);
        self.total.add_rates(count, rate, sent, span_s);
    }
}

/// The name of a phase in reports.
fn name(phase: &Phase) -> String {
    let seconds = |time: &Duration| {
        let seconds = time.as_secs_f64();
        if time.subsec_nanos() == 0 && *time < SECOND * 120 {
            format!("{seconds} s")
        } else {
            format::seconds(seconds)
        }
    };
    match phase {
        Phase::Ramp { to, .. } => format!("ramp to {to}"),
        Phase::Hold { time, .. } => format!("hold {}", seconds(time)),
        Phase::Churn { time, rate, .. } => {
            format!("churn {}, {}", seconds(time), format::rate(*rate))
        }
        Phase::Storm { .. } => "storm".to_owned(),
        Phase::Slow { share, time, .. } => {
            format!("slow {} % of clients, {}", format::decimal(share * 100.0), seconds(time))
        }
    }
}
