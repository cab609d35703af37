//! What all connections of the control plane share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use throng_core::{Access, Engine};

use crate::clock::Clock;
use crate::edge::Edge;
use crate::figures::Figures;

/// Limits and deadlines. The names are those of `docs/reference/settings.md`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Origins, beside the server's own, whose pages may use the API; `*` for any.
    pub allowed_origins: Vec<String>,
    /// Request line and headers, in bytes.
    pub head_bytes_max: usize,
    /// One message, in bytes.
    pub message_bytes_max: usize,
    /// One batch, in bytes.
    pub batch_bytes_max: usize,
    /// Channels that one request may name.
    pub channels_max: usize,
    /// Connections at once: what the process's descriptors suffice for.
    pub connections_max: usize,
    /// A request head that has begun must be complete after this.
    pub head_timeout: Duration,
    /// A request body must be complete after this.
    pub body_timeout: Duration,
    /// A kept-alive connection without a request is closed after this, and so is one whose client
    /// sends nothing more of a body or takes nothing of its answer.
    pub idle_timeout: Duration,
    /// On shutdown, connections that still have a request are given this long.
    pub drain_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            allowed_origins: Vec::new(),
            head_bytes_max: 16 << 10,
            message_bytes_max: 64 << 10,
            batch_bytes_max: 8 << 20,
            channels_max: 128,
            connections_max: 10_000,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// The control plane's state.
pub struct Control {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) access: Arc<dyn Access>,
    pub(crate) edge: Arc<dyn Edge>,
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) figures: Figures,
    pub(crate) started: Instant,
    is_draining: AtomicBool,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Control {
    /// A control plane in front of `engine`. It does nothing until [`serve`](fn@crate::serve) is
    /// called.
    pub fn new(
        engine: Arc<dyn Engine>,
        access: Arc<dyn Access>,
        edge: Arc<dyn Edge>,
        settings: Settings,
    ) -> Control {
        Control {
            engine,
            access,
            edge,
            settings,
            clock: Clock::default(),
            figures: Figures::default(),
            started: Instant::now(),
            is_draining: AtomicBool::new(false),
        }
    }

    /// Milliseconds since 1970, never going back: the time that publications are given.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Whether the server is shutting down: nothing new is accepted, `/health` says so.
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    pub(crate) fn start_draining(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }
}
