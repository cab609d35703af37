//! Several runs side by side, on a terminal or as an HTML page.

use std::collections::BTreeSet;

use throng_report::compare::{
    Better, FOOTNOTE, Measure, Range, Side, named_runs, quartiles, read_sides, table,
};
use throng_report::file::ReadError;
use throng_report::page::{Page, Part, Section};
use throng_report::{Distribution, Unit};
use throng_units::format;

use super::summary::faults;
use super::{COMMAND, Report, Sample, charts};

/// The slabs of the whole machine grow and shrink by this much with unrelated activity.
const KERNEL_NOISE_BYTES: f64 = 8e6;

/// An allocator takes and returns memory in steps of about this size.
const PROCESS_NOISE_BYTES: f64 = 512e3;

/// Reads and compares runs: each argument is a file, or `label=file,file…` for several runs.
pub(crate) fn read(arguments: &[String]) -> Result<Page, ReadError> {
    Ok(page(&read_sides(arguments, Report::read)?))
}

fn page(sides: &[Side<Report>]) -> Page {
    let names: Vec<&str> = sides.iter().map(|side| side.label.as_str()).collect();
    let runs = named_runs(sides).map(|(name, run)| {
        let (began, length) = (format::date(run.started_unix_s), format::seconds(run.seconds));
        (name, format!("{began}, {length}"))
    });
    let head = vec![Part::Facts(runs.collect()), Part::Warnings(warnings(sides))];
    let measurements = vec![Part::Table(table(sides, measures)), Part::Note(FOOTNOTE.to_owned())];
    let sections = vec![
        Section::new("Measurements", measurements),
        Section::new("Latency", charts::compared_latency(sides)),
        Section::new("Over time", charts::compared_over_time(sides)),
    ];
    Page::new(COMMAND, Section::new(names.join(" against "), head), sections)
}

/// All measurements, in the order of the table.
fn measures(run: &Report) -> Vec<Measure> {
    let mut measures = connects(run);
    measures.extend(deliveries(run));
    measures.extend(costs(run));
    measures
}

fn connects(run: &Report) -> Vec<Measure> {
    let total = &run.total;
    let subscribed = |second: &Sample| (second.subscribed > 0).then_some(second.subscribed as f64);
    let connect = |of: fn(&Distribution) -> f64| total.connect.as_ref().map(of);
    vec![
        count("connections", Better::Neither, [total.active]),
        Measure {
            better: Better::More,
            range: seconds(run, subscribed),
            ..measure("connect rate", Unit::PerSecond, total.connect_rate)
        },
        latency("connect p50", connect(|found| found.p50)),
        latency("connect p99", connect(|found| found.p99)),
        count("client failures", Better::Less, total.failures.values().copied()),
        count("failed publishes", Better::Less, total.publish_failures.values().copied()),
    ]
}

fn deliveries(run: &Report) -> Vec<Measure> {
    let total = &run.total;
    let received = |second: &Sample| (second.received > 0).then_some(second.received as f64);
    let delivery = |name, of: fn(&Distribution) -> f64| {
        let of_second = |second: &Sample| second.delivery.as_ref().map(of);
        let value = total.delivery.as_ref().map(of);
        Measure { range: seconds(run, of_second), ..latency(name, value) }
    };
    let of_publish = |name, found: &Option<Distribution>| {
        let found = found.as_ref();
        let range = found.and_then(|found| found.quantile(0.25).zip(found.quantile(0.75)));
        let value = found.map(|found| found.p50);
        Measure { range: Range::Quartiles(range), ..latency(name, value) }
    };
    let recovered_s = run.phases.iter().filter_map(|phase| phase.recovered_s).reduce(f64::max);
    vec![
        count("lost", Better::Less, [total.lost]),
        count("missed", Better::Less, [total.missed]),
        count("duplicated", Better::Less, [total.duplicated]),
        count("reordered", Better::Less, [total.reordered]),
        Measure {
            better: Better::Neither,
            range: seconds(run, received),
            ..measure("delivery rate", Unit::PerSecond, total.delivery_rate)
        },
        delivery("delivery p50", |found| found.p50),
        delivery("delivery p99", |found| found.p99),
        delivery("delivery p99.9", |found| found.p999),
        delivery("delivery max", |found| found.max),
        of_publish("first of a publish", &total.first),
        of_publish("last of a publish", &total.last),
        latency("back after a storm", recovered_s.map(|seconds| seconds * 1e3)),
    ]
}

