//! What is not a chart: verdict, key figures, tables.

use std::fmt::Write as _;

use crate::report::agents::clock;
use crate::report::chart::figure::escaped;
use crate::report::page::{scrolled, scrolls, warned, words};
use crate::report::table::{distributions, explained, faults, most_first};
use crate::report::{Agent, Cost, Distribution, Report, memory};
use throng_units::format::{self, ABSENT, count, milliseconds, or_absent, rate};

/// What a run is called that was given no name.
const USUAL_NAME: &str = "flood";

/// What the run is called, and what it tested if that is not its name.
pub fn title(report: &Report) -> String {
    match report.name == USUAL_NAME && !report.subject.target.is_empty() {
        true => format!("{}: {}", report.name, report.subject.words()),
        false => report.name.clone(),
    }
}

/// Name, time, what was tested, verdict, and what makes figures doubtful.
pub fn head(report: &Report) -> String {
    let mut html = format!(
        "<header><h1>{}</h1><p>{}, {}{}</p>",
        escaped(&title(report)),
        format::date(report.started_unix_s),
        format::seconds(report.seconds),
        if report.environment.is_loopback { ", both sides on one machine" } else { "" },
    );
    let _ = match faults(report) {
        Some(faults) => write!(html, "<p class=\"verdict bad\">{}</p>", escaped(&faults)),
        None => write!(html, "<p class=\"verdict good\">nothing failed, nothing is lost</p>"),
    };
    html.push_str("</header>\n");
    let subject = report.subject.rows();
    if !subject.is_empty() {
        html.push_str(&words(subject));
    }
    let mut warnings = Vec::new();
    warnings.extend(report.cut_short.iter().map(|reason| format!("The run ended early: {reason}")));
    warnings.extend(report.warnings.iter().cloned());
    html.push_str(&warned(&warnings));
    html
}

/// The figures that one looks for first.
pub fn tiles(report: &Report) -> String {
    let total = &report.total;
    let most = report.series.iter().map(|sample| sample.active).max().unwrap_or(total.active);
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
    tile("Connections at most", count(most), format!("opened at {connects}"), false);
    let failed: u64 = total.failures.values().sum();
    tile("Client failures", count(failed), "by reason below".to_owned(), failed > 0);
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
        tile("Deliveries a second", or_absent(total.delivery_rate, rate), published, false);
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
        tile("Server memory a client", each, format!("{more} CPU a delivery"), false);
    }
    html.push_str("</dl>\n");
    html
}

/// Every distribution in numbers.
pub fn latencies(report: &Report) -> String {
    let rows: Vec<_> = distributions(&report.total)
        .into_iter()
        .map(|(name, found)| {
            let Distribution { count: number, min, mean, p50, p90, p99, p999, max, .. } = found;
            let cells = [*min, *mean, *p50, *p90, *p99, *p999, *max].map(milliseconds);
            [name.to_owned(), count(*number)].into_iter().chain(cells).collect()
        })
        .collect();
    let headings = ["latency of", "values", "min", "mean", "p50", "p90", "p99", "p99.9", "max"];
    scrolled(&headings, &rows)
}

/// The machines that the clients were on, if there were several.
pub fn agents(report: &Report) -> String {
    let row = |agent: &Agent| {
        vec![
            agent.name.clone(),
            count(agent.subscribed),
            count(agent.received),
            format::seconds(agent.cpu_s),
            clock(agent),
            agent.lost.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = report.agents.iter().map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => scrolled(&["agent", "subscribed", "received", "CPU time", "clock", "lost"], &rows),
    }
}

/// What both sides and the kernel cost.
pub fn costs(report: &Report) -> String {
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
        let each = (total.active > 0).then(|| kernel as f64 / total.active as f64);
        let dash = || ABSENT.to_owned();
        let grown = format::bytes_change(kernel);
        let name = "kernel, growth".to_owned();
        rows.push(vec![name, grown, or_absent(each, format::bytes), dash(), dash()]);
    }
    let mut note = String::new();
    if let Some(machine) = &total.machine {
        let dash = || ABSENT.to_owned();
        let each = or_absent(machine.cpu_us_per_delivery, |us| milliseconds(us / 1e3));
        let name = "whole machine".to_owned();
        rows.push(vec![name, dash(), dash(), format::seconds(machine.cpu_s), each]);
        note = format!("<p class=\"note\">{}</p>\n", escaped(&explained(machine).join(" ")));
    }
    if let Some(sentence) = memory::explained(report) {
        note.push_str(&format!("<p class=\"note\">{}</p>\n", escaped(&sentence)));
    }
    let headings =
        ["cost of", "memory at the end", "for a client", "CPU time", "CPU for a delivery"];
    scrolled(&headings, &rows) + &note
}

