//! What is seen in the terminal when a run has ended.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Cost, Distribution, MachineCost, Report, Totals, agents, memory};
use throng_units::format::{self, ABSENT, count, milliseconds, or_absent, rate};
use throng_units::paint::{Ink, Paint, sanitized, width};

/// Names of lines take so many columns.
const NAME_COLUMNS: usize = 13;

/// The whole report, for a terminal of about 100 columns.
pub fn table(report: &Report, paint: Paint) -> String {
    let mut text = String::new();
    head(&mut text, report, paint);
    counts(&mut text, &report.total, paint);
    latencies(&mut text, &report.total, paint);
    costs(&mut text, report, paint);
    agents::table(&mut text, report, paint);
    phases(&mut text, report, paint);
    failures(&mut text, &report.total, paint);
    assertions(&mut text, report, paint);
    text
}

/// In a few words, what went wrong; `None` if nothing did.
pub fn faults(report: &Report) -> Option<String> {
    let total = &report.total;
    let mut faults = Vec::new();
    if report.cut_short.is_some() {
        faults.push("ended early".to_owned());
    }
    for (number, word) in [
        (total.lost, "lost"),
        (total.missed, "missed, of which the server told"),
        (total.duplicated, "duplicated"),
        (total.reordered, "reordered"),
    ] {
        if number > 0 {
            faults.push(format!("{} {word}", count(number)));
        }
    }
    for (reasons, one, many) in [
        (&total.failures, "client failure", "client failures"),
        (&total.publish_failures, "failed publish", "failed publishes"),
    ] {
        let number = reasons.values().sum();
        if number > 0 {
            faults.push(format::counted(number, one, many));
        }
    }
    let broken = report.assertions.iter().filter(|checked| !checked.holds).count() as u64;
    if broken > 0 {
        faults.push(format::counted(broken, "assertion does not hold", "assertions do not hold"));
    }
    (!faults.is_empty()).then(|| faults.join(", "))
}

fn head(text: &mut String, report: &Report, paint: Paint) {
    let length = format::seconds(report.seconds);
    let began = format::date(report.started_unix_s);
    let name = sanitized(&report.name);
    let _ = writeln!(text, "\n{}  {began}, {length}", paint.ink(Ink::Bold, name));
    let mut subject = Lines::default();
    for (name, value) in report.subject.rows() {
        subject.add(name, sanitized(&value));
    }
    subject.write(text, paint);
    match faults(report) {
        Some(faults) => {
            let _ = writeln!(text, "{}", paint.ink(Ink::BAD, faults));
        }
        None => {
            let _ = writeln!(text, "{}", paint.ink(Ink::GOOD, "nothing failed, nothing is lost"));
        }
    }
    if let Some(reason) = &report.cut_short {
        let reason = sanitized(reason);
        let _ = writeln!(text, "{} {reason}", paint.ink(Ink::BAD, "ended:"));
    }
    for warning in &report.warnings {
        let warning = sanitized(warning);
        let _ = writeln!(text, "{} {warning}", paint.ink(Ink::WARNING, "doubtful:"));
    }
    if report.environment.is_loopback {
        let note = match report.environment.is_tunnel() {
            false => "Both sides ran on this machine: senders pay for waking readers too.",
            true => {
                "Both sides ran on this machine, clients without sockets (network tunnel): the \
                 kernel's memory is the server's half, and the clients' TCP is work of the \
                 generator."
            }
        };
        let _ = writeln!(text, "{}", paint.ink(Ink::Dim, note));
    }
}

fn counts(text: &mut String, total: &Totals, paint: Paint) {
    let mut lines = Lines::default();
    let failed = total.failures.values().sum();
    lines.add(
        "connections",
        format!(
            "{} active, {} attempts, {} subscribed, {}{}",
            count(total.active),
            count(total.attempts),
            count(total.subscribed),
            bad(failed, "failed", paint),
            total.connect_rate.map_or_else(String::new, |found| format!(", {}", rate(found))),
        ),
    );
    if total.publish_rate_intended.is_some() || total.published > 0 {
        let refused = total.publish_failures.values().sum();
        let mut line =
            format!("{} accepted, {}", count(total.published), bad(refused, "failed", paint));
        if let (Some(intended), Some(actual)) = (total.publish_rate_intended, total.publish_rate) {
            let _ = write!(line, ", {} of {} intended", rate(actual), rate(intended));
        }
        lines.add("publishes", line);
    }
    if total.expected > 0 || total.received > 0 {
        let missed = match total.missed {
            0 => String::new(),
            missed => format!(", {}", bad(missed, "missed", paint)),
        };
        lines.add(
            "deliveries",
            format!(
                "{} of {} expected, {}{missed}, {}, {}{}",
                count(total.received),
                count(total.expected),
                bad(total.lost, "lost", paint),
                bad(total.duplicated, "duplicated", paint),
                bad(total.reordered, "reordered", paint),
                total.delivery_rate.map_or_else(String::new, |found| format!(", {}", rate(found))),
            ),
        );
    }
    text.push('\n');
    lines.write(text, paint);
}

