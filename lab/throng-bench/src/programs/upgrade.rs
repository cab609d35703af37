//! Upgrades of a server whose clients get messages.
//!
//! Figures, one an upgrade: `pause` of delivery in milliseconds, as the server says; `before` and
//! `during`, the memory of the server before, and the most that both processes took.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::users;
use crate::context::{Abort, Context, Watch};
use crate::file::Run;
use crate::server::upgrades::{Upgrade, Upgrades};

/// Upgrades of each server.
const UPGRADES: u32 = 5;

/// Messages of each log, and their size.
const LOG_MESSAGES: usize = 1_000;
const LOG_MESSAGE_BYTES: usize = 1_000;

/// The phase that holds the clients.
const HELD: usize = 2;

pub(super) fn run(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    context.serve(run)?;
    fill(&context.url(), run.given("logs").unwrap_or_default() as usize)?;
    let upgrades = context.upgrades();
    let upgrades = upgrades.ok_or_else(|| Abort::Failed("there is no server".to_owned()))?;
    let (begin, begun) = mpsc::channel::<()>();
    let is_over = Arc::new(AtomicBool::new(false));
    let (between, ends) = (context.size.time / (2 * UPGRADES), Arc::clone(&is_over));
    let upgrading = thread::spawn(move || {
        // Nothing is sent: it begins when the other end is closed.
        let _ = begun.recv();
        run_upgrades(&upgrades, &ends, between)
    });
    let mut held = Held(Some(begin));
    let report = context.load_watched(run, &context.target(run), &mut held);
    is_over.store(true, Ordering::Relaxed);
    drop(held);
    let upgraded = upgrading.join().unwrap_or_else(|_| Err("the thread has panicked".to_owned()));
    let (upgraded, _) = (upgraded?, report?);
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

/// Closes its end once the clients are held.
struct Held(Option<mpsc::Sender<()>>);

impl Watch for Held {
    fn on_second(&mut self, phase: usize) {
        self.0 = self.0.take().filter(|_| phase < HELD);
    }
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
