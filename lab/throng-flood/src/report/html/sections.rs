//! The parts of the page that are not charts: verdict, key measurements, tables.

use std::fmt::Write as _;

use throng_report::html::{
    escaped, key_values, note, scroll_attributes, scrolling_table, verdict, warnings,
};
use throng_units::format::{self, ABSENT, count, milliseconds, or_absent, rate};

use crate::report::summary::{
    NO_FAULTS, clock_text, distributions, faults, machine_notes, memory_note, most_frequent_first,
    tls_text, told,
};
use crate::report::{AgentReport, Cost, Distribution, Report};

/// The name of a run that was not given one.
const DEFAULT_NAME: &str = "flood";

/// The run's name, with its description if the name is the default.
pub(super) fn title(report: &Report) -> String {
    if report.name == DEFAULT_NAME && !report.description.target.is_empty() {
        format!("{}: {}", report.name, report.description.summary())
    } else {
        report.name.clone()
    }
}

/// Name, time, verdict, description and warnings.
pub(super) fn head(report: &Report) -> String {
    let mut html = format!(
        "<header><h1>{}</h1><p>{}, {}{}</p>",
        escaped(&title(report)),
        format::date(report.started_unix_s),
        format::seconds(report.seconds),
        if report.environment.is_loopback { ", both sides on one machine" } else { "" },
    );
    html.push_str(&verdict(faults(report).as_deref(), NO_FAULTS));
    html.push_str("</header>\n");
    let description = report.description.rows();
    if !description.is_empty() {
        html.push_str(&key_values(description));
    }
    let early = report.cut_short.iter().map(|reason| format!("The run ended early: {reason}"));
    let all: Vec<String> = early.chain(report.warnings.iter().cloned()).collect();
    html.push_str(&warnings(&all));
    html
}

/// The key measurements.
pub(super) fn tiles(report: &Report) -> String {
    let total = &report.total;
    let peak = report.series.iter().map(|sample| sample.active).max().unwrap_or(total.active);
    let mut html = String::from("<dl class=\"tiles\">");
    let mut tile = |name: &str, value: String, more: String, is_bad: bool| {
        let _ = write!(
            html,
            "<div{}><dt>{}</dt><dd>{}<small>{}</small></dd></div>",
            if is_bad { " class=\"bad\"" } else { "" },
            escaped(name),
            escaped(&value),
            escaped(&more)
        );
    };
    let connects = or_absent(total.connect_rate, rate);
    tile("Peak connections", count(peak), format!("opened at {connects}"), false);
    let failed: u64 = total.failures.values().sum();
    tile("Client failures", count(failed), "by reason below".to_owned(), failed > 0);
    if let Some(tls) = &total.tls {
        let p50 = or_absent(tls.handshake.as_ref().map(|found| found.p50), milliseconds);
        tile("TLS handshake, p50", p50, tls_text(tls), false);
    }
    if total.expected > 0 || total.received > 0 {
        let expected = format!("of {} expected", count(total.expected));
        tile("Deliveries", count(total.received), expected, total.lost > 0);
        let others = [
            (total.missed, "missed"),
            (total.duplicated, "duplicated"),
            (total.reordered, "reordered"),
        ];
        let wrong = total.lost + others.iter().map(|(number, _)| number).sum::<u64>();
        let others = others.map(|(number, word)| format!("{} {word}", count(number))).join(", ");
        tile("Lost", count(total.lost), others, wrong > 0);
        let published = format!("{} publishes accepted", count(total.published));
        tile("Deliveries per second", or_absent(total.delivery_rate, rate), published, false);
    }
    if let Some(delivery) = &total.delivery {
        let more = format!("p50 {}", milliseconds(delivery.p50));
        tile("Delivery p99", milliseconds(delivery.p99), more, false);
    }
    if let Some(last) = &total.last {
        let more = format!("slowest {}", milliseconds(last.max));
        tile("Last of a publish, p50", milliseconds(last.p50), more, false);
    }
    if let Some(server) = &total.server {
        let each = or_absent(server.bytes_per_client, format::bytes);
        let more = or_absent(server.cpu_us_per_delivery, |us| milliseconds(us / 1e3));
        tile("Server memory per client", each, format!("{more} CPU per delivery"), false);
    }
    html.push_str("</dl>\n");
    html
}

/// All distributions as a table.
pub(super) fn latencies(report: &Report) -> String {
    let rows: Vec<_> = distributions(&report.total)
        .into_iter()
        .map(|(name, found)| {
            let Distribution { count: number, min, mean, p50, p90, p99, p999, max, .. } = found;
            let cells = [*min, *mean, *p50, *p90, *p99, *p999, *max].map(milliseconds);
            [name.to_owned(), count(*number)].into_iter().chain(cells).collect()
        })
        .collect();
    let headings = ["latency of", "values", "min", "mean", "p50", "p90", "p99", "p99.9", "max"];
    scrolling_table(&headings, &rows)
}

