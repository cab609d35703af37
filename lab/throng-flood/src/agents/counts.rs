//! Counts and histograms in messages, without loss.
//!
//! A histogram is sent as its buckets: the lowest value of each, as the difference to the one
//! before, and its count, in LEB128 and Base64. Both sides have the same buckets, so merging the
//! histograms of all agents gives the one that a single process would have had.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hdrhistogram::{Counter, Histogram};
use serde::{Deserialize, Serialize};

use crate::clients::PublishDeliveries;
use crate::counts::{ClientCounts, States, TimeSpan, nanoseconds};
use crate::failure::Failure;
use crate::tls::TlsCounts;

/// The buckets of a histogram.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Buckets(String);

/// [`ClientCounts`] in a message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireCounts {
    states: States,
    attempts: u64,
    subscribed: u64,
    ended: u64,
    /// Absent in replies of agents that heed no moments.
    #[serde(default)]
    told: u64,
    /// By reason, as text.
    failures: BTreeMap<String, u64>,
    received: u64,
    early: u64,
    stray: u64,
    unmarked: u64,
    received_bytes: u64,
    pings: u64,
    heartbeats: u64,
    connect: Buckets,
    delivery: Buckets,
    lag_ns: u64,
    /// Absent in replies of agents without tunnels.
    #[serde(default)]
    repeated: u64,
    /// Absent in replies of agents without TLS, here and below.
    #[serde(default)]
    tls_kinds: Vec<u64>,
    #[serde(default)]
    tls_time: Buckets,
}

/// [`PublishDeliveries`] in a message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireDeliveries {
    stream: u32,
    sequence: u32,
    intended_ns: u64,
    latencies_us: Buckets,
}

impl Buckets {
    pub(super) fn of<C: Counter>(histogram: &Histogram<C>) -> Buckets {
        let mut bytes = Vec::new();
        let mut before = 0;
        for bucket in histogram.iter_recorded() {
            // The iterator returns the highest value of a bucket; any of its values finds the
            // bucket again.
            let value = histogram.lowest_equivalent(bucket.value_iterated_to());
            write_number(&mut bytes, value - before);
            write_number(&mut bytes, bucket.count_since_last_iteration());
            before = value;
        }
        Buckets(STANDARD_NO_PAD.encode(bytes))
    }

    /// Adds the buckets to a histogram of the same precision. Returns false if they are invalid.
    pub(super) fn add_to<C: Counter>(&self, histogram: &mut Histogram<C>) -> bool {
        self.read(histogram).is_some()
    }

