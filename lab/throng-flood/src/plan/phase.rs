//! The phases of a plan.

use std::time::Duration;

use serde::Serialize;

use super::values::Pattern;

/// One part of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Phase {
    /// Brings the number of clients to `to`.
    Ramp {
        /// Clients at the end.
        to: usize,
        /// Connects (or closes) per second; `None` for no limit.
        rate: Option<f64>,
        /// Connects in progress at a time, at most.
        in_flight: usize,
    },
    /// Receives, and publishes if `publish` is set.
    Hold {
        /// The length of the phase.
        time: Duration,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
    /// Clients come and go: each second `rate` are closed and as many opened.
    Churn {
        /// The length of the phase.
        time: Duration,
        /// Clients per second.
        rate: f64,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
    /// All clients lose their connections at once and reconnect as fast as they can. Ends when all
    /// are back, or at `timeout`.
    Storm {
        /// Time limit for all to be back.
        timeout: Duration,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
    /// Some of the clients stop reading for a while.
    Slow {
        /// The share of the clients, from 0 to 1.
        share: f64,
        /// The length of the phase.
        time: Duration,
        /// The messages to publish meanwhile.
        publish: Option<Publishing>,
    },
}

/// The messages of a phase: an open loop, each sent at its scheduled time whether or not the one
/// before has arrived.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Publishing {
    /// Messages per second.
    pub rate: f64,
    /// Stops after this many.
    pub count: Option<u64>,
    /// Bytes of each payload, the mark included.
    pub size: usize,
    /// The streams that get them.
    pub to: Pattern,
}

impl Phase {
    /// The messages to publish in it, if there are any.
    pub(crate) fn publishing(&self) -> Option<&Publishing> {
        match self {
            Phase::Hold { publish, .. }
            | Phase::Churn { publish, .. }
            | Phase::Storm { publish, .. }
            | Phase::Slow { publish, .. } => publish.as_ref(),
            Phase::Ramp { .. } => None,
        }
    }

    /// Its length; 0 for a ramp, whose length depends on the server.
    pub(super) fn time(&self) -> Duration {
        match self {
            Phase::Hold { time, .. } | Phase::Churn { time, .. } | Phase::Slow { time, .. } => {
                *time
            }
            Phase::Storm { timeout, .. } => *timeout,
            Phase::Ramp { .. } => Duration::ZERO,
        }
    }
}
