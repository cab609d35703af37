//! The report in the terminal, at the end of a run.

use std::fmt::Write as _;

use throng_report::grid::Grid;
use throng_units::format::{self, ABSENT, count, milliseconds, or_absent, rate};
use throng_units::paint::{Ink, Paint, sanitized};

use super::summary::{
    NO_FAULTS, clock_text, distributions, faults, machine_notes, memory_note, most_frequent_first,
    tls_text, told,
};
use super::{Cost, Distribution, Report, Totals};

/// Width of the names at the start of lines.
const NAME_COLUMNS: usize = 13;

/// The whole report, for a terminal of about 100 columns.
pub(crate) fn table(report: &Report, paint: Paint) -> String {
    let mut text = String::new();
    head(&mut text, report, paint);
    counts(&mut text, &report.total, paint);
    latencies(&mut text, &report.total, paint);
    costs(&mut text, report, paint);
    agents(&mut text, report, paint);
    phases(&mut text, report, paint);
    failures(&mut text, &report.total, paint);
    assertions(&mut text, report, paint);
    text
}

fn head(text: &mut String, report: &Report, paint: Paint) {
    let length = format::seconds(report.seconds);
    let began = format::date(report.started_unix_s);
    let name = sanitized(&report.name);
    let _ = writeln!(text, "\n{}  {began}, {length}", paint.ink(Ink::Bold, name));
    let mut description = Lines::default();
    for (name, value) in report.description.rows() {
        description.add(name, sanitized(&value));
    }
    description.write(text, paint);
    match faults(report) {
        Some(faults) => {
            let _ = writeln!(text, "{}", paint.ink(Ink::BAD, faults));
        }
        None => {
            let _ = writeln!(text, "{}", paint.ink(Ink::GOOD, NO_FAULTS));
        }
    }
    if let Some(reason) = &report.cut_short {
        let reason = sanitized(reason);
        let _ = writeln!(text, "{} {reason}", paint.ink(Ink::BAD, "ended:"));
    }
    for warning in &report.warnings {
        let warning = sanitized(warning);
        let _ = writeln!(text, "{} {warning}", paint.ink(Ink::WARNING, "warning:"));
    }
    if report.environment.is_loopback {
        let note = if report.is_tunnel() {
            "Both sides ran on this machine, clients without sockets (network tunnel): the \
             kernel's memory is the server's half, and the clients' TCP is work of the generator."
        } else {
            "Both sides ran on this machine: senders pay for waking readers too."
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
    if let Some(tls) = &total.tls {
        lines.add("TLS", sanitized(&tls_text(tls)));
    }
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
        let each = (total.active > 0 && kernel >= 0).then(|| kernel as f64 / total.active as f64);
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
    if let Some(note) = memory_note(report) {
        let _ = writeln!(text, "{}", paint.ink(Ink::Dim, note));
    }
    if let Some(machine) = &total.machine {
        for note in machine_notes(machine) {
            let _ = writeln!(text, "{}", paint.ink(Ink::Dim, sanitized(&note)));
        }
    }
}

fn agents(text: &mut String, report: &Report, paint: Paint) {
    if report.agents.is_empty() {
        return;
    }
    let mut grid = Grid::new(["agent", "subscribed", "received", "CPU time", "clock"], paint);
    for agent in &report.agents {
        let name = match &agent.lost {
            Some(_) => {
                paint.ink(Ink::BAD, format!("{} (lost)", sanitized(&agent.name))).to_string()
            }
            None => sanitized(&agent.name),
        };
        grid.row([
            name,
            format::count(agent.subscribed),
            format::count(agent.received),
            format::seconds(agent.cpu_s),
            clock_text(agent),
        ]);
    }
    grid.write(text);
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
            latency(|found| found.p50),
            latency(|found| found.p99),
            latency(|found| found.max),
        ]);
    }
    grid.write(text);
    for phase in &report.phases {
        if let Some(recovered) = phase.recovered_s {
            let (name, time) = (sanitized(&phase.name), format::seconds(recovered));
            let _ = writeln!(text, "{name}: all clients were back after {time}{}", told(phase));
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
        for (reason, number) in most_frequent_first(reasons) {
            let number = paint.ink(Ink::BAD, format!("{:>12}", count(number)));
            let _ = writeln!(text, "{number}  {}", sanitized(reason));
        }
    }
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
            None => "not measured".to_owned(),
        };
        let _ =
            writeln!(text, "  {}  {}  ({found})", paint.ink(ink, word), sanitized(&checked.text));
    }
}

/// A count in red unless it is zero, as it should be.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn the_table_has_everything() {
        let text = table(&fixture::sample(), Paint::plain());
        for expected in [
            "419 client failures, 2 failed publishes, 1 assertion does not hold",
            "100,000 active, 200,419 attempts, 200,000 subscribed, 419 failed, 5,970/s",
            "0 lost, 0 duplicated, 0 reordered",
            "200,000 handshakes, 100,000 resumed; TLS 1.3, AES-128-GCM",
            "\nTLS handshake ",
            "         412  connection refused",
            "           2  status 503",
            "storm: all clients were back after 9.40 s; they were told 31,000 moments",
            "  fails  p99 < 50ms  (found 212)",
            "warning: The generator was the bottleneck",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        let tabular = text.lines().filter(|line| !line.starts_with("warning"));
        for line in tabular {
            assert!(line.chars().count() <= 110, "{line}");
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
    fn an_empty_report_is_a_complete_table() {
        let text = table(&Report::default(), Paint::plain());
        assert!(text.contains(NO_FAULTS));
        assert!(text.contains("0 active"));
    }

    #[test]
    fn text_from_outside_is_sanitized() {
        let report = Report { name: "a\x1b[2J".to_owned(), ..Report::default() };
        assert!(!table(&report, Paint::plain()).contains('\x1b'));
    }
}
