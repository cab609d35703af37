//! Compares two results.

use std::fmt::Write as _;

use throng_report::compare::Better;
use throng_report::grid::Grid;
use throng_units::format::{ABSENT, decimal, or_absent};
use throng_units::paint::{Ink, Paint, sanitized};

use crate::results::{MeasuredValue, Outcome, Results};

/// The measurements of both results, for each benchmark that both contain.
pub(crate) fn table(before: &Results, after: &Results, paint: Paint) -> String {
    let mut text = String::new();
    for one in &before.benchmarks {
        let Some(other) = after.benchmarks.iter().find(|other| other.name == one.name) else {
            continue;
        };
        let _ = writeln!(text, "\n{}", paint.ink(Ink::Bold, sanitized(&one.title)));
        for warning in warnings(one, other) {
            let _ = writeln!(text, "{} {warning}", paint.ink(Ink::WARNING, "warning:"));
        }
        let mut grid = Grid::new(["", "before", "after", "after / before", ""], paint);
        for measurement in &one.measurements {
            let Some(later) = other.measurements.iter().find(|later| later.key == measurement.key)
            else {
                continue;
            };
            grid.row(row(measurement, later));
        }
        grid.write(&mut text);
    }
    if text.is_empty() {
        text.push_str("the two results have no benchmark in common\n");
    }
    if before.environment != after.environment {
        text.push_str("\nThe machines or their settings differ.\n");
    }
    text
}

fn warnings(one: &Outcome, other: &Outcome) -> Vec<String> {
    let mut warnings = Vec::new();
    if (one.connections, one.time_s) != (other.connections, other.time_s) {
        warnings.push("the sizes differ".to_owned());
    }
    for (side, outcome) in [("before", one), ("after", other)] {
        if !outcome.reasons.is_empty() {
            let reasons = sanitized(&outcome.reasons.join("; "));
            warnings.push(format!("{side} it failed: {reasons}"));
        }
    }
    warnings
}

fn row(before: &MeasuredValue, after: &MeasuredValue) -> [String; 5] {
    let unit = before.unit();
    let both = before.ours.zip(after.ours);
    let ratio = both.map(|(one, other)| other / one).filter(|ratio| ratio.is_finite());
    let verdict = both.and_then(|(one, other)| before.better().ratio(other, one));
    let verdict = match (before.better(), verdict) {
        (Better::Neither, _) | (_, None) => "",
        (_, Some(ratio)) if ratio > 1.0 => "better",
        (_, Some(ratio)) if ratio < 1.0 => "worse",
        _ => "same",
    };
    [
        sanitized(&before.name),
        or_absent(before.ours, |value| unit.show(value)),
        or_absent(after.ours, |value| unit.show(value)),
        ratio.map_or_else(|| ABSENT.to_owned(), decimal),
        verdict.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::MeasuredValue;

    fn results(memory: f64, connections: usize) -> Results {
        let better = Some("less".to_owned());
        let mut measured = MeasuredValue { better, ..MeasuredValue::default() };
        measured.set(memory, connections);
        let measurements = vec![measured];
        let outcome = Outcome { connections, measurements, ..Outcome::default() };
        Results { benchmarks: vec![outcome], ..Results::default() }
    }

    #[test]
    fn a_better_value_is_marked() {
        let text = table(&results(200.0, 10), &results(100.0, 10), Paint::plain());
        assert!(text.contains("0.50"), "{text}");
        assert!(text.contains("better") && !text.contains("warning"), "{text}");
        let text = table(&results(100.0, 10), &results(200.0, 20), Paint::plain());
        assert!(text.contains("worse") && text.contains("the sizes differ"), "{text}");
    }

    #[test]
    fn results_without_a_common_benchmark_say_so() {
        let text = table(&results(1.0, 1), &Results::default(), Paint::plain());
        assert_eq!(text, "the two results have no benchmark in common\n");
    }
}
