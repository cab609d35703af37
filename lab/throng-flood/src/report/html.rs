//! The report of a run as one self-contained HTML page.

mod sections;

use throng_report::chart::lines::{Band, Line, Lines, Reduce};
use throng_report::chart::{Area, percentiles, spread};
use throng_report::page::{document, pair, rendered, section};
use throng_report::{Distribution, Unit};

use super::{PhaseReport, Report, Sample};

/// Named at the bottom of pages.
pub(super) const COMMAND: &str = "throng flood";

/// The page of a run.
pub(crate) fn page(report: &Report) -> String {
    let mut body = sections::head(report);
    body.push_str(&sections::tiles(report));
    section(&mut body, "Connections", connections(report));
    section(&mut body, "Messages", messages(report));
    let latencies = latency(report).into_iter().chain([sections::latencies(report)]);
    section(&mut body, "Latency", latencies);
    let costs = cost(report).into_iter().chain([sections::costs(report)]);
    section(&mut body, "Memory and processor", costs);
    section(&mut body, "Agents", [sections::agents(report)]);
    section(&mut body, "Phases", [sections::phases(report)]);
    section(&mut body, "Failures", [sections::failures(report)]);
    section(&mut body, "Assertions", [sections::assertions(report)]);
    section(&mut body, "Machine", [sections::machine(report)]);
    section(&mut body, "Plan", [sections::plan(report)]);
    document(&sections::title(report), &body, COMMAND)
}

fn bands(report: &Report) -> Vec<Band> {
    let band =
        |phase: &PhaseReport| Band { name: phase.name.clone(), span: (phase.from_s, phase.to_s) };
    report.phases.iter().map(band).collect()
}

fn line(report: &Report, name: &str, value: impl Fn(&Sample) -> Option<f64>) -> Line {
    let points = report.series.iter().map(|sample| (sample.at_s, value(sample)));
    Line { name: name.to_owned(), points: points.collect() }
}

fn over_time<'a>(
    bands: &'a [Band],
    id: &'a str,
    title: &'a str,
    unit: Unit,
    lines: Vec<Line>,
) -> Lines<'a> {
    Lines { bands, reduce: Reduce::Mean, ..Lines::over_time(id, title, unit, lines) }
}

fn connections(report: &Report) -> Vec<String> {
    let bands = bands(report);
    let states = vec![
        line(report, "active", |sample| Some(sample.active as f64)),
        line(report, "connecting", |sample| Some(sample.connecting as f64)),
        line(report, "closed", |sample| Some(sample.closed as f64)),
    ];
    let changes = vec![
        line(report, "subscribed", |sample| Some(sample.subscribed as f64)),
        line(report, "failures", |sample| Some(sample.failures as f64)),
    ];
    vec![
        rendered(over_time(&bands, "connections", "Connections", Unit::Count, states).figure()),
        rendered(
            Lines {
                reduce: Reduce::Max,
                ..over_time(
                    &bands,
                    "connects",
                    "New subscribers and failures per second",
                    Unit::PerSecond,
                    changes,
                )
            }
            .figure(),
        ),
    ]
}

fn messages(report: &Report) -> Vec<String> {
    let is_quiet = report.series.iter().all(|sample| sample.received + sample.published == 0);
    if is_quiet {
        return Vec::new();
    }
    let bands = bands(report);
    let received = vec![line(report, "deliveries", |sample| Some(sample.received as f64))];
    let published = vec![line(report, "publishes", |sample| Some(sample.published as f64))];
    let unit = Unit::PerSecond;
    let flat = Area { height: 170.0, ..Area::WIDE };
    vec![
        rendered(over_time(&bands, "deliveries", "Deliveries per second", unit, received).figure()),
        rendered(
            Lines {
                area: flat,
                ..over_time(&bands, "publishes", "Publishes per second", unit, published)
            }
            .figure(),
        ),
    ]
}

fn latency(report: &Report) -> Vec<String> {
    let bands = bands(report);
    let of = |name, value: fn(&Distribution) -> f64| {
        line(report, name, move |sample| sample.delivery.as_ref().map(value))
    };
    let lines = vec![
        of("p50", |found| found.p50),
        of("p90", |found| found.p90),
        of("p99", |found| found.p99),
        of("p99.9", |found| found.p999),
        of("max", |found| found.max),
    ];
    let over_time = Lines {
        note: "From the intended time of each publish, whether or not it was sent on time, to \
               each delivery.",
        is_log: true,
        reduce: Reduce::Max,
        ..over_time(&bands, "latency", "Delivery latency", Unit::Milliseconds, lines)
    };
    let total = &report.total;
    let halves = total.delivery.as_ref().map_or_else(String::new, |found| {
        pair(
            spread::histogram("histogram", "Delivery latency: histogram", Area::HALF, found),
            percentiles::curve(
                "percentiles",
                "Delivery latency: percentiles",
                Area::HALF,
                &[("deliveries".to_owned(), found)],
            ),
        )
    });
    let of_publish = [
        ("first delivery", &total.first),
        ("median", &total.median),
        ("99 % delivered", &total.p99),
        ("99.9 % delivered", &total.p999),
        ("last delivery", &total.last),
    ];
    let of_publish: Vec<_> =
        of_publish.into_iter().filter_map(|(name, found)| Some((name, found.as_ref()?))).collect();
    let ranges = spread::ranges(
        "of-publish",
        "From a publish to its first, median and last delivery",
        "Over all publishes: the line spans minimum to maximum, the bar median to 99th \
         percentile. Numbers: p50 / p99 / max.",
        Area::WIDE.width,
        &of_publish,
    );
    vec![rendered(over_time.figure()), halves, rendered(ranges)]
}