fn latencies(text: &mut String, total: &Totals, paint: Paint) {
    let mut grid =
        Grid::new(["latency", "values", "min", "p50", "p90", "p99", "p99.9", "max"], paint);
    for (name, distribution) in distributions(total) {
        let Distribution { count: values, min, p50, p90, p99, p999, max, .. } = distribution;
        grid.row(
            [name.to_owned(), count(*values)]
                .into_iter()
                .chain([*min, *p50, *p90, *p99, *p999, *max].map(milliseconds)),
        );
    }
    grid.write(text);
}

/// Every distribution that there is, with its name.
pub fn distributions(total: &Totals) -> Vec<(&'static str, &Distribution)> {
    let all = [
        ("delivery, all", &total.delivery),
        ("first of a publish", &total.first),
        ("median of a publish", &total.median),
        ("p99 of a publish", &total.p99),
        ("p99.9 of a publish", &total.p999),
        ("last of a publish", &total.last),
        ("connect", &total.connect),
        ("publish answered", &total.publish_answer),
        ("publish late by", &total.publish_lateness),
    ];
    all.into_iter().filter_map(|(name, found)| Some((name, found.as_ref()?))).collect()
}

fn costs(text: &mut String, report: &Report, paint: Paint) {
    let total = &report.total;
    let mut grid = Grid::new(["cost", "memory", "a client", "CPU time", "a delivery"], paint);
    let each = |bytes: Option<f64>| or_absent(bytes, format::bytes);
    let mut process = |name: &str, cost: &Cost| {
        grid.row([
            name.to_owned(),
            or_absent(cost.pss_bytes, |bytes| format::bytes(bytes as f64)),
            each(cost.bytes_per_client),
            format::seconds(cost.cpu_s),
            or_absent(cost.cpu_us_per_delivery, |us| milliseconds(us / 1e3)),
        ]);
    };
    if let Some(server) = &total.server {
        process("server", server);
    }
    process("generator", &total.generator);
    if let Some(kernel) = total.kernel_bytes {
        let each = (total.active > 0).then(|| kernel as f64 / total.active as f64);
        grid.row([
            "kernel".to_owned(),
            format::bytes_change(kernel),
            or_absent(each, format::bytes),
            ABSENT.to_owned(),
            ABSENT.to_owned(),
        ]);
    }
    if let Some(machine) = &total.machine {
        grid.row([
            "whole machine".to_owned(),
            ABSENT.to_owned(),
            ABSENT.to_owned(),
            format::seconds(machine.cpu_s),
            or_absent(machine.cpu_us_per_delivery, |us| milliseconds(us / 1e3)),
        ]);
    }
    grid.write(text);
    if let Some(sentence) = memory::explained(report) {
        let _ = writeln!(text, "{}", paint.ink(Ink::Dim, sentence));
    }
    if let Some(machine) = &total.machine {
        for sentence in explained(machine) {
            let _ = writeln!(text, "{}", paint.ink(Ink::Dim, sanitized(&sentence)));
        }
    }
}

/// What the row of the whole machine is, and what else was running: a sentence each.
pub fn explained(machine: &MachineCost) -> Vec<String> {
    let what = "Whole machine: both sides, and what the kernel does for them in its own threads.";
    let mut sentences = vec![what.to_owned()];
    if machine.others_s > 0.0 {
        let names = match machine.others.is_empty() {
            true => String::new(),
            false => format!(" ({})", machine.others.join(", ")),
        };
        let time = format::seconds(machine.others_s);
        sentences.push(format!("Other programs{names} used {time} besides, not counted there."));
    }
    if machine.unseen_s > 0.0 {
        let time = format::seconds(machine.unseen_s);
        sentences.push(format!(
            "Nor are {time} that went where this program cannot see, as before the run."
        ));
    }
    sentences
}

fn phases(text: &mut String, report: &Report, paint: Paint) {
    if report.phases.is_empty() {
        return;
    }
    let headings =
        ["phase", "from", "took", "active", "received", "lost", "failures", "p50", "p99", "max"];
    let mut grid = Grid::new(headings, paint);
    for phase in &report.phases {
        let delivery = phase.totals.delivery.as_ref();
        let latency =
            |value: fn(&Distribution) -> f64| or_absent(delivery.map(value), milliseconds);
        grid.row([
            sanitized(&phase.name),
            format::clock(phase.from_s),
            format::seconds(phase.to_s - phase.from_s),
            count(phase.totals.active),
            count(phase.totals.received),
            count(phase.totals.lost),
            count(phase.totals.failures.values().sum()),
            latency(|d| d.p50),
            latency(|d| d.p99),
            latency(|d| d.max),
        ]);
    }
    grid.write(text);
    for phase in &report.phases {
        if let Some(recovered) = phase.recovered_s {
            let (name, time) = (sanitized(&phase.name), format::seconds(recovered));
            let _ = writeln!(text, "{name}: all were back after {time}");
        }
    }
}

