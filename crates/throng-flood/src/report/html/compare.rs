//! Several runs on one page.

use std::fmt::Write as _;

use super::{MAKER, is_measured, rendered};
use crate::report::chart::figure::{Area, Figure, escaped};
use crate::report::chart::lines::{Across, Line, Lines, Reduce, percentile_curve};
use crate::report::chart::scale::Unit;
use crate::report::chart::spread;
use crate::report::compare::{Comparison, EXPLAINED, Outcome, headings};
use crate::report::page::{document, scrolls, section, warned};
use crate::report::{Distribution, Report, Sample};
use throng_units::format;

/// The page of a comparison.
pub fn page(comparison: &Comparison) -> String {
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
    body.push_str(&warned(&comparison.warnings));
    section(&mut body, "Figures", Vec::new(), &[table(comparison)]);
    section(&mut body, "Latency", latency(comparison), &[]);
    section(&mut body, "Over time", over_time(comparison), &[]);
    document(&title, &body, MAKER)
}

fn table(comparison: &Comparison) -> String {
    let mut html = format!("<div {}><table><thead><tr>", scrolls("scroll", "Figures"));
    for heading in headings(comparison) {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escaped(&heading));
    }
    html.push_str("</tr></thead><tbody>");
    for row in &comparison.rows {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", escaped(row.name));
        for side in 0..comparison.sides.len() {
            let _ = write!(html, "<td>{}</td>", escaped(&row.told(side)));
            if side == 0 {
                continue;
            }
            // The word, so that the colour is not all that tells.
            let (class, word) = match row.outcome(side) {
                Outcome::Better => (" class=\"good\"", " better"),
                Outcome::Worse => (" class=\"bad\"", " worse"),
                Outcome::Open => ("", ""),
            };
            let ratio = row.told_ratio(side);
            let _ = write!(html, "<td{class}>{}{word}</td>", escaped(&ratio));
        }
        html.push_str("</tr>");
    }
    let _ = writeln!(html, "</tbody></table></div><p class=\"note\">{}</p>", escaped(EXPLAINED));
    html
}

/// The first run of each side: several would hide each other.
fn shown(comparison: &Comparison) -> impl Iterator<Item = (&str, &Report)> {
    comparison.sides.iter().filter_map(|side| Some((side.label.as_str(), side.runs.first()?)))
}

fn latency(comparison: &Comparison) -> Vec<String> {
    let deliveries: Vec<(String, &Distribution)> = shown(comparison)
        .filter_map(|(name, run)| Some((name.to_owned(), run.total.delivery.as_ref()?)))
        .collect();
    let curve =
        percentile_curve("percentiles", "Delivery latency: percentiles", Area::WIDE, &deliveries);
    let ranges = |id, title, of: fn(&Report) -> Option<&Distribution>| {
        let found: Vec<_> =
            shown(comparison).filter_map(|(name, run)| Some((name, of(run)?))).collect();
        spread::ranges(
            id,
            title,
            "The line from the least to the most, the bar from the median to the 99th \
             percentile. Figures: p50 / p99 / max.",
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
    .iter()
    .flatten()
    .map(Figure::render)
    .collect()
}

fn over_time(comparison: &Comparison) -> Vec<String> {
    let chart = |id, title, unit, is_log, value: fn(&Sample) -> Option<f64>| {
        let lines = shown(comparison).map(|(name, run)| Line {
            name: name.to_owned(),
            points: run.series.iter().map(|sample| (sample.at_s, value(sample))).collect(),
        });
        rendered(Lines {
            id,
            title,
            note: "",
            unit,
            is_log,
            reduce: Reduce::Most,
            across: Across::TIME,
            phases: &[],
            area: Area { height: 220.0, top: 10.0, ..Area::WIDE },
            lines: lines.filter(is_measured).collect(),
        })
    };
    vec![
        chart("connections", "Connections", Unit::Count, false, |s| Some(s.active as f64)),
        chart("deliveries", "Deliveries a second", Unit::PerSecond, false, |s| {
            Some(s.received as f64)
        }),
        chart("latency", "Delivery latency, p99", Unit::Milliseconds, true, |s| {
            Some(s.delivery.as_ref()?.p99)
        }),
        chart("memory", "Memory of the server", Unit::Bytes, false, |s| {
            Some(s.server_pss_bytes? as f64)
        }),
        chart("processor", "Processor time of the server, in cores", Unit::Cores, false, |s| {
            s.server_cores
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::compare::Side;
    use crate::report::fixture;

    fn comparison() -> Comparison {
        let side = |label: &str, slowness, seed| Side {
            label: label.to_owned(),
            runs: vec![fixture::of(label, slowness, seed)],
        };
        Comparison::of(vec![
            side("throng", 1.0, 1),
            side("other <b>", 1.7, 2),
            side("again", 1.02, 3),
        ])
    }

    #[test]
    fn the_page_shows_all_sides() {
        let html = page(&comparison());
        assert!(!html.contains("<b>"));
        for id in ["percentiles", "last", "connections", "deliveries", "latency", "memory"] {
            assert_eq!(html.matches(&format!("<figure id=\"{id}\"")).count(), 1, "{id}");
        }
        assert!(html.contains(" worse</td>"));
        assert!(!html.contains("NaN"));
    }

    #[test]
    fn nothing_to_compare_is_a_page_too() {
        assert!(page(&Comparison::of(Vec::new())).contains("</html>"));
    }

    /// See [`super::super::tests::samples`].
    #[test]
    #[ignore = "writes files to look at"]
    fn samples() {
        let folder = std::env::var_os("THRONG_FLOOD_SAMPLES").expect("a folder to write to");
        let folder = std::path::Path::new(&folder);
        let found = comparison();
        crate::report::file::write(&folder.join("compare.html"), &page(&found)).expect("written");
        let paint = throng_units::paint::Paint::always();
        let text = crate::report::compare::table(&found, paint);
        crate::report::file::write(&folder.join("compare.txt"), &text).expect("written");
    }
}
