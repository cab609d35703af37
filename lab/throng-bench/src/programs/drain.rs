//! A drain of a server whose clients go to another one.
//!
//! Figures: `took` until the server has ended, in milliseconds; `new` and `old`, the 99th
//! percentile of plain requests to the other server and to the one that drains; and the `requests`
//! answered.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::context::{Abort, Context, Watch};
use crate::file::Run;
use crate::requests::{Requests, Response};

/// Requests a second to each server during the drain.
const REQUESTS_PER_S: f64 = 50.0;

/// The phase that holds the clients.
const HELD: usize = 2;

pub(super) fn run(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let old = context.serve_beside(context.benchmark.flags(run))?;
    context.serve(run)?;
    let mut target = context.target(run);
    let url = std::mem::replace(&mut target.url, old.url().to_owned());
    target.failover = vec![url.trim_start_matches("http://").to_owned()];
    let mut drain = Drain {
        command: old.drain(),
        urls: [format!("{url}/health"), format!("{}/health/live", old.url())],
        time: context.size.time,
        running: None,
        took: None,
    };
    let report = context.load_watched(run, &target, &mut drain);
    let drained = drain.end();
    let ((took, [new, old]), _) = (drained?, report?);
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

/// A drain, and the requests meanwhile.
struct Drain {
    command: Command,
    /// The URLs that are asked for: of the other server, and of the one that drains.
    urls: [String; 2],
    time: Duration,
    running: Option<Running>,
    /// How long it took; set once it is done.
    took: Option<Duration>,
}

struct Running {
    since: Instant,
    child: Child,
    requests: [Requests; 2],
}

impl Watch for Drain {
    /// Begins once the clients are held, and notes the end.
    fn on_second(&mut self, phase: usize) {
        if self.running.is_none() && phase >= HELD {
            self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let Ok(child) = self.command.spawn() else { return };
            let requests = self
                .urls
                .each_ref()
                .map(|url| Requests::start(vec![url.clone()], REQUESTS_PER_S, self.time, true));
            self.running = Some(Running { since: Instant::now(), child, requests });
        }
        let Some(Running { since, child, requests }) = &mut self.running else { return };
        let is_done = child.try_wait().is_ok_and(|status| status.is_some());
        if self.took.is_none() && is_done {
            self.took = Some(since.elapsed());
            requests.iter().for_each(Requests::cut_short);
        }
    }
}

impl Drain {
    /// Ends the requests, and the command if it still runs. Returns how long the drain took, if it
    /// has ended, and what the two servers answered.
    fn end(self) -> Result<(Option<Duration>, [Response; 2]), String> {
        let Running { mut child, requests, .. } = self.running.ok_or("the drain did not begin")?;
        // It may have ended meanwhile.
        let _ = child.kill();
        let status = child.wait().map_err(|error| format!("throng drain: {error}"))?;
        if self.took.is_some() && !status.success() {
            return Err(format!("throng drain failed: {status}"));
        }
        requests.iter().for_each(Requests::cut_short);
        Ok((self.took, requests.map(|requests| Requests::end(vec![requests]))))
    }
}
