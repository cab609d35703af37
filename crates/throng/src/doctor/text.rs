//! The report for people: verdict, changes, checks, what to do.

use std::fmt::Write as _;

use throng_host::preflight::{Applied, Check, CheckVerdict, Setting};
use throng_units::format::{bytes, count, counted, seconds};
use throng_units::paint::{Ink, Paint};

use super::answer::DoctorAnswer;
use super::arguments::{Arguments, Role};
use super::table::table;

/// Measured with server and clients on the same two cores: docs/benchmarks.md, the step of
/// a million.
const CONNECTS_PER_SECOND: f64 = 28_844.0;
const DELIVERIES_PER_SECOND: f64 = 175_308.0;

/// Fewer connections connect within two seconds; more have not been measured.
const WORTH_TELLING: std::ops::RangeInclusive<u32> = 50_000..=2_000_000;

pub(super) fn text(answer: &DoctorAnswer<'_>, paint: Paint) -> String {
    let mut text = format!("{}\n{}\n", verdict(answer, paint), assumption(answer.arguments, paint));
    let _ = writeln!(text, "{}", paint.ink(Ink::Dim, limits(answer)));
    if let Some(applied) = &answer.applied {
        text.push_str(&changes(applied, paint));
    }
    text.push('\n');
    text.push_str(&table(&answer.found.checks, paint));
    text.push('\n');
    text.push_str(&what_to_do(answer));
    text.push_str(&closing(answer));
    text
}

/// The first line: whether the connections are possible.
fn verdict(answer: &DoctorAnswer<'_>, paint: Paint) -> String {
    let found = &answer.found;
    let number = |verdict| found.with(verdict).count() as u64;
    let connections = u64::from(answer.connections);
    let connections = match answer.arguments.connections {
        Some(_) => counted(connections, "connection is", "connections are"),
        None => format!("up to {}", counted(connections, "connection is", "connections are")),
    };
    let should = number(CheckVerdict::Should);
    let unknown = match number(CheckVerdict::Unknown) {
        0 => "",
        _ => ", as far as can be read",
    };
    let (ink, line) = match number(CheckVerdict::Must) {
        0 if should == 0 => (Ink::GOOD, format!("{connections} possible here{unknown}")),
        0 => {
            let things = counted(should, "thing", "things");
            (Ink::WARNING, format!("{connections} possible here{unknown}; {things} should change"))
        }
        must => {
            let must = counted(must, "thing", "things");
            let more = if should > 0 { format!(", {should} should") } else { String::new() };
            (Ink::BAD, format!("{connections} not possible here yet: {must} must change{more}"))
        }
    };
    paint.ink(ink, line).to_string()
}

/// The assumptions of the report, and the flags that change them.
fn assumption(arguments: &Arguments, paint: Paint) -> String {
    let (here, other, another) = match arguments.role {
        Role::Server => ("the server runs here and its clients elsewhere", "clients", "both"),
        Role::Clients => ("the clients run here and their server elsewhere", "server", "both"),
        Role::Both => ("the server and its clients run here", "server", "clients"),
    };
    let broadcast = if arguments.no_broadcast {
        "no message goes to all connections at once"
    } else {
        "a message may go to all connections at once (or --no-broadcast)"
    };
    let others = format!("(or --role {other}, --role {another})");
    paint.ink(Ink::Dim, format!("Assumes that {here} {others},\nand that {broadcast}.")).to_string()
}

/// Resource limits of programs here, and their sources.
fn limits(answer: &DoctorAnswer<'_>) -> String {
    let cores = &answer.cores;
    let quota = match cores.quota {
        Some(quota) => format!(", a quota of {quota:.2}"),
        None => String::new(),
    };
    let memory = answer.memory.as_ref().map_or("unknown".to_owned(), |memory| {
        format!("{} ({})", bytes(memory.bytes as f64), memory.source)
    });
    let cores =
        counted(cores.count as u64, "core", "cores") + &format!("{quota} ({})", cores.source);
    format!("Limits here: {cores}; memory {memory}.")
}

fn changes(applied: &[Applied], paint: Paint) -> String {
    let (done, failed): (Vec<_>, Vec<_>) =
        applied.iter().partition(|applied| applied.outcome.is_ok());
    let mut text = String::new();
    if applied.is_empty() {
        text.push_str("\n--apply found nothing to change.\n");
    }
    if !done.is_empty() {
        text.push_str("\nChanged, until the next reboot:\n");
    }
    for Setting { name, found, value } in done.iter().map(|applied| &applied.setting) {
        let was = if found.is_empty() { "nothing" } else { found };
        let _ = writeln!(text, "  {name}: was {was}, is {}", paint.ink(Ink::GOOD, value));
    }
    if !done.is_empty() {
        text.push_str("To undo:\n");
    }
    for applied in &done {
        let _ = writeln!(text, "  {}", applied.setting.undo());
    }
    if !done.is_empty() {
        text.push_str(
            "To keep it after a reboot, put these lines into /etc/sysctl.d/90-throng.conf:\n",
        );
    }
    for Setting { name, value, .. } in done.iter().map(|applied| &applied.setting) {
        let _ = writeln!(text, "  {name} = {value}");
    }
    if !failed.is_empty() {
        text.push_str("\nNot changed:\n");
    }
    for Applied { setting, outcome } in failed {
        let Err(error) = outcome else { continue };
        let _ = writeln!(text, "  {}: {}", setting.name, paint.ink(Ink::BAD, error));
    }
    text
}

