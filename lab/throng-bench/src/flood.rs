//! Phases of floods, and values from their reports: rates, memory, faults.

use std::time::Duration;

use throng_flood::plan::{Pattern, Phase, Publishing};
use throng_flood::report::summary::most_frequent_first;
use throng_flood::report::{PhaseReport, Report, Sample, Totals};
use throng_units::format::{count, counted};

/// Concurrent connection attempts: few enough for a listen queue of 4096.
pub(crate) const IN_FLIGHT: usize = 1_000;

/// Reasons shown per fault; the flood's report has them all.
const REASONS_MAX: usize = 3;

/// Memory of the server at a sample.
pub(crate) fn server_pss(sample: &Sample) -> Option<f64> {
    sample.server_pss_bytes.map(|bytes| bytes as f64)
}

/// Growth of the kernel's slabs since before the first client.
pub(crate) fn slab_growth(report: &Report) -> impl Fn(&Sample) -> Option<f64> {
    let last = report.series.last();
    let end = last.and_then(|last| Some(last.slab_bytes? + last.socket_buffer_bytes?));
    let grown = report.total.kernel_bytes;
    let before = end.zip(grown).map(|(end, grown)| end as f64 - grown as f64);
    move |sample| Some((sample.slab_bytes? as f64 - before?).max(0.0))
}

/// Connects clients up to `to` as fast as possible.
pub(crate) fn ramp(to: usize) -> Phase {
    Phase::Ramp { to, rate: None, in_flight: IN_FLIGHT.min(to.max(1)) }
}

/// Holds the clients.
pub(crate) fn hold(time: Duration, publish: Option<Publishing>) -> Phase {
    Phase::Hold { time, publish }
}

/// `count` messages to the channel that all follow, spread over `time`.
pub(crate) fn to_all(count: u64, bytes: usize, time: Duration) -> Publishing {
    /// Avoids a division by zero.
    const SECONDS_MIN: f64 = 0.1;
    Publishing {
        rate: count as f64 / time.as_secs_f64().max(SECONDS_MIN),
        count: Some(count),
        size: bytes,
        to: Pattern::One,
    }
}

/// Clients connected per second, from the first attempt to the last subscription.
pub(crate) fn connect_rate(ramp: &PhaseReport) -> Option<f64> {
    let seconds = ramp.totals.connected_s.filter(|&seconds| seconds > 0.0)?;
    Some(ramp.totals.subscribed as f64 / seconds)
}

/// Growth of the server's memory per client.
pub(crate) fn bytes_per_client(phase: &PhaseReport) -> Option<f64> {
    phase.totals.server.as_ref()?.bytes_per_client
}

/// Memory of the server at the end of a phase.
pub(crate) fn server_bytes(phase: &PhaseReport) -> Option<f64> {
    phase.totals.server.as_ref()?.pss_bytes.map(|bytes| bytes as f64)
}

/// Growth of the kernel's memory per client during `ramp`, for all ends on this machine. Unrelated
/// activity is included, so a short phase is more accurate; `None` if it outweighs the clients.
pub(crate) fn kernel_bytes_per_client(ramp: &PhaseReport) -> Option<f64> {
    let totals = &ramp.totals;
    let grown = totals.kernel_bytes.filter(|&bytes| bytes > 0)?;
    (totals.active > 0).then_some(grown as f64 / totals.active as f64)
}

/// Lost, repeated and misdirected messages, one sentence each.
pub(crate) fn losses(total: &Totals) -> Vec<String> {
    let mut faults = Vec::new();
    let missing = [
        (total.lost, "lost"),
        (total.missed, "missed, with a notice of the gap"),
        (total.duplicated, "duplicated"),
        (total.reordered, "reordered"),
        (total.stray, "delivered to a client that does not follow the channel"),
    ];
    for (number, what) in missing.into_iter().filter(|(number, _)| *number > 0) {
        let expected = count(total.expected);
        faults.push(format!("{} of {expected} deliveries: {what}", count(number)));
    }
    faults
}

/// [`losses`], and failures.
pub(crate) fn faults(total: &Totals) -> Vec<String> {
    let mut faults = losses(total);
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
    fn faults_name_counts_and_reasons() {
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
