//! The report as JSON. New versions add fields and never rename one.

use serde::Serialize;
use throng_host::environment::Environment;
use throng_host::preflight::{Applied, Check, Setting};

use super::answer::DoctorAnswer;

#[derive(Serialize)]
struct Shown<'a> {
    connections: u32,
    role: &'static str,
    possible: bool,
    /// The lowest of the hard limits.
    capacity: Option<Limit<'a>>,
    checks: Vec<Checked<'a>>,
    /// Present only with `--apply`.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<Vec<Change<'a>>>,
    kernel: String,
    cores: usize,
    /// A control file, `affinity` or `machine`.
    cores_from: String,
    /// The quota of processor time in cores; `null` for none.
    cpu_quota: Option<f64>,
    memory_bytes: u64,
    /// The memory that a program may use; `null` if the system does not say.
    memory_limit_bytes: Option<u64>,
    memory_limit_from: Option<String>,
    /// Of one core, as a server; `null` if no server is to run here.
    tls_handshakes_per_second: Option<Rates>,
}

#[derive(Serialize)]
struct Rates {
    ecdsa_p256: f64,
    rsa_2048: f64,
    resumed: f64,
}

#[derive(Serialize)]
struct Limit<'a> {
    connections: u64,
    because: &'a str,
}

#[derive(Serialize)]
struct Checked<'a> {
    name: &'static str,
    /// `ok`, `unknown`, `should` or `must`.
    verdict: &'static str,
    found: Option<&'a str>,
    needed: &'a str,
    why: &'a str,
    /// The number of connections that this limit allows.
    allows: Option<u64>,
    /// The kernel setting to change; `null` if none helps or all is well.
    change: Option<Demand<'a>>,
    by_hand: &'a [String],
}

#[derive(Serialize)]
struct Demand<'a> {
    setting: &'static str,
    from: &'a str,
    to: &'a str,
    command: String,
}

#[derive(Serialize)]
struct Change<'a> {
    setting: &'static str,
    from: &'a str,
    to: &'a str,
    /// Why the change failed; `null` if it succeeded.
    error: Option<String>,
    undo: String,
}

pub(super) fn text(answer: &DoctorAnswer<'_>) -> serde_json::Result<String> {
    let machine = Environment::read();
    let found = &answer.found;
    let limit = found.limit();
    let shown = Shown {
        connections: answer.connections,
        role: answer.arguments.role.word(),
        possible: found.is_possible(),
        capacity: limit.map(|limit| Limit { connections: limit.allows, because: &limit.because }),
        checks: found.checks.iter().map(checked).collect(),
        applied: answer.applied.as_ref().map(|applied| applied.iter().map(change).collect()),
        kernel: machine.kernel,
        cores: machine.cores,
        cores_from: answer.cores.source.to_string(),
        cpu_quota: answer.cores.quota,
        memory_bytes: machine.memory_bytes,
        memory_limit_bytes: answer.memory.as_ref().map(|memory| memory.bytes),
        memory_limit_from: answer.memory.as_ref().map(|memory| memory.source.to_string()),
        tls_handshakes_per_second: answer.handshakes.map(|found| Rates {
            ecdsa_p256: found.ecdsa_p256,
            rsa_2048: found.rsa_2048,
            resumed: found.resumed,
        }),
    };
    Ok(serde_json::to_string_pretty(&shown)? + "\n")
}

fn checked(check: &Check) -> Checked<'_> {
    Checked {
        name: check.name,
        verdict: check.verdict.word(),
        found: check.found.as_deref(),
        needed: &check.needed,
        why: &check.why,
        allows: check.limit.as_ref().map(|limit| limit.allows),
        change: check.change().map(|setting| {
            let Setting { name, found, value } = setting;
            Demand { setting: name, from: found, to: value, command: setting.command() }
        }),
        by_hand: &check.by_hand,
    }
}

fn change(applied: &Applied) -> Change<'_> {
    let setting = &applied.setting;
    Change {
        setting: setting.name,
        from: &setting.found,
        to: &setting.value,
        error: applied.outcome.as_ref().err().map(ToString::to_string),
        undo: setting.undo(),
    }
}
