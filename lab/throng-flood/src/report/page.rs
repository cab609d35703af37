//! The report at the end of a run, as sections for a terminal and a page.

use throng_report::page::{Band, Cell, Page, Part, Section, Table, Tile};
use throng_units::format::{self, ABSENT, count, counted, milliseconds, or_absent, rate};
use throng_units::paint::Paint;

use super::statements::{
    NO_FAULTS, clock_text, distributions, faults, machine_notes, memory_note, most_frequent_first,
    place_note, tls_text, told,
};
use super::{AgentReport, COMMAND, Cost, Distribution, PhaseReport, Report, charts};

/// The name of a run that was not given one.
const DEFAULT_NAME: &str = "flood";

const HOW_TO_RUN_AGAIN: &str = "To run it again, save this as plan.toml: throng flood --plan \
     plan.toml. The values of secret headers are left out.";

/// The report for a terminal.
pub(crate) fn text(report: &Report, paint: Paint) -> String {
    page(report).text(paint)
}

/// The report as an HTML page.
pub(crate) fn html(report: &Report) -> String {
    page(report).html()
}

fn page(report: &Report) -> Page {
    let with = |mut parts: Vec<Part>, more: Vec<Part>| {
        parts.extend(more);
        parts
    };
    let sections = vec![
        Section::new("Connections", charts::plots(report, "connections")),
        Section::new("Messages", charts::messages(report)),
        Section::new("Latency", with(charts::latency(report), vec![latencies(report)])),
        Section::new("Memory and processor", with(charts::plots(report, "cost"), costs(report))),
        Section::new("Agents", agents(report)),
        Section::new("Phases", phases(report)),
        Section::new("Failures", failures(report)),
        Section::new("Assertions", assertions(report)),
        Section::new("Machine", machine(report)),
        Section::new("Plan", plan(report)),
    ];
    let band = |phase: &PhaseReport| Band {
        name: phase.name.clone(),
        from_s: phase.from_s,
        to_s: phase.to_s,
    };
    let bands = report.phases.iter().map(band).collect();
    Page { bands, ..Page::new(COMMAND, head(report), sections) }
}

fn head(report: &Report) -> Section {
    // A run without a name of its own is named after what it tested.
    let title = if report.name == DEFAULT_NAME && !report.description.target.is_empty() {
        format!("{}: {}", report.name, report.description.summary())
    } else {
        report.name.clone()
    };
    let place = if report.environment.is_loopback { ", both sides on one machine" } else { "" };
    let (began, length) = (format::date(report.started_unix_s), format::seconds(report.seconds));
    let early = report.cut_short.iter().map(|reason| format!("The run ended early: {reason}"));
    Section {
        title,
        subtitle: format!("{began}, {length}{place}"),
        verdict: Some(faults(report).map_or_else(|| Cell::good(NO_FAULTS), Cell::bad)),
        parts: vec![
            Part::Facts(report.description.rows()),
            Part::Warnings(early.chain(report.warnings.iter().cloned()).collect()),
            Part::Tiles(tiles(report)),
        ],
    }
}

/// The key measurements.
fn tiles(report: &Report) -> Vec<Tile> {
    let total = &report.total;
    let peak = report.series.iter().map(|sample| sample.active).max().unwrap_or(total.active);
    let attempts = counted(total.attempts, "attempt", "attempts");
    let connects = or_absent(total.connect_rate, rate);
    let failed: u64 = total.failures.values().sum();
    let mut tiles = vec![
        Tile {
            name: "Peak connections",
            value: count(peak).into(),
            more: format!("{attempts}, {} subscribed, {connects}", count(total.subscribed)),
        },
        Tile {
            name: "Client failures",
            value: Cell::bad_if(failed > 0, count(failed)),
            more: String::new(),
        },
    ];
    let mut tile = |name, value: Cell, more| tiles.push(Tile { name, value, more });
    if let Some(tls) = &total.tls {
        let p50 = or_absent(tls.handshake.as_ref().map(|found| found.p50), milliseconds);
        tile("TLS handshake, p50", p50.into(), tls_text(tls));
    }
    if total.publish_rate_intended.is_some() || total.published > 0 {
        let refused: u64 = total.publish_failures.values().sum();
        let [actual, intended] = [total.publish_rate, total.publish_rate_intended];
        let rates = actual.zip(intended).map_or_else(String::new, |(actual, intended)| {
            format!(", {} of {} intended", rate(actual), rate(intended))
        });
        let more = format!("accepted, {} failed{rates}", count(refused));
        tile("Publishes", Cell::bad_if(refused > 0, count(total.published)), more);
    }
    if total.expected > 0 || total.received > 0 {
        let rate = or_absent(total.delivery_rate, rate);
        let each = format::bytes(total.received_bytes as f64 / total.received.max(1) as f64);
        let expected = format!("of {} expected, {rate}, {each} each", count(total.expected));
        tile("Deliveries", Cell::bad_if(total.lost > 0, count(total.received)), expected);
        let others = [
            (total.missed, "missed"),
            (total.duplicated, "duplicated"),
            (total.reordered, "reordered"),
        ];
        let is_bad = total.lost > 0 || others.iter().any(|(number, _)| *number > 0);
        let others = others.map(|(number, word)| format!("{} {word}", count(number))).join(", ");
        tile("Lost", Cell::bad_if(is_bad, count(total.lost)), others);
    }
    if let Some(delivery) = &total.delivery {
        let more = format!("p50 {}", milliseconds(delivery.p50));
        tile("Delivery, p99", milliseconds(delivery.p99).into(), more);
    }
    if let Some(last) = &total.last {
        let more = format!("slowest {}", milliseconds(last.max));
        tile("Last of a publish, p50", milliseconds(last.p50).into(), more);
    }
    if let Some(server) = &total.server {
        let each = or_absent(server.bytes_per_client, format::bytes);
        let more = or_absent(server.cpu_us_per_delivery, |us| milliseconds(us / 1e3));
        tile("Server memory per client", each.into(), format!("{more} CPU per delivery"));
    }
    tiles
}

