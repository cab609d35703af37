//! Memory and processor time of connections with tokens and without.

use std::time::Duration;

use throng_flood::plan::{Phase, Transport};
use throng_flood::report::{PhaseReport, Report};

use super::super::values::{mean, more, share};
use crate::context::{Abort, Context, Load, QUIET};
use crate::flood::{bytes_per_client, hold, ramp};
use crate::keys::{Algorithm, Keys};

/// How long clients are held before they lose their connections.
const HOLD: Duration = Duration::from_secs(2);

/// Time limit for all clients to be back.
const RETURN_TIMEOUT: Duration = Duration::from_secs(300);

/// HS256 tokens that the server remembers.
const HS256_CACHED: usize = 1_000;

const CHANNEL: &str = "/channels/everyone";

/// How many times all clients connect.
pub(super) const ROUNDS: u32 = CASES.len() as u32;

/// One kind of server and clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    algorithm: Option<Algorithm>,
    /// Whether each connection follows the inbox of a user of its own.
    has_inbox: bool,
}

const OPEN: Case = Case { algorithm: None, has_inbox: false };
const USER: Case = Case { has_inbox: true, ..OPEN };
const HS256: Case = Case { algorithm: Some(Algorithm::Hs256), has_inbox: false };
const HS256_USER: Case = Case { has_inbox: true, ..HS256 };
const ES256: Case = Case { algorithm: Some(Algorithm::Es256), has_inbox: false };

/// All cases, then in the opposite order, so that a drift of the machine cancels.
const CASES: [Case; 10] =
    [OPEN, USER, HS256, HS256_USER, ES256, ES256, HS256_USER, HS256, USER, OPEN];

/// Results of a case.
#[derive(Debug, Clone, Copy, Default)]
struct Values {
    /// Memory of the server per connection.
    memory: Option<f64>,
    /// The server's processor time per connect.
    connect_ms: Option<f64>,
    /// The server's processor time per client that loses its connection and returns.
    return_cpu_ms: Option<f64>,
    /// Time until all clients are back.
    return_ms: Option<f64>,
}

pub(super) fn run(context: &mut Context<'_>, keys: &Keys) -> Result<(), Abort> {
    let mut found = Vec::new();
    for case in CASES {
        found.push((case, measure(context, keys, case)?));
    }
    record(context, &found);
    Ok(())
}

fn measure(context: &mut Context<'_>, keys: &Keys, case: Case) -> Result<Values, Abort> {
    let clients = context.size.connections;
    let tokens = match case.algorithm {
        Some(algorithm) => {
            // Those of HS256 cost little to verify again, and would be counted as memory of
            // connections.
            let cached = if algorithm == Algorithm::Es256 { 2 * clients } else { HS256_CACHED };
            let cached = format!("max-cached-tokens = {cached}");
            let settings = keys.settings(algorithm, &cached).map_err(Abort::Failed)?;
            context.serve_with(&settings, QUIET)?;
            Some(keys.tokens(algorithm).map_err(Abort::Failed)?)
        }
        None => {
            context.serve(QUIET)?;
            None
        }
    };
    let path = if case.has_inbox { format!("{CHANNEL}?user=user-{{i}}") } else { CHANNEL.into() };
    let load =
        Load { path: Some(&path), tokens: tokens.as_ref(), ..Load::of(Transport::WebSocket) };
    let storm = Phase::Storm { timeout: RETURN_TIMEOUT, publish: None };
    let report = context.flood(&load, vec![ramp(clients), hold(HOLD, None), storm])?;
    Ok(read(&report, clients))
}

fn read(report: &Report, clients: usize) -> Values {
    let Some([ramp, _, storm]) = report.phases.first_chunk::<3>() else { return Values::default() };
    let cpu_ms = |phase: &PhaseReport| {
        Some(phase.totals.server.as_ref()?.cpu_s * 1e3 / clients.max(1) as f64)
    };
    Values {
        memory: bytes_per_client(ramp),
        connect_ms: cpu_ms(ramp),
        return_cpu_ms: cpu_ms(storm),
        return_ms: storm.recovered_s.map(|seconds| seconds * 1e3),
    }
}

fn record(context: &mut Context<'_>, found: &[(Case, Values)]) {
    let of = |case: Case, value: fn(&Values) -> Option<f64>| {
        mean(found.iter().filter(|(each, _)| *each == case).map(|(_, values)| value(values)))
    };
    let memory = |case| of(case, |values| values.memory);
    let connect = |case| of(case, |values| values.connect_ms);
    let again = |case| of(case, |values| values.return_cpu_ms);
    let back = |case| of(case, |values| values.return_ms);
    context.record_all(
        [
            ("memory_open", memory(OPEN)),
            ("memory_token_more", more(memory(HS256), memory(OPEN))),
            ("memory_user", memory(USER)),
            ("memory_user_token_more", more(memory(HS256_USER), memory(USER))),
            ("connect_open", connect(OPEN)),
            ("connect_hs256_more", more(connect(HS256), connect(OPEN))),
            ("connect_es256_more", more(connect(ES256), connect(OPEN))),
            ("again_es256_more", more(again(ES256), again(OPEN))),
            ("return_open", back(OPEN)),
            ("return_es256_share", share(back(ES256), back(OPEN))),
        ],
        context.size.connections,
    );
    let columns = [
        "none (0), HS256 (1), ES256 (2)",
        "inbox of a user (1)",
        "memory per connection",
        "CPU per connect, ms",
        "CPU per return, ms",
        "all back after, ms",
    ];
    let row = |(case, values): &(Case, Values)| {
        let algorithm = match case.algorithm {
            None => 0.0,
            Some(Algorithm::Hs256) => 1.0,
            Some(Algorithm::Es256) => 2.0,
        };
        vec![
            Some(algorithm),
            Some(f64::from(u8::from(case.has_inbox))),
            values.memory,
            values.connect_ms,
            values.return_cpu_ms,
            values.return_ms,
        ]
    };
    context.table("Connections, each run", &columns, found.iter().map(row).collect());
}
