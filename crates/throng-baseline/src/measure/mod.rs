//! The measurements.
//!
//! # Layout
//!
//! - [`session`]: a fresh server, Throng or raw, with subscribed clients.
//! - [`fanout`]: fan-out, burst and connecting, all in the same runs.
//! - [`memory`], [`responsiveness`], [`idle`], [`publish`]: one measurement each.
//!
//! Invariants: each run has fresh processes; raw and Throng alternate; a publish follows only
//! after the last delivery of the one before; every wait has an end.

mod fanout;
mod idle;
mod memory;
mod publish;
mod responsiveness;
mod session;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;

use crate::ledger::{Ledger, Side};

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measurement {
    /// User-space bytes of a parked subscriber.
    Memory,
    /// One message to all subscribers, 64 B and 1 KiB.
    Fanout,
    /// Ten messages at once to all subscribers.
    Burst,
    /// Connections per second until subscribed.
    Connect,
    /// GET /health while fan-outs run back to back.
    Responsiveness,
    /// CPU of parked subscribers with heartbeats.
    Idle,
    /// Publishes per second to distinct channels.
    Publish,
}

/// How to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// The server's program.
    pub server: PathBuf,
    /// Only the raw loop, no server.
    pub is_raw_only: bool,
    /// Runs of each measurement.
    pub repeats: usize,
    /// Messages in a run, after the one to warm up.
    pub rounds: usize,
    /// Subscribers.
    pub connections: usize,
    /// Subscribers at the lower end of the slope of memory.
    pub connections_low: usize,
    /// Sending threads of the raw loop, and workers of the server.
    pub senders: usize,
    /// Threads of the client.
    pub client_threads: usize,
    /// Between a message's last delivery and the next publish.
    pub gap: Duration,
    /// The server's heartbeat while it is idle.
    pub heartbeat: Duration,
    /// How long the idle server is watched.
    pub idle_window: Duration,
    /// How long `/health` is asked in a run.
    pub health_window: Duration,
    /// Publishes in a run of the publish rate.
    pub publishes: usize,
}

impl Settings {
    /// Whom to measure in this run, and in which order.
    fn sides(&self, run: usize) -> Vec<Side> {
        let mut sides = Side::alternating(run).to_vec();
        sides.retain(|side| *side == Side::Raw || !self.is_raw_only);
        sides
    }
}

/// Carries out the measurements, writing into `ledger` as it goes: what was found before an error
/// is there to be reported.
pub fn run(wanted: &[Measurement], settings: &Settings, ledger: &mut Ledger) -> Result<()> {
    use Measurement::{Burst, Connect, Fanout, Idle, Memory, Publish, Responsiveness};
    let wants = |measurement| wanted.contains(&measurement);
    if wants(Memory) {
        memory::measure(settings, ledger).context("memory")?;
    }
    let parts = fanout::Parts {
        has_fanout: wants(Fanout),
        has_burst: wants(Burst),
        has_connect: wants(Connect),
    };
    if parts.has_fanout || parts.has_burst || parts.has_connect {
        fanout::measure(settings, &parts, ledger).context("fan-out")?;
    }
    if wants(Responsiveness) {
        responsiveness::measure(settings, ledger).context("responsiveness")?;
    }
    if wants(Publish) && !settings.is_raw_only {
        publish::measure(settings, ledger).context("publish")?;
    }
    if wants(Idle) && !settings.is_raw_only {
        idle::measure(settings, ledger).context("idle")?;
    }
    Ok(())
}

/// Tells the watcher where it is.
fn progress(text: &str) {
    eprintln!("throng-baseline: {text}");
}
