//! The canary's results: for each transport, the delay of its messages and the time of the last
//! one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use throng_core::{Histogram, Snapshot, clock};

use crate::health::Ailment;

/// The transports, by the value of the label `transport`.
pub(crate) const TRANSPORTS: [&str; 4] = ["websocket", "sse", "stream", "poll"];

/// Durations that are kept for percentiles: some minutes at the usual interval, and enough for a
/// 99th percentile.
const RECENT_MAX: usize = 100;

/// Messages in a row that must fail to arrive before a transport counts as failing: one may be late
/// on a machine that is short of processor time.
const FAILURES_MIN: u32 = 2;

/// The results of all transports, in the order of [`TRANSPORTS`].
#[derive(Debug, Default)]
pub(crate) struct CanaryReport([TransportReport; TRANSPORTS.len()]);

/// The results of one transport.
#[derive(Debug, Default)]
pub(crate) struct TransportReport {
    durations: Histogram,
    /// The latest durations, in microseconds, the newest last.
    recent_us: Mutex<VecDeque<u64>>,
    /// When a message arrived last, by the machine's clock; 0 if none has.
    arrived_ms: AtomicU64,
    failures: AtomicU64,
    failures_in_a_row: AtomicU32,
}

impl CanaryReport {
    /// Each transport with what was found over it.
    pub(crate) fn transports(&self) -> impl Iterator<Item = (&'static str, &TransportReport)> {
        TRANSPORTS.into_iter().zip(&self.0)
    }

    /// Records what became of one message: for each transport, how long it took to arrive, or
    /// `None` if it did not.
    pub(crate) fn record(&self, arrivals: [Option<Duration>; TRANSPORTS.len()]) {
        for ((name, report), arrival) in self.transports().zip(arrivals) {
            report.record(name, arrival);
        }
    }

    /// The reason why the server is degraded, if messages do not arrive.
    pub(crate) fn ailment(&self) -> Option<Ailment> {
        let failing = self.transports().filter(|(_, report)| report.is_failing());
        let failing: Vec<_> = failing.map(|(name, _)| name).collect();
        (!failing.is_empty()).then(|| {
            let over = failing.join(", ");
            Ailment::new("canary", format!("the server's own messages do not arrive over {over}"))
        })
    }
}

impl TransportReport {
    fn record(&self, name: &str, arrival: Option<Duration>) {
        let Some(duration) = arrival else {
            self.failures.fetch_add(1, Ordering::Relaxed);
            let row = self.failures_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
            if row == FAILURES_MIN {
                tracing::error!("the server's own messages do not arrive over {name}");
            }
            return;
        };
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.durations.record_shared(us);
        let mut recent = self.recent_us.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == RECENT_MAX {
            recent.pop_front();
        }
        recent.push_back(us);
        self.arrived_ms.store(clock::machine_ms(), Ordering::Relaxed);
        if self.failures_in_a_row.swap(0, Ordering::Relaxed) >= FAILURES_MIN {
            tracing::warn!("the server's own messages arrive over {name} again");
        }
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failures_in_a_row.load(Ordering::Relaxed) >= FAILURES_MIN
    }

    /// The messages that did not arrive.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// When a message arrived last, in milliseconds since 1970; `None` if none has.
    pub(crate) fn arrived_ms(&self) -> Option<u64> {
        Some(self.arrived_ms.load(Ordering::Relaxed)).filter(|&ms| ms > 0)
    }

    pub(crate) fn durations(&self) -> Snapshot {
        Snapshot::of([&self.durations].into_iter())
    }

    /// The latest durations, in microseconds, the shortest first.
    pub(crate) fn recent_us(&self) -> Vec<u64> {
        let recent = self.recent_us.lock().unwrap_or_else(PoisonError::into_inner);
        let mut recent: Vec<_> = recent.iter().copied().collect();
        recent.sort_unstable();
        recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_late_message_is_no_failure_and_two_in_a_row_are() {
        let report = CanaryReport::default();
        let arrived = Some(Duration::from_millis(1));
        report.record([arrived, None, arrived, arrived]);
        assert_eq!(report.ailment(), None);
        report.record([arrived, None, arrived, arrived]);
        let message = "the server's own messages do not arrive over sse";
        assert_eq!(report.ailment(), Some(Ailment::new("canary", message)));
        report.record([arrived; 4]);
        assert_eq!(report.ailment(), None);
        let found: Vec<_> = report.transports().map(|(_, report)| report.failures()).collect();
        assert_eq!(found, [0, 2, 0, 0]);
    }

    #[test]
    fn the_latest_durations_are_kept() {
        let report = TransportReport::default();
        assert_eq!(report.arrived_ms(), None);
        for ms in (1..=RECENT_MAX as u64 + 1).rev() {
            report.record("sse", Some(Duration::from_millis(ms)));
        }
        let recent = report.recent_us();
        assert_eq!((recent.len(), recent[0], recent[RECENT_MAX - 1]), (RECENT_MAX, 1_000, 100_000));
        assert!(report.arrived_ms().is_some() && report.durations().count() == 101);
    }
}
