//! What all connections of the control plane share.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_core::{Access, Engine, clock};

use crate::drain::Drain;
use crate::edge::Edge;
use crate::figures::Figures;
use crate::status::Status;

/// Limits and deadlines. The names are those of `docs/reference/settings.md`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The address that the server listens on: it decides which origins are the server's own.
    pub listen: IpAddr,
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
    /// Connections of both planes at once. The control plane lets in a few more.
    pub connections_max: usize,
    /// Connections of the control plane at once: what the process's descriptors suffice for.
    pub own_connections_max: usize,
    /// Answers that clients have not taken yet, all together, in bytes. One alone may be larger.
    pub answer_bytes_max: u64,
    /// A request head that has begun must be complete after this.
    pub head_timeout: Duration,
    /// A request body must be complete after this.
    pub body_timeout: Duration,
    /// A kept-alive connection without a request is closed after this, and so is one whose client
    /// sends nothing more of a body or takes nothing of its answer.
    pub idle_timeout: Duration,
    /// On shutdown, publications whose bodies keep coming are given this long.
    pub drain_timeout: Duration,
    /// Their bodies keep coming while each piece is there after this.
    pub drain_patience: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: Ipv4Addr::LOCALHOST.into(),
            allowed_origins: Vec::new(),
            head_bytes_max: 16 << 10,
            message_bytes_max: 64 << 10,
            batch_bytes_max: 8 << 20,
            channels_max: 128,
            connections_max: 10_000,
            own_connections_max: 10_000,
            // A hundred full pages of history; most are far smaller.
            answer_bytes_max: 128 << 20,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            drain_timeout: Duration::from_secs(10),
            drain_patience: Duration::from_secs(1),
        }
    }
}

/// The control plane's state.
pub struct Control {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) access: Arc<dyn Access>,
    pub(crate) edge: Arc<dyn Edge>,
    pub(crate) settings: Settings,
    pub(crate) figures: Figures,
    pub(crate) drain: Drain,
    pub(crate) status: Status,
    pub(crate) started: Instant,
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
            figures: Figures::default(),
            drain: Drain::default(),
            status: Status::default(),
            started: Instant::now(),
        }
    }

    /// The time that publications are given: the same as the workers'.
    pub(crate) fn now_ms(&self) -> u64 {
        clock::now_ms()
    }

    /// Whether the server is shutting down: nothing new is accepted, `/health` says so.
    pub fn is_draining(&self) -> bool {
        self.drain.has_begun()
    }
}
