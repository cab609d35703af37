//! Upgrades of a server whose clients get messages.
//!
//! Figures, one an upgrade: `pause` of delivery in milliseconds, as the server says; `before` and
//! `during`, the memory of the server before, and the most that both processes took.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::users;
use crate::context::{Abort, Context, HELD};
use crate::file::Run;
use crate::server::upgrades::{Upgrade, Upgrades};

/// Upgrades of each server.
const UPGRADES: u32 = 5;

/// Messages of each log, and their size.
const LOG_MESSAGES: usize = 1_000;
const LOG_MESSAGE_BYTES: usize = 1_000;

pub(super) fn run(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    context.serve(run)?;
    fill(&context.url(), run.given("logs").unwrap_or_default() as usize)?;
    let upgrades = context.upgrades();
    let upgrades = upgrades.ok_or_else(|| Abort::Failed("there is no server".to_owned()))?;
    let between = context.size.time / (2 * UPGRADES);
    let target = context.target(run);
    let upgraded = context
        .load_beside(run, &target, HELD, |is_over| run_upgrades(&upgrades, is_over, between))?;
    for upgrade in &upgraded {
        context.give([
            ("pause", Some(upgrade.pause_ms)),
            ("before", upgrade.before_bytes),
            ("during", upgrade.during_bytes),
        ]);
    }
    let done = upgraded.len();
    context.give([("upgrades", Some(done as f64))]);
    let few = || format!("{done} of {UPGRADES} upgrades in the time: give more with --time");
    match done {
        0 => context.outcome.fail(few()),
        _ if done < UPGRADES as usize => context.outcome.warnings.push(few()),
        _ => {}
    }
    Ok(())
}

/// Upgrades the server some times, while its clients are held.
fn run_upgrades(
    upgrades: &Upgrades,
    is_over: &AtomicBool,
    between: Duration,
) -> Result<Vec<Upgrade>, String> {
    let mut done = Vec::new();
    for _ in 0..UPGRADES {
        thread::sleep(between);
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        done.push(upgrades.upgrade()?);
    }
    Ok(done)
}

/// Publishes to `logs` channels that nobody follows.
fn fill(url: &str, logs: usize) -> Result<(), Abort> {
    let data = "x".repeat(LOG_MESSAGE_BYTES);
    let line = |n: usize| format!("{{\"channel\":\"log-{}\",\"data\":\"{data}\"}}", n % logs);
    users::post(&format!("{url}/publish"), 0..logs * LOG_MESSAGES, line, |_, _| true)
}
