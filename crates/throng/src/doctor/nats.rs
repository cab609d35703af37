//! `throng doctor --nats`: whether nodes can use servers of NATS, and what must change.
//!
//! | module | contents |
//! |---|---|
//! | `arguments` | the flags |
//! | `findings` | what was found out |
//! | `examine` | asks the servers |
//! | `checks` | judges what was found |
//! | this file | the command and its output |

mod arguments;
mod checks;
mod examine;
mod findings;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use throng_host::preflight::{Check, CheckVerdict};
use throng_units::format::counted;
use throng_units::paint::{Ink, Paint};

use super::table::table;
use crate::client::{Client, ServerUrl, TrustArguments};
use crate::journals;
use crate::journals::nats::{self, NatsAccess};
use crate::settings;
use crate::terminal;

pub(crate) use arguments::NatsArguments;
use checks::WantedSettings;
use examine::ExaminePlan;
use findings::{Findings, Monitor};

/// Time for the monitoring of a server to answer.
const MONITOR: Duration = Duration::from_secs(5);

/// Checks the servers and prints the report. The exit code is 0 if a node can use them, and 1 if
/// something must change first.
pub(super) fn doctor(
    arguments: &NatsArguments,
    connections: Option<u32>,
    is_json: bool,
) -> Result<ExitCode> {
    let settings = arguments.settings()?;
    let access = NatsAccess::of(&settings);
    journals::check(&settings)?.iter().for_each(|warning| terminal::print_note(warning));
    let stream = nats::stream(&settings, &settings::rules(&settings));
    let given = arguments.channels.is_some() || connections.is_some();
    let of = |number: Option<u32>| number.unwrap_or(0) as usize;
    let followed = given.then(|| of(arguments.channels) + of(connections));
    let plan = ExaminePlan {
        followed,
        servers: settings.nats.addresses(),
        login: access.login(),
        tls: access.tls(),
        tables: nats::tables(&settings, &stream),
        stream,
        nonce: nats::nonce(),
        store: arguments.nats_store,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut found = runtime.block_on(examine::examine(&plan));
    found.monitor = arguments.nats_monitor.as_ref().map(monitor);
    let message_bytes = settings.max_message_bytes.0;
    let wanted = WantedSettings { stream: &plan.stream, message_bytes, followed };
    let checks = checks::checks(&found, &wanted);
    let is_usable = !checks.iter().any(|check| check.verdict == CheckVerdict::Must);
    terminal::print(&if is_json {
        serde_json::to_string_pretty(&report(&found, &checks, is_usable))? + "\n"
    } else {
        shown(&found, &checks, plan.store.is_some(), Paint::on(&std::io::stdout()))
    })?;
    Ok(if is_usable { ExitCode::SUCCESS } else { terminal::EXIT_RUNTIME.into() })
}

/// Asks the monitoring of a server. It needs no login, and gets none.
fn monitor(url: &ServerUrl) -> Result<Monitor, String> {
    let ask = || -> Result<Value> {
        let client = Client::new(url, &TrustArguments::default(), None, None)?;
        let request = client.get(client.at("/varz")).config().timeout_global(Some(MONITOR)).build();
        let mut response = request.call().map_err(|error| client.unreachable(&error))?;
        Ok(serde_json::from_str(&response.body_mut().read_to_string()?)?)
    };
    let varz = ask().map_err(|error| format!("{error:#}"))?;
    Monitor::of(&varz).ok_or_else(|| "it does not answer like the monitoring of NATS".into())
}

/// The report for programs. New versions add fields and never rename one.
fn report(found: &Findings, checks: &[Check], is_usable: bool) -> Value {
    let checks = checks.iter().map(|check| {
        json!({
            "name": check.name,
            "verdict": check.verdict.word(),
            "found": check.found,
            "needed": check.needed,
            "why": check.why,
            "by_hand": check.by_hand,
        })
    });
    let times = |times: &[Duration]| {
        let (median, worst) = checks::median_and_worst(times);
        json!({ "median_ms": millis(median), "worst_ms": millis(worst), "count": times.len() })
    };
    let examined = found.examined.as_ref();
    let stored = examined.and_then(|examined| examined.stored.as_ref()?.as_ref().ok());
    json!({
        "usable": is_usable,
        "server": examined.map(|examined| &examined.address),
        "version": examined.map(|examined| &examined.version),
        "checks": checks.collect::<Vec<_>>(),
        "round_trip": examined.map(|examined| times(&examined.round_trips)),
        "stored": stored.map(|stored| times(&stored.stored)),
        "republished": stored.map(|stored| times(&stored.delivered)),
        "clock_ahead_ms": examined.and_then(|examined| examined.ahead_ms),
    })
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// The report for people: verdict, checks, what to do.
fn shown(found: &Findings, checks: &[Check], has_stored: bool, paint: Paint) -> String {
    let number = |verdict| checks.iter().filter(|check| check.verdict == verdict).count() as u64;
    let (must, should) = (number(CheckVerdict::Must), number(CheckVerdict::Should));
    let server = found.examined.as_ref().map(|examined| examined.address.as_str());
    let server = server.unwrap_or("these servers");
    let things = |count| counted(count, "thing", "things");
    let (ink, verdict) = match (must, should) {
        (0, 0) => (Ink::GOOD, format!("nodes can use NATS at {server}")),
        (0, _) => {
            let text = format!("nodes can use NATS at {server}; {} should change", things(should));
            (Ink::WARNING, text)
        }
        _ => {
            let more = if should > 0 { format!(", {should} should") } else { String::new() };
            let must = things(must);
            (Ink::BAD, format!("nodes cannot use NATS at {server} yet: {must} must change{more}"))
        }
    };
    let done = if has_stored {
        "Compared with the settings of a node here; messages were stored, nothing else changed."
    } else {
        "Compared with the settings of a node here; nothing was stored, created or changed."
    };
    let mut report = format!("{}\n{}\n\n", paint.ink(ink, verdict), paint.ink(Ink::Dim, done));
    report.push_str(&table(checks, paint));
    let by_hand: Vec<&String> = checks.iter().flat_map(|check| &check.by_hand).collect();
    if !by_hand.is_empty() {
        report.push_str("\nBy hand:\n");
        by_hand.iter().for_each(|line| {
            let _ = writeln!(report, "  {line}");
        });
    }
    report
}
