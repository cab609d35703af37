//! Two results side by side: did it get better?

use std::fmt::Write as _;

use throng_report::compare::Better;
use throng_report::grid::Grid;
use throng_units::format::{ABSENT, decimal, or_absent};
use throng_units::paint::{Ink, Paint, sanitized};

use crate::results::{Measured, Outcome, Results};

/// The figures of both, for each benchmark that both have.
pub fn table(before: &Results, after: &Results, paint: Paint) -> String {
    let mut text = String::new();
    for one in &before.benchmarks {
        let Some(other) = after.benchmarks.iter().find(|other| other.name == one.name) else {
            continue;
        };
        let _ = writeln!(text, "\n{}", paint.ink(Ink::Bold, sanitized(&one.title)));
        for doubt in doubts(one, other) {
            let _ = writeln!(text, "{} {doubt}", paint.ink(Ink::WARNING, "doubtful:"));
        }
        let mut grid = Grid::new(["", "before", "after", "after / before", ""], paint);
        for figure in &one.figures {
            let Some(later) = other.figures.iter().find(|later| later.key == figure.key) else {
                continue;
            };
            grid.row(row(figure, later));
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

fn doubts(one: &Outcome, other: &Outcome) -> Vec<String> {
    let mut doubts = Vec::new();
    if (one.connections, one.time_s) != (other.connections, other.time_s) {
        doubts.push("the sizes differ".to_owned());
    }
    for (side, outcome) in [("before", one), ("after", other)] {
        if !outcome.reasons.is_empty() {
            let reasons = sanitized(&outcome.reasons.join("; "));
            doubts.push(format!("{side} it failed: {reasons}"));
        }
    }
    doubts
}

fn row(before: &Measured, after: &Measured) -> [String; 5] {
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
    use crate::benchmarks::ALL;

    fn results(memory: f64, connections: usize) -> Results {
        let mut outcome = Outcome::of(ALL[0], &ALL[0].scope.size, 0);
        outcome.connections = connections;
        outcome.figures[0].set(memory, connections);
        Results { benchmarks: vec![outcome], ..Results::default() }
    }

    #[test]
    fn what_got_better_is_said() {
        let text = table(&results(200.0, 10), &results(100.0, 10), Paint::plain());
        assert!(text.contains("0.50"), "{text}");
        assert!(text.contains("better") && !text.contains("doubtful"), "{text}");
        let text = table(&results(100.0, 10), &results(200.0, 20), Paint::plain());
        assert!(text.contains("worse") && text.contains("the sizes differ"), "{text}");
    }

    #[test]
    fn nothing_in_common_is_said() {
        let text = table(&results(1.0, 1), &Results::default(), Paint::plain());
        assert_eq!(text, "the two results have no benchmark in common\n");
    }
}
