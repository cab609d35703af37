//! `GET /health` while fan-outs to all subscribers run back to back: what one ordinary request
//! waits for a broadcast. The raw server answers it on threads of its own, so its figures are what
//! the busy machine alone makes a request wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::session::{Publish, Session, websocket};
use crate::client::ms;
use crate::http::{self, Http};
use crate::ledger::Ledger;
use crate::settings::{Settings, progress};
use crate::stats;

const PAYLOAD_BYTES: usize = 64;

/// Between one pair of requests and the next, so that the probe is not the load.
const PAUSE: Duration = Duration::from_millis(2);

#[derive(Default)]
struct Waits {
    new_ms: Vec<f64>,
    kept_ms: Vec<f64>,
}

/// Measures `settings.repeats` times.
pub fn measure(settings: &Settings, ledger: &mut Ledger) -> Result<()> {
    for run in 0..settings.repeats {
        for side in settings.sides(run) {
            progress(&format!("responsiveness {} of {}, {side:?}", run + 1, settings.repeats));
            let mut session = Session::start(settings, side, "0")?;
            session.connect(&websocket(), settings.connections)?;
            let waits = ask_during_fanouts(settings, &mut session)?;
            ledger.add("health_new_p50", side, stats::percentile(&waits.new_ms, 50));
            ledger.add("health_new_p99", side, stats::percentile(&waits.new_ms, 99));
            ledger.add("health_kept_p50", side, stats::percentile(&waits.kept_ms, 50));
            ledger.add("health_kept_p99", side, stats::percentile(&waits.kept_ms, 99));
        }
    }
    Ok(())
}

fn ask_during_fanouts(settings: &Settings, session: &mut Session) -> Result<Waits> {
    session.round(Publish::Single, PAYLOAD_BYTES)?;
    let port = session.server.health_port();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking = scope.spawn(|| ask_until(port, &stop));
        let fanned_out = fan_out_for(settings.health_window, session);
        stop.store(true, Ordering::Relaxed);
        let waits = asking.join().map_err(|_| anyhow!("the asking thread panicked"))?;
        fanned_out?;
        waits.context("GET /health")
    })
}

fn fan_out_for(window: Duration, session: &mut Session) -> Result<()> {
    let deadline = Instant::now() + window;
    while Instant::now() < deadline {
        session.round(Publish::Single, PAYLOAD_BYTES)?;
    }
    Ok(())
}

fn ask_until(port: u16, stop: &AtomicBool) -> Result<Waits> {
    let mut waits = Waits::default();
    let mut kept = Http::connect(port)?;
    let request = http::get("/health");
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        let mut new = Http::connect(port)?;
        new.send(&request)?;
        new.expect_success()?;
        waits.new_ms.push(ms(started.elapsed()));

        let started = Instant::now();
        kept.send(&request)?;
        kept.expect_success()?;
        waits.kept_ms.push(ms(started.elapsed()));
        thread::sleep(PAUSE);
    }
    Ok(waits)
}
