//! What makes a comparison doubtful: machines or plans that differ, runs that had faults of their
//! own.

use std::collections::BTreeSet;

use super::Side;
use crate::report::Report;
use crate::report::table::faults;
use throng_units::format;

/// One sentence each.
pub(super) fn of(sides: &[Side]) -> Vec<String> {
    let mut doubts = Vec::new();
    let all = || sides.iter().flat_map(|side| &side.runs);
    let Some(first) = all().next() else { return doubts };
    let settings: BTreeSet<&str> = all().flat_map(|run| differing_settings(first, run)).collect();
    if !settings.is_empty() {
        doubts.push(format!("The machines differ in {}.", listed(&settings)));
    }
    // Who is loaded may differ: that is what is compared.
    let plans: BTreeSet<&str> = all().flat_map(|run| differing_plan(first, run)).collect();
    if !plans.is_empty() {
        doubts.push(format!("The plans differ in {}.", listed(&plans)));
    }
    for side in sides {
        let count = side.runs.len() as u64;
        for (nth, run) in side.runs.iter().enumerate() {
            let name = if count > 1 {
                format!("{} (run {} of {})", side.label, nth + 1, format::count(count))
            } else {
                side.label.clone()
            };
            doubts
                .extend(run.cut_short.iter().map(|reason| format!("{name} ended early: {reason}")));
            doubts.extend(faults(run).map(|faults| format!("{name}: {faults}.")));
            doubts.extend(run.warnings.iter().map(|warning| format!("{name}: {warning}")));
        }
    }
    doubts
}

fn differing_settings<'a>(first: &'a Report, other: &'a Report) -> Vec<&'a str> {
    let (one, two) = (&first.environment, &other.environment);
    let mut names = Vec::new();
    for (is_different, name) in [
        (one.kernel != two.kernel, "kernel"),
        (one.cores != two.cores, "number of cores"),
        (one.processor != two.processor, "processor"),
        (one.memory_bytes != two.memory_bytes, "memory"),
        (one.is_loopback != two.is_loopback, "whether both sides are on one machine"),
        (one.network() != two.network(), "network of the clients"),
        (one.throng != two.throng, "version of throng"),
    ] {
        if is_different {
            names.push(name);
        }
    }
    let settings = one.sysctl.keys().chain(two.sysctl.keys());
    let differing = settings.filter(|name| one.sysctl.get(*name) != two.sysctl.get(*name));
    names.extend(differing.map(String::as_str));
    names
}

fn differing_plan<'a>(first: &'a Report, other: &'a Report) -> Vec<&'a str> {
    const EXPECTED: [&str; 4] = ["name", "profile", "server_pids", "target"];
    let (Some(one), Some(two)) = (first.plan.as_object(), other.plan.as_object()) else {
        return Vec::new();
    };
    let parts = one.keys().chain(two.keys()).map(String::as_str);
    parts.filter(|part| !EXPECTED.contains(part) && one.get(*part) != two.get(*part)).collect()
}

fn listed(names: &BTreeSet<&str>) -> String {
    names.iter().copied().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn differences_are_named() {
        let side = |label: &str| Side { label: label.to_owned(), runs: vec![fixture::sample()] };
        let (one, mut other) = (side("one"), side("other"));
        assert!(of(&[one.clone(), other.clone()]).iter().all(|doubt| !doubt.contains("differ")));
        let run = &mut other.runs[0];
        run.environment.cores = 8;
        run.environment.sysctl.remove("fs.file-max");
        run.plan["phases"] = serde_json::Value::Null;
        run.plan["target"] = serde_json::Value::Null;
        run.cut_short = Some("interrupted".to_owned());
        let doubts = of(&[one, other]);
        assert_eq!(doubts[0], "The machines differ in fs.file-max, number of cores.");
        assert_eq!(doubts[1], "The plans differ in phases.");
        assert!(doubts.iter().any(|doubt| doubt == "other ended early: interrupted"));
        assert!(doubts.iter().any(|doubt| doubt.starts_with("one: The generator was")));
        assert!(of(&[]).is_empty());
    }
}
