//! Settings of the measurements, shared by all of them.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use crate::results::Side;

/// A group of measurements that the command line can select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Group {
    /// User-space memory per subscriber.
    Memory,
    /// Latency of one message to all subscribers, of 64 B and 1 KiB.
    Fanout,
    /// Time of ten messages at once to all subscribers.
    Burst,
    /// Subscriptions per second.
    Connect,
    /// Latency of `GET /health` during continuous fan-outs.
    Responsiveness,
    /// Processor time of idle subscribers with heartbeats.
    Idle,
    /// Publishes per second to distinct channels.
    Publish,
}

/// Settings of all measurements.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    /// Path of the server's program.
    pub(crate) server: PathBuf,
    /// Whether to measure only the raw loop.
    pub(crate) is_raw_only: bool,
    /// Runs per measurement.
    pub(crate) repeats: usize,
    /// Messages per run, after one for warm-up.
    pub(crate) rounds: usize,
    /// Number of subscribers.
    pub(crate) connections: usize,
    /// Number of subscribers of the first point of the memory slope.
    pub(crate) connections_low: usize,
    /// Sending threads of the raw loop and workers of the server.
    pub(crate) senders: usize,
    /// Number of client threads.
    pub(crate) client_threads: usize,
    /// Pause between a message's last delivery and the next publish.
    pub(crate) gap: Duration,
    /// Heartbeat interval of the idle measurement.
    pub(crate) heartbeat: Duration,
    /// Duration of the idle measurement.
    pub(crate) idle_window: Duration,
    /// Duration of the `/health` requests of a run.
    pub(crate) health_window: Duration,
    /// Publishes per run of the publish rate.
    pub(crate) publishes: usize,
}

impl Settings {
    /// The sides to measure in a run, in alternating order.
    pub(crate) fn sides(&self, run: usize) -> Vec<Side> {
        let mut sides = Side::alternating(run).to_vec();
        sides.retain(|side| *side == Side::Raw || !self.is_raw_only);
        sides
    }
}

/// Prints progress to standard error.
pub(crate) fn progress(text: &str) {
    eprintln!("throng-baseline: {text}");
}
