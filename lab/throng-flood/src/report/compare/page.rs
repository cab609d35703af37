//! A comparison as an HTML page.

use std::fmt::Write as _;

use throng_report::chart::lines::{Line, Lines};
use throng_report::chart::{Area, percentiles, spread};
use throng_report::compare::{Comparison, html_table};
use throng_report::html::{escaped, warnings};
use throng_report::page::{document, rendered, section};
use throng_report::{Distribution, Unit};
use throng_units::format;

use crate::report::html::COMMAND;
use crate::report::{Report, Sample};

/// The page of a comparison.
pub(crate) fn page(comparison: &Comparison<Report>) -> String {
    let names: Vec<&str> = comparison.sides.iter().map(|side| side.label.as_str()).collect();
    let title = names.join(" against ");
    let mut body = format!("<header><h1>{}</h1>", escaped(&title));
    for side in &comparison.sides {
        let runs = side.runs.iter().map(|run| {
            format!("{}, {}", format::date(run.started_unix_s), format::seconds(run.seconds))
        });
        let runs = runs.collect::<Vec<_>>().join("; ");
        let _ = write!(body, "<p>{}: {}</p>", escaped(&side.label), escaped(&runs));
    }
    body.push_str("</header>\n");
    body.push_str(&warnings(&comparison.warnings));
    section(&mut body, "Measurements", [html_table(comparison)]);
    section(&mut body, "Latency", latency(comparison));
    section(&mut body, "Over time", over_time(comparison));
    document(&title, &body, COMMAND)
}

/// The first run of each side: the lines of several runs would hide each other.
fn first_runs(comparison: &Comparison<Report>) -> impl Iterator<Item = (&str, &Report)> {
    comparison.sides.iter().filter_map(|side| Some((side.label.as_str(), side.runs.first()?)))
}

fn latency(comparison: &Comparison<Report>) -> Vec<String> {
    let deliveries: Vec<(String, &Distribution)> = first_runs(comparison)
        .filter_map(|(name, run)| Some((name.to_owned(), run.total.delivery.as_ref()?)))
        .collect();
    let curve =
        percentiles::curve("percentiles", "Delivery latency: percentiles", Area::WIDE, &deliveries);
    let ranges = |id, title, of: fn(&Report) -> Option<&Distribution>| {
        let found: Vec<_> =
            first_runs(comparison).filter_map(|(name, run)| Some((name, of(run)?))).collect();
        spread::ranges(
            id,
            title,
            "The line spans minimum to maximum, the bar median to 99th percentile. Numbers: \
             p50 / p99 / max.",
            Area::WIDE.width,
            &found,
        )
    };
    [
        curve,
        ranges("first", "First delivery of a publish", |run| run.total.first.as_ref()),
        ranges("last", "Last delivery of a publish", |run| run.total.last.as_ref()),
        ranges("connect", "Connecting", |run| run.total.connect.as_ref()),
    ]
    .map(rendered)
    .into_iter()
    .collect()
}

fn over_time(comparison: &Comparison<Report>) -> Vec<String> {
    let chart = |id, title, unit, is_log, value: fn(&Sample) -> Option<f64>| {
        let lines = first_runs(comparison).map(|(name, run)| Line {
            name: name.to_owned(),
            points: run.series.iter().map(|sample| (sample.at_s, value(sample))).collect(),
        });
        let area = Area { height: 220.0, top: 10.0, ..Area::WIDE };
        let chart = Lines { is_log, area, ..Lines::over_time(id, title, unit, lines.collect()) };
        rendered(chart.figure())
    };
    vec![
        chart("connections", "Connections", Unit::Count, false, |sample| {
            Some(sample.active as f64)
        }),
        chart("deliveries", "Deliveries per second", Unit::PerSecond, false, |sample| {
            Some(sample.received as f64)
        }),
        chart("latency", "Delivery latency, p99", Unit::Milliseconds, true, |sample| {
            Some(sample.delivery.as_ref()?.p99)
        }),
        chart("memory", "Memory of the server", Unit::Bytes, false, |sample| {
            Some(sample.server_pss_bytes? as f64)
        }),
        chart("processor", "Processor use of the server, in cores", Unit::Cores, false, |sample| {
            sample.server_cores
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;
    use throng_report::compare::Side;

    fn comparison() -> Comparison<Report> {
        let side = |label: &str, slowness, seed| Side {
            label: label.to_owned(),
            runs: vec![fixture::of(label, slowness, seed)],
        };
        crate::report::compare::of(vec![
            side("throng", 1.0, 1),
            side("other <b>", 1.7, 2),
            side("again", 1.02, 3),
        ])
    }

    #[test]
    fn the_page_shows_every_side() {
        let html = page(&comparison());
        assert!(!html.contains("<b>"));
        for id in ["percentiles", "last", "connections", "deliveries", "latency", "memory"] {
            assert_eq!(html.matches(&format!("<figure id=\"{id}\"")).count(), 1, "{id}");
        }
        assert!(html.contains(" worse</td>"));
        assert!(!html.contains("NaN"));
    }

    #[test]
    fn an_empty_comparison_is_a_complete_page() {
        assert!(page(&crate::report::compare::of(Vec::new())).contains("</html>"));
    }

    /// See the test of the same name in [`crate::report::html`].
    #[test]
    #[ignore = "writes files to look at"]
    fn samples() {
        let folder = std::env::var_os("THRONG_FLOOD_SAMPLES").expect("a folder to write to");
        let folder = std::path::Path::new(&folder);
        let found = comparison();
        throng_report::file::write(&folder.join("compare.html"), &page(&found)).expect("written");
        let paint = throng_units::paint::Paint::always();
        let text = throng_report::compare::table(&found, paint);
        throng_report::file::write(&folder.join("compare.txt"), &text).expect("written");
    }
}
