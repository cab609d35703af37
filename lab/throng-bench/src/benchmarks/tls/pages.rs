//! What it costs that a monitor asks for the server's pages once a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use throng_flood::plan::{Phase, Transport};
use throng_flood::report::{PhaseReport, Report};
use ureq::Agent;

use super::super::values::{Deliveries, median, more, share};
use crate::context::{Abort, Context, Load, WITH_TLS};
use crate::flood::{hold, ramp, to_all};

const PAGES: [&str; 3] = ["/status", "/status.json", "/metrics"];

const INTERVAL: Duration = Duration::from_secs(1);

/// How often the monitor looks whether it is its turn.
const STEP: Duration = Duration::from_millis(20);

const TIMEOUT: Duration = Duration::from_secs(30);

/// Whether pages are asked for: pairs, in both orders.
const TURNS: [bool; 6] = [false, true, true, false, false, true];

/// Before each turn: the monitor's turn is noticed once a second.
const PAUSE: Duration = Duration::from_millis(1_500);

/// Messages per second. Several of them are under way whenever the pages are asked for.
const RATE: u64 = 4;

const MESSAGE_BYTES: usize = 64;

pub(super) fn run(context: &mut Context<'_>, deliveries: &mut Deliveries) -> Result<(), Abort> {
    context.serve(WITH_TLS)?;
    let load = Load { is_tls: true, ..Load::of(Transport::WebSocket) };
    let monitor = Monitor::start(&context.url());
    let report = context.flood_with(&load, phases(context), &mut |moment| {
        monitor.asks.store(is_asking(moment.place.0), Ordering::Relaxed);
    });
    let (asked, failed) = monitor.end();
    let report = report?;
    if failed > 0 {
        context.outcome.fail(format!("{failed} of {asked} requests for pages failed"));
    }
    deliveries.add(&report);
    record(context, &report);
    Ok(())
}

/// A ramp, then a pause and messages for each turn.
fn phases(context: &Context<'_>) -> Vec<Phase> {
    let time = context.size.time;
    let messages = (RATE * time.as_secs()).max(1);
    let turn = || [hold(PAUSE, None), hold(time, Some(to_all(messages, MESSAGE_BYTES, time)))];
    let turns = TURNS.iter().flat_map(|_| turn());
    [ramp(context.size.connections)].into_iter().chain(turns).collect()
}

/// Whether it is the monitor's turn in a phase; the first one has the number 1.
fn is_asking(phase: usize) -> bool {
    phase.checked_sub(2).and_then(|phase| TURNS.get(phase / 2)).copied().unwrap_or(false)
}

fn record(context: &mut Context<'_>, report: &Report) {
    let turns: Vec<(bool, &PhaseReport)> =
        TURNS.into_iter().zip(report.phases.iter().skip(2).step_by(2)).collect();
    let cpu_ms = |phase: &PhaseReport| {
        Some(phase.totals.server.as_ref()?.cpu_s * 1e3 / (phase.to_s - phase.from_s))
    };
    // The mean, and not the median: few messages meet a scrape.
    let rate = |phase: &PhaseReport| Some(1.0 / phase.totals.last.as_ref()?.mean);
    let pairs = |compare: &dyn Fn(&PhaseReport, &PhaseReport) -> Option<f64>| {
        median(turns.chunks_exact(2).map(|pair| {
            let (with, without) =
                if pair[0].0 { (pair[0].1, pair[1].1) } else { (pair[1].1, pair[0].1) };
            compare(with, without)
        }))
    };
    // A scrape a second: per second is per scrape.
    let scrape_ms = pairs(&|with, without| more(cpu_ms(with), cpu_ms(without)));
    let cores_ms = report.environment.cores.max(1) as f64 * INTERVAL.as_secs_f64() * 1e3;
    context.record_all(
        [
            ("scrape", scrape_ms),
            ("scrape_cpu_share", share(scrape_ms, Some(cores_ms))),
            ("scrape_rate_share", pairs(&|with, without| share(rate(with), rate(without)))),
        ],
        context.size.connections,
    );
}

/// Asks for all pages once a second, over one connection, while it is its turn.
struct Monitor {
    asks: Arc<AtomicBool>,
    is_stopped: Arc<AtomicBool>,
    counts: Arc<[AtomicU64; 2]>,
    thread: thread::JoinHandle<()>,
}

impl Monitor {
    fn start(url: &str) -> Monitor {
        let (asks, is_stopped) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let urls = PAGES.map(|page| format!("{url}{page}"));
        let of_thread = (Arc::clone(&asks), Arc::clone(&is_stopped), Arc::clone(&counts));
        let thread = thread::spawn(move || {
            let (asks, is_stopped, counts) = of_thread;
            let config = Agent::config_builder().proxy(None).timeout_global(Some(TIMEOUT));
            let agent: Agent = config.build().into();
            let mut due = Instant::now();
            while !is_stopped.load(Ordering::Relaxed) {
                if !asks.load(Ordering::Relaxed) || Instant::now() < due {
                    thread::sleep(STEP);
                    continue;
                }
                due = Instant::now() + INTERVAL;
                for url in &urls {
                    let is_answered = agent
                        .get(url)
                        .call()
                        .and_then(|mut response| response.body_mut().read_to_vec())
                        .is_ok();
                    counts[0].fetch_add(1, Ordering::Relaxed);
                    counts[1].fetch_add(u64::from(!is_answered), Ordering::Relaxed);
                }
            }
        });
        Monitor { asks, is_stopped, counts, thread }
    }

    /// The number of requests, and of those that failed.
    fn end(self) -> (u64, u64) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // A panicked thread has reported on standard error.
        let _ = self.thread.join();
        let [asked, failed] = &*self.counts;
        (asked.load(Ordering::Relaxed), failed.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_have_the_turn_of_what_follows() {
        assert!(!is_asking(0) && !is_asking(1), "the ramp");
        for (turn, asks) in TURNS.into_iter().enumerate() {
            assert_eq!((is_asking(2 * turn + 2), is_asking(2 * turn + 3)), (asks, asks));
        }
        assert!(!is_asking(2 * TURNS.len() + 2), "after the last turn");
    }
}