/// Phase by phase.
pub fn phases(report: &Report) -> String {
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
                latency(|d| d.p50),
                latency(|d| d.p99),
                latency(|d| d.max),
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
    let mut html = scrolled(&headings, &rows);
    for phase in &report.phases {
        if let Some(recovered) = phase.recovered_s {
            let _ = write!(
                html,
                "<p>{}: all clients were back after {}.</p>",
                escaped(&phase.name),
                format::seconds(recovered)
            );
        }
    }
    html
}

/// Every failure by its reason.
pub fn failures(report: &Report) -> String {
    let total = &report.total;
    let mut rows = Vec::new();
    for (who, reasons) in [("client", &total.failures), ("publish", &total.publish_failures)] {
        for (reason, number) in most_first(reasons) {
            rows.push(vec![reason.to_owned(), who.to_owned(), count(number)]);
        }
    }
    if rows.is_empty() {
        return "<p>None.</p>\n".to_owned();
    }
    scrolled(&["reason", "of", "times"], &rows)
}

/// What was to hold.
pub fn assertions(report: &Report) -> String {
    if report.assertions.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<table><thead><tr><th scope=\"col\">assertion</th><th scope=\"col\">found</th>\
         <th scope=\"col\">outcome</th></tr></thead><tbody>",
    );
    for checked in &report.assertions {
        let found =
            checked.found.map_or_else(|| "could not be measured".to_owned(), format::decimal);
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
pub fn machine(report: &Report) -> String {
    let found = &report.environment;
    let mut rows = vec![
        ("processor", processor(&found.processor, found.cores)),
        ("memory", format::bytes(found.memory_bytes as f64)),
        ("kernel", found.kernel.clone()),
        ("descriptors of a table", count(found.descriptors_max)),
        ("throng", found.throng.clone()),
        ("network of the clients", found.network().to_owned()),
    ];
    rows.extend(found.sysctl.iter().map(|(name, value)| (name.as_str(), value.clone())));
    let mut html = String::new();
    if found.is_tunnel() {
        html.push_str(
            "<p class=\"note\">The clients had no sockets: their TCP is part of the generator, \
             which reads and writes packets of a network device. The kernel's memory is that of \
             the server's half; a sender pays for handing a packet to the device, and the \
             receiver's work is the generator's. Compare such figures with each other only.</p>",
        );
    } else if found.is_loopback {
        html.push_str(
            "<p class=\"note\">Both sides ran on this machine: a sender also pays for waking the \
             reader and for the reader's half of TCP. Compare such figures with each other, not \
             with those from a network.</p>",
        );
    }
    html.push_str(&words(rows));
    html
}

/// Some machines do not tell the name of theirs.
fn processor(name: &str, cores: usize) -> String {
    let cores = format::counted(cores as u64, "core", "cores");
    if name.is_empty() { cores } else { format!("{name}, {cores}") }
}

/// The plan as it was run, as a file that can be run again; as JSON if the report is older.
pub fn plan(report: &Report) -> String {
    let toml = &report.subject.plan;
    if !toml.is_empty() {
        let note = "To run it again, save this as plan.toml: throng flood --plan plan.toml. The \
                    values of headers that are secrets are left out.";
        return format!(
            "<p class=\"note\">{note}</p><pre {}>{}</pre>\n",
            scrolls("plan", "The plan"),
            escaped(toml)
        );
    }
    if report.plan.is_null() {
        return String::new();
    }
    let text = serde_json::to_string_pretty(&report.plan).unwrap_or_default();
    format!("<pre {}>{}</pre>\n", scrolls("plan", "The plan"), escaped(&text))
}