/// The agents that ran the clients; empty if this process ran them.
pub(super) fn agents(report: &Report) -> String {
    let row = |agent: &AgentReport| {
        vec![
            agent.name.clone(),
            count(agent.subscribed),
            count(agent.received),
            format::seconds(agent.cpu_s),
            clock_text(agent),
            agent.lost.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = report.agents.iter().map(row).collect();
    scrolling_table(&["agent", "subscribed", "received", "CPU time", "clock", "lost"], &rows)
}

/// Memory and processor time of both sides and the kernel.
pub(super) fn costs(report: &Report) -> String {
    let process = |name: &str, cost: &Cost| {
        vec![
            name.to_owned(),
            or_absent(cost.pss_bytes, |bytes| format::bytes(bytes as f64)),
            or_absent(cost.bytes_per_client, format::bytes),
            format::seconds(cost.cpu_s),
            or_absent(cost.cpu_us_per_delivery, |us| milliseconds(us / 1e3)),
        ]
    };
    let total = &report.total;
    let mut rows: Vec<_> = total.server.iter().map(|cost| process("server", cost)).collect();
    rows.push(process("generator", &total.generator));
    if let Some(kernel) = total.kernel_bytes {
        let each = (total.active > 0 && kernel >= 0).then(|| kernel as f64 / total.active as f64);
        let dash = || ABSENT.to_owned();
        let grown = format::bytes_change(kernel);
        let name = "kernel, growth".to_owned();
        rows.push(vec![name, grown, or_absent(each, format::bytes), dash(), dash()]);
    }
    let mut notes = String::new();
    if let Some(machine) = &total.machine {
        let dash = || ABSENT.to_owned();
        let each = or_absent(machine.cpu_us_per_delivery, |us| milliseconds(us / 1e3));
        let name = "whole machine".to_owned();
        rows.push(vec![name, dash(), dash(), format::seconds(machine.cpu_s), each]);
        notes.push_str(&note(&machine_notes(machine).join(" ")));
    }
    notes.extend(memory_note(report).map(|text| note(&text)));
    let headings = ["cost of", "memory at the end", "per client", "CPU time", "CPU per delivery"];
    scrolling_table(&headings, &rows) + &notes
}

/// One row for each phase.
pub(super) fn phases(report: &Report) -> String {
    let rows: Vec<Vec<String>> = report
        .phases
        .iter()
        .map(|phase| {
            let totals = &phase.totals;
            let latency = |value: fn(&Distribution) -> f64| {
                or_absent(totals.delivery.as_ref().map(value), milliseconds)
            };
            let failures: u64 =
                totals.failures.values().chain(totals.publish_failures.values()).sum();
            vec![
                phase.name.clone(),
                format::clock(phase.from_s),
                format::seconds(phase.to_s - phase.from_s),
                count(totals.active),
                count(totals.subscribed),
                count(totals.published),
                count(totals.received),
                count(totals.lost),
                count(failures),
                latency(|found| found.p50),
                latency(|found| found.p99),
                latency(|found| found.max),
            ]
        })
        .collect();
    let headings = [
        "phase",
        "from",
        "took",
        "active",
        "subscribed",
        "published",
        "delivered",
        "lost",
        "failures",
        "p50",
        "p99",
        "max",
    ];
    let mut html = scrolling_table(&headings, &rows);
    for phase in &report.phases {
        if let Some(recovered) = phase.recovered_s {
            let _ = write!(
                html,
                "<p>{}: all clients were back after {}{}.</p>",
                escaped(&phase.name),
                format::seconds(recovered),
                told(phase)
            );
        }
    }
    html
}

/// All failures by reason.
pub(super) fn failures(report: &Report) -> String {
    let total = &report.total;
    let mut rows = Vec::new();
    for (side, reasons) in [("client", &total.failures), ("publish", &total.publish_failures)] {
        for (reason, number) in most_frequent_first(reasons) {
            rows.push(vec![reason.to_owned(), side.to_owned(), count(number)]);
        }
    }
    if rows.is_empty() {
        return "<p>None.</p>\n".to_owned();
    }
    scrolling_table(&["reason", "of", "times"], &rows)
}

/// The outcome of each assertion.
pub(super) fn assertions(report: &Report) -> String {
    if report.assertions.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<table><thead><tr><th scope=\"col\">assertion</th><th scope=\"col\">found</th>\
         <th scope=\"col\">outcome</th></tr></thead><tbody>",
    );
    for checked in &report.assertions {
        let found = checked.found.map_or_else(|| "not measured".to_owned(), format::decimal);
        let (class, word) = if checked.holds { ("good", "holds") } else { ("bad", "fails") };
        let _ = write!(
            html,
            "<tr><th scope=\"row\">{}</th><td>{found}</td><td class=\"{class}\">{word}</td></tr>",
            escaped(&checked.text)
        );
    }
    html.push_str("</tbody></table>\n");
    html
}

/// The machine and its kernel settings.
pub(super) fn machine(report: &Report) -> String {
    let environment = &report.environment;
    let mut html = String::new();
    if report.is_tunnel() {
        html.push_str(&note(
            "The clients had no sockets: their TCP is part of the generator, which reads and \
             writes packets of a network device. The kernel's memory is that of the server's half; \
             a sender pays for handing a packet to the device, and the receiver's work is the \
             generator's. Compare such measurements only with each other.",
        ));
    } else if environment.is_loopback {
        html.push_str(&note(
            "Both sides ran on this machine: a sender also pays for waking the reader and for the \
             reader's half of TCP. Compare such measurements with each other, not with those from \
             a network.",
        ));
    }
    let mut rows = environment.rows();
    rows.push(("network of the clients", environment.network.clone()));
    html.push_str(&key_values(rows));
    html
}

/// The plan as a file that can be run again, or as JSON in reports that lack it.
pub(super) fn plan(report: &Report) -> String {
    let toml = &report.description.plan;
    if !toml.is_empty() {
        let how = note(
            "To run it again, save this as plan.toml: throng flood --plan plan.toml. The values of \
             secret headers are left out.",
        );
        let attributes = scroll_attributes("plan", "The plan");
        return format!("{how}<pre {attributes}>{}</pre>\n", escaped(toml));
    }
    if report.plan.is_null() {
        return String::new();
    }
    let text = serde_json::to_string_pretty(&report.plan).unwrap_or_default();
    format!("<pre {}>{}</pre>\n", scroll_attributes("plan", "The plan"), escaped(&text))
}
