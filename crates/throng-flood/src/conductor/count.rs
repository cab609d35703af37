//! What is counted in a phase, and in the whole run; and the figures that are made of it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::meter::Span;
use crate::audit::Audit;
use crate::clients::PublishSeen;
use crate::publish::tally::PublishTally;
use crate::report::{Distribution, Totals};
use crate::tally::{Nanoseconds, Tally, nanoseconds};

const NS_PER_US: u64 = 1000;

/// Counts of a phase or a run.
#[derive(Debug)]
pub struct Count {
    /// What clients have seen; its states are not used.
    pub clients: Tally,
    /// What publishers have seen.
    pub publishes: PublishTally,
    /// What was due and what came.
    pub audit: Audit,
    /// Of each publish: its first, median, 99 %, 99.9 % and last delivery.
    points: [Nanoseconds; 5],
    /// While clients became subscribed.
    subscribing: Busy,
    /// While messages were delivered.
    delivering: Busy,
    /// Messages as scheduled, and as sent.
    scheduled: Rate,
    sent: Rate,
}

/// Time in which something happened.
#[derive(Debug, Default, Clone, Copy)]
struct Busy {
    seconds: f64,
    count: u64,
}

/// Messages and the time they took.
#[derive(Debug, Default, Clone, Copy)]
struct Rate {
    count: u64,
    seconds: f64,
}

impl Busy {
    fn add(&mut self, count: u64, time: Duration) {
        if count > 0 {
            self.count += count;
            self.seconds += time.as_secs_f64();
        }
    }

    fn per_second(self) -> Option<f64> {
        (self.count > 0 && self.seconds > 0.0).then(|| self.count as f64 / self.seconds)
    }
}

impl Rate {
    fn add(&mut self, count: u64, seconds: f64) {
        self.count += count;
        self.seconds += seconds;
    }

    fn per_second(self) -> Option<f64> {
        (self.count > 0 && self.seconds > 0.0).then(|| self.count as f64 / self.seconds)
    }
}

impl Default for Count {
    fn default() -> Count {
        Count {
            clients: Tally::default(),
            publishes: PublishTally::default(),
            audit: Audit::default(),
            points: std::array::from_fn(|_| nanoseconds()),
            subscribing: Busy::default(),
            delivering: Busy::default(),
            scheduled: Rate::default(),
            sent: Rate::default(),
        }
    }
}

impl Count {
    /// Adds what clients have seen in a time.
    pub fn add_clients(&mut self, tally: &Tally, time: Duration) {
        self.clients.merge(tally);
        self.subscribing.add(tally.subscribed, time);
        self.delivering.add(tally.received, time);
    }

    /// Adds a publish whose deliveries are all told.
    pub fn add_publish(&mut self, publish: &PublishSeen) {
        let latencies = &publish.latencies_us;
        if latencies.is_empty() {
            return;
        }
        let at = |quantile| latencies.value_at_quantile(quantile);
        let values = [latencies.min(), at(0.5), at(0.99), at(0.999), latencies.max()];
        for (histogram, value_us) in self.points.iter_mut().zip(values) {
            // They grow as they must, so that recording cannot fail.
            let _ = histogram.record(value_us * NS_PER_US);
        }
    }

    /// Notes that a phase's publishers were to send `count` messages at a rate, and in how much
    /// time they sent `sent` messages, from the first to the last.
    pub fn add_rates(&mut self, count: u64, rate: f64, sent: u64, span: Duration) {
        self.scheduled.add(count, count as f64 / rate);
        // Between the first and the last there is one interval less than messages.
        self.sent.add(sent, span.as_secs_f64() + 1.0 / rate);
    }

    /// Messages a second, as scheduled and as sent.
    pub fn publish_rates(&self) -> (Option<f64>, Option<f64>) {
        (self.scheduled.per_second(), self.sent.per_second())
    }

    /// Failures of clients by reason.
    pub fn failures(&self) -> BTreeMap<String, u64> {
        in_words(self.clients.failures.iter())
    }

    /// Failures of publishes by reason.
    pub fn publish_failures(&self) -> BTreeMap<String, u64> {
        in_words(self.publishes.failures.iter())
    }

    /// The figures, with `active` clients at the end.
    pub fn totals(&self, active: u64, span: &Span) -> Totals {
        let [first, median, p99, p999, last] = &self.points;
        let received = self.clients.received;
        Totals {
            active,
            attempts: self.clients.attempts,
            subscribed: self.clients.subscribed,
            failures: self.failures(),
            published: self.publishes.published,
            publish_failures: self.publish_failures(),
            publish_rate_intended: self.scheduled.per_second(),
            publish_rate: self.sent.per_second(),
            publish_lateness: Distribution::of(&self.publishes.lateness),
            publish_answer: Distribution::of(&self.publishes.answer),
            expected: self.audit.expected,
            received,
            lost: self.audit.lost,
            missed: self.audit.missed,
            duplicated: self.audit.duplicated,
            reordered: self.audit.reordered,
            delivery_rate: self.delivering.per_second(),
            unmarked: self.clients.unmarked,
            stray: self.clients.stray,
            heartbeats: self.clients.pings + self.clients.heartbeats,
            connected_s: self.clients.connecting.seconds(),
            connect: Distribution::of(&self.clients.connect),
            connect_rate: self.subscribing.per_second(),
            delivery: Distribution::of(&self.clients.delivery),
            first: Distribution::of(first),
            median: Distribution::of(median),
            p99: Distribution::of(p99),
            p999: Distribution::of(p999),
            last: Distribution::of(last),
            server: span.server(received, active),
            generator: span.generator(received, active),
            machine: span.machine(received),
            kernel_bytes: span.kernel_bytes(),
            repeated_packets: None,
        }
    }
}

fn in_words<'a, F: ToString + 'a>(
    failures: impl Iterator<Item = (&'a F, &'a u64)>,
) -> BTreeMap<String, u64> {
    let mut words = BTreeMap::new();
    for (failure, count) in failures {
        *words.entry(failure.to_string()).or_default() += count;
    }
    words
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;
    use crate::conductor::meter::Meter;

    #[test]
    fn a_publish_becomes_five_values() {
        let mut latencies_us = Histogram::new(2).expect("two digits");
        for us in 1..=1000 {
            latencies_us.record(us).expect("recorded");
        }
        let mut count = Count::default();
        let publish = PublishSeen { stream: 0, sequence: 1, intended_ns: 5, latencies_us };
        count.add_publish(&publish);
        count.add_publish(&publish);
        let reading = Meter::new(&[], None).read();
        let totals = count.totals(0, &Span { start: reading, from: reading, to: reading });
        let p50 = |of: Option<Distribution>| of.expect("values").p50;
        assert_eq!(p50(totals.first.clone()), 0.001);
        assert!((0.49..0.51).contains(&p50(totals.median)));
        assert!((0.98..1.01).contains(&p50(totals.p99)));
        assert!((0.99..1.01).contains(&p50(totals.last)));
        assert_eq!(totals.first.expect("values").count, 2);
    }

    #[test]
    fn rates_are_of_the_time_in_which_something_happened() {
        let mut count = Count::default();
        let mut tally = Tally { received: 500, ..Tally::default() };
        count.add_clients(&tally, Duration::from_millis(500));
        tally.received = 0;
        count.add_clients(&tally, Duration::from_secs(100));
        assert_eq!(count.delivering.per_second(), Some(1000.0));
        assert_eq!(count.subscribing.per_second(), None);
        count.add_rates(11, 10.0, 11, Duration::from_secs(1));
        assert_eq!(count.sent.per_second().map(f64::round), Some(10.0));
    }
}
