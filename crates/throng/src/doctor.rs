//! `throng doctor`: whether this machine can hold N connections, and what must change. Without a
//! number, how many connections it can hold.
//!
//! [`throng_host::preflight`] has the checks; this module has the command line and the output.
//!
//! | module | contents |
//! |---|---|
//! | [`arguments`] | the flags, and the requirements that follow |
//! | `handshakes` | how many TLS handshakes a second this machine can do |
//! | `answer` | what a report shows |
//! | `table` | checks as a table |
//! | `text` | the report for people |
//! | `json` | the report for programs |
//! | [`nats`] | whether nodes can use servers of NATS, in place of all that |
//! | this file | the command, and the kernel settings as a file for `/etc/sysctl.d` |

mod answer;
mod arguments;
mod handshakes;
mod json;
mod nats;
mod table;
mod text;

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use throng_host::limits::{Cores, MemoryMeter};
use throng_host::preflight::{self, Capacity, Preflight, Setting};
use throng_units::paint::Paint;

use crate::terminal;

use answer::DoctorAnswer;
pub(crate) use arguments::Arguments;
use arguments::Role;
use handshakes::Handshakes;

/// Checks this machine, applies changes if requested, and prints the report. The exit code is 0 if
/// the connections are possible, and 1 if something must change first.
pub(crate) fn doctor(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.nats.nats.is_some() {
        return nats::doctor(&arguments.nats, arguments.connections, arguments.json);
    }
    if let Some(fault) = arguments.fault() {
        terminal::print_error(&fault);
        return Ok(terminal::EXIT_USAGE.into());
    }
    let most = arguments.connections.unwrap_or(u32::MAX);
    // Read once: free memory changes, and the report must match the calculated number.
    let capacity = Capacity::read(&arguments.demand(most.into()));
    let connections = arguments.connections.unwrap_or_else(|| what_fits(&capacity, arguments));
    let demand = arguments.demand(connections.into());
    let mut found = capacity.check(&demand);
    if arguments.sysctl_file {
        terminal::print(&sysctl_file(arguments, connections, &found))?;
        return Ok(ExitCode::SUCCESS);
    }
    let applied = arguments.apply.then(|| preflight::apply(&found));
    if applied.is_some() {
        found = preflight::check(&demand);
    }
    let is_possible = found.is_possible();
    let has_server = arguments.role != Role::Clients;
    let handshakes = if has_server { Handshakes::measure() } else { None };
    let memory = MemoryMeter::new(None).map(|meter| meter.limit().clone());
    let cores = Cores::read();
    let answer = DoctorAnswer { arguments, connections, cores, memory, found, applied, handshakes };
    terminal::print(&if arguments.json {
        json::text(&answer)?
    } else {
        text::text(&answer, Paint::on(&std::io::stdout()))
    })?;
    Ok(if is_possible { ExitCode::SUCCESS } else { terminal::EXIT_RUNTIME.into() })
}

/// The most connections that fit, to three digits: free memory is no more exact.
fn what_fits(capacity: &Capacity, arguments: &Arguments) -> u32 {
    let fits = capacity.fits(u32::MAX.into(), |connections| arguments.demand(connections));
    let digits = fits.checked_ilog10().unwrap_or(0).saturating_sub(2);
    let unit = 10_u64.pow(digits);
    (fits / unit * unit) as u32
}

/// A file for `/etc/sysctl.d` with the kernel settings that must or should change. Those that are
/// already sufficient are comments, so that a second run still lists them.
fn sysctl_file(arguments: &Arguments, connections: u32, found: &Preflight) -> String {
    let role = arguments.role.word();
    let mut text = format!("# Kernel settings for {connections} connections, role {role}.\n");
    let _ = writeln!(text, "# Made by: {} --sysctl-file", arguments.command(connections));
    // An empty value is the kernel's default.
    let settings = found.checks.iter().filter_map(|check| check.setting.as_ref());
    let settings: Vec<&Setting> = settings.filter(|setting| !setting.value.is_empty()).collect();
    let (short, enough): (Vec<&Setting>, Vec<_>) =
        settings.into_iter().partition(|setting| setting.is_short());
    if short.is_empty() {
        text.push_str("# Nothing has to change.\n");
    }
    for Setting { name, value, .. } in short {
        let _ = writeln!(text, "{name} = {value}");
    }
    for Setting { name, value, .. } in enough {
        let _ = writeln!(text, "# enough already: {name} = {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use throng_host::preflight::Demand;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn file(capacity: &Capacity) -> String {
        let line = Line::try_parse_from(["doctor", "-n", "1k"]).expect("valid");
        sysctl_file(&line.arguments, 1000, &capacity.check(&Demand::server(1000)))
    }

    #[test]
    fn the_file_sets_only_what_must_change() {
        let head = "# Kernel settings for 1000 connections, role server.\n\
                    # Made by: throng doctor --connections 1k --sysctl-file\n";
        let capacity = |somaxconn| Capacity {
            somaxconn: Some(somaxconn),
            files_max: Some(2_466_177),
            ..Capacity::default()
        };
        assert_eq!(
            file(&capacity(64)),
            format!("{head}net.core.somaxconn = 1024\n# enough already: fs.file-max = 2466177\n")
        );
        let enough = file(&capacity(4096));
        assert!(enough.starts_with(&format!("{head}# Nothing has to change.\n")), "{enough}");
        assert!(enough.lines().all(|line| line.starts_with('#')), "{enough}");
    }
}