fn what_to_do(answer: &DoctorAnswer<'_>) -> String {
    let checks = &answer.found.checks;
    let commands: Vec<String> =
        checks.iter().filter_map(Check::change).map(Setting::command).collect();
    let by_hand: Vec<&String> = checks.iter().flat_map(|check| &check.by_hand).collect();
    let command = answer.arguments.command(answer.connections);
    let mut text = String::new();
    if !commands.is_empty() {
        let apply = match answer.applied {
            Some(_) => String::new(),
            None => format!(" (or: sudo {command} --apply)"),
        };
        let _ = writeln!(text, "Run as root{apply}:");
        commands.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    if !by_hand.is_empty() {
        text.push_str("By hand:\n");
        by_hand.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    if !commands.is_empty() {
        text.push_str("To keep it after a reboot, as root:\n");
        let _ = writeln!(text, "  {command} --sysctl-file > /etc/sysctl.d/90-throng.conf");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// The most connections possible, and how long they take to connect and to receive a message.
fn closing(answer: &DoctorAnswer<'_>) -> String {
    let mut text = String::new();
    let connections = answer.connections;
    let _ = writeln!(text, "{}.", answer.found.summary());
    if answer.arguments.connections.is_none() {
        let more = answer.arguments.command(connections.saturating_mul(2));
        let _ = writeln!(text, "To check for twice as many: {more}");
    }
    if WORTH_TELLING.contains(&connections) {
        let at = |rate: f64| seconds(f64::from(connections) / rate);
        let _ = writeln!(
            text,
            "As measured on two cores with both ends on them (docs/benchmarks.md), {} connect\n\
             in {}, and a message reaches all in {}.",
            count(connections.into()),
            at(CONNECTS_PER_SECOND),
            at(DELIVERIES_PER_SECOND),
        );
    }
    if let Some(handshakes) = &answer.handshakes {
        text.push_str(&handshakes.text());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use throng_host::limits::{Cores, LimitSource, MemoryLimit};
    use throng_host::preflight::{ApplyError, AvailableMemory, Capacity, Demand};

    use super::super::nats::NatsArguments;
    use super::*;

    fn arguments(connections: u32) -> Arguments {
        Arguments {
            connections: Some(connections),
            role: Role::Server,
            port: 8080,
            addresses: None,
            target_ports: None,
            no_broadcast: false,
            apply: false,
            json: false,
            sysctl_file: false,
            nats: NatsArguments::default(),
        }
    }

    fn capacity() -> Capacity {
        Capacity {
            descriptors: Some(20_000),
            files_max: Some(200_000),
            somaxconn: Some(128),
            memory: Some(AvailableMemory { bytes: 20 << 30, group: None }),
            ..Capacity::default()
        }
    }

    fn shown(capacity: &Capacity, applied: Option<Vec<Applied>>) -> String {
        let arguments = arguments(1_000_000);
        let found = capacity.check(&Demand::server(1_000_000));
        let answer = DoctorAnswer {
            arguments: &arguments,
            connections: 1_000_000,
            cores: Cores {
                count: 1,
                quota: Some(0.5),
                source: LimitSource::Group("cpu.max".into()),
            },
            memory: Some(MemoryLimit { bytes: 64 << 20, source: LimitSource::Machine }),
            found,
            applied,
            handshakes: None,
        };
        text(&answer, Paint::plain())
    }

    #[test]
    fn the_limits_of_a_container_are_shown_with_what_says_so() {
        let expected = "Limits here: 1 core, a quota of 0.50 (cpu.max); memory 64.0 MiB (machine).";
        assert!(shown(&capacity(), None).contains(expected));
    }

    #[test]
    fn the_verdict_comes_first_and_then_the_worst_checks() {
        let text = shown(&capacity(), None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "1,000,000 connections are not possible here yet: 1 thing must change, 1 should"
        );
        let verdicts: Vec<&str> = lines
            .iter()
            .filter_map(|line| line.split("  ").next())
            .map(str::trim)
            .filter(|word| ["must", "should", "unknown", "ok"].contains(word))
            .collect();
        assert_eq!((verdicts[0], verdicts[1]), ("must", "should"));
        assert_eq!(verdicts.last(), Some(&"ok"));
        for expected in [
            "  sysctl -w fs.file-max=1125000",
            "  sysctl -w net.core.somaxconn=4096",
            "Run as root (or: sudo throng doctor --connections 1M --apply):",
            "200,000 connections fit: 200,000 more files in the whole system.",
        ] {
            assert!(lines.contains(&expected), "{expected} is not in {text}");
        }
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn an_unknown_value_is_not_reported_as_ok() {
        let text = shown(&Capacity::default(), None);
        assert!(
            text.starts_with("1,000,000 connections are possible here, as far as can be read\n")
        );
        assert!(!text.lines().any(|line| line.starts_with("ok")), "{text}");
    }

    #[test]
    fn changes_are_reported_with_commands_to_undo_them() {
        let setting = |found: &str, value: &str| Setting {
            name: "net.core.somaxconn",
            found: found.to_owned(),
            value: value.to_owned(),
        };
        let refused = ApplyError::Refused(io::Error::other("no"));
        let applied = vec![
            Applied { setting: setting("128", "4096"), outcome: Ok(()) },
            Applied { setting: setting("1", "2"), outcome: Err(refused) },
        ];
        let text = shown(&capacity(), Some(applied));
        for expected in [
            "  net.core.somaxconn: was 128, is 4096\n",
            "To undo:\n  sysctl -w net.core.somaxconn=128\n",
            "into /etc/sysctl.d/90-throng.conf:\n  net.core.somaxconn = 4096\n",
            "Not changed:\n  net.core.somaxconn: the kernel refused it: no\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        assert!(!text.contains("--apply"), "{text}");
        assert!(shown(&capacity(), Some(Vec::new())).contains("found nothing to change"));
    }
}
