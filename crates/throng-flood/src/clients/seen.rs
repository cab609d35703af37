//! Deliveries per publish, while it is in flight.
//!
//! Most publishes of a broadcast have many deliveries on each thread, those to single users have
//! one: the first few are kept as they are (four bytes each), then a histogram takes over.

use std::collections::HashMap;

use hdrhistogram::Histogram;

use crate::marker::Mark;

/// Deliveries kept as they are: above it, a histogram of two digits is smaller.
const FEW_MAX: usize = 256;

/// A publish and its deliveries.
#[derive(Debug, Clone)]
pub struct PublishSeen {
    /// Its stream.
    pub stream: u32,
    /// Its number in the stream.
    pub sequence: u32,
    /// When it was to be sent, in nanoseconds of `CLOCK_MONOTONIC`.
    pub intended_ns: u64,
    /// From then to each delivery, in microseconds; two digits.
    pub latencies_us: Histogram<u32>,
}

impl PublishSeen {
    /// Adds deliveries of the same publish.
    pub fn merge(&mut self, other: &PublishSeen) {
        // It grows as it must, so that adding cannot fail.
        let _ = self.latencies_us.add(&other.latencies_us);
    }
}

/// The publishes that were seen since they were last taken.
#[derive(Debug, Default)]
pub(super) struct Seen {
    publishes: Vec<Publish>,
    positions: HashMap<(u32, u32), usize>,
    /// Most deliveries are of the same publish as the one before.
    current: usize,
}

/// One of them.
#[derive(Debug)]
struct Publish {
    stream: u32,
    sequence: u32,
    intended_ns: u64,
    few_us: Vec<u32>,
    many_us: Option<Histogram<u32>>,
}

impl Seen {
    /// A delivery.
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

    /// Takes out those that were to be sent before `until_ns`, ascending.
    pub(super) fn take(&mut self, until_ns: u64) -> Vec<PublishSeen> {
        let all = std::mem::take(&mut self.publishes);
        let (taken, kept): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|publish| publish.intended_ns <= until_ns);
        self.publishes = kept;
        let keys = self.publishes.iter().map(|publish| (publish.stream, publish.sequence));
        self.positions = keys.zip(0..).collect();
        self.current = 0;
        let mut taken: Vec<_> = taken.into_iter().map(Publish::seen).collect();
        taken.sort_unstable_by_key(|publish| (publish.stream, publish.sequence));
        taken
    }
}

impl Publish {
    fn record(&mut self, latency_us: u64) {
        if let Some(many) = &mut self.many_us {
            // It grows as it must; `saturating_record` would not.
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

    fn seen(mut self) -> PublishSeen {
        let latencies_us = self.many_us.take().unwrap_or_else(|| {
            let mut latencies_us = microseconds();
            self.add_few(&mut latencies_us);
            latencies_us
        });
        let Publish { stream, sequence, intended_ns, .. } = self;
        PublishSeen { stream, sequence, intended_ns, latencies_us }
    }
}

fn microseconds() -> Histogram<u32> {
    Histogram::new(2).unwrap_or_else(|_| unreachable!("two digits are allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(stream: u32, sequence: u32) -> Mark {
        Mark { run: 1, stream, sequence, intended_ns: u64::from(sequence) * 1000 }
    }

    #[test]
    fn few_and_many_deliveries_are_told_alike() {
        let mut seen = Seen::default();
        for delivery in 0..1000 {
            seen.record(&mark(0, 1), 1_000_000);
            seen.record(&mark(delivery % 3 * 5, 2), 2_000_000_000);
        }
        seen.record(&mark(1, 1), 7000);
        let all = seen.take(u64::MAX);
        let counts: Vec<_> =
            all.iter().map(|seen| (seen.stream, seen.sequence, seen.latencies_us.len())).collect();
        let expected = [(0, 1, 1000), (0, 2, 334), (1, 1, 1), (5, 2, 333), (10, 2, 333)];
        assert_eq!(counts, expected);
        let longest = all[4].latencies_us.max();
        assert!((1_980_000..=2_020_000).contains(&longest), "{longest}");
        assert_eq!(all[2].latencies_us.max(), 7);
    }

    #[test]
    fn what_is_in_flight_stays() {
        let mut seen = Seen::default();
        (1..=10).for_each(|sequence| seen.record(&mark(0, sequence), 0));
        assert_eq!(seen.take(4000).len(), 4);
        seen.record(&mark(0, 5), 0);
        seen.record(&mark(0, 1), 0);
        let rest: Vec<_> = seen.take(u64::MAX).iter().map(|publish| publish.sequence).collect();
        assert_eq!(rest, [1, 5, 6, 7, 8, 9, 10]);
        assert!(seen.publishes.is_empty() && seen.positions.is_empty());
    }
}
