//! Who follows whom, for many more users than are there: its import, its memory, a start on it.

use std::time::Instant;

use super::super::users;
use super::super::values::more;
use super::directory::Directory;
use crate::context::{Abort, Context};

/// Users for each client of the run.
const USERS_PER_CLIENT: usize = 10;

/// Channels that each of them follows.
const EDGES: u32 = 15;

pub(super) fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let count = context.size.connections * USERS_PER_CLIENT;
    // Nobody has more friends than there are others.
    let edges = EDGES.min(u32::try_from(count - 1).unwrap_or(u32::MAX));
    let directory = Directory::make()?;
    directory.serve(context, &[])?;
    let before = context.memory();
    let begin = Instant::now();
    users::keep(&context.url(), 0..count, |user| users::friends(count, user, edges))?;
    let imported_ms = begin.elapsed().as_secs_f64() * 1e3;
    let memory = more(context.memory(), before);
    context.stop_server();
    let begin = Instant::now();
    directory.serve(context, &[])?;
    users::check_kept(&context.url(), count - 1, edges)?;
    let started_ms = begin.elapsed().as_secs_f64() * 1e3;
    let restarted = more(context.memory(), before);
    context.stop_server();
    context.record_all(
        [
            ("edges", Some(count as f64 * f64::from(edges))),
            ("edges_import", Some(imported_ms)),
            ("edges_memory", memory),
            ("edges_memory_restarted", restarted),
            ("edges_start", Some(started_ms)),
        ],
        context.size.connections,
    );
    Ok(())
}
