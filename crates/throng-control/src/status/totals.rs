//! The server's counters at one moment. The rates of a sample are differences of two of these.

use std::collections::HashMap;
use std::time::Instant;

use throng_core::{Counter, EngineMetrics};
use throng_wire::ErrorCode;

use super::host::{Reading, ThreadReading};
use super::sample::Reasons;
use crate::control::Control;
use crate::edge::WorkerMetrics;

use crate::metrics::HttpCounter;

/// Counters since the server's start.
#[derive(Debug)]
pub(super) struct Totals {
    /// When they were read.
    pub(super) at: Instant,
    pub(super) accepted: u64,
    pub(super) deliveries: u64,
    pub(super) sent_bytes: u64,
    pub(super) requests: u64,
    pub(super) engine: EngineMetrics,
    pub(super) refused: Reasons,
    pub(super) dropped: Reasons,
    pub(super) closed: Reasons,
    /// By thread id.
    pub(super) threads: HashMap<u32, ThreadReading>,
}

impl Totals {
    /// The counters with which the server started, all zero, as of the time and the processor
    /// times of `self`.
    pub(super) fn at_start(&self) -> Totals {
        Totals {
            at: self.at,
            threads: self.threads.clone(),
            accepted: 0,
            deliveries: 0,
            sent_bytes: 0,
            requests: 0,
            engine: EngineMetrics::default(),
            refused: Reasons::new(),
            dropped: Reasons::new(),
            closed: Reasons::new(),
        }
    }

    pub(super) fn read(control: &Control, workers: &[WorkerMetrics], reading: &Reading) -> Totals {
        let sum = |counter| workers.iter().map(|worker| worker.counters.get(counter)).sum::<u64>();
        let engine = control.engine.metrics();
        let mut refused = by_label("refused_total", sum);
        for code in ErrorCode::ALL.iter().copied() {
            add(&mut refused, code.name(), control.refusals.count(code));
        }
        let mut dropped = Reasons::new();
        add(&mut dropped, "skipped", sum(Counter::MissedMessages));
        add(&mut dropped, "unread", sum(Counter::DroppedForRoom));
        add(&mut dropped, "evicted", engine.evicted);
        Totals {
            at: Instant::now(),
            accepted: sum(Counter::Accepted),
            deliveries: sum(Counter::Deliveries),
            sent_bytes: sum(Counter::SentBytes),
            requests: control.metrics.get(HttpCounter::Requests),
            engine,
            refused,
            dropped,
            closed: by_label("disconnects_total", sum),
            threads: reading.threads.iter().map(|thread| (thread.id, *thread)).collect(),
        }
    }
}

/// The counters of a metric by the value of its label, without those that are zero.
fn by_label(metric: &str, sum: impl Fn(Counter) -> u64) -> Reasons {
    let mut reasons = Reasons::new();
    for counter in Counter::ALL.iter().copied().filter(|counter| counter.metric() == metric) {
        add(&mut reasons, counter.label_value(), sum(counter));
    }
    reasons
}

fn add(reasons: &mut Reasons, reason: &'static str, count: u64) {
    if count > 0 {
        *reasons.entry(reason).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_the_labels_of_counters_above_zero() {
        let closed =
            by_label("disconnects_total", |counter| u64::from(counter != Counter::ClosedIdle));
        assert_eq!(closed.get("lag"), Some(&1));
        assert_eq!(closed.get("idle"), None);
        assert_eq!(closed.len(), 9);
    }
}
