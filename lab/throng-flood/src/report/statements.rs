//! Statements about a report that several views share.

use std::collections::BTreeMap;

use throng_units::format::{self, count, milliseconds};

use super::Distribution;
use super::model::{AgentReport, ClockReport, MachineCost, PhaseReport, Report, TlsTotals, Totals};

/// Below this number of clients, the server's fixed memory dominates its growth.
const FEW_CLIENTS: u64 = 10_000;

/// Two sizes separate fixed memory from memory per client if they differ by this factor.
const SIZE_RATIO_MIN: u64 = 2;

/// The verdict if there are no [`faults`].
pub(super) const NO_FAULTS: &str = "nothing failed, nothing is lost";

/// What went wrong, in one line; `None` if nothing did.
pub fn faults(report: &Report) -> Option<String> {
    let total = &report.total;
    let mut faults = Vec::new();
    if report.cut_short.is_some() {
        faults.push("ended early".to_owned());
    }
    for (number, word) in [
        (total.lost, "lost"),
        (total.missed, "missed (told by the server)"),
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

/// The distributions that were measured, with their names.
pub(crate) fn distributions(total: &Totals) -> Vec<(&'static str, &Distribution)> {
    let all = [
        ("delivery, all", &total.delivery),
        ("p50 of a reader", &total.reader_p50),
        ("p99 of a reader", &total.reader_p99),
        ("max of a reader", &total.reader_max),
        ("behind at the end", &total.behind),
        ("first of a publish", &total.first),
        ("median of a publish", &total.median),
        ("p99 of a publish", &total.p99),
        ("p99.9 of a publish", &total.p999),
        ("last of a publish", &total.last),
        ("connect", &total.connect),
        ("TLS handshake", total.tls.as_ref().map_or(&None, |tls| &tls.handshake)),
        ("publish answered", &total.publish_answer),
        ("publish late by", &total.publish_lateness),
    ];
    all.into_iter().filter_map(|(name, found)| Some((name, found.as_ref()?))).collect()
}

/// The TLS of a run in one line: how many handshakes, and of which versions and suites.
pub(super) fn tls_text(tls: &TlsTotals) -> String {
    let suites = most_frequent_first(&tls.suites);
    let handshakes = format::counted(tls.handshakes, "handshake", "handshakes");
    let suites = match suites[..] {
        [(suite, _)] => suite.to_owned(),
        _ => {
            let each = suites.iter().map(|(suite, number)| format!("{} {suite}", count(*number)));
            each.collect::<Vec<_>>().join("; ")
        }
    };
    format!("{handshakes}, {} resumed; {suites}", count(tls.resumed))
}

/// Reasons by falling frequency.
pub fn most_frequent_first(reasons: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
    let mut sorted: Vec<_> =
        reasons.iter().map(|(reason, &number)| (reason.as_str(), number)).collect();
    sorted.sort_by_key(|&(_, number)| std::cmp::Reverse(number));
    sorted
}

/// What the place of both sides means for the measurements.
pub(super) fn place_note(report: &Report) -> Option<&'static str> {
    if report.is_tunnel() {
        return Some(
            "Both sides ran on this machine, clients without sockets (network tunnel): their TCP \
             is part of the generator, which reads and writes packets of a network device. The \
             kernel's memory is the server's half; a sender pays for handing a packet to the \
             device. Compare such measurements only with each other.",
        );
    }
    report.environment.is_loopback.then_some(
        "Both sides ran on this machine: a sender also pays for waking the reader and for the \
         reader's half of TCP. Compare such measurements with each other, not with measurements \
         of a network.",
    )
}

/// Explains the processor time of the whole machine, and names other load: one sentence each.
pub(super) fn machine_notes(machine: &MachineCost) -> Vec<String> {
    let what = "Whole machine: both sides, and what the kernel does for them in its own threads.";
    let mut notes = vec![what.to_owned()];
    if machine.others_s > 0.0 {
        let names = if machine.others.is_empty() {
            String::new()
        } else {
            format!(" ({})", machine.others.join(", "))
        };
        let time = format::seconds(machine.others_s);
        notes.push(format!("Other programs{names} used another {time}, which is not included."));
    }
    if machine.unseen_s > 0.0 {
        let time = format::seconds(machine.unseen_s);
        notes.push(format!(
            "A further {time} of load that this program cannot attribute is not included either; \
             the machine had the same load before the run."
        ));
    }
    notes
}

/// Separates the server's fixed memory from its memory per client, if phases of two sizes allow it;
/// otherwise warns if there were few clients. `None` if memory was not measured.
pub(super) fn memory_note(report: &Report) -> Option<String> {
    let total = &report.total;
    let server = total.server.as_ref()?;
    let end_bytes = server.pss_bytes? as f64;
    let before_bytes = end_bytes - server.bytes_per_client? * total.active as f64;
    let sizes = || {
        report.phases.iter().filter_map(|phase| {
            let bytes = phase.totals.server.as_ref()?.pss_bytes?;
            (phase.totals.active > 0).then_some((phase.totals.active, bytes as f64))
        })
    };
    // The first of several phases of one size: publishing leaves buffers behind.
    let few = sizes().reduce(|one, other| if other.0 < one.0 { other } else { one })?;
    let many = sizes().reduce(|one, other| if other.0 > one.0 { other } else { one })?;
    if many.0 >= few.0 * SIZE_RATIO_MIN {
        let each = (many.1 - few.1) / (many.0 - few.0) as f64;
        let once = few.1 - before_bytes - each * few.0 as f64;
        return (each > 0.0).then(|| {
            format!(
                "Server memory: {} per client, between {} and {} clients; {} before the first \
                 client, and {} once with the first clients.",
                format::bytes(each),
                format::count(few.0),
                format::count(many.0),
                format::bytes(before_bytes),
                format::bytes(once.max(0.0)),
            )
        });
    }
    (total.active < FEW_CLIENTS).then(|| {
        format!(
            "The server's memory per client is its growth from {} divided by the number of \
             clients. With few clients, fixed memory dominates it; two steps tell them apart: \
             --steps {},{}.",
            format::bytes(before_bytes),
            total.active.max(1),
            FEW_CLIENTS.max(total.active * SIZE_RATIO_MIN * 5),
        )
    })
}

/// The offset of an agent's clock, as text.
pub(super) fn clock_text(agent: &AgentReport) -> String {
    match &agent.clock {
        None => "the publisher's".to_owned(),
        Some(ClockReport { ahead_ms, uncertainty_ms, .. }) => {
            format!(
                "{} ahead ± {}",
                signed_milliseconds(*ahead_ms),
                format::milliseconds(*uncertainty_ms)
            )
        }
    }
}

/// Formats milliseconds that may be negative.
pub(crate) fn signed_milliseconds(ms: f64) -> String {
    let sign = if ms < 0.0 { "−" } else { "" };
    format!("{sign}{}", format::milliseconds(ms.abs()))
}

/// How many clients of a storm were told moments, and how long the others took to connect.
pub(super) fn told(phase: &PhaseReport) -> String {
    let Totals { told, connect, .. } = &phase.totals;
    if *told == 0 {
        return String::new();
    }
    let connects = connect.as_ref().map_or_else(String::new, |connect| {
        format!("; connects took {} (p99)", milliseconds(connect.p99))
    });
    format!("; they were told {} moments{connects}", count(*told))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Cost, PhaseReport};

    fn report(sizes: &[(u64, u64)]) -> Report {
        let totals = |&(active, pss_bytes): &(u64, u64)| Totals {
            active,
            server: Some(Cost {
                pss_bytes: Some(pss_bytes),
                bytes_per_client: Some((pss_bytes as f64 - 1e6) / active as f64),
                ..Cost::default()
            }),
            ..Totals::default()
        };
        let phase = |size| PhaseReport { totals: totals(size), ..PhaseReport::default() };
        Report {
            total: sizes.last().map(totals).unwrap_or_default(),
            phases: sizes.iter().map(phase).collect(),
            ..Report::default()
        }
    }

    #[test]
    fn two_sizes_separate_fixed_memory() {
        let text =
            memory_note(&report(&[(1000, 1_560_000), (1000, 1_900_000), (11_000, 2_160_000)]));
        let text = text.expect("two sizes");
        assert!(text.contains("60 B per client, between 1,000 and 11,000"), "{text}");
        assert!(
            text.contains(&format!("{} once with the first clients", format::bytes(500_000.0)))
        );
    }

    #[test]
    fn a_single_small_size_gets_a_hint() {
        let text = memory_note(&report(&[(1000, 1_560_000)])).expect("few");
        assert!(text.contains("growth from") && text.contains("--steps 1000,10000"), "{text}");
        assert_eq!(memory_note(&report(&[(100_000, 7_000_000)])), None);
        assert_eq!(memory_note(&Report::default()), None);
    }

    #[test]
    fn clock_offsets_have_a_sign() {
        let clock = Some(ClockReport { ahead_ms: -12.5, uncertainty_ms: 0.05, drift_ms: None });
        let agent = AgentReport { clock, ..AgentReport::default() };
        assert_eq!(clock_text(&agent), "−12.5 ms ahead ± 50 µs");
        assert_eq!(clock_text(&AgentReport::default()), "the publisher's");
    }
}