/// All distributions as a table.
fn latencies(report: &Report) -> Part {
    let rows = distributions(&report.total).into_iter().map(|(name, found)| {
        let Distribution { count: number, min, mean, p50, p90, p99, p999, max, .. } = found;
        let cells = [*min, *mean, *p50, *p90, *p99, *p999, *max].map(milliseconds);
        [name.to_owned(), count(*number)].into_iter().chain(cells).map(Cell::from).collect()
    });
    let headings = ["latency", "values", "min", "mean", "p50", "p90", "p99", "p99.9", "max"];
    Part::Table(Table::new(&headings, rows))
}

/// Memory and processor time of both sides and the kernel.
fn costs(report: &Report) -> Vec<Part> {
    let row = |name: &str, memory: Option<String>, each: Option<f64>, cpu: [Option<f64>; 2]| {
        let [cpu_s, us] = cpu;
        vec![
            name.into(),
            memory.unwrap_or_else(|| ABSENT.to_owned()).into(),
            or_absent(each, format::bytes).into(),
            or_absent(cpu_s, format::seconds).into(),
            or_absent(us, |us| milliseconds(us / 1e3)).into(),
        ]
    };
    let process = |name: &str, cost: &Cost| {
        let memory = cost.pss_bytes.map(|bytes| format::bytes(bytes as f64));
        row(name, memory, cost.bytes_per_client, [Some(cost.cpu_s), cost.cpu_us_per_delivery])
    };
    let total = &report.total;
    let mut rows: Vec<_> = total.server.iter().map(|cost| process("server", cost)).collect();
    rows.push(process("generator", &total.generator));
    if let Some(kernel) = total.kernel_bytes {
        let each = (total.active > 0 && kernel >= 0).then(|| kernel as f64 / total.active as f64);
        rows.push(row("kernel, growth", Some(format::bytes_change(kernel)), each, [None, None]));
    }
    let mut notes: Vec<String> = memory_note(report).into_iter().collect();
    if let Some(machine) = &total.machine {
        let cpu = [Some(machine.cpu_s), machine.cpu_us_per_delivery];
        rows.push(row("whole machine", None, None, cpu));
        notes.extend(machine_notes(machine));
    }
    let headings = ["cost", "memory at the end", "a client", "CPU time", "a delivery"];
    let table = Part::Table(Table::new(&headings, rows));
    std::iter::once(table).chain(notes.into_iter().map(Part::Note)).collect()
}

fn agents(report: &Report) -> Vec<Part> {
    let row = |agent: &AgentReport| {
        vec![
            Cell::bad_if(agent.lost.is_some(), &agent.name),
            count(agent.subscribed).into(),
            count(agent.received).into(),
            format::seconds(agent.cpu_s).into(),
            clock_text(agent).into(),
            agent.lost.as_deref().unwrap_or_default().into(),
        ]
    };
    let headings = ["agent", "subscribed", "received", "CPU time", "clock", "lost"];
    vec![Part::Table(Table::new(&headings, report.agents.iter().map(row)))]
}

fn phases(report: &Report) -> Vec<Part> {
    let row = |phase: &PhaseReport| {
        let totals = &phase.totals;
        let latency = |value: fn(&Distribution) -> f64| {
            or_absent(totals.delivery.as_ref().map(value), milliseconds)
        };
        let failures = totals.failures.values().chain(totals.publish_failures.values()).sum();
        let cells = [
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
        ];
        cells.map(Cell::from).to_vec()
    };
    let headings = [
        "phase",
        "from",
        "took",
        "active",
        "subscribed",
        "published",
        "received",
        "lost",
        "failures",
        "p50",
        "p99",
        "max",
    ];
    let mut parts = vec![Part::Table(Table::new(&headings, report.phases.iter().map(row)))];
    for phase in &report.phases {
        if let Some(recovered) = phase.recovered_s {
            let (time, told) = (format::seconds(recovered), told(phase));
            parts.push(Part::Note(format!(
                "{}: all clients were back after {time}{told}",
                phase.name
            )));
        }
    }
    parts
}

