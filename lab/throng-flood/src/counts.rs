//! Counts of a client thread. The counts of all threads are merged.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize, Serializer};

use crate::failure::Failure;
use crate::protocol::refusal;
use crate::tls::TlsCounts;

/// A histogram of nanoseconds to three digits. It resizes, so recording cannot fail.
pub(crate) type Nanoseconds = Histogram<u64>;

/// An empty histogram of nanoseconds.
pub(crate) fn nanoseconds() -> Nanoseconds {
    // Timestamps between two system calls are no more precise than a microsecond.
    Histogram::new(3).unwrap_or_else(|_| unreachable!("three digits are allowed"))
}

/// Counts of one thread since the last request for them.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClientCounts {
    /// The current states of its clients.
    pub states: States,
    /// Connects that were started.
    pub attempts: u64,
    /// Clients that became subscribed.
    pub subscribed: u64,
    /// Clients closed on purpose.
    pub ended: u64,
    /// Clients that the server told when to come back, and that did.
    pub told: u64,
    /// Failures by reason.
    #[serde(serialize_with = "by_text")]
    pub failures: BTreeMap<Failure, u64>,
    /// Messages with a mark.
    pub received: u64,
    /// Messages sent before the client was subscribed; not in `received`.
    pub early: u64,
    /// Messages of a stream that the client does not follow; not in `received`.
    pub stray: u64,
    /// Messages without a mark: welcomes, notices, replies of protocols.
    pub unmarked: u64,
    /// Bytes that were received.
    pub received_bytes: u64,
    /// Answered pings, of WebSocket and of protocols.
    pub pings: u64,
    /// Heartbeats that need no answer: pongs, comments of an event stream, empty lines of a stream.
    pub heartbeats: u64,
    /// From the start of the first connect to the last subscription. Other machines have other
    /// clocks, here and below.
    #[serde(skip)]
    pub connecting: TimeSpan,
    /// From the first message to the last, with or without a mark.
    #[serde(skip)]
    pub arriving: TimeSpan,
    /// From the start of a connect to the subscription.
    #[serde(with = "crate::buckets")]
    pub connect: Nanoseconds,
    /// From the scheduled time of a message to each delivery.
    #[serde(with = "crate::buckets")]
    pub delivery: Nanoseconds,
    /// The longest time between two polls for events. Receive timestamps are late by up to this.
    pub lag_ns: u64,
    /// Tunnel packets lost or retransmitted by either side.
    pub repeated: u64,
    /// TLS handshakes that succeeded.
    pub(crate) tls: TlsCounts,
}

/// The time from the first to the last occurrence of something, in nanoseconds of the
/// `CLOCK_MONOTONIC` of one machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeSpan(Option<(u64, u64)>);

impl TimeSpan {
    /// Records an occurrence.
    pub fn note(&mut self, at_ns: u64) {
        self.merge(TimeSpan(Some((at_ns, at_ns))));
    }

    /// Extends the span to cover another.
    pub fn merge(&mut self, other: TimeSpan) {
        self.0 = match (self.0, other.0) {
            (Some((first, last)), Some((other_first, other_last))) => {
                Some((first.min(other_first), last.max(other_last)))
            }
            (one, other) => one.or(other),
        };
    }

    /// The time of the first occurrence.
    pub fn first_ns(self) -> Option<u64> {
        self.0.map(|(first, _)| first)
    }

    /// The time of the last occurrence.
    pub fn last_ns(self) -> Option<u64> {
        self.0.map(|(_, last)| last)
    }

    /// The length in seconds; `None` without an occurrence.
    pub fn seconds(self) -> Option<f64> {
        self.0.map(|(first, last)| (last - first) as f64 / 1e9)
    }
}

/// Clients by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct States {
    /// Clients that are connecting, or waiting for the confirmation of the subscription.
    pub connecting: u64,
    /// Clients that are subscribed.
    pub active: u64,
    /// Clients that were closed by either side, and are not reconnecting.
    pub closed: u64,
}

impl AddAssign for States {
    fn add_assign(&mut self, other: States) {
        self.connecting += other.connecting;
        self.active += other.active;
        self.closed += other.closed;
    }
}

impl Default for ClientCounts {
    fn default() -> ClientCounts {
        ClientCounts {
            states: States::default(),
            attempts: 0,
            subscribed: 0,
            ended: 0,
            told: 0,
            failures: BTreeMap::new(),
            received: 0,
            early: 0,
            stray: 0,
            unmarked: 0,
            received_bytes: 0,
            pings: 0,
            heartbeats: 0,
            connecting: TimeSpan::default(),
            arriving: TimeSpan::default(),
            connect: nanoseconds(),
            delivery: nanoseconds(),
            lag_ns: 0,
            repeated: 0,
            tls: TlsCounts::default(),
        }
    }
}

