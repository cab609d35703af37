//! The results as a page: for each benchmark its story, the measurements beside the published
//! values, and charts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use throng_report::Unit;
use throng_report::chart::Area;
use throng_report::chart::lines::{Line, Lines, XAxis};
use throng_report::chart::pairs::{Pair, Pairs};
use throng_report::html::{escaped, key_values, note, scrolling_table, verdict, warnings};
use throng_report::page::{document, rendered, section};
use throng_units::format::{self, count, counted, or_absent};

use crate::results::{Outcome, Plot, Results, Table, Verdict};
use crate::table::{about, cell, row};

/// Named at the bottom of the page.
const COMMAND: &str = "throng bench";

/// The page of all results.
pub(crate) fn page(results: &Results) -> String {
    let environment = &results.environment;
    let mut body = format!(
        "<header><h1>The classic benchmarks, rerun</h1><p>{}, {}, {}, {}</p></header>\n",
        format::date(results.started_unix_s),
        escaped(&environment.processor),
        counted(environment.cores as u64, "core", "cores"),
        format::bytes(environment.memory_bytes as f64),
    );
    body.push_str(&note(
        "Clients and server shared this machine and its cores: a sender also pays for waking the \
         reader and for the reader's half of TCP.",
    ));
    if results.benchmarks.len() > 1 {
        section(&mut body, "Benchmarks", [overview(results)]);
    }
    for outcome in &results.benchmarks {
        benchmark(&mut body, outcome);
    }
    section(&mut body, "Machine", [key_values(results.environment.rows())]);
    document("The classic benchmarks, rerun", &body, COMMAND)
}

fn overview(results: &Results) -> String {
    let rows: Vec<_> = results
        .benchmarks
        .iter()
        .map(|outcome| {
            let verdict = match outcome.verdict {
                Verdict::Done => "done".to_owned(),
                Verdict::Failed => format!("failed: {}", outcome.reasons.join("; ")),
            };
            vec![
                outcome.title.clone(),
                outcome.year.to_string(),
                count(outcome.connections as u64),
                format::seconds(outcome.seconds),
                verdict,
            ]
        })
        .collect();
    scrolling_table(&["benchmark", "year", "connections", "took", "outcome"], &rows)
}

fn benchmark(body: &mut String, outcome: &Outcome) {
    let mut parts = vec![head(outcome)];
    let rows: Vec<_> =
        outcome.measurements.iter().map(|measurement| row(measurement).to_vec()).collect();
    parts.push(scrolling_table(
        &["measurement", "published", "connections", "ours", "connections", "difference"],
        &rows,
    ));
    parts.extend(pairs(outcome));
    parts.extend(outcome.plots.iter().map(plot));
    parts.extend(outcome.tables.iter().map(table));
    parts.push(published(outcome));
    section(body, &outcome.title, parts);
}

/// Story, verdict, warnings, setup and differences.
fn head(outcome: &Outcome) -> String {
    let mut html = String::new();
    let _ = write!(html, "<p>{}</p>", escaped(&outcome.story));
    let faults = (outcome.verdict == Verdict::Failed).then(|| outcome.reasons.join("; "));
    html.push_str(&verdict(faults.as_deref(), "done: nothing failed, nothing is lost"));
    html.push_str(&warnings(&outcome.warnings));
    let mut rows = vec![
        ("original", format!("{}, {}", outcome.source, outcome.year)),
        ("connections", count(outcome.connections as u64)),
        ("held for", or_absent(outcome.time_s, about)),
        ("server", servers(outcome)),
    ];
    rows.extend([
        ("hardware of the original", outcome.hardware.clone()),
        ("setup", outcome.setup.clone()),
        ("differences", outcome.differences.join(" ")),
    ]);
    html.push_str(&key_values(rows));
    html
}

/// The flags of each server; equal neighbours are merged.
fn servers(outcome: &Outcome) -> String {
    let same = outcome.servers.chunk_by(|one, other| one == other);
    let texts = same.map(|servers| match servers {
        [one] => one.clone(),
        _ => format!("{} servers with {}", servers.len(), servers[0]),
    });
    texts.collect::<Vec<_>>().join("; ")
}

/// A chart for each unit with our values and the published ones.
fn pairs(outcome: &Outcome) -> Vec<String> {
    let mut by_unit: BTreeMap<&str, Vec<Pair>> = BTreeMap::new();
    for measurement in &outcome.measurements {
        let Some(published) = &measurement.published else { continue };
        by_unit.entry(&measurement.unit).or_default().push(Pair {
            name: measurement.name.clone(),
            one: measurement.ours,
            other: Some(published.value),
        });
    }
    let charts = by_unit.into_iter().filter_map(|(unit, pairs)| {
        let id = format!("{}-{unit}", outcome.name);
        let chart = Pairs {
            id: &id,
            title: pairs_title(Unit::named(unit)),
            note: "Logarithmic scale. Numbers: ours / published.",
            unit: Unit::named(unit),
            names: ["ours", "published"],
            width: Area::WIDE.width,
            pairs,
        };
        chart.figure().map(|figure| figure.render())
    });
    charts.collect()
}

