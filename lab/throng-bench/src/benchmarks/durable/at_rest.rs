//! Inboxes whose users are away: what they take, and how long starts on them take.

use std::time::{Duration, Instant};

use super::super::users;
use super::super::values::more;
use super::directory::Directory;
use crate::context::{Abort, Context};

/// Inboxes for each client of the run.
const INBOXES_PER_CLIENT: usize = 100;

/// Inboxes that are read after a start, at most.
const READ: usize = 10_000;

/// The server has settled if it took less than this part of a core since the last look.
const SETTLED_CORES: f64 = 0.05;

const LOOK: Duration = Duration::from_secs(1);

/// How long it may take to settle: what was written goes from one file to another.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let inboxes = context.size.connections * INBOXES_PER_CLIENT;
    let empty = Directory::make()?;
    empty.serve(context, &[])?;
    let before = context.memory();
    drop(empty);

    let directory = Directory::make()?;
    directory.serve(context, &[])?;
    let begin = Instant::now();
    users::fill(&context.url(), 0..inboxes)?;
    let filled = inboxes as f64 / begin.elapsed().as_secs_f64();
    settle(context)?;
    let written = context.memory();
    let disk = directory.bytes() / inboxes as f64;
    // The last ones are in the journal alone.
    users::fill(&context.url(), 0..inboxes / INBOXES_PER_CLIENT)?;
    context.kill_server();
    let killed = started(context, &directory)?;
    context.stop_server();
    let clean = started(context, &directory)?;
    let step = inboxes.div_ceil(READ);
    users::read(&context.url(), (0..inboxes).step_by(step))?;
    settle(context)?;
    let read = context.memory();
    context.stop_server();

    context.record_all(
        [
            ("inboxes", Some(inboxes as f64)),
            ("filled", Some(filled)),
            ("disk", Some(disk)),
            ("rest_written", more(written, before)),
            ("rest_read", more(read, before)),
            ("start_killed", Some(killed)),
            ("start_clean", Some(clean)),
        ],
        context.size.connections,
    );
    let columns = ["inboxes", "empty directory, bytes", "written, bytes", "read, bytes"];
    let row = vec![Some(inboxes as f64), before, written, read];
    context.table("Memory of the server", &columns, vec![row]);
    Ok(())
}

/// Starts a server, which answers with a message. Returns how long that took, in milliseconds.
fn started(context: &mut Context<'_>, directory: &Directory) -> Result<f64, Abort> {
    let begin = Instant::now();
    directory.serve(context, &[])?;
    users::read(&context.url(), 0..1)?;
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}

/// Waits until the server has nothing to do.
fn settle(context: &mut Context<'_>) -> Result<(), Abort> {
    let deadline = Instant::now() + SETTLE_TIMEOUT;
    let mut before = context.cpu_s();
    while Instant::now() < deadline {
        context.check()?;
        std::thread::sleep(LOOK);
        let now = context.cpu_s();
        if more(now, before).is_none_or(|cores| cores / LOOK.as_secs_f64() < SETTLED_CORES) {
            return Ok(());
        }
        before = now;
    }
    context.outcome.warnings.push("the server had not settled when it was measured".to_owned());
    Ok(())
}
