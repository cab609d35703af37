//! Several runs side by side, on a terminal or as an HTML page.

mod measures;
mod page;

use std::collections::BTreeSet;

use throng_report::compare::{self, Side};
use throng_report::file::ReadError;
use throng_units::format::count;

use super::Report;
use super::summary::faults;

pub(crate) use page::page;
pub(crate) use throng_report::compare::table;

/// A comparison of runs.
pub(crate) type Comparison = compare::Comparison<Report>;

/// Reads and compares runs: each argument is a file, or `label=file,file…` for several runs.
pub(crate) fn read(arguments: &[String]) -> Result<Comparison, ReadError> {
    Ok(of(compare::read_sides(arguments, Report::read)?))
}

fn of(sides: Vec<Side<Report>>) -> Comparison {
    let warnings = warnings(&sides);
    Comparison::of(sides, &measures::ALL, warnings)
}

/// Reasons to doubt the comparison: machines or plans that differ, and faults of the runs.
fn warnings(sides: &[Side<Report>]) -> Vec<String> {
    let mut warnings = Vec::new();
    let all = || sides.iter().flat_map(|side| &side.runs);
    let Some(first) = all().next() else { return warnings };
    let settings: BTreeSet<&str> =
        all().flat_map(|run| first.environment.differences(&run.environment)).collect();
    if !settings.is_empty() {
        warnings.push(format!("The machines differ in {}.", list(&settings)));
    }
    let plans: BTreeSet<&str> = all().flat_map(|run| differing_plan(first, run)).collect();
    if !plans.is_empty() {
        warnings.push(format!("The plans differ in {}.", list(&plans)));
    }
    for side in sides {
        for (index, run) in side.runs.iter().enumerate() {
            let name = match side.runs.len() {
                1 => side.label.clone(),
                runs => format!("{} (run {} of {})", side.label, index + 1, count(runs as u64)),
            };
            let early = run.cut_short.iter().map(|reason| format!("{name} ended early: {reason}"));
            warnings.extend(early);
            warnings.extend(faults(run).map(|faults| format!("{name}: {faults}.")));
            warnings.extend(run.warnings.iter().map(|warning| format!("{name}: {warning}")));
        }
    }
    warnings
}

/// Keys of the plan that differ, without those of the target: targets are what is compared.
fn differing_plan<'a>(first: &'a Report, other: &'a Report) -> Vec<&'a str> {
    const TARGET: [&str; 4] = ["name", "profile", "server_pids", "target"];
    let (Some(one), Some(two)) = (first.plan.as_object(), other.plan.as_object()) else {
        return Vec::new();
    };
    let keys = one.keys().chain(two.keys()).map(String::as_str);
    keys.filter(|key| !TARGET.contains(key) && one.get(*key) != two.get(*key)).collect()
}

fn list(names: &BTreeSet<&str>) -> String {
    names.iter().copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use throng_report::compare::{ComparisonRow, Verdict};
    use throng_units::format::ABSENT;

    fn side(label: &str, slowness: &[f64]) -> Side<Report> {
        let runs = slowness.iter().zip(1..);
        let runs = runs.map(|(&slowness, seed)| fixture::of(label, slowness, seed)).collect();
        Side { label: label.to_owned(), runs }
    }

    fn row<'a>(comparison: &'a Comparison, name: &str) -> &'a ComparisonRow {
        comparison.rows.iter().find(|row| row.name == name).expect("a row")
    }

    #[test]
    fn runs_that_differ_by_noise_have_no_winner() {
        let again = Side { label: "b".to_owned(), runs: vec![fixture::of("b", 1.0, 9)] };
        for other in [side("b", &[1.01]), again] {
            for row in &of(vec![side("a", &[1.0]), other]).rows {
                assert_eq!(row.verdict(1), Verdict::Undecided, "{}", row.name);
            }
        }
    }

    #[test]
    fn a_slower_run_is_worse() {
        let comparison = of(vec![side("a", &[1.0]), side("b", &[2.0])]);
        for name in ["delivery p50", "last of a publish", "server memory per client"] {
            let row = row(&comparison, name);
            assert_eq!(row.verdict(1), Verdict::Worse, "{name}");
            let ratio = row.ratio(1).expect("measured");
            assert!((1.7..2.3).contains(&ratio), "{name} {ratio}");
        }
        assert_eq!(row(&comparison, "delivery rate").verdict(1), Verdict::Undecided);
    }

    #[test]
    fn memory_of_few_clients_is_noise() {
        let kernel = |bytes: i64, clients: u64| {
            let mut side = side("s", &[1.0]);
            (side.runs[0].total.kernel_bytes, side.runs[0].total.active) = (Some(bytes), clients);
            side
        };
        let verdict = |sides| row(&of(sides), "kernel memory per client").verdict(1);
        let few = vec![kernel(6_330_000, 1000), kernel(4_000_000, 1000)];
        assert_eq!(verdict(few), Verdict::Undecided);
        let many = vec![kernel(850_000_000, 100_000), kernel(430_000_000, 100_000)];
        assert_eq!(verdict(many), Verdict::Better);
        let sides = [500.0, 250.0].map(|bytes_per_client| {
            let mut side = side("s", &[1.0]);
            let total = &mut side.runs[0].total;
            total.active = 1000;
            let cost = total.server.as_mut().expect("measured");
            cost.bytes_per_client = Some(bytes_per_client);
            side
        });
        let comparison = of(sides.to_vec());
        assert_eq!(row(&comparison, "server memory per client").verdict(1), Verdict::Undecided);
    }

    #[test]
    fn lost_messages_are_exact() {
        let mut other = side("b", &[1.0]);
        other.runs[0].total.lost = 1;
        let comparison = of(vec![side("a", &[1.0]), other]);
        let lost = row(&comparison, "lost");
        assert_eq!(lost.verdict(1), Verdict::Worse);
        assert_eq!((lost.text(0), lost.text(1)), ("0".to_owned(), "1".to_owned()));
        assert_eq!(lost.ratio_text(1), ABSENT);
    }

    #[test]
    fn differences_are_named() {
        let (one, mut other) = (side("one", &[1.0]), side("other", &[1.0]));
        let sides = [one.clone(), other.clone()];
        assert!(warnings(&sides).iter().all(|warning| !warning.contains("differ")));
        let run = &mut other.runs[0];
        run.environment.cores = 8;
        run.environment.sysctl.remove("fs.file-max");
        run.plan["phases"] = serde_json::Value::Null;
        run.plan["target"] = serde_json::Value::Null;
        run.cut_short = Some("interrupted".to_owned());
        let warnings = warnings(&[one, other]);
        assert_eq!(warnings[0], "The machines differ in fs.file-max, number of cores.");
        assert_eq!(warnings[1], "The plans differ in phases.");
        assert!(warnings.iter().any(|warning| warning == "other ended early: interrupted"));
        assert!(warnings.iter().any(|warning| warning.starts_with("one: The generator was")));
    }

    #[test]
    fn a_missing_file_is_an_error() {
        assert!(read(&["/nowhere/a.json".to_owned()]).is_err());
        assert!(of(Vec::new()).rows.is_empty());
    }
}
