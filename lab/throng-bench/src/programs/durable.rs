//! A data directory whose users are away: what it takes, and how long starts on it take.

use std::time::{Duration, Instant};

use super::users;
use crate::context::{Abort, Context};
use crate::file::Run;

/// Inboxes that are read after a start, at most.
const READ: usize = 10_000;

/// The server has settled if it took less than this part of a core since the last look.
const SETTLED_CORES: f64 = 0.05;

const LOOK: Duration = Duration::from_secs(1);

/// How long it may take to settle: what was written goes from one file to another.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Fills `inboxes` for each client, kills the server, starts it, stops it and starts it again.
pub(super) fn inboxes_at_rest(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let clients = context.size.connections;
    let inboxes = clients * run.given("inboxes").unwrap_or(1.0) as usize;
    context.serve(run)?;
    let empty = context.memory();
    context.serve(run)?;
    let begun = Instant::now();
    users::fill(&context.url(), 0..inboxes)?;
    let filled = inboxes as f64 / begun.elapsed().as_secs_f64();
    settle(context)?;
    let written = context.memory();
    let disk = context.directory()?.bytes() / inboxes as f64;
    // The last ones are in the journal alone.
    users::fill(&context.url(), 0..clients)?;
    context.kill_server();
    let is_there = |context: &Context<'_>| users::read(&context.url(), 0..1);
    let killed = started_ms(context, run, is_there)?;
    context.stop_server();
    let clean = started_ms(context, run, is_there)?;
    users::read(&context.url(), (0..inboxes).step_by(inboxes.div_ceil(READ)))?;
    settle(context)?;
    let read = context.memory();
    context.give([
        ("count", Some(inboxes as f64)),
        ("filled", Some(filled)),
        ("disk", Some(disk)),
        ("empty", empty),
        ("written", written),
        ("read", read),
        ("start_killed", Some(killed)),
        ("start_clean", Some(clean)),
    ]);
    Ok(())
}

/// Imports the channels that many more `users` follow than are there, kills the server, starts it,
/// stops it and starts it again.
pub(super) fn subscriptions(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let users = context.size.connections * run.given("users").unwrap_or(1.0) as usize;
    // Nobody has more friends than there are others.
    let edges = run.keep.unwrap_or(1).min(u32::try_from(users - 1).unwrap_or(u32::MAX));
    context.serve(run)?;
    let before = context.memory();
    let begun = Instant::now();
    users::keep(&context.url(), users, edges)?;
    let imported_ms = begun.elapsed().as_secs_f64() * 1e3;
    let imported = context.memory();
    // The last user, who is read last unless requested.
    let is_there = |context: &Context<'_>| users::check_kept(&context.url(), users - 1, edges);
    context.kill_server();
    let killed = started_ms(context, run, is_there)?;
    context.stop_server();
    let begun = Instant::now();
    let clean = started_ms(context, run, is_there)?;
    users::wait_until_all_kept_are_read(&context.url())?;
    let all_read_ms = begun.elapsed().as_secs_f64() * 1e3;
    context.give([
        ("count", Some(users as f64 * f64::from(edges))),
        ("import", Some(imported_ms)),
        ("before", before),
        ("imported", imported),
        ("restarted", context.memory()),
        ("start_killed", Some(killed)),
        ("start_clean", Some(clean)),
        ("all_read", Some(all_read_ms)),
    ]);
    Ok(())
}

/// Starts the server again. Returns the milliseconds until `check` has succeeded.
fn started_ms(
    context: &mut Context<'_>,
    run: &Run,
    check: impl Fn(&Context<'_>) -> Result<(), Abort>,
) -> Result<f64, Abort> {
    let begun = Instant::now();
    context.start(run)?;
    check(context)?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// Waits until the server has nothing to do.
fn settle(context: &mut Context<'_>) -> Result<(), Abort> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    let mut before = context.cpu_s();
    while Instant::now() < deadline {
        context.check()?;
        std::thread::sleep(LOOK);
        let now = context.cpu_s();
        let used = now.zip(before).map(|(now, before)| (now - before) / LOOK.as_secs_f64());
        if used.is_none_or(|cores| cores < SETTLED_CORES) {
            return Ok(());
        }
        before = now;
    }
    context.outcome.warnings.push("the server had not settled when it was measured".to_owned());
    Ok(())
}
