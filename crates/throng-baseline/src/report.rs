//! The report: a table for people, JSON for programs.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use throng_host::sysctl;

use crate::figures::Goal;
use crate::ledger::{Ledger, Row};
use crate::settings::Settings;
use crate::stats::Summary;

/// Said beneath every table with a fan-out.
const LOOPBACK_NOTE: &str = "On loopback the sender also pays for waking the reader and for the \
     reader's half of TCP: compare the columns with each other, not with figures from a network.\n\
     Machine CPU is all busy time of all processors, less that of other programs and of the same \
     time with all\nsubscribers parked: it has what the kernel's own threads do for both sides.";

const HEADINGS: [&str; 7] = ["figure", "unit", "throng", "raw", "ratio", "target", "reached"];

#[derive(Serialize)]
struct Json<'a> {
    kernel: Option<String>,
    cores: usize,
    settings: &'a Settings,
    rows: &'a [Row],
    notes: &'a [String],
}

/// The table with its notes.
pub fn table(ledger: &Ledger) -> String {
    let rows = ledger.rows();
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let mut widths = [0; HEADINGS.len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        push_line(&mut text, line, &widths);
        if index == 0 {
            push_line(&mut text, &widths.map(|width| "-".repeat(width)), &widths);
        }
    }
    text.push_str("\nMedian (lowest-highest) over the runs; the ratio is taken run by run.\n");
    if rows.iter().any(|row| row.key.starts_with("fanout") || row.key.starts_with("burst")) {
        let _ = writeln!(text, "{LOOPBACK_NOTE}");
    }
    for note in &ledger.notes {
        let _ = writeln!(text, "{note}");
    }
    text
}

/// Writes everything to a file.
pub fn write_json(path: &Path, ledger: &Ledger, settings: &Settings) -> Result<()> {
    let json = Json {
        kernel: sysctl::read("kernel.osrelease"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        settings,
        rows: &ledger.rows(),
        notes: &ledger.notes,
    };
    let text = serde_json::to_string_pretty(&json)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

fn push_line(text: &mut String, cells: &[String; 7], widths: &[usize; 7]) {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        let _ = write!(line, "{cell:<width$}  ");
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

fn cells(row: &Row) -> [String; 7] {
    let value = |summary, decimals| spread(summary, decimals).unwrap_or_else(|| "-".to_owned());
    let target = match row.goal {
        Goal::None => "-".to_owned(),
        Goal::AtMost(most) => format!("<= {most}"),
        Goal::RatioAtLeast(least) => format!("ratio >= {least}"),
        Goal::RatioAtMost(most) => format!("ratio <= {most}"),
    };
    let reached = match row.is_reached {
        None => "-",
        Some(true) => "yes",
        Some(false) => "no",
    };
    [
        row.figure.to_owned(),
        row.unit.to_owned(),
        value(row.throng, row.decimals),
        value(row.raw, row.decimals),
        value(row.ratio, 2),
        target,
        reached.to_owned(),
    ]
}

fn spread(summary: Option<Summary>, decimals: usize) -> Option<String> {
    let Summary { median, min, max } = summary?;
    Some(if min == max {
        format!("{median:.decimals$}")
    } else {
        format!("{median:.decimals$} ({min:.decimals$}-{max:.decimals$})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Side;

    #[test]
    fn columns_line_up_and_goals_are_told() {
        let mut ledger = Ledger::default();
        ledger.add("memory_websocket", Side::Throng, 100.0);
        ledger.add("burst_batch_rate", Side::Throng, 250.0);
        ledger.add("burst_batch_rate", Side::Raw, 100.0);
        let table = table(&ledger);
        let lines: Vec<&str> = table.lines().collect();
        let column = lines[0].find("throng").expect("a heading");
        assert_eq!(&lines[2][column..column + 3], "100");
        assert!(lines[2].ends_with("<= 128      yes"), "{}", lines[2]);
        assert!(lines[3].ends_with("ratio >= 3  no"), "{}", lines[3]);
        assert!(table.contains("On loopback"));
    }

    #[test]
    fn a_single_value_has_no_spread() {
        assert_eq!(spread(Summary::of(&[2.0]), 1).as_deref(), Some("2.0"));
        assert_eq!(spread(Summary::of(&[1.0, 2.0, 4.0]), 0).as_deref(), Some("2 (1-4)"));
        assert_eq!(spread(None, 0), None);
    }
}
