//! Metrics of the control plane. To add a counter, add a row to the table below.

use std::sync::atomic::{AtomicU64, Ordering};

use throng_core::{Histogram, Snapshot};

use crate::certificates::TlsStatus;
use crate::cluster::ClusterStatus;
use crate::data_figures::DataFigures;
use crate::health::Ailment;

/// A part of the server that counts, apart from the two planes.
pub trait MetricSource: Send + Sync {
    /// The current values. Called for each request of `/metrics`.
    fn metrics(&self) -> Vec<OtherMetric>;

    /// The certificates of the server, if this part knows them. Called once a second, for the
    /// status.
    fn tls(&self) -> Option<TlsStatus> {
        None
    }

    /// Figures of the data directory, if this part knows them. Called once a second, for the
    /// status.
    fn data(&self) -> Option<DataFigures> {
        None
    }

    /// How this server stands among several, if this part knows it. Called once a second, for the
    /// status.
    fn cluster(&self) -> Option<ClusterStatus> {
        None
    }

    /// The problems of this part. Called for each probe.
    fn ailments(&self) -> Vec<Ailment> {
        Vec::new()
    }
}

/// A metric of another part.
#[derive(Debug)]
pub struct OtherMetric {
    /// The name, without the prefix `throng_`.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    pub value: OtherValue,
}

/// The value of a metric of another part.
#[derive(Debug)]
pub enum OtherValue {
    /// A number that goes up and down.
    Gauge(u64),
    /// Numbers that go up and down: the name of the label, and each of its values with its number.
    GaugesBy(&'static str, Vec<(String, u64)>),
    Counter(u64),
    /// Numbers that only grow: the name of the label, and each of its values with its count.
    CountersBy(&'static str, Vec<(&'static str, u64)>),
    Histogram(Snapshot),
}

macro_rules! counters {
    ($($variant:ident $name:literal $help:literal,)*) => {
        /// An event that the control plane counts.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum HttpCounter { $(#[doc = $help] $variant,)* }

        impl HttpCounter {
            /// All counters, in the order of the table.
            pub(crate) const ALL: &'static [HttpCounter] = &[$(HttpCounter::$variant,)*];

            /// The metric's name, without the prefix `throng_`.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(HttpCounter::$variant => $name,)* }
            }

            pub(crate) const fn help(self) -> &'static str {
                match self { $(HttpCounter::$variant => $help,)* }
            }
        }
    };
}

counters! {
    Requests "http_requests_total" "HTTP requests to the control plane.",
    Published "http_messages_published_total" "Messages published over HTTP.",
    OverShare "http_publications_refused_total"
        "Publications refused because too many of their publisher waited for NATS.",
    Handoffs "http_handoffs_to_workers_total"
        "Control connections handed off to a worker because they subscribe.",
    Evicted "http_connections_evicted_total"
        "Idle control connections closed to make room for new ones.",
    ListsCut "http_lists_cut_total"
        "Pages of lists of channels and users that ended before their limit, because of the work.",
    Aborted "http_responses_aborted_total"
        "Connections closed in the middle of a response because unread responses exceeded their \
        quota.",
}

/// The classes of requests whose durations are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum RequestClass {
    /// A message to a channel or user.
    Publish,
    /// A message whose publisher has waited for its receipt.
    Receipt,
    Batch,
    History,
    Presence,
    /// A list of channels or users.
    List,
    /// Requests of operators about connections and revocations.
    Administration,
    Health,
    /// The status page, its data, and the metrics.
    Status,
    Other,
}

impl RequestClass {
    /// All routes, in the order of their numbers.
    const ALL: [RequestClass; 10] = [
        RequestClass::Publish,
        RequestClass::Receipt,
        RequestClass::Batch,
        RequestClass::History,
        RequestClass::Presence,
        RequestClass::List,
        RequestClass::Administration,
        RequestClass::Health,
        RequestClass::Status,
        RequestClass::Other,
    ];

