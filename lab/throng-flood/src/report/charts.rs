//! The charts of a run, and of several runs side by side.

use throng_report::chart::{Chart, Latencies, Plot};
use throng_report::compare::Side;
use throng_report::page::Part;
use throng_report::{Distribution, Unit};

use super::samples::column;
use super::{Report, Totals};

/// How to read [`Chart::Ranges`].
const RANGES: &str = "The line spans minimum to maximum, the bar median to 99th percentile. \
     Numbers: p50 / p99 / max.";

const LATENCY: &str = "From the intended time of each publish, whether or not it was sent on \
     time, to each delivery.";

type Latency = fn(&Totals) -> Option<&Distribution>;

/// A plot of columns of the samples, each with its name in the legend.
fn plot(report: &Report, id: &str, title: &str, unit: Unit, lines: &[(&str, &str)]) -> Plot {
    lines.iter().fold(Plot::over_time(id, title, unit), |plot, (name, of)| {
        plot.line(name, column(report, of))
    })
}

pub(super) fn connections(report: &Report) -> Vec<Part> {
    let states = [("active", "active"), ("connecting", "connecting"), ("closed", "closed")];
    let changes = [("subscribed", "subscribed"), ("failures", "failures")];
    let title = "New subscribers and failures per second";
    each([
        Chart::Lines(plot(report, "connections", "Connections", Unit::Count, &states)),
        Chart::Lines(plot(report, "connects", title, Unit::PerSecond, &changes)),
    ])
}

/// Without charts if nothing was published.
pub(super) fn messages(report: &Report) -> Vec<Part> {
    let is_quiet = report.series.iter().all(|sample| sample.received + sample.published == 0);
    if is_quiet {
        return Vec::new();
    }
    let chart = |id, title, lines: [(&str, &str); 1]| {
        Chart::Lines(plot(report, id, title, Unit::PerSecond, &lines))
    };
    each([
        chart("deliveries", "Deliveries per second", [("deliveries", "received")]),
        chart("publishes", "Publishes per second", [("publishes", "published")]),
    ])
}

pub(super) fn latency(report: &Report) -> Vec<Part> {
    let lines = [
        ("p50", "delivery_p50_ms"),
        ("p90", "delivery_p90_ms"),
        ("p99", "delivery_p99_ms"),
        ("p99.9", "delivery_p999_ms"),
        ("max", "delivery_max_ms"),
    ];
    let over_time = plot(report, "latency", "Delivery latency", Unit::Milliseconds, &lines);
    let mut parts = vec![Part::Charts(vec![Chart::Lines(over_time.note(LATENCY).log())])];
    let total = &report.total;
    if let Some(found) = &total.delivery {
        let deliveries = |id, title, note| Latencies {
            id,
            title,
            note,
            of: vec![("deliveries".to_owned(), found.clone())],
        };
        let shares = "Share of all deliveries; bars are 6 % apart.";
        let steps = "Each step to the right is ten times as rare.";
        parts.push(Part::Charts(vec![
            Chart::Histogram(deliveries("histogram", "Delivery latency: histogram", shares)),
            Chart::Percentiles(deliveries("percentiles", "Delivery latency: percentiles", steps)),
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

pub(super) fn cost(report: &Report) -> Vec<Part> {
    let processes = [("server", "server_pss_bytes"), ("generator", "generator_pss_bytes")];
    let kernel = [("slabs", "slab_bytes"), ("socket buffers", "socket_buffer_bytes")];
    let cores = [
        ("server", "server_cores"),
        ("generator", "generator_cores"),
        ("whole machine", "machine_cores"),
    ];
    let bytes = |id, title, note, lines: [(&str, &str); 2]| {
        Chart::Lines(plot(report, id, title, Unit::Bytes, &lines).note(note))
    };
    let processor = plot(report, "processor", "Processor use, in cores", Unit::Cores, &cores);
    vec![
        Part::Charts(vec![
            bytes("memory", "Memory of the processes", "Proportional set size (Pss).", processes),
            bytes("kernel", "Memory of the kernel", "Of the whole machine.", kernel),
        ]),
        Part::Charts(vec![Chart::Lines(processor)]),
    ]
}

/// The latencies of several sides.
pub(super) fn compared_latency(sides: &[Side<Report>]) -> Vec<Part> {
    let latencies = |id, title, note, of: Latency| Latencies {
        id,
        title,
        note,
        of: first_runs(sides)
            .filter_map(|(label, run)| Some((label.to_owned(), of(&run.total)?.clone())))
            .collect(),
    };
    let steps = "Each step to the right is ten times as rare.";
    each([
        Chart::Percentiles(latencies(
            "percentiles",
            "Delivery latency: percentiles",
            steps,
            |total| total.delivery.as_ref(),
        )),
        Chart::Ranges(latencies("first", "First delivery of a publish", RANGES, |total| {
            total.first.as_ref()
        })),
        Chart::Ranges(latencies("last", "Last delivery of a publish", RANGES, |total| {
            total.last.as_ref()
        })),
        Chart::Ranges(latencies("connect", "Connecting", RANGES, |total| total.connect.as_ref())),
    ])
}

/// The time of several sides, a line for each.
pub(super) fn compared_over_time(sides: &[Side<Report>]) -> Vec<Part> {
    let plot = |id, title, unit, of| {
        first_runs(sides).fold(Plot::over_time(id, title, unit), |plot, (label, run)| {
            plot.line(label, column(run, of))
        })
    };
    let cores = "Processor use of the server, in cores";
    each([
        Chart::Lines(plot("connections", "Connections", Unit::Count, "active")),
        Chart::Lines(plot("deliveries", "Deliveries per second", Unit::PerSecond, "received")),
        Chart::Lines(
            plot("latency", "Delivery latency, p99", Unit::Milliseconds, "delivery_p99_ms").log(),
        ),
        Chart::Lines(plot("memory", "Memory of the server", Unit::Bytes, "server_pss_bytes")),
        Chart::Lines(plot("processor", cores, Unit::Cores, "server_cores")),
    ])
}

/// The first run of each side: the lines of several runs would hide each other.
fn first_runs(sides: &[Side<Report>]) -> impl Iterator<Item = (&str, &Report)> {
    sides.iter().filter_map(|side| Some((side.label.as_str(), side.runs.first()?)))
}

/// A chart below the other.
fn each<const N: usize>(charts: [Chart; N]) -> Vec<Part> {
    charts.into_iter().map(|chart| Part::Charts(vec![chart])).collect()
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
            connections(&report),
            messages(&report),
            latency(&report),
            cost(&report),
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
        assert_eq!(charts, 11 + 9);
    }

    #[test]
    fn a_run_without_messages_has_no_charts_of_them() {
        assert_eq!(messages(&Report::default()), Vec::new());
    }
}
