//! The latency of `GET /health` during continuous fan-outs to all subscribers. The raw loop answers
//! it on other threads, so that its latency is what the busy machine alone causes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::session::{Publish, Session, websocket};
use crate::client::ms;
use crate::http::{self, Http};
use crate::results::Results;
use crate::settings::{Settings, progress};
use crate::stats;

const PAYLOAD_BYTES: usize = 64;

/// The time between two pairs of requests, so that they are no load.
const PAUSE: Duration = Duration::from_millis(2);

#[derive(Default)]
struct Latencies {
    new_ms: Vec<f64>,
    kept_ms: Vec<f64>,
}

/// Measures `settings.repeats` times.
pub(crate) fn measure(settings: &Settings, results: &mut Results) -> Result<()> {
    for run in 0..settings.repeats {
        for side in settings.sides(run) {
            progress(&format!("responsiveness {} of {}, {side:?}", run + 1, settings.repeats));
            let mut session = Session::start(settings, side, "0")?;
            session.connect(&websocket(), settings.connections)?;
            let latencies = request_during_fanouts(settings, &mut session)?;
            results.add("health_new_p50", side, stats::percentile(&latencies.new_ms, 50));
            results.add("health_new_p99", side, stats::percentile(&latencies.new_ms, 99));
            results.add("health_kept_p50", side, stats::percentile(&latencies.kept_ms, 50));
            results.add("health_kept_p99", side, stats::percentile(&latencies.kept_ms, 99));
        }
    }
    Ok(())
}

fn request_during_fanouts(settings: &Settings, session: &mut Session) -> Result<Latencies> {
    session.round(Publish::Single, PAYLOAD_BYTES)?;
    let port = session.server.health_port();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let requesting = scope.spawn(|| request_until(port, &stop));
        let fanned_out = fan_out_for(settings.health_window, session);
        stop.store(true, Ordering::Relaxed);
        let latencies = requesting.join().map_err(|_| anyhow!("the requesting thread panicked"))?;
        fanned_out?;
        latencies.context("GET /health")
    })
}

fn fan_out_for(window: Duration, session: &mut Session) -> Result<()> {
    let deadline = Instant::now() + window;
    while Instant::now() < deadline {
        session.round(Publish::Single, PAYLOAD_BYTES)?;
    }
    Ok(())
}

fn request_until(port: u16, stop: &AtomicBool) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    let mut kept = Http::connect(port)?;
    let request = http::get("/health");
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        let mut new = Http::connect(port)?;
        new.send(&request)?;
        new.expect_success()?;
        latencies.new_ms.push(ms(started.elapsed()));

        let started = Instant::now();
        kept.send(&request)?;
        kept.expect_success()?;
        latencies.kept_ms.push(ms(started.elapsed()));
        thread::sleep(PAUSE);
    }
    Ok(latencies)
}