fn pairs_title(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "Memory, ours and published",
        Unit::Milliseconds | Unit::Clock => "Times, ours and published",
        Unit::PerSecond => "Rates, ours and published",
        Unit::Cores => "Processor time, ours and published",
        Unit::Count | Unit::Share => "Numbers, ours and published",
    }
}

fn x_axis(plot: &Plot) -> XAxis {
    if plot.is_over_time() {
        return XAxis::TIME;
    }
    let steps = XAxis::steps("clients");
    if plot.is_log_x { steps.log() } else { steps }
}

fn plot(plot: &Plot) -> String {
    let lines = plot.lines.iter();
    let lines = lines.map(|line| Line { name: line.name.clone(), points: line.points.clone() });
    let over_time =
        Lines::over_time(&plot.id, &plot.title, Unit::named(&plot.unit), lines.collect());
    let chart = Lines { note: &plot.note, x_axis: x_axis(plot), is_log: plot.is_log, ..over_time };
    rendered(chart.figure())
}

fn table(table: &Table) -> String {
    let rows: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.iter().map(|value| cell(*value)).collect()).collect();
    format!("<h3>{}</h3>{}", escaped(&table.title), scrolling_table(&table.columns, &rows))
}

/// What exactly each published value measures.
fn published(outcome: &Outcome) -> String {
    let rows: Vec<Vec<String>> = outcome
        .measurements
        .iter()
        .filter_map(|measurement| {
            let published = measurement.published.as_ref()?;
            Some(vec![
                measurement.name.clone(),
                measurement.unit().show(published.value),
                published.what.clone(),
            ])
        })
        .collect();
    let table = scrolling_table(&["measurement", "published", "what exactly"], &rows);
    format!("<details><summary>What exactly was published</summary>{table}</details>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Figures;
    use crate::library::all;
    use crate::results::PlotLine;

    fn results() -> Results {
        let outcomes = all().into_iter().map(|benchmark| {
            let size = benchmark.sized(None, None);
            let mut outcome = Outcome::of(&benchmark, &size);
            outcome.complete(&benchmark, &Figures { size, cores: 1.0, runs: Vec::new() });
            outcome.plots.clear();
            for (nth, measurement) in outcome.measurements.iter_mut().enumerate() {
                measurement.set(nth as f64 * 100.0, size.connections);
            }
            outcome.plots.push(Plot {
                id: format!("{}-plot", benchmark.name),
                title: "A plot".to_owned(),
                unit: "bytes".to_owned(),
                x_axis: "clients".to_owned(),
                is_log: true,
                lines: vec![PlotLine {
                    name: "here".to_owned(),
                    points: vec![(1.0, Some(5.0)), (2.0, None), (3.0, Some(7.0))],
                }],
                ..Plot::default()
            });
            outcome
        });
        Results { benchmarks: outcomes.collect(), ..Results::default() }
    }

    #[test]
    fn the_page_is_complete_and_self_contained() {
        let html = page(&results());
        for benchmark in all() {
            assert!(html.contains(&format!("<h2>{}</h2>", escaped(&benchmark.title))));
            let id = format!("<figure id=\"{}-plot\"", benchmark.name);
            assert_eq!(html.matches(&id).count(), 1, "{id}");
        }
        for outside in ["http://", "https://", "<script", "url(", "@import", "src=", "NaN"] {
            assert!(!html.contains(outside), "{outside}");
        }
        for name in ["figure", "section", "table", "svg", "details", "div", "tr", "ul", "p"] {
            let opened = html.matches(&format!("<{name}>")).count()
                + html.matches(&format!("<{name} ")).count();
            assert_eq!(opened, html.matches(&format!("</{name}>")).count(), "{name}");
        }
    }

    #[test]
    fn text_from_outside_is_escaped() {
        let mut results = results();
        let evil = "<script>alert(1)</script>";
        let outcome = &mut results.benchmarks[0];
        outcome.fail(evil);
        outcome.warnings.push(evil.to_owned());
        outcome.title = evil.to_owned();
        outcome.tables.push(Table {
            title: evil.to_owned(),
            columns: vec![evil.to_owned()],
            rows: vec![vec![Some(1.0)]],
        });
        results.environment.processor = evil.to_owned();
        assert!(!page(&results).contains("<script"));
    }

    #[test]
    fn empty_results_are_a_complete_page() {
        assert!(page(&Results::default()).contains("</html>"));
    }
}
