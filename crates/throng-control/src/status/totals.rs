//! The server's counters at one moment. The rates of a sample are differences of two of these.

use std::collections::HashMap;
use std::time::Instant;

use throng_core::EngineMetrics;
use throng_wire::ErrorCode;

use super::host::{HostReading, ThreadReading};
use super::sample::Reasons;
use crate::control::Control;
use crate::data_figures::DataFigures;
use crate::edge::EdgeMetrics;
use crate::metrics::HttpCounter;

#[derive(Debug)]
pub(super) struct Totals {
    /// When they were read.
    pub(super) at: Instant,
    pub(super) accepted: u64,
    pub(super) deliveries: u64,
    pub(super) sent_bytes: u64,
    pub(super) requests: u64,
    pub(super) engine: EngineMetrics,
    /// `None` without a data directory.
    pub(super) data: Option<DataFigures>,
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
            data: None,
            refused: Reasons::new(),
            dropped: Reasons::new(),
            closed: Reasons::new(),
        }
    }

    pub(super) fn read(control: &Control, edge: &EdgeMetrics, reading: &HostReading) -> Totals {
        let engine = control.engine.metrics();
        let mut refused = reasons(&edge.refused);
        for code in ErrorCode::ALL.iter().copied() {
            add(&mut refused, code.name(), control.refusals.count(code));
        }
        let mut dropped = Reasons::new();
        add(&mut dropped, "skipped", edge.messages_skipped);
        add(&mut dropped, "unread", edge.replay_messages_evicted);
        add(&mut dropped, "evicted", engine.evicted);
        Totals {
            at: Instant::now(),
            accepted: edge.accepted,
            deliveries: edge.deliveries,
            sent_bytes: edge.sent_bytes,
            requests: control.metrics.get(HttpCounter::Requests),
            engine,
            data: control.other_metrics.iter().find_map(|source| source.data()),
            refused,
            dropped,
            closed: reasons(&edge.closed),
            threads: reading.threads.iter().map(|thread| (thread.id, *thread)).collect(),
        }
    }
}

/// The counts by reason, without those that are zero.
fn reasons(counts: &[(&'static str, u64)]) -> Reasons {
    let mut reasons = Reasons::new();
    for &(reason, count) in counts {
        add(&mut reasons, reason, count);
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
    fn reasons_that_have_not_occurred_are_left_out() {
        let closed = reasons(&[("peer", 2), ("idle", 0), ("lag", 1)]);
        assert_eq!(closed, Reasons::from([("lag", 1), ("peer", 2)]));
    }
}