/// All failures by reason.
fn failures(report: &Report) -> Vec<Part> {
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let total = &report.total;
    for (of, reasons) in [("client", &total.failures), ("publish", &total.publish_failures)] {
        for (reason, number) in most_frequent_first(reasons) {
            rows.push(vec![reason.into(), of.into(), Cell::bad(count(number))]);
        }
    }
    if rows.is_empty() {
        return vec![Part::Text("None.".to_owned())];
    }
    vec![Part::Table(Table::new(&["failure", "of", "times"], rows))]
}

fn assertions(report: &Report) -> Vec<Part> {
    let rows = report.assertions.iter().map(|checked| {
        let outcome = if checked.holds { Cell::good("holds") } else { Cell::bad("fails") };
        let found = checked.found.map_or_else(|| "not measured".to_owned(), format::decimal);
        vec![checked.text.as_str().into(), found.into(), outcome]
    });
    vec![Part::Table(Table::new(&["assertion", "found", "outcome"], rows))]
}

/// The machine and its kernel settings.
fn machine(report: &Report) -> Vec<Part> {
    let environment = &report.environment;
    let mut rows = environment.rows();
    rows.push(("network of the clients".to_owned(), environment.network.clone()));
    let note = place_note(report).map(|note| Part::Note(note.to_owned()));
    note.into_iter().chain([Part::Details(rows)]).collect()
}

/// The plan as a file that can be run again, or as JSON in reports that lack it.
fn plan(report: &Report) -> Vec<Part> {
    let toml = &report.description.plan;
    if !toml.is_empty() {
        return vec![Part::Text(HOW_TO_RUN_AGAIN.to_owned()), Part::Listing(toml.clone())];
    }
    if report.plan.is_null() {
        return Vec::new();
    }
    vec![Part::Listing(serde_json::to_string_pretty(&report.plan).unwrap_or_default())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn the_terminal_shows_every_figure() {
        let text = text(&fixture::sample(), Paint::plain());
        for expected in [
            "419 client failures, 2 failed publishes, 1 assertion does not hold",
            "target     ws://127.0.0.1:8080/ws?channel=news",
            "100,000  200,419 attempts, 200,000 subscribed, 5,970/s",
            "accepted, 2 failed, 0.99/s of 1.00/s intended",
            "0 missed, 0 duplicated, 0 reordered",
            "200,000 handshakes, 100,000 resumed; TLS 1.3, AES-128-GCM",
            "\nTLS handshake ",
            "\nconnection refused                    client    412\n",
            "\nstatus 503                           publish      2\n",
            "storm: all clients were back after 9.40 s; they were told 31,000 moments",
            "\np99 < 50ms    212    fails\n",
            "warning: The generator was the bottleneck",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        let sentences = |line: &&str| !line.contains(". ") && !line.starts_with("warning");
        for line in text.lines().filter(sentences) {
            assert!(line.chars().count() <= 120, "{line}");
        }
    }

    #[test]
    fn no_failure_is_hidden() {
        let mut report = fixture::sample();
        report.total.failures = (0..200).map(|code| (format!("status {code}"), code + 1)).collect();
        let text = text(&report, Paint::plain());
        assert!((0..200).all(|code| text.contains(&format!("\nstatus {code} "))));
    }

    #[test]
    fn an_empty_report_can_be_shown() {
        let text = text(&Report::default(), Paint::plain());
        assert!(text.contains(NO_FAULTS) && text.contains("0 subscribed"), "{text}");
        assert!(html(&Report::default()).contains("</html>"));
    }

    #[test]
    fn text_from_outside_is_escaped() {
        let mut report = fixture::sample();
        let evil = "</script><img src=x onerror=alert(1)>\x1b[2J";
        report.name = evil.to_owned();
        report.description.target = evil.to_owned();
        report.warnings = vec![evil.to_owned()];
        report.cut_short = Some(evil.to_owned());
        report.phases[0].name = evil.to_owned();
        report.total.failures.insert(evil.to_owned(), 1);
        report.total.publish_failures.insert(evil.to_owned(), 1);
        report.assertions[0].text = evil.to_owned();
        report.environment.processor = evil.to_owned();
        report.environment.sysctl.insert(evil.to_owned(), evil.to_owned());
        report.description.plan = evil.to_owned();
        let html = html(&report);
        assert!(!html.contains("<img") && html.matches("</script>").count() == 2);
        assert!(!text(&report, Paint::plain()).contains('\x1b'));
        assert!(html.len() < 1 << 19, "{}", html.len());
    }

    /// Writes pages to look at: `THRONG_FLOOD_SAMPLES=<folder> cargo test … -- --ignored samples`.
    #[test]
    #[ignore = "writes files to look at"]
    fn samples() {
        let folder = std::env::var_os("THRONG_FLOOD_SAMPLES").expect("a folder to write to");
        let folder = std::path::Path::new(&folder);
        let report = fixture::sample();
        throng_report::file::write(&folder.join("run.html"), &html(&report)).expect("written");
        throng_report::file::write(&folder.join("run.json"), &report.to_json()).expect("written");
        let text = text(&report, Paint::always());
        throng_report::file::write(&folder.join("run.txt"), &text).expect("written");
    }
}