fn failures(text: &mut String, total: &Totals, paint: Paint) {
    for (heading, reasons) in
        [("failures", &total.failures), ("failed publishes", &total.publish_failures)]
    {
        if reasons.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{}", paint.ink(Ink::Bold, heading));
        for (reason, number) in most_first(reasons) {
            let number = paint.ink(Ink::BAD, format!("{:>12}", count(number)));
            let _ = writeln!(text, "{number}  {}", sanitized(reason));
        }
    }
}

/// Reasons with the most frequent first.
pub fn most_first(reasons: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
    let mut sorted: Vec<_> =
        reasons.iter().map(|(reason, &number)| (reason.as_str(), number)).collect();
    sorted.sort_by_key(|&(_, number)| std::cmp::Reverse(number));
    sorted
}

fn assertions(text: &mut String, report: &Report, paint: Paint) {
    if report.assertions.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{}", paint.ink(Ink::Bold, "assertions"));
    for checked in &report.assertions {
        let (ink, word) = if checked.holds { (Ink::GOOD, "holds") } else { (Ink::BAD, "fails") };
        let found = match checked.found {
            Some(found) => format!("found {}", format::decimal(found)),
            None => "could not be measured".to_owned(),
        };
        let _ =
            writeln!(text, "  {}  {}  ({found})", paint.ink(ink, word), sanitized(&checked.text));
    }
}

/// A count that should be zero.
fn bad(number: u64, word: &str, paint: Paint) -> String {
    let text = format!("{} {word}", count(number));
    if number > 0 { paint.ink(Ink::BAD, text).to_string() } else { text }
}

#[derive(Default)]
struct Lines(Vec<(&'static str, String)>);

impl Lines {
    fn add(&mut self, name: &'static str, value: String) {
        self.0.push((name, value));
    }

    fn write(self, text: &mut String, paint: Paint) {
        for (name, value) in self.0 {
            let name = paint.ink(Ink::Bold, format!("{name:<NAME_COLUMNS$}"));
            let _ = writeln!(text, "{name}{value}");
        }
    }
}

/// A table whose first column is words and whose others are figures.
pub struct Grid {
    rows: Vec<Vec<String>>,
    paint: Paint,
}

impl Grid {
    /// A table with these headings.
    pub fn new(headings: impl IntoIterator<Item = impl Into<String>>, paint: Paint) -> Grid {
        Grid { rows: vec![headings.into_iter().map(Into::into).collect()], paint }
    }

    /// Adds a row; its cells may be in colour.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Writes it under an empty line; nothing at all if it has no rows.
    pub fn write(&self, text: &mut String) {
        if self.rows.len() < 2 {
            return;
        }
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let widest = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max()
        };
        let widths: Vec<usize> =
            (0..columns).map(|column| widest(column).unwrap_or_default()).collect();
        text.push('\n');
        for (index, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, (cell, room)) in row.iter().zip(&widths).enumerate() {
                let space = " ".repeat(room - width(cell));
                let _ = match column {
                    0 => write!(line, "{cell}{space}"),
                    _ => write!(line, "  {space}{cell}"),
                };
            }
            let line = line.trim_end();
            let _ = match index {
                0 => writeln!(text, "{}", self.paint.ink(Ink::Bold, line)),
                _ => writeln!(text, "{line}"),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn a_run_is_told_on_a_page() {
        let text = table(&fixture::sample(), Paint::plain());
        for expected in [
            "419 client failures, 2 failed publishes, 1 assertion does not hold",
            "100,000 active, 200,419 attempts, 200,000 subscribed, 419 failed, 5,970/s",
            "0 lost, 0 duplicated, 0 reordered",
            "         412  connection refused",
            "           2  status 503",
            "storm: all were back after 9.40 s",
            "  fails  p99 < 50ms  (found 212)",
            "doubtful: The generator was the bottleneck",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        let tabular = text.lines().filter(|line| !line.starts_with("doubtful"));
        for line in tabular {
            assert!(width(line) <= 110, "{line}");
        }
    }

    #[test]
    fn no_failure_is_hidden() {
        let mut report = fixture::sample();
        report.total.failures = (0..200).map(|code| (format!("status {code}"), code + 1)).collect();
        let text = table(&report, Paint::plain());
        assert!((0..200).all(|code| text.contains(&format!("  status {code}\n"))));
    }

    #[test]
    fn an_empty_report_is_a_table_too() {
        let text = table(&Report::default(), Paint::plain());
        assert!(text.contains("nothing failed, nothing is lost"));
        assert!(text.contains("0 active"));
    }

    #[test]
    fn columns_line_up_in_colour_too() {
        let mut grid = Grid::new(["name", "n"], Paint::always());
        grid.row(["a".to_owned(), Paint::always().ink(Ink::BAD, "1").to_string()]);
        grid.row(["long name".to_owned(), "1,000".to_owned()]);
        let mut text = String::new();
        grid.write(&mut text);
        let widths: Vec<usize> = text.lines().skip(1).map(width).collect();
        assert_eq!(widths, [16, 16, 16]);
    }

    #[test]
    fn names_of_strangers_do_not_steer_the_terminal() {
        let report = Report { name: "a\x1b[2J".to_owned(), ..Report::default() };
        assert!(!table(&report, Paint::plain()).contains('\x1b'));
    }
}
