//! What went wrong in a load, in sentences.

use throng_flood::report::Totals;
use throng_flood::report::statements::most_frequent_first;
use throng_units::format::{count, counted};

/// Reasons shown per fault; the flood's report has them all.
const REASONS_MAX: usize = 3;

/// Lost, repeated and misdirected messages, one sentence each.
pub(crate) fn losses(total: &Totals) -> Vec<String> {
    let mut faults = Vec::new();
    let missing = [
        (total.lost, "lost"),
        (total.missed, "missed, told by the server"),
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