    fn read<C: Counter>(&self, histogram: &mut Histogram<C>) -> Option<()> {
        let bytes = STANDARD_NO_PAD.decode(&self.0).ok()?;
        let (mut rest, mut value) = (&bytes[..], 0_u64);
        while !rest.is_empty() {
            value = value.checked_add(read_number(&mut rest)?)?;
            let count = C::from_u64(read_number(&mut rest)?)?;
            histogram.record_n(value, count).ok()?;
        }
        Some(())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl WireCounts {
    pub(super) fn of(counts: &ClientCounts) -> WireCounts {
        let mut failures = BTreeMap::new();
        for (failure, count) in &counts.failures {
            *failures.entry(failure.to_string()).or_default() += count;
        }
        WireCounts {
            states: counts.states,
            attempts: counts.attempts,
            subscribed: counts.subscribed,
            ended: counts.ended,
            told: counts.told,
            failures,
            received: counts.received,
            early: counts.early,
            stray: counts.stray,
            unmarked: counts.unmarked,
            received_bytes: counts.received_bytes,
            pings: counts.pings,
            heartbeats: counts.heartbeats,
            connect: Buckets::of(&counts.connect),
            delivery: Buckets::of(&counts.delivery),
            lag_ns: counts.lag_ns,
            repeated: counts.repeated,
            tls_kinds: counts.tls.kinds.to_vec(),
            tls_time: Buckets::of(&counts.tls.time),
        }
    }

    /// `None` if a histogram is invalid.
    pub(super) fn into_counts(self) -> Option<ClientCounts> {
        let (mut connect, mut delivery) = (nanoseconds(), nanoseconds());
        let mut tls = TlsCounts::default();
        for (count, read) in tls.kinds.iter_mut().zip(self.tls_kinds) {
            *count = read;
        }
        let is_read = self.connect.add_to(&mut connect)
            && self.delivery.add_to(&mut delivery)
            && self.tls_time.add_to(&mut tls.time);
        let failures = self.failures.into_iter();
        is_read.then(|| ClientCounts {
            states: self.states,
            attempts: self.attempts,
            subscribed: self.subscribed,
            ended: self.ended,
            told: self.told,
            failures: failures.map(|(words, count)| (Failure::Reported(words), count)).collect(),
            received: self.received,
            early: self.early,
            stray: self.stray,
            unmarked: self.unmarked,
            received_bytes: self.received_bytes,
            pings: self.pings,
            heartbeats: self.heartbeats,
            // Measured by the clock of another machine.
            connecting: TimeSpan::default(),
            arriving: TimeSpan::default(),
            connect,
            delivery,
            lag_ns: self.lag_ns,
            repeated: self.repeated,
            tls,
        })
    }
}

impl WireDeliveries {
    pub(super) fn of(publish: &PublishDeliveries) -> WireDeliveries {
        let PublishDeliveries { stream, sequence, intended_ns, .. } = *publish;
        let latencies_us = Buckets::of(&publish.latencies_us);
        WireDeliveries { stream, sequence, intended_ns, latencies_us }
    }

    /// The most bytes that it takes in a message.
    pub(super) fn bytes(&self) -> usize {
        // Three numbers and four names.
        self.latencies_us.len() + 128
    }

    /// `None` if the histogram is invalid.
    pub(super) fn into_deliveries(self) -> Option<PublishDeliveries> {
        let WireDeliveries { stream, sequence, intended_ns, latencies_us: buckets } = self;
        let mut latencies_us = Histogram::new(2).ok()?;
        let is_read = buckets.add_to(&mut latencies_us);
        is_read.then_some(PublishDeliveries { stream, sequence, intended_ns, latencies_us })
    }
}

fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use throng_tls::Suite;

    use super::*;

    proptest! {
        // Histograms over the whole range are large.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn merging_parts_is_recording_all(
            values in prop::collection::vec(
                prop_oneof![0_u64..5_000, any::<u64>().prop_map(|value| value >> 20)], 0..300)
        ) {
            let mut whole = nanoseconds();
            let mut parts = [nanoseconds(), nanoseconds(), nanoseconds()];
            for (number, &value) in values.iter().enumerate() {
                whole.record(value).unwrap();
                parts[number % 3].record(value).unwrap();
            }
            let mut merged = nanoseconds();
            for part in &parts {
                prop_assert!(Buckets::of(part).add_to(&mut merged));
            }
            prop_assert_eq!(&merged, &whole);
            prop_assert_eq!(Buckets::of(&merged), Buckets::of(&whole));
            for quantile in [0.0, 0.5, 0.99, 0.999, 1.0] {
                let at = |histogram: &Histogram<u64>| histogram.value_at_quantile(quantile);
                prop_assert_eq!(at(&merged), at(&whole));
            }
            prop_assert_eq!((merged.min(), merged.max()), (whole.min(), whole.max()));
        }

        #[test]
        fn whatever_comes_is_read_or_refused(text in "[A-Za-z0-9+/]{0,40}") {
            let _ = Buckets(text).add_to(&mut nanoseconds());
        }
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
        let json = serde_json::to_string(&WireCounts::of(&counts)).unwrap();
        let back: WireCounts = serde_json::from_str(&json).unwrap();
        let back = back.into_counts().unwrap();
        assert_eq!((back.states, back.attempts, back.received), (counts.states, 5, 3));
        assert_eq!((&back.delivery, back.lag_ns, back.repeated), (&counts.delivery, 9, 4));
        assert_eq!((back.tls.kinds, back.tls.resumed()), (counts.tls.kinds, 1));
        assert_eq!(back.tls.time, counts.tls.time);
        let words: Vec<String> = back.failures.keys().map(ToString::to_string).collect();
        assert_eq!(words, ["handshake: no upgrade", "status 503"]);
    }
}
