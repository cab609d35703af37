//! A drain of a server whose clients go to another one.
//!
//! Figures: `took` until the server has ended, in milliseconds; `new` and `old`, the 99th
//! percentile of plain requests to the other server and to the one that drains; and the `requests`
//! answered.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::context::{Abort, Context, HELD};
use crate::file::Run;
use crate::requests::{Requests, Response};

/// Requests a second to each server during the drain.
const REQUESTS_PER_S: f64 = 50.0;

/// How often the end of the drain is looked for.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn run(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let old = context.serve_beside(context.benchmark.flags(run))?;
    context.serve(run)?;
    let mut target = context.target(run);
    let url = std::mem::replace(&mut target.url, old.url().to_owned());
    target.failover = vec![url.trim_start_matches("http://").to_owned()];
    let urls = [format!("{url}/health"), format!("{}/health/live", old.url())];
    let (command, time) = (old.drain(), context.size.time);
    let (took, [new, old]) =
        context.load_beside(run, &target, HELD, |is_over| drain(command, urls, time, is_over))?;
    let Some(took) = took else {
        context.outcome.fail("the drain takes longer than the clients are held: see --time");
        return Ok(());
    };
    context.give([
        ("took", Some(took.as_secs_f64() * 1e3)),
        ("new", Some(new.p99_ms)),
        ("old", Some(old.p99_ms)),
        ("requests", Some((new.answered + old.answered) as f64)),
    ]);
    if new.failed > 0 {
        context.outcome.fail(format!("{} requests to the other server failed", new.failed));
    }
    Ok(())
}

/// Drains a server, with requests to both. Returns how long it took, if it ended before the load,
/// and what the servers answered.
fn drain(
    mut command: Command,
    urls: [String; 2],
    time: Duration,
    is_over: &AtomicBool,
) -> Result<(Option<Duration>, [Response; 2]), String> {
    let failed = |error: std::io::Error| format!("throng drain: {error}");
    let since = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    let requests = urls.map(|url| Requests::start(vec![url], REQUESTS_PER_S, time, true));
    let mut ended = None;
    while ended.is_none() && !is_over.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
        ended = child.try_wait().map_err(failed)?;
    }
    let took = ended.map(|_| since.elapsed());
    requests.iter().for_each(Requests::cut_short);
    // It may have ended meanwhile.
    let _ = child.kill();
    let status = child.wait().map_err(failed)?;
    if took.is_some() && !status.success() {
        return Err(format!("throng drain failed: {status}"));
    }
    Ok((took, requests.map(|requests| Requests::end(vec![requests]))))
}