impl ClientCounts {
    /// Counts a failure.
    pub fn fail(&mut self, failure: Failure) {
        self.add_failures(failure, 1);
    }

    fn add_failures(&mut self, failure: Failure, count: u64) {
        refusal::count(&mut self.failures, failure, count);
    }

    /// Resets all counts, but keeps the memory.
    pub fn clear(&mut self) {
        self.states = States::default();
        let counts = [
            &mut self.attempts,
            &mut self.subscribed,
            &mut self.ended,
            &mut self.told,
            &mut self.received,
            &mut self.early,
            &mut self.stray,
            &mut self.unmarked,
            &mut self.received_bytes,
            &mut self.pings,
            &mut self.heartbeats,
            &mut self.lag_ns,
            &mut self.repeated,
        ];
        counts.into_iter().for_each(|count| *count = 0);
        self.failures.clear();
        self.connecting = TimeSpan::default();
        self.arriving = TimeSpan::default();
        self.connect.reset();
        self.delivery.reset();
        self.tls.clear();
    }

    /// Adds the counts of another thread, or later ones of the same. States are added, too: merge
    /// counts of different threads at one time, or set the states afterwards.
    pub fn merge(&mut self, other: &ClientCounts) {
        self.states += other.states;
        self.attempts += other.attempts;
        self.subscribed += other.subscribed;
        self.ended += other.ended;
        self.told += other.told;
        for (failure, count) in &other.failures {
            self.add_failures(failure.clone(), *count);
        }
        self.received += other.received;
        self.early += other.early;
        self.stray += other.stray;
        self.unmarked += other.unmarked;
        self.received_bytes += other.received_bytes;
        self.pings += other.pings;
        self.heartbeats += other.heartbeats;
        self.connecting.merge(other.connecting);
        self.arriving.merge(other.arriving);
        // The histograms resize, so adding cannot fail.
        let _ = self.connect.add(&other.connect);
        let _ = self.delivery.add(&other.delivery);
        self.lag_ns = self.lag_ns.max(other.lag_ns);
        self.repeated += other.repeated;
        self.tls.merge(&other.tls);
    }
}

/// Serializes failures by their texts, of which several failures may have the same.
fn by_text<S: Serializer>(failures: &BTreeMap<Failure, u64>, to: S) -> Result<S::Ok, S::Error> {
    let mut texts = BTreeMap::<String, u64>::new();
    for (failure, count) in failures {
        *texts.entry(failure.to_string()).or_default() += count;
    }
    texts.serialize(to)
}

#[cfg(test)]
mod tests {
    use throng_tls::Suite;

    use super::*;

    #[test]
    fn a_span_covers_all_occurrences() {
        let mut span = TimeSpan::default();
        assert_eq!((span.seconds(), span.last_ns()), (None, None));
        span.note(7_000_000_000);
        assert_eq!(span.seconds(), Some(0.0));
        let mut other = TimeSpan::default();
        other.note(5_000_000_000);
        other.merge(TimeSpan::default());
        span.merge(other);
        assert_eq!((span.first_ns(), span.last_ns()), (Some(5_000_000_000), Some(7_000_000_000)));
        assert_eq!(span.seconds(), Some(2.0));
    }

    #[test]
    fn counts_survive_the_round_trip() {
        let mut counts = ClientCounts {
            attempts: 5,
            received: 3,
            lag_ns: 9,
            repeated: 4,
            ..ClientCounts::default()
        };
        counts.states = States { connecting: 1, active: 2, closed: 3 };
        counts.tls.add(Suite::Tls12Aes256Gcm, true, 7_000);
        counts.fail(Failure::Handshake("no upgrade"));
        counts.fail(Failure::Status(503));
        counts.delivery.record_n(1_234_567, 3).unwrap();
        let json = serde_json::to_string(&counts).unwrap();
        let back: ClientCounts = serde_json::from_str(&json).unwrap();
        assert_eq!((back.states, back.attempts, back.received), (counts.states, 5, 3));
        assert_eq!((&back.delivery, back.lag_ns, back.repeated), (&counts.delivery, 9, 4));
        assert_eq!((back.tls.kinds, back.tls.resumed()), (counts.tls.kinds, 1));
        assert_eq!(back.tls.time, counts.tls.time);
        let words: Vec<String> = back.failures.keys().map(ToString::to_string).collect();
        assert_eq!(words, ["handshake: no upgrade", "status 503"]);
    }
}
