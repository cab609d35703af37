//! The answers of the probes: is the server alive and ready, and if not, why?

use serde::Serialize;

use crate::control::Control;
use crate::health::Ailment;

#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) status: Status,
    pub(crate) reasons: Vec<Ailment>,
}

/// The word for what a probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    Live,
    /// Everything works as it should.
    Ready,
    /// New clients are welcome, but something does not work as it should.
    Degraded,
    /// The server has not been able to do its work yet since its start.
    Starting,
    Draining,
    /// An event loop stands still.
    Stuck,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::Live => "live",
            Status::Ready => "ready",
            Status::Degraded => "degraded",
            Status::Starting => "starting",
            Status::Draining => "draining",
            Status::Stuck => "stuck",
        }
    }
}

/// How the server is, in a few words: for those who compare several servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The answer of the readiness probe: `ready`, `degraded`, `starting`, `draining` or `stuck`.
    pub status: &'static str,
    /// Why it is not ready, in the words of the probe.
    pub reasons: Vec<&'static str>,
    /// Open connections of both planes.
    pub connections: u64,
}

impl Control {
    pub(crate) fn liveness(&self) -> Finding {
        let reasons = self.health.stuck();
        let status = if reasons.is_empty() { Status::Live } else { Status::Stuck };
        Finding { status, reasons }
    }

    pub(crate) fn readiness(&self) -> Finding {
        let stuck = self.health.stuck();
        if !stuck.is_empty() {
            return Finding { status: Status::Stuck, reasons: stuck };
        }
        if self.is_leaving() {
            let reason = Ailment::new("draining", "the server is shutting down");
            return Finding { status: Status::Draining, reasons: vec![reason] };
        }
        let reasons = self.ailments();
        let status = if reasons.iter().any(|ailment| ailment.is_at_start) {
            Status::Starting
        } else if reasons.is_empty() {
            Status::Ready
        } else {
            Status::Degraded
        };
        Finding { status, reasons }
    }

    /// How the server is now.
    pub fn condition(&self) -> Condition {
        let Finding { status, reasons } = self.readiness();
        let on_workers: u64 = self.edge.metrics().connections.iter().sum();
        Condition {
            status: status.word(),
            reasons: reasons.iter().map(|ailment| ailment.reason).collect(),
            connections: on_workers + self.metrics.connections(),
        }
    }
}
