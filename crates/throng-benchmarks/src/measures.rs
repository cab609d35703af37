//! What benchmarks ask of floods, and what they read off their reports: rates, memory, faults.

use std::time::Duration;

use throng_flood::plan::{Pattern, Phase, Publishing};
use throng_flood::report::summary::most_frequent_first;
use throng_flood::report::{PhaseReport, Report, Sample, Totals};
use throng_units::format::{count, counted};

/// Connects under way at once: as many as a queue of 4096 takes without losing one.
pub const IN_FLIGHT: usize = 1_000;

/// More reasons are summed up: the report of the flood has them all.
const REASONS_MAX: usize = 3;

/// Memory of the server.
pub fn server_pss(sample: &Sample) -> Option<f64> {
    sample.server_pss_bytes.map(|bytes| bytes as f64)
}

/// The kernel's slabs above what they were before the first client: what else the machine keeps in
/// them is not the benchmark's.
pub fn slab_growth(report: &Report) -> impl Fn(&Sample) -> Option<f64> {
    let last = report.series.last();
    let end = last.and_then(|last| Some(last.slab_bytes? + last.socket_buffer_bytes?));
    let grown = report.total.kernel_bytes;
    let before = end.zip(grown).map(|(end, grown)| end as f64 - grown as f64);
    move |sample| Some((sample.slab_bytes? as f64 - before?).max(0.0))
}

/// Brings the clients to `to`, as fast as it goes.
pub fn ramp(to: usize) -> Phase {
    Phase::Ramp { to, rate: None, in_flight: IN_FLIGHT.min(to.max(1)) }
}

/// Holds them.
pub fn hold(time: Duration, publish: Option<Publishing>) -> Phase {
    Phase::Hold { time, publish }
}

/// So many messages to the one channel that all follow, spread over a time.
pub fn to_all(count: u64, bytes: usize, time: Duration) -> Publishing {
    /// Less is no time to publish in.
    const SECONDS_MIN: f64 = 0.1;
    Publishing {
        rate: count as f64 / time.as_secs_f64().max(SECONDS_MIN),
        count: Some(count),
        size: bytes,
        to: Pattern::One,
    }
}

/// Clients that came a second, from the first to the last.
pub fn connect_rate(came: &PhaseReport) -> Option<f64> {
    let seconds = came.totals.connected_s.filter(|&seconds| seconds > 0.0)?;
    Some(came.totals.subscribed as f64 / seconds)
}

/// Memory of the server for each client, above what it had before the first one.
pub fn bytes_per_client(phase: &PhaseReport) -> Option<f64> {
    phase.totals.server.as_ref()?.bytes_per_client
}

/// Memory of the server.
pub fn server_bytes(phase: &PhaseReport) -> Option<f64> {
    phase.totals.server.as_ref()?.pss_bytes.map(|bytes| bytes as f64)
}

/// Memory of the kernel for each client, all ends that it has: growth while they came. What else
/// the machine does meanwhile is in it, so that a short time is better than a long one; absent if
/// that was more than what the clients took.
pub fn kernel_bytes_per_client(came: &PhaseReport) -> Option<f64> {
    let totals = &came.totals;
    let grown = totals.kernel_bytes.filter(|&bytes| bytes > 0)?;
    (totals.active > 0).then_some(grown as f64 / totals.active as f64)
}

/// What was lost, failed, or came where it should not, a sentence each.
pub fn faults(total: &Totals) -> Vec<String> {
    let mut faults = Vec::new();
    let missing = [
        (total.lost, "lost"),
        (total.missed, "were gone when their clients came back"),
        (total.duplicated, "came twice"),
        (total.reordered, "came out of order"),
        (total.stray, "came to a client that does not follow them"),
    ];
    for (number, what) in missing.into_iter().filter(|(number, _)| *number > 0) {
        let expected = count(total.expected);
        faults.push(format!("{} of {expected} deliveries: {what}", count(number)));
    }
    for (reasons, one, many) in [
        (&total.failures, "connection failed", "connections failed"),
        (&total.publish_failures, "publish failed", "publishes failed"),
    ] {
        let number: u64 = reasons.values().sum();
        if number == 0 {
            continue;
        }
        let most = most_frequent_first(reasons).into_iter().take(REASONS_MAX);
        let most = most.map(|(reason, number)| format!("{} × {reason}", count(number)));
        let most = most.collect::<Vec<_>>().join(", ");
        faults.push(format!("{}: {most}", counted(number, one, many)));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_sentences() {
        assert!(faults(&Totals::default()).is_empty());
        let total = Totals {
            expected: 5_000,
            lost: 12,
            failures: [("refused".to_owned(), 1), ("reset".to_owned(), 2_000)].into(),
            ..Totals::default()
        };
        assert_eq!(
            faults(&total),
            [
                "12 of 5,000 deliveries: lost",
                "2,001 connections failed: 2,000 × reset, 1 × refused"
            ]
        );
    }
}
