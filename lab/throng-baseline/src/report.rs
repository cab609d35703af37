//! The report: a table for the terminal, JSON for programs.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use throng_host::sysctl;
use throng_report::file;
use throng_report::grid::Grid;
use throng_units::format::or_absent;
use throng_units::paint::Paint;

use crate::measurements::Goal;
use crate::results::{Results, Row};
use crate::settings::Settings;
use crate::stats::Summary;

/// Printed below each table with a fan-out.
const LOOPBACK_NOTE: &str = "On loopback the sender also pays for waking the reader and for the \
     reader's half of TCP: compare\nthe columns with each other, not with measurements of a \
     network. Machine CPU is the busy time of all\ncores, without other programs and without what \
     the same time costs when all subscribers are parked:\nit has the work of the kernel's threads \
     for both sides.";

const HEADINGS: [&str; 7] = ["measurement", "unit", "throng", "raw", "ratio", "goal", "reached"];

#[derive(Serialize)]
struct Json<'a> {
    kernel: Option<String>,
    cores: usize,
    settings: &'a Settings,
    rows: &'a [Row],
    notes: &'a [String],
}

/// The table with its notes.
pub(crate) fn table(results: &Results, paint: Paint) -> String {
    let rows = results.rows();
    let mut grid = Grid::new(HEADINGS, paint);
    rows.iter().for_each(|row| grid.row(cells(row)));
    let mut text = String::new();
    grid.write(&mut text);
    text.push_str(
        "\nMedian (lowest-highest) of the runs; each ratio is of two values of one run.\n",
    );
    if rows.iter().any(|row| row.key.starts_with("fanout") || row.key.starts_with("burst")) {
        let _ = writeln!(text, "{LOOPBACK_NOTE}");
    }
    for note in &results.notes {
        let _ = writeln!(text, "{note}");
    }
    text
}

/// Writes rows, settings and notes to a file.
pub(crate) fn write_json(path: &Path, results: &Results, settings: &Settings) -> Result<()> {
    let json = Json {
        kernel: sysctl::read("kernel.osrelease"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        settings,
        rows: &results.rows(),
        notes: &results.notes,
    };
    Ok(file::write(path, &file::to_json(&json))?)
}

fn cells(row: &Row) -> [String; 7] {
    let value = |summary, decimals| or_absent(summary, |summary| spread(summary, decimals));
    let goal = match row.goal {
        Goal::None => None,
        Goal::AtMost(most) => Some(format!("<= {most}")),
        Goal::RatioAtLeast(least) => Some(format!("ratio >= {least}")),
        Goal::RatioAtMost(most) => Some(format!("ratio <= {most}")),
    };
    let is_reached = row.is_reached.map(|is_reached| if is_reached { "yes" } else { "no" });
    [
        row.measurement.to_owned(),
        row.unit.to_owned(),
        value(row.throng, row.decimals),
        value(row.raw, row.decimals),
        value(row.ratio, 2),
        or_absent(goal, |goal| goal),
        or_absent(is_reached, str::to_owned),
    ]
}

fn spread(summary: Summary, decimals: usize) -> String {
    let Summary { median, min, max } = summary;
    if min == max {
        format!("{median:.decimals$}")
    } else {
        format!("{median:.decimals$} ({min:.decimals$}-{max:.decimals$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Side;

    #[test]
    fn rows_have_values_goals_and_whether_they_are_reached() {
        let mut results = Results::default();
        results.add("memory_websocket", Side::Throng, 100.0);
        results.add("burst_batch_rate", Side::Throng, 250.0);
        results.add("burst_batch_rate", Side::Raw, 100.0);
        let table = table(&results, Paint::plain());
        let rows: Vec<Vec<&str>> =
            table.lines().skip(2).take(2).map(|line| line.split("  ").collect()).collect();
        let has = |row: &[&str], cell: &str| row.iter().any(|other| other.trim() == cell);
        assert!(["100", "<= 128", "yes"].iter().all(|cell| has(&rows[0], cell)), "{table}");
        assert!(["250", "2.50", "ratio >= 3", "no"].iter().all(|cell| has(&rows[1], cell)));
        assert!(table.contains("On loopback"));
    }

    #[test]
    fn a_single_value_has_no_spread() {
        let spread_of = |values: &[f64], decimals| Some(spread(Summary::of(values)?, decimals));
        assert_eq!(spread_of(&[2.0], 1).as_deref(), Some("2.0"));
        assert_eq!(spread_of(&[1.0, 2.0, 4.0], 0).as_deref(), Some("2 (1-4)"));
    }
}
