//! The measurements of a phase, or of the whole run.

use std::collections::BTreeMap;
use std::time::Duration;

use super::resources::ResourceSpan;
use crate::audit::Audit;
use crate::clients::PublishDeliveries;
use crate::counts::{ClientCounts, PublishCounts, ReaderAge};
use crate::report::{Distribution, TlsTotals, Totals};
use crate::sums::Nanoseconds;

const NS_PER_US: u64 = 1000;

/// The measurements of a phase or a run.
#[derive(Debug, Default)]
pub(super) struct Measurements {
    /// The clients' counts. Their states are not used.
    pub clients: ClientCounts,
    /// The publishers' counts.
    pub publishes: PublishCounts,
    /// Expected and actual deliveries.
    pub audit: Audit,
    /// The ages of clients that follow several channels, at the end of publishing.
    pub readers: Vec<ReaderAge>,
    /// Latencies of the first, median, 99 %, 99.9 % and last delivery of each message.
    points: [Nanoseconds; 5],
    /// Subscriptions and deliveries, and the time with any.
    subscribing: Rate,
    delivering: Rate,
    /// Messages as scheduled, and as sent.
    scheduled: Rate,
    sent: Rate,
}

/// A count, and the time it took.
#[derive(Debug, Default, Clone, Copy)]
struct Rate {
    count: u64,
    seconds: f64,
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

impl Measurements {
    /// Adds the clients' counts of a period.
    pub(super) fn add_clients(&mut self, counts: &ClientCounts, time: Duration) {
        self.clients += counts;
        let busy = |count| if count > 0 { time.as_secs_f64() } else { 0.0 };
        self.subscribing.add(counts.subscribed, busy(counts.subscribed));
        self.delivering.add(counts.received, busy(counts.received));
    }

    /// Adds a message with all its deliveries.
    pub(super) fn add_publish(&mut self, publish: &PublishDeliveries) {
        let latencies = &publish.latencies_us;
        if latencies.is_empty() {
            return;
        }
        let at = |quantile| latencies.value_at_quantile(quantile);
        let values = [latencies.min(), at(0.5), at(0.99), at(0.999), latencies.max()];
        for (histogram, value_us) in self.points.iter_mut().zip(values) {
            histogram.record(value_us * NS_PER_US);
        }
    }

    /// Adds the rates of a phase: it was to publish `count` messages at `rate`, and took `span_s`
    /// from the first to the last of the `sent` messages.
    pub(super) fn add_rates(&mut self, count: u64, rate: f64, sent: u64, span_s: f64) {
        self.scheduled.add(count, count as f64 / rate);
        // Between the first and the last message there is one interval less than messages.
        self.sent.add(sent, span_s + 1.0 / rate);
    }

    /// Messages per second, as scheduled and as sent.
    pub(super) fn publish_rates(&self) -> (Option<f64>, Option<f64>) {
        (self.scheduled.per_second(), self.sent.per_second())
    }

    /// Failures of clients, by reason.
    pub(super) fn failures(&self) -> BTreeMap<String, u64> {
        in_words(self.clients.failures.iter())
    }

    /// Failures of messages, by reason.
    pub(super) fn publish_failures(&self) -> BTreeMap<String, u64> {
        in_words(self.publishes.failures.iter())
    }

    /// The totals for the report, with `active` clients at the end.
    pub(super) fn totals(&self, active: u64, span: &ResourceSpan) -> Totals {
        let [first, median, p99, p999, last] = &self.points;
        let received = self.clients.received;
        let readers = |of| over_readers(&self.readers, of);
        Totals {
            active,
            attempts: self.clients.attempts,
            told: self.clients.told,
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
            received_bytes: self.clients.received_bytes,
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
            reader_p50: readers(|age| age.p50_us),
            reader_p99: readers(|age| age.p99_us),
            reader_max: readers(|age| age.max_us),
            behind: readers(|age| age.behind_us),
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
            tls: self.tls(),
        }
    }

    fn tls(&self) -> Option<TlsTotals> {
        let tls = &self.clients.tls;
        let handshakes = tls.time.len();
        (handshakes > 0).then(|| TlsTotals {
            handshakes,
            resumed: tls.resumed(),
            suites: tls.by_suite(),
            handshake: Distribution::of(&tls.time),
        })
    }
}

/// The distribution of a figure over all readers; `None` without any.
pub(super) fn over_readers(
    readers: &[ReaderAge],
    figure_us: fn(&ReaderAge) -> u64,
) -> Option<Distribution> {
    let mut all = Nanoseconds::default();
    readers.iter().for_each(|age| all.record(figure_us(age) * NS_PER_US));
    Distribution::of(&all)
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
    use crate::runner::resources::ResourceMonitor;

    #[test]
    fn a_message_contributes_five_latencies() {
        let mut latencies_us = Histogram::new(2).expect("two digits");
        for us in 1..=1000 {
            latencies_us.record(us).expect("recorded");
        }
        let mut count = Measurements::default();
        let publish = PublishDeliveries { stream: 0, sequence: 1, intended_ns: 5, latencies_us };
        count.add_publish(&publish);
        count.add_publish(&publish);
        let reading = ResourceMonitor::new(&[], None).read();
        let totals = count.totals(0, &ResourceSpan { start: reading, from: reading, to: reading });
        let p50 = |of: Option<Distribution>| of.expect("values").p50;
        assert_eq!(p50(totals.first.clone()), 0.001);
        assert!((0.49..0.51).contains(&p50(totals.median)));
        assert!((0.98..1.01).contains(&p50(totals.p99)));
        assert!((0.99..1.01).contains(&p50(totals.last)));
        assert_eq!(totals.first.expect("values").count, 2);
    }

    #[test]
    fn rates_count_only_active_time() {
        let mut count = Measurements::default();
        let mut counts = ClientCounts { received: 500, ..ClientCounts::default() };
        count.add_clients(&counts, Duration::from_millis(500));
        counts.received = 0;
        count.add_clients(&counts, Duration::from_secs(100));
        assert_eq!(count.delivering.per_second(), Some(1000.0));
        assert_eq!(count.subscribing.per_second(), None);
        count.add_rates(11, 10.0, 11, 1.0);
        assert_eq!(count.sent.per_second().map(f64::round), Some(10.0));
    }
}