fn costs(run: &Report) -> Vec<Measure> {
    let total = &run.total;
    let clients = total.active.max(1) as f64;
    let memory = |name, value, noise_bytes: f64| Measure {
        range: Range::Noise(noise_bytes / clients),
        ..measure(name, Unit::Bytes, value)
    };
    let processor = |name, us: Option<f64>| latency(name, us.map(|us| us / 1e3));
    let server = total.server.as_ref();
    let kernel = total.kernel_bytes.filter(|_| total.active > 0);
    let machine = total.machine.as_ref();
    let generator = processor("generator CPU per delivery", total.generator.cpu_us_per_delivery);
    vec![
        memory(
            "server memory per client",
            server.and_then(|cost| cost.bytes_per_client),
            PROCESS_NOISE_BYTES,
        ),
        memory(
            "kernel memory per client",
            kernel.map(|bytes| bytes as f64 / clients),
            KERNEL_NOISE_BYTES,
        ),
        processor("server CPU per delivery", server.and_then(|cost| cost.cpu_us_per_delivery)),
        processor("machine CPU per delivery", machine.and_then(|cost| cost.cpu_us_per_delivery)),
        Measure { better: Better::Neither, ..generator },
    ]
}

fn count(name: &str, better: Better, of: impl IntoIterator<Item = u64>) -> Measure {
    let value = of.into_iter().sum::<u64>() as f64;
    Measure { better, range: Range::Exact, ..measure(name, Unit::Count, Some(value)) }
}

fn latency(name: &str, value: Option<f64>) -> Measure {
    measure(name, Unit::Milliseconds, value)
}

/// A measurement of which less is better, and a run does not show the range.
fn measure(name: &str, unit: Unit, value: Option<f64>) -> Measure {
    let (key, name) = (name.to_owned(), name.to_owned());
    Measure { key, name, unit, better: Better::Less, value, range: Range::Unknown }
}

/// Quartiles over the seconds of a run.
fn seconds(run: &Report, value: impl Fn(&Sample) -> Option<f64>) -> Range {
    Range::Quartiles(quartiles(run.series.iter().filter_map(value)))
}

