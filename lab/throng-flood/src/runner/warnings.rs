//! Warnings about measurements that may not mean what they seem to.

use throng_units::format;

use super::measurements::Measurements;
use crate::counts::{ClientCounts, States};
use crate::sums::{LongestNs, Sum as _};

/// A client thread busier than this adds its own queueing delay.
const BUSY_MAX: f64 = 0.9;

/// With both sides on one machine, above this share of its cores the machine is the bottleneck.
const MACHINE_MAX: f64 = 0.95;

/// A publisher later than this changes what is measured.
const LATENESS_MAX_NS: u64 = 10_000_000;

/// Above this time between two polls for events, receive timestamps are late.
const LAG_MAX_NS: u64 = 100_000_000;

/// Below this part of the scheduled rate, the load is not what was asked for.
const RATE_MIN: f64 = 0.99;

const NS_PER_MS: f64 = 1e6;

/// The warnings so far.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    warnings: Vec<String>,
    seconds: Seconds,
    /// Deliveries of messages that were counted before.
    pub(super) stragglers: u64,
}

/// The seconds of a phase.
#[derive(Debug, Default)]
struct Seconds {
    /// Seconds with messages or connects.
    count: u64,
    /// Seconds in which a client thread was too busy.
    busy: u64,
    /// The highest share that a client thread was busy.
    busiest: f64,
    /// Seconds in which all cores of the machine were busy.
    full: u64,
    /// The longest time between two polls for events.
    lag_ns: LongestNs,
}

impl Warnings {
    /// Records a second.
    pub(super) fn second(
        &mut self,
        busiest: f64,
        server_cores: Option<f64>,
        generator_cores: f64,
        clients: &ClientCounts,
    ) {
        if clients.received == 0 && clients.attempts == 0 {
            return;
        }
        let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        let used = server_cores.unwrap_or_default() + generator_cores;
        let seconds = &mut self.seconds;
        seconds.count += 1;
        seconds.busy += u64::from(busiest > BUSY_MAX);
        seconds.busiest = seconds.busiest.max(busiest);
        seconds.full += u64::from(server_cores.is_some() && used > cores * MACHINE_MAX);
        seconds.lag_ns.add(&clients.lag_ns);
    }

    /// Ends a phase, and warns about its seconds.
    pub(super) fn phase(&mut self, name: &str, count: &Measurements) {
        let seconds = std::mem::take(&mut self.seconds);
        let whole = seconds.count;
        if seconds.busy > 0 {
            self.warn(format!(
                "{name}: this program was the bottleneck: a client thread was busy for up to \
                 {:.0} % of a second, for more than {:.0} % in {} of {whole} seconds; latencies \
                 and rates may be its own",
                seconds.busiest * 100.0,
                BUSY_MAX * 100.0,
                seconds.busy,
            ));
        }
        if seconds.full > 0 {
            self.warn(format!(
                "{name}: server and generator together used all processors of this machine in {} \
                 of {whole} seconds: either may have waited for the other",
                seconds.full,
            ));
        }
        if seconds.lag_ns.0 > LAG_MAX_NS {
            self.warn(format!(
                "{name}: the load generator stalled for up to {}, so some latencies are too high \
                 by up to that much; use fewer clients, or another machine",
                milliseconds(seconds.lag_ns.0),
            ));
        }
        if count.clients.repeated > 0 {
            self.warn(format!(
                "{name}: {} of the tunnel were lost, or were sent again by either side: what was \
                 lost came {} s late at least",
                format::counted(count.clients.repeated, "packet", "packets"),
                throng_tunnel::RTO_MIN.as_secs(),
            ));
        }
        self.publishing(name, count);
    }

    fn publishing(&mut self, name: &str, count: &Measurements) {
        let publishes = &count.publishes;
        let late_ns = publishes.lateness.value_at_quantile(0.99);
        if late_ns > LATENESS_MAX_NS {
            let answer_ns = publishes.answer.value_at_quantile(0.5);
            self.warn(format!(
                "{name}: the publisher was late: 1 % of its messages went out {} or more after \
                 their time (an answer took {} in the median); their latencies count from the \
                 intended time",
                milliseconds(late_ns),
                milliseconds(answer_ns),
            ));
        }
        if let (Some(intended), Some(actual)) = count.publish_rates()
            && actual < intended * RATE_MIN
        {
            self.warn(format!(
                "{name}: the publish rate was to be {} and was {}",
                format::rate(intended),
                format::rate(actual),
            ));
        }
        if publishes.unsure > 0 {
            self.warn(format!(
                "{name}: {} not answered: the server may have accepted them, and their \
                 deliveries are not in the audit",
                format::counted(publishes.unsure, "publish was", "publishes were"),
            ));
        }
    }

    /// A ramp made no progress.
    pub(super) fn standstill(&mut self, name: &str, states: States, to: u64) {
        self.warn(format!(
            "{name}: no more progress with {} of {} clients subscribed and {} connecting",
            format::count(states.active),
            format::count(to),
            format::count(states.connecting),
        ));
    }

    /// Not all clients reconnected after a storm.
    pub(super) fn no_recovery(&mut self, name: &str, before: u64, now: u64) {
        self.warn(format!(
            "{name}: {} of {} clients had reconnected when the time was over",
            format::count(now),
            format::count(before),
        ));
    }

    /// A process of the server has ended.
    pub(super) fn server_ended(&mut self, pid: u32) {
        self.warn(format!("the server's process {pid} has ended: what it cost is not known"));
    }

    /// The warnings so far.
    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// All warnings, at the end of the run.
    pub(super) fn into_warnings(mut self) -> Vec<String> {
        if self.stragglers > 0 {
            let late = format::counted(self.stragglers, "delivery", "deliveries");
            self.warn(format!(
                "{late} came so late that the figures per publish do not have them; those of all \
                 deliveries do"
            ));
        }
        self.warnings
    }

    fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }
}

fn milliseconds(ns: u64) -> String {
    format::milliseconds(ns as f64 / NS_PER_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings_of(count: &Measurements, busiest: f64) -> Vec<String> {
        let mut warnings = Warnings::default();
        let clients = ClientCounts { received: 1, lag_ns: LongestNs(5), ..ClientCounts::default() };
        warnings.second(busiest, Some(0.1), 0.1, &clients);
        warnings.second(0.99, None, 0.1, &ClientCounts::default());
        warnings.phase("hold 1 s", count);
        warnings.into_warnings()
    }

    #[test]
    fn a_good_run_has_no_warnings() {
        let mut count = Measurements::default();
        count.add_rates(10, 10.0, 10, 0.9);
        assert_eq!(warnings_of(&count, 0.5), Vec::<String>::new());
    }

    #[test]
    fn every_problem_has_a_warning() {
        let mut count = Measurements::default();
        count.publishes.send(0, 50_000_000);
        count.publishes.unsure = 1;
        count.clients.repeated = 7;
        count.add_rates(10, 10.0, 5, 0.9);
        let warnings = warnings_of(&count, 0.93);
        for part in [
            "a client thread was busy for up to 93 %",
            "in 1 of 1 seconds",
            "the publisher was late: 1 % of its messages went out 50.0 ms or more",
            "the publish rate was to be 10.0/s and was 5.00/s",
            "1 publish was not answered",
            "7 packets of the tunnel were lost",
        ] {
            assert!(warnings.iter().any(|warning| warning.contains(part)), "{part}: {warnings:?}");
        }
        assert_eq!(warnings.len(), 5);
    }
}
