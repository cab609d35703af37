//! The latencies of deliveries, by message.
//!
//! On each thread, most broadcast messages have many deliveries, and messages to one user have
//! one. The first latencies are stored as they are, four bytes each; then a histogram takes over.

use std::collections::HashMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::marker::Mark;

/// Latencies stored as they are. Above this number, a histogram of two digits is smaller.
const FEW_MAX: usize = 256;

/// A message and the latencies of its deliveries.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PublishDeliveries {
    /// The stream of the message.
    pub stream: u32,
    /// The sequence of the message in its stream.
    pub sequence: u32,
    /// The scheduled time of the message, in nanoseconds of `CLOCK_MONOTONIC`.
    pub intended_ns: u64,
    /// Microseconds from then to each delivery, to two digits.
    #[serde(with = "crate::buckets")]
    pub latencies_us: Histogram<u32>,
}

impl PublishDeliveries {
    /// Adds deliveries of the same message.
    pub fn merge(&mut self, other: &PublishDeliveries) {
        // The histogram resizes, so adding cannot fail.
        let _ = self.latencies_us.add(&other.latencies_us);
    }
}

/// The messages delivered since the last [`take`](Self::take).
#[derive(Debug, Default)]
pub(super) struct PendingDeliveries {
    publishes: Vec<Publish>,
    positions: HashMap<(u32, u32), usize>,
    /// Index of the last message: most deliveries are of the same message as the one before.
    current: usize,
}

/// The deliveries of one message so far.
#[derive(Debug)]
struct Publish {
    stream: u32,
    sequence: u32,
    intended_ns: u64,
    few_us: Vec<u32>,
    many_us: Option<Histogram<u32>>,
}

impl PendingDeliveries {
    /// Records a delivery.
    pub(super) fn record(&mut self, mark: &Mark, latency_ns: u64) {
        let is_current = self.publishes.get(self.current).is_some_and(|publish| {
            publish.sequence == mark.sequence && publish.stream == mark.stream
        });
        if !is_current {
            self.current = self.find(mark);
        }
        self.publishes[self.current].record(latency_ns / 1000);
    }

    fn find(&mut self, mark: &Mark) -> usize {
        *self.positions.entry((mark.stream, mark.sequence)).or_insert_with(|| {
            self.publishes.push(Publish {
                stream: mark.stream,
                sequence: mark.sequence,
                intended_ns: mark.intended_ns,
                few_us: Vec::new(),
                many_us: None,
            });
            self.publishes.len() - 1
        })
    }

    /// Removes and returns the messages scheduled up to `until_ns`, sorted.
    pub(super) fn take(&mut self, until_ns: u64) -> Vec<PublishDeliveries> {
        let all = std::mem::take(&mut self.publishes);
        let (taken, kept): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|publish| publish.intended_ns <= until_ns);
        self.publishes = kept;
        let keys = self.publishes.iter().map(|publish| (publish.stream, publish.sequence));
        self.positions = keys.zip(0..).collect();
        self.current = 0;
        let mut taken: Vec<_> = taken.into_iter().map(Publish::into_deliveries).collect();
        taken.sort_unstable_by_key(|publish| (publish.stream, publish.sequence));
        taken
    }
}

impl Publish {
    fn record(&mut self, latency_us: u64) {
        if let Some(many) = &mut self.many_us {
            // The histogram resizes; `saturating_record` would not.
            let _ = many.record(latency_us);
            return;
        }
        self.few_us.push(u32::try_from(latency_us).unwrap_or(u32::MAX));
        if self.few_us.len() > FEW_MAX {
            let mut many = microseconds();
            self.add_few(&mut many);
            (self.few_us, self.many_us) = (Vec::new(), Some(many));
        }
    }

    fn add_few(&self, to: &mut Histogram<u32>) {
        for &latency_us in &self.few_us {
            let _ = to.record(latency_us.into());
        }
    }

    fn into_deliveries(mut self) -> PublishDeliveries {
        let latencies_us = self.many_us.take().unwrap_or_else(|| {
            let mut latencies_us = microseconds();
            self.add_few(&mut latencies_us);
            latencies_us
        });
        let Publish { stream, sequence, intended_ns, .. } = self;
        PublishDeliveries { stream, sequence, intended_ns, latencies_us }
    }
}

pub(super) fn microseconds() -> Histogram<u32> {
    Histogram::new(2).unwrap_or_else(|_| unreachable!("two digits are allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(stream: u32, sequence: u32) -> Mark {
        Mark { run: 1, stream, sequence, intended_ns: u64::from(sequence) * 1000 }
    }

    #[test]
    fn latencies_survive_the_switch_to_a_histogram() {
        let mut deliveries = PendingDeliveries::default();
        for delivery in 0..1000 {
            deliveries.record(&mark(0, 1), 1_000_000);
            deliveries.record(&mark(delivery % 3 * 5, 2), 2_000_000_000);
        }
        deliveries.record(&mark(1, 1), 7000);
        let all = deliveries.take(u64::MAX);
        let counts: Vec<_> = all
            .iter()
            .map(|deliveries| {
                (deliveries.stream, deliveries.sequence, deliveries.latencies_us.len())
            })
            .collect();
        let expected = [(0, 1, 1000), (0, 2, 334), (1, 1, 1), (5, 2, 333), (10, 2, 333)];
        assert_eq!(counts, expected);
        let longest = all[4].latencies_us.max();
        assert!((1_980_000..=2_020_000).contains(&longest), "{longest}");
        assert_eq!(all[2].latencies_us.max(), 7);
    }

    #[test]
    fn messages_in_flight_are_kept() {
        let mut deliveries = PendingDeliveries::default();
        (1..=10).for_each(|sequence| deliveries.record(&mark(0, sequence), 0));
        assert_eq!(deliveries.take(4000).len(), 4);
        deliveries.record(&mark(0, 5), 0);
        deliveries.record(&mark(0, 1), 0);
        let rest: Vec<_> =
            deliveries.take(u64::MAX).iter().map(|publish| publish.sequence).collect();
        assert_eq!(rest, [1, 5, 6, 7, 8, 9, 10]);
        assert!(deliveries.publishes.is_empty() && deliveries.positions.is_empty());
    }
}