fn cost(report: &Report) -> Vec<String> {
    let bands = bands(report);
    let bytes = |name, value: fn(&Sample) -> Option<u64>| {
        line(report, name, move |sample| value(sample).map(|bytes| bytes as f64))
    };
    let processes = vec![
        bytes("server", |sample| sample.server_pss_bytes),
        bytes("generator", |sample| sample.generator_pss_bytes),
    ];
    let kernel = vec![
        bytes("slabs", |sample| sample.slab_bytes),
        bytes("socket buffers", |sample| sample.socket_buffer_bytes),
    ];
    let cores = vec![
        line(report, "server", |sample| sample.server_cores),
        line(report, "generator", |sample| Some(sample.generator_cores)),
        line(report, "whole machine", |sample| sample.machine_cores),
    ];
    let half = |id, title, note, lines: Vec<Line>| {
        Lines {
            note,
            reduce: Reduce::Max,
            area: Area { top: 24.0, ..Area::HALF },
            ..over_time(&bands, id, title, Unit::Bytes, lines)
        }
        .figure()
    };
    vec![
        pair(
            half("memory", "Memory of the processes", "Proportional set size (Pss).", processes),
            half("kernel", "Memory of the kernel", "Of the whole machine.", kernel),
        ),
        rendered(
            Lines {
                area: Area { height: 190.0, ..Area::WIDE },
                ..over_time(&bands, "processor", "Processor use, in cores", Unit::Cores, cores)
            }
            .figure(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn the_page_is_complete_and_self_contained() {
        let html = page(&fixture::sample());
        for id in [
            "connections",
            "connects",
            "deliveries",
            "publishes",
            "latency",
            "histogram",
            "percentiles",
            "of-publish",
            "memory",
            "kernel",
            "processor",
        ] {
            assert_eq!(html.matches(&format!("<figure id=\"{id}\"")).count(), 1, "{id}");
        }
        for outside in ["href=", "<link", "<script", "url(", "@import", "src="] {
            assert!(!html.contains(outside), "{outside}");
        }
        for wrong in ["NaN", "inf ", "\"inf"] {
            assert!(!html.contains(wrong), "{wrong}");
        }
        // What was tested stands before any figure; no table has a heading without words.
        let target = html.find("ws://127.0.0.1:8080").expect("the target");
        assert!(target < html.find("class=\"tiles\"").expect("figures"));
        assert!(html.contains("--clients 100k --storm 60s") && html.contains("profile = "));
        assert!(!html.contains("<th scope=\"col\"></th>"));
        assert_eq!((html.matches("<main>").count(), html.matches("</main>").count()), (1, 1));
        assert!(html.contains("<strong>Warnings</strong>"));
        // Whatever is moved sideways can be reached with the keyboard.
        for class in ["drawing", "scroll"] {
            let all = html.matches(&format!("class=\"{class}\"")).count();
            let reached = html.matches(&format!("class=\"{class}\" tabindex=\"0\"")).count();
            assert_eq!(all, reached, "{class}");
        }
        assert!(html.contains("connection refused"));
        assert!(html.contains("net.ipv4.tcp_mem"));
        assert!(html.len() < 1 << 20, "{}", html.len());
    }

    #[test]
    fn elements_are_closed() {
        let html = page(&fixture::sample());
        for name in ["figure", "section", "table", "svg", "details", "div", "tr", "ul", "dl"] {
            let opened = html.matches(&format!("<{name}>")).count()
                + html.matches(&format!("<{name} ")).count();
            assert_eq!(opened, html.matches(&format!("</{name}>")).count(), "{name}");
        }
    }

    #[test]
    fn an_empty_report_is_a_complete_page() {
        let html = page(&Report::default());
        assert!(!html.contains("<figure"));
        assert!(html.contains("<h2>Machine</h2>"));
    }

    #[test]
    fn text_from_outside_is_escaped() {
        let mut report = fixture::sample();
        let evil = "<script>alert(1)</script>";
        report.name = evil.to_owned();
        report.warnings = vec![evil.to_owned()];
        report.cut_short = Some(evil.to_owned());
        report.phases[0].name = evil.to_owned();
        report.total.failures.insert(evil.to_owned(), 1);
        report.total.publish_failures.insert(evil.to_owned(), 1);
        report.assertions[0].text = evil.to_owned();
        report.environment.processor = evil.to_owned();
        report.environment.sysctl.insert(evil.to_owned(), evil.to_owned());
        report.plan = serde_json::json!({ evil: evil });
        let html = page(&report);
        assert!(!html.contains("<script"));
    }

    /// Writes pages to look at: `THRONG_FLOOD_SAMPLES=<folder> cargo test … -- --ignored samples`.
    #[test]
    #[ignore = "writes files to look at"]
    fn samples() {
        let folder = std::env::var_os("THRONG_FLOOD_SAMPLES").expect("a folder to write to");
        let folder = std::path::Path::new(&folder);
        let report = fixture::sample();
        throng_report::file::write(&folder.join("run.html"), &page(&report)).expect("written");
        throng_report::file::write(&folder.join("run.json"), &report.to_json()).expect("written");
        let table = crate::report::table::table(&report, throng_units::paint::Paint::always());
        throng_report::file::write(&folder.join("run.txt"), &table).expect("written");
    }
}