/// Reasons to doubt the comparison: machines or plans that differ, and faults of the runs.
fn warnings(sides: &[Side<Report>]) -> Vec<String> {
    let mut warnings = Vec::new();
    let all = || sides.iter().flat_map(|side| &side.runs);
    let Some(first) = all().next() else { return warnings };
    let settings: BTreeSet<&str> =
        all().flat_map(|run| first.environment.differences(&run.environment)).collect();
    let plans: BTreeSet<&str> = all().flat_map(|run| differing_plan(first, run)).collect();
    for (what, names) in [("machines", settings), ("plans", plans)] {
        if !names.is_empty() {
            let names: Vec<_> = names.into_iter().collect();
            warnings.push(format!("The {what} differ in {}.", names.join(", ")));
        }
    }
    for (name, run) in named_runs(sides) {
        let early = run.cut_short.iter().map(|reason| format!("{name} ended early: {reason}"));
        warnings.extend(early);
        warnings.extend(faults(run).map(|faults| format!("{name}: {faults}.")));
        warnings.extend(run.warnings.iter().map(|warning| format!("{name}: {warning}")));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use throng_report::page::{Cell, Tone};
    use throng_units::format::ABSENT;

    fn side(label: &str, slowness: &[f64]) -> Side<Report> {
        let runs = slowness.iter().zip(1..);
        let runs = runs.map(|(&slowness, seed)| fixture::of(label, slowness, seed)).collect();
        Side { label: label.to_owned(), runs }
    }

    /// The measurement, the value of the first side, and the second with its ratio.
    fn row(sides: &[Side<Report>], name: &str) -> Vec<Cell> {
        let rows = table(sides, measures).rows;
        rows.into_iter().find(|row| row[0] == name.into()).expect("a row")
    }

    #[test]
    fn runs_that_differ_by_noise_have_no_winner() {
        let again = Side { label: "b".to_owned(), runs: vec![fixture::of("b", 1.0, 9)] };
        for other in [side("b", &[1.01]), again] {
            for row in &table(&[side("a", &[1.0]), other], measures).rows {
                assert_eq!(row[3].tone, Tone::Plain, "{row:?}");
            }
        }
    }

    #[test]
    fn a_slower_run_is_worse() {
        let sides = [side("a", &[1.0]), side("b", &[2.0])];
        for name in ["delivery p50", "last of a publish", "server memory per client"] {
            let row = row(&sides, name);
            assert_eq!(row[3].tone, Tone::Bad, "{row:?}");
            let ratio: f64 = row[3].text.split('×').next().expect("a ratio").parse().expect("it");
            assert!((1.7..2.3).contains(&ratio), "{name} {ratio}");
        }
        assert_eq!(row(&sides, "delivery rate")[3].tone, Tone::Plain);
    }

    #[test]
    fn memory_of_few_clients_is_noise() {
        let kernel = |bytes: i64, clients: u64| {
            let mut side = side("s", &[1.0]);
            (side.runs[0].total.kernel_bytes, side.runs[0].total.active) = (Some(bytes), clients);
            side
        };
        let tone = |sides: [_; 2]| row(&sides, "kernel memory per client")[3].tone;
        assert_eq!(tone([kernel(6_330_000, 1000), kernel(4_000_000, 1000)]), Tone::Plain);
        assert_eq!(tone([kernel(850_000_000, 100_000), kernel(430_000_000, 100_000)]), Tone::Good);
        let sides = [500.0, 250.0].map(|bytes_per_client| {
            let mut side = side("s", &[1.0]);
            let total = &mut side.runs[0].total;
            total.active = 1000;
            let cost = total.server.as_mut().expect("measured");
            cost.bytes_per_client = Some(bytes_per_client);
            side
        });
        assert_eq!(row(&sides, "server memory per client")[3].tone, Tone::Plain);
    }

    #[test]
    fn lost_messages_are_exact() {
        let mut other = side("b", &[1.0]);
        other.runs[0].total.lost = 1;
        let row = row(&[side("a", &[1.0]), other], "lost");
        assert_eq!(row[1..], ["0".into(), "1".into(), Cell::bad(format!("{ABSENT} worse"))]);
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
    fn the_page_shows_every_side() {
        let sides = [side("throng", &[1.0]), side("other <b>", &[1.7]), side("again", &[1.0, 1.1])];
        let page = page(&sides);
        assert_eq!(page.head.title, "throng against other <b> against again");
        let html = page.html();
        assert!(!html.contains("<b>") && html.contains("again (run 2 of 2)"));
        for id in ["percentiles", "last", "connections", "deliveries", "latency", "memory"] {
            assert_eq!(html.matches(&format!("\"id\":\"{id}\"")).count(), 1, "{id}");
        }
        assert!(html.contains("× worse\""));
    }

    #[test]
    fn a_missing_file_is_an_error() {
        assert!(read(&["/nowhere/a.json".to_owned()]).is_err());
        assert!(page(&[]).html().contains("</html>"));
    }

    /// See the test of the same name in [`crate::report::page`].
    #[test]
    #[ignore = "writes files to look at"]
    fn samples() {
        let folder = std::env::var_os("THRONG_FLOOD_SAMPLES").expect("a folder to write to");
        let path = std::path::Path::new(&folder).join("compare.html");
        let sides = [side("throng", &[1.0]), side("other <b>", &[1.7]), side("again", &[1.02])];
        throng_report::file::write(&path, &page(&sides).html()).expect("written");
    }
}
