//! Several runs side by side, on a terminal or as an HTML page.

use std::collections::BTreeSet;

use throng_report::compare::{
    Better, FOOTNOTE, Measure, Range, Side, named_runs, quartiles, read_sides, table,
};
use throng_report::file::ReadError;
use throng_report::page::{Page, Part, Section};
use throng_report::{Distribution, Unit};
use throng_units::format;

use super::samples::column;
use super::statements::faults;
use super::{COMMAND, Report, Totals, charts};
use crate::assertions::Metric;

/// The slabs of the whole machine grow and shrink by this much with unrelated activity.
const SLABS_BYTES: f64 = 8e6;

/// An allocator takes and returns memory in steps of about this size.
const HEAP_BYTES: f64 = 512e3;

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

/// How far a measurement of a single run may be off.
enum Doubt {
    /// It is a count.
    Exact,
    Unknown,
    /// As far as it differs between the seconds of the run, in this column.
    Seconds(&'static str),
    /// As far as it differs between publishes.
    Publishes(fn(&Totals) -> &Option<Distribution>),
    /// By so many bytes, divided by the number of clients.
    Noise(f64),
}

/// Name, metric, unit, better direction, doubt.
type NamedMeasure = (&'static str, &'static str, Unit, Better, Doubt);

/// All measurements, in the order of the table.
#[rustfmt::skip]
const MEASURES: [NamedMeasure; 23] = {
    use Better::{Less, More, Neither};
    use Doubt::{Exact, Noise, Publishes, Seconds, Unknown};
    use Unit::{Bytes, Count, Milliseconds as Ms, PerSecond};
    [
        ("connections", "active", Count, Neither, Exact),
        ("connect rate", "connect_rate", PerSecond, More, Seconds("subscribed")),
        ("connect p50", "connect.p50", Ms, Less, Unknown),
        ("connect p99", "connect.p99", Ms, Less, Unknown),
        ("client failures", "failures", Count, Less, Exact),
        ("failed publishes", "publish_failures", Count, Less, Exact),
        ("lost", "lost", Count, Less, Exact),
        ("missed", "missed", Count, Less, Exact),
        ("duplicated", "duplicated", Count, Less, Exact),
        ("reordered", "reordered", Count, Less, Exact),
        ("delivery rate", "delivery_rate", PerSecond, Neither, Seconds("received")),
        ("delivery p50", "p50", Ms, Less, Seconds("delivery_p50_ms")),
        ("delivery p99", "p99", Ms, Less, Seconds("delivery_p99_ms")),
        ("delivery p99.9", "p999", Ms, Less, Seconds("delivery_p999_ms")),
        ("delivery max", "max", Ms, Less, Seconds("delivery_max_ms")),
        ("first of a publish", "first.p50", Ms, Less, Publishes(|total| &total.first)),
        ("last of a publish", "last.p50", Ms, Less, Publishes(|total| &total.last)),
        ("back after a storm", "storm.recovered", Ms, Less, Unknown),
        ("server memory per client", "server.bytes_per_client", Bytes, Less, Noise(HEAP_BYTES)),
        ("kernel memory per client", "kernel.bytes_per_client", Bytes, Less, Noise(SLABS_BYTES)),
        ("server CPU per delivery", "server.cpu_per_delivery", Ms, Less, Unknown),
        ("machine CPU per delivery", "machine.cpu_per_delivery", Ms, Less, Unknown),
        ("generator CPU per delivery", "generator.cpu_per_delivery", Ms, Neither, Unknown),
    ]
};

fn measures(run: &Report) -> Vec<Measure> {
    let json = serde_json::to_value(run).unwrap_or_default();
    let measure = |(name, metric, unit, better, doubt): &NamedMeasure| {
        let metric = Metric::named(metric);
        debug_assert!(metric.is_some(), "the metric of {name} is known");
        let range = match doubt {
            Doubt::Exact => Range::Exact,
            Doubt::Unknown => Range::Unknown,
            Doubt::Seconds(name) => {
                let values = column(run, name).into_iter().filter_map(|(_, value)| value);
                Range::Quartiles(quartiles(values.filter(|value| *value > 0.0)))
            }
            Doubt::Publishes(of) => {
                let found = of(&run.total).as_ref();
                let quartile = |share| found.and_then(|found| found.quantile(share));
                Range::Quartiles(quartile(0.25).zip(quartile(0.75)))
            }
            Doubt::Noise(bytes) => Range::Noise(bytes / run.total.active.max(1) as f64),
        };
        Measure {
            key: (*name).to_owned(),
            name: (*name).to_owned(),
            unit: *unit,
            better: *better,
            value: metric.and_then(|metric| metric.in_unit(*unit, &json)),
            range,
        }
    };
    MEASURES.iter().map(measure).collect()
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
