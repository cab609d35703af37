//! Processor time for parked subscribers with heartbeats.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::session::{Session, websocket};
use crate::results::{Results, Side};
use crate::settings::{Settings, progress};

/// How late first heartbeats may be: the machine is busy after all have connected.
const FIRST_HEARTBEAT_SLACK: Duration = Duration::from_secs(30);

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Measures once, which takes about a minute: an interval of heartbeats, and the window.
pub(crate) fn measure(settings: &Settings, results: &mut Results) -> Result<()> {
    progress("idle");
    let heartbeat = format!("{}ms", settings.heartbeat.as_millis());
    let mut session = Session::start(settings, Side::Throng, &heartbeat)?;
    session.connect(&websocket(), settings.connections)?;
    let parked = session.client.park();

    let deadline = Instant::now() + settings.heartbeat * 2 + FIRST_HEARTBEAT_SLACK;
    while parked.pinged() < settings.connections {
        ensure!(
            Instant::now() < deadline,
            "only {} of {} connections have had a heartbeat",
            parked.pinged(),
            settings.connections
        );
        thread::sleep(POLL_INTERVAL);
    }

    let (before_ns, pings_before) = (session.server.cpu_ns()?, parked.pings());
    let started = Instant::now();
    thread::sleep(settings.idle_window);
    let elapsed = started.elapsed();
    let used_ns = session.server.cpu_ns()?.saturating_sub(before_ns);
    let pings = parked.pings() - pings_before;
    parked.unpark()?;

    let percent = used_ns as f64 / 1e9 / elapsed.as_secs_f64() * 100.0;
    results.add("idle_cpu", Side::Throng, percent);
    results.notes.push(format!(
        "Idle: {} WebSockets with a heartbeat every {:?}; {pings} heartbeats in {:.0} s.",
        settings.connections,
        settings.heartbeat,
        elapsed.as_secs_f64()
    ));
    Ok(())
}
