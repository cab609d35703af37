//! A drain of a server whose clients go to another one.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use throng_flood::plan::Transport;
use throng_flood::report::Sample;
use throng_flood::report::live::Moment;
use throng_report::Unit;

use crate::context::{Abort, Benchmark, Context, Load, QUIET};
use crate::definition::{Definition, Measurement, Scope, Size};
use crate::flood::{hold, ramp};
use crate::requests::{Requests, Response};

/// Requests a second to each server during the drain.
const REQUESTS_PER_S: f64 = 50.0;

pub(super) static BENCHMARK: Benchmark = Benchmark { definition: &DEFINITION, run };

static DEFINITION: Definition = Definition {
    name: "drain",
    title: "Drain",
    story: "A server that is stopped loses all clients at once, and the others get them all at \
            once. A drain asks them to leave at a pace that the others can bear, and tells each of \
            them its own moment to come back.",
    source: "Throng",
    year: 2026,
    hardware: "this machine",
    setup: "WebSockets connect to one of two servers, which is then drained with `throng drain`, \
            without a rate of its own. The clients come back to the other server, as behind a \
            balancer, each at the moment that it was told. Meanwhile both servers are asked for \
            their health 50 times a second: the one that drains with `GET /health/live`, since \
            `GET /health` is to fail there.",
    differences: &["This is the original."],
    measurements: &[
        Measurement::less("drain", "until the server has ended", Unit::Milliseconds),
        Measurement::more("moved", "clients that are at the other server", Unit::Count),
        Measurement::less("again", "clients told once more to come back later", Unit::Count),
        Measurement::less("connect", "99th percentile of connecting", Unit::Milliseconds),
        Measurement::less(
            "health_new",
            "99th percentile of GET /health at the other server",
            Unit::Milliseconds,
        ),
        Measurement::less(
            "health_old",
            "99th percentile of GET /health/live at the one that drains",
            Unit::Milliseconds,
        ),
        Measurement::of("requests", "requests that were answered", Unit::Count),
    ],
    scope: Scope::of(200_000).held_s(150).big().in_rounds(2),
};

fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let Size { connections: clients, time } = context.size;
    let old = context.serve_beside(QUIET)?;
    context.serve(QUIET)?;
    let load = Load { first: Some(old.url()), ..Load::of(Transport::WebSocket) };
    let mut drain = Drain::of(old.drain(), old.url(), &context.url(), time);
    let report = context.flood_with(
        &load,
        vec![ramp(clients), hold(time, None)],
        // The second phase holds the clients.
        &mut |moment: &Moment<'_>| drain.look(moment.place.0 >= 2),
    );
    let drained = drain.end();
    let (report, drained) = (report?, drained.map_err(Abort::Failed)?);
    let Some(took) = drained.took else {
        context.outcome.fail("the drain takes longer than the clients are held: see --time");
        return Ok(());
    };
    let held = report.phases.last().map(|phase| &phase.totals);
    let [new, old] = drained.health;
    context.record_all(
        [
            ("drain", Some(took.as_secs_f64() * 1e3)),
            ("moved", held.map(|held| held.active as f64)),
            // Each is told once by the server that drains.
            ("again", held.map(|held| held.told.saturating_sub(clients as u64) as f64)),
            ("connect", held.and_then(|held| Some(held.connect.as_ref()?.p99))),
            ("health_new", Some(new.p99_ms)),
            ("health_old", Some(old.p99_ms)),
            ("requests", Some((new.answered + old.answered) as f64)),
        ],
        clients,
    );
    let columns = ["second", "clients connected", "of them in this second", "waiting"];
    let row = |it: &Sample| {
        let counts = [it.active, it.subscribed, it.connecting];
        std::iter::once(it.at_s).chain(counts.map(|count| count as f64)).map(Some).collect()
    };
    context.table("Each second", &columns, report.series.iter().map(row).collect());
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

/// A drain that has ended.
struct Drained {
    /// `None` if it did not end in time.
    took: Option<Duration>,
    /// Of the other server, and of the one that drained.
    health: [Response; 2],
}

impl Drain {
    fn of(mut command: Command, old: &str, new: &str, time: Duration) -> Drain {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let urls = [format!("{new}/health"), format!("{old}/health/live")];
        Drain { command, urls, time, running: None, took: None }
    }

    /// Begins once the clients are held, and notes the end. Call it often.
    fn look(&mut self, are_held: bool) {
        if self.running.is_none() && are_held {
            let Ok(child) = self.command.spawn() else { return };
            let requests =
                self.urls.each_ref().map(|url| Requests::start(url, REQUESTS_PER_S, self.time));
            self.running = Some(Running { since: Instant::now(), child, requests });
        }
        let Some(Running { since, child, requests }) = &mut self.running else { return };
        let is_done = child.try_wait().is_ok_and(|status| status.is_some());
        if self.took.is_none() && is_done {
            self.took = Some(since.elapsed());
            requests.iter().for_each(Requests::cut_short);
        }
    }

    /// Ends the requests, and the command if it still runs.
    fn end(self) -> Result<Drained, String> {
        let running = self.running.ok_or("the drain did not begin")?;
        let Running { mut child, requests, .. } = running;
        // It may have ended meanwhile.
        let _ = child.kill();
        let status = child.wait().map_err(|error| format!("throng drain: {error}"))?;
        if self.took.is_some() && !status.success() {
            return Err(format!("throng drain failed: {status}"));
        }
        requests.iter().for_each(Requests::cut_short);
        Ok(Drained { took: self.took, health: requests.map(Requests::end) })
    }
}
