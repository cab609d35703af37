//! The state of health that the probes show: is the server alive, is it ready, and what ails it?
//!
//! * *Alive*: all event loops turn. Only a restart helps a server that is not alive.
//! * *Ready*: new clients may be sent here. A server that shuts down is the first to know, so this
//!   ends before anything is refused.
//! * *Degraded*: something works worse than it should. The server stays ready, because sending its
//!   clients elsewhere would help nobody, and says why.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use throng_core::clock;

/// The state of health. The binary reports to it; the probes read it.
#[derive(Debug, Default)]
pub struct Health {
    /// True if the server shuts down or is about to.
    is_leaving: AtomicBool,
    /// How far its clients have left, if they have been asked to.
    departure: Mutex<Option<Departure>>,
    /// The last upgrade, if there was one.
    upgrade: Mutex<Option<Upgrade>>,
    /// The names of the event loops that stand still.
    stuck: Mutex<Vec<String>>,
}

/// How far the clients have left that were asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Departure {
    /// The clients when it began.
    pub clients: u64,
    /// Those that have been asked.
    pub asked: u64,
    /// Clients that follow channels now.
    pub left: u64,
    /// How many are asked a second.
    pub return_rate: u64,
    /// The time until the server ends, at the latest.
    pub ends_in_ms: u64,
}

/// An upgrade of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Upgrade {
    /// How far it has come.
    pub state: UpgradeState,
    /// When it came to this, in milliseconds since 1970.
    pub time_ms: u64,
    /// The sentence for the log.
    pub message: String,
    /// How long nothing was delivered, if that is known.
    pub pause_ms: Option<u64>,
}

/// How far an upgrade has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpgradeState {
    /// Another process may take over.
    UnderWay,
    /// None has: this one goes on.
    Failed,
    /// This process has taken over.
    Done,
}

/// One reason why the server is degraded or not ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ailment {
    /// A word for programs.
    pub reason: &'static str,
    /// A sentence for people. Strangers may read it: it names no address, and no number but a
    /// share.
    pub message: String,
    /// True if it has lasted since the start: the server is not ready for clients yet.
    #[serde(skip)]
    pub is_at_start: bool,
}

impl Ailment {
    /// A reason with its sentence.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Ailment {
        Ailment { reason, message: message.into(), is_at_start: false }
    }

    /// The server cannot be used until this has passed for the first time.
    #[must_use]
    pub fn at_start(self) -> Ailment {
        Ailment { is_at_start: true, ..self }
    }
}

impl Health {
    /// The server is about to shut down: it is not ready from now on.
    pub fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    /// The server does not shut down after all: it is ready again.
    pub fn stay(&self) {
        self.set_departure(None);
        self.is_leaving.store(false, Ordering::Relaxed);
    }

    /// Sets how far the clients have left that were asked to.
    pub fn set_departure(&self, departure: Option<Departure>) {
        *self.departure.lock().unwrap_or_else(PoisonError::into_inner) = departure;
    }

    pub(crate) fn departure(&self) -> Option<Departure> {
        *self.departure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how far an upgrade has come, now.
    pub fn set_upgrade(&self, state: UpgradeState, message: &str, pause_ms: Option<u64>) {
        let upgrade =
            Upgrade { state, time_ms: clock::now_ms(), message: message.into(), pause_ms };
        *self.upgrade.lock().unwrap_or_else(PoisonError::into_inner) = Some(upgrade);
    }

    pub(crate) fn upgrade(&self) -> Option<Upgrade> {
        self.upgrade.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the names of the event loops that stand still now.
    pub fn set_stuck(&self, loops: Vec<String>) {
        *self.stuck.lock().unwrap_or_else(PoisonError::into_inner) = loops;
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// One reason for each event loop that stands still.
    pub(crate) fn stuck(&self) -> Vec<Ailment> {
        let stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        let ailment = |name: &String| Ailment::new("stuck", format!("{name} stands still"));
        stuck.iter().map(ailment).collect()
    }
}