    /// The value of the label `route`.
    const fn name(self) -> &'static str {
        match self {
            RequestClass::Publish => "publish",
            RequestClass::Receipt => "receipt",
            RequestClass::Batch => "batch",
            RequestClass::History => "history",
            RequestClass::Presence => "presence",
            RequestClass::List => "list",
            RequestClass::Administration => "administration",
            RequestClass::Health => "health",
            RequestClass::Status => "status",
            RequestClass::Other => "other",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum ReceiptOutcome {
    /// Nothing is left to happen to the message.
    Complete,
    Timeout,
    /// Of some subscriptions nothing will be known: their worker has ended.
    Unknown,
}

impl ReceiptOutcome {
    const ALL: [ReceiptOutcome; 3] =
        [ReceiptOutcome::Complete, ReceiptOutcome::Timeout, ReceiptOutcome::Unknown];

    /// The word for it in answers and metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            ReceiptOutcome::Complete => "complete",
            ReceiptOutcome::Timeout => "timeout",
            ReceiptOutcome::Unknown => "unknown",
        }
    }
}

/// The counters of the control plane. Any thread may update them.
#[derive(Debug)]
pub(crate) struct HttpMetrics {
    counts: [AtomicU64; HttpCounter::ALL.len()],
    /// Receipts that have ended, by outcome.
    receipts: [AtomicU64; ReceiptOutcome::ALL.len()],
    connections: AtomicU64,
    /// Time from a request's head to its complete response, without writing it, by route.
    durations: [Histogram; RequestClass::ALL.len()],
}

impl Default for HttpMetrics {
    fn default() -> HttpMetrics {
        HttpMetrics {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            receipts: Default::default(),
            connections: AtomicU64::new(0),
            durations: Default::default(),
        }
    }
}

impl HttpMetrics {
    pub(crate) fn count(&self, counter: HttpCounter) {
        self.counts[counter as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the events of the processes before this one.
    pub(crate) fn resume(&self, counter: HttpCounter, count: u64) {
        self.counts[counter as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// How many of these events there were since the start.
    pub(crate) fn get(&self, counter: HttpCounter) -> u64 {
        self.counts[counter as usize].load(Ordering::Relaxed)
    }

    /// Counts a receipt that has ended.
    pub(crate) fn count_receipt(&self, outcome: ReceiptOutcome) {
        self.receipts[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Receipts that have ended, by outcome.
    pub(crate) fn receipts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let count = |outcome: ReceiptOutcome| {
            (outcome.name(), self.receipts[outcome as usize].load(Ordering::Relaxed))
        };
        ReceiptOutcome::ALL.into_iter().map(count)
    }

    pub(crate) fn connection_opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection has been closed or handed off.
    pub(crate) fn connection_closed(&self) {
        let before = self.connections.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a connection was closed that was not opened");
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Records how long a request took.
    pub(crate) fn record_duration(&self, route: RequestClass, duration_us: u64) {
        self.durations[route as usize].record_shared(duration_us);
    }

    /// How long requests took, over all routes.
    pub(crate) fn durations(&self) -> Snapshot {
        Snapshot::of(self.durations.iter())
    }

    /// How long requests took, by the name of their route.
    pub(crate) fn durations_by_route(&self) -> impl Iterator<Item = (&'static str, Snapshot)> {
        let of = |route: RequestClass| Snapshot::of([&self.durations[route as usize]].into_iter());
        RequestClass::ALL.into_iter().map(move |route| (route.name(), of(route)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_for_its_route() {
        let metrics = HttpMetrics::default();
        for (count, route) in RequestClass::ALL.into_iter().enumerate() {
            (0..=count).for_each(|_| metrics.record_duration(route, 10));
        }
        for ((name, durations), (count, route)) in
            metrics.durations_by_route().zip(RequestClass::ALL.into_iter().enumerate())
        {
            assert_eq!((name, durations.count()), (route.name(), count as u64 + 1));
        }
        assert_eq!(metrics.durations().count(), 55);
    }
}
