//! The charts of a run, and of several runs side by side. `charts.toml` has the plots over time.

use std::collections::BTreeMap;

use serde::Deserialize;
use throng_report::chart::{Chart, Latencies, Plot, PlotLine};
use throng_report::compare::Side;
use throng_report::page::Part;
use throng_report::{Distribution, Unit};

use super::samples::column;
use super::{Report, Totals};

/// How to read [`Chart::Ranges`].
const RANGES: &str = "The line spans minimum to maximum, the bar median to 99th percentile. \
     Numbers: p50 / p99 / max.";

/// How to read [`Chart::Histogram`].
const SHARES: &str = "Share of all deliveries; bars are 6 % apart.";

/// How to read [`Chart::Percentiles`].
const STEPS: &str = "Each step to the right is ten times as rare.";

/// A plot over time.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlotOf {
    id: String,
    title: String,
    #[serde(default)]
    note: String,
    unit: Unit,
    #[serde(default)]
    log: bool,
    #[serde(default)]
    beside: bool,
    /// Name and column of each line.
    lines: Vec<(String, String)>,
}

/// The plots of a section. Each line is one of `lines`.
fn section(name: &str, lines: impl Fn(&PlotOf) -> Vec<PlotLine>) -> Vec<Part> {
    let all = toml::from_str::<BTreeMap<String, Vec<PlotOf>>>(include_str!("charts.toml"));
    let mut parts: Vec<Part> = Vec::new();
    // A test reads them.
    for of in all.ok().and_then(|mut all| all.remove(name)).unwrap_or_default() {
        let lines = lines(&of);
        let PlotOf { id, title, note, unit, log, beside, .. } = of;
        let x_axis = "time".to_owned();
        let plot = Plot { id, title, note, unit, x_axis, is_log: log, lines, ..Plot::default() };
        match parts.last_mut() {
            Some(Part::Charts(charts)) if beside => charts.push(Chart::Lines(plot)),
            _ => parts.push(Part::Charts(vec![Chart::Lines(plot)])),
        }
    }
    parts
}

/// The plots of a section of a run.
pub(super) fn plots(report: &Report, name: &str) -> Vec<Part> {
    section(name, |of| {
        let line = |(name, of): &(String, String)| PlotLine {
            name: name.clone(),
            points: column(report, of),
        };
        of.lines.iter().map(line).collect()
    })
}

/// Without charts if nothing was published.
pub(super) fn messages(report: &Report) -> Vec<Part> {
    let is_quiet = report.series.iter().all(|sample| sample.received + sample.published == 0);
    if is_quiet { Vec::new() } else { plots(report, "messages") }
}

pub(super) fn latency(report: &Report) -> Vec<Part> {
    let mut parts = plots(report, "latency");
    let total = &report.total;
    if let Some(found) = &total.delivery {
        let of = || vec![("deliveries".to_owned(), found.clone())];
        parts.push(Part::Charts(vec![
            Chart::Histogram(Latencies {
                id: "histogram",
                title: "Delivery latency: histogram",
                note: SHARES,
                of: of(),
            }),
            Chart::Percentiles(Latencies {
                id: "percentiles",
                title: "Delivery latency: percentiles",
                note: STEPS,
                of: of(),
            }),
        ]));
    }
    let of_publish = [
        ("first delivery", &total.first),
        ("median", &total.median),
        ("99 % delivered", &total.p99),
        ("99.9 % delivered", &total.p999),
        ("last delivery", &total.last),
    ];
    let of_publish =
        of_publish.into_iter().filter_map(|(name, found)| Some((name.to_owned(), found.clone()?)));
    parts.push(Part::Charts(vec![Chart::Ranges(Latencies {
        id: "of-publish",
        title: "From a publish to its first, median and last delivery, over all publishes",
        note: RANGES,
        of: of_publish.collect(),
    })]));
    parts
}

/// The latencies of several sides.
pub(super) fn compared_latency(sides: &[Side<Report>]) -> Vec<Part> {
    type Latency = fn(&Totals) -> Option<&Distribution>;
    let latencies = |id, title, note, of: Latency| Latencies {
        id,
        title,
        note,
        of: first_runs(sides)
            .filter_map(|(label, run)| Some((label.to_owned(), of(&run.total)?.clone())))
            .collect(),
    };
    let title = "Delivery latency: percentiles";
    let percentiles = latencies("percentiles", title, STEPS, |total| total.delivery.as_ref());
    let ranges: [(_, _, Latency); 3] = [
        ("first", "First delivery of a publish", |total| total.first.as_ref()),
        ("last", "Last delivery of a publish", |total| total.last.as_ref()),
        ("connect", "Connecting", |total| total.connect.as_ref()),
    ];
    let ranges = ranges.map(|(id, title, of)| Chart::Ranges(latencies(id, title, RANGES, of)));
    let charts = [Chart::Percentiles(percentiles)].into_iter().chain(ranges);
    charts.map(|chart| Part::Charts(vec![chart])).collect()
}

/// The time of several sides, a line for each.
pub(super) fn compared_over_time(sides: &[Side<Report>]) -> Vec<Part> {
    section("compared", |of| {
        let points = |run| of.lines.first().map(|(_, of)| column(run, of)).unwrap_or_default();
        let line =
            |(label, run): (&str, _)| PlotLine { name: label.to_owned(), points: points(run) };
        first_runs(sides).map(line).collect()
    })
}

/// The first run of each side: the lines of several runs would hide each other.
fn first_runs(sides: &[Side<Report>]) -> impl Iterator<Item = (&str, &Report)> {
    sides.iter().filter_map(|side| Some((side.label.as_str(), side.runs.first()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn every_line_of_every_chart_has_values() {
        let report = fixture::sample();
        let sides = [Side { label: "one".to_owned(), runs: vec![report.clone()] }];
        let parts = [
            plots(&report, "connections"),
            messages(&report),
            latency(&report),
            plots(&report, "cost"),
            compared_latency(&sides),
            compared_over_time(&sides),
        ];
        let mut charts = 0;
        for part in parts.into_iter().flatten() {
            let Part::Charts(found) = part else { panic!("no chart: {part:?}") };
            charts += found.len();
            for chart in found {
                match chart {
                    Chart::Lines(plot) => {
                        assert!(!plot.lines.is_empty());
                        for line in plot.lines {
                            let mut values = line.points.iter().filter_map(|(_, value)| *value);
                            assert!(values.any(|value| value > 0.0), "{}: {}", plot.id, line.name);
                        }
                    }
                    Chart::Histogram(found) | Chart::Percentiles(found) => {
                        assert!(found.of.iter().all(|(_, of)| !of.buckets.is_empty()));
                    }
                    Chart::Ranges(found) => assert!(!found.of.is_empty(), "{}", found.id),
                    Chart::Pairs(_) => panic!("no pairs"),
                }
            }
        }
        assert_eq!(charts, 12 + 9);
    }

    #[test]
    fn a_run_without_messages_has_no_charts_of_them() {
        assert_eq!(messages(&Report::default()), Vec::new());
    }
}
