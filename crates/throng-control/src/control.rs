//! What all connections of the control plane share.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_core::spread::Moments;
use throng_core::{Access, Engine, clock};

use crate::drain::Drain;
use crate::edge::Edge;
use crate::metrics::Figures;
use crate::status::Status;

/// Limits and deadlines. The names are those of `docs/reference/settings.md`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The address that the server listens on: it decides which origins are the server's own.
    pub listen: IpAddr,
    /// Origins, beside the server's own, whose pages may use the API; `*` for any.
    pub allowed_origins: Vec<String>,
    /// Host names under which it answers, beside addresses and those of these origins.
    pub allowed_hosts: Vec<String>,
    /// Whether there is an admin listener: then status and metrics are shown there only.
    pub has_admin_listener: bool,
    /// Host names under which the admin listener answers, beside addresses and `localhost`.
    pub admin_hosts: Vec<String>,
    /// Whether the demo pages are served.
    pub has_demo: bool,
    /// Request line and headers, in bytes.
    pub head_bytes_max: usize,
    /// One message, in bytes.
    pub message_bytes_max: usize,
    /// One batch, in bytes.
    pub batch_bytes_max: usize,
    /// Channels that one request may name.
    pub channels_max: usize,
    /// Subscribers, and connections of the control plane, at once. It lets in a few more.
    pub connections_max: usize,
    /// Connections of the control plane at once: what the process's descriptors suffice for.
    pub own_connections_max: usize,
    /// Answers that clients have not taken yet, in bytes: those to publishers together, and all
    /// others together. One alone may be larger.
    pub answer_bytes_max: u64,
    /// Messages that have arrived in part, or are being worked on, all together, in bytes.
    pub partial_messages_bytes_max: u64,
    /// Batches that have arrived in part, or are being worked on, all together, in bytes.
    pub partial_batches_bytes_max: u64,
    /// A request head that has begun must be complete after this.
    pub head_timeout: Duration,
    /// A request body must be complete after this.
    pub body_timeout: Duration,
    /// A kept-alive connection without a request is closed after this, and so is one whose client
    /// sends nothing more of a body or takes nothing of its answer.
    pub idle_timeout: Duration,
    /// On shutdown, clients are told to come back at a moment spread over this.
    pub drain_window: Duration,
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
            allowed_hosts: Vec::new(),
            has_admin_listener: false,
            admin_hosts: Vec::new(),
            has_demo: true,
            head_bytes_max: 16 << 10,
            message_bytes_max: 64 << 10,
            batch_bytes_max: 8 << 20,
            channels_max: 128,
            connections_max: 10_000,
            own_connections_max: 10_000,
            // A hundred full pages of history; most are far smaller.
            answer_bytes_max: 128 << 20,
            partial_messages_bytes_max: 128 << 20,
            partial_batches_bytes_max: 256 << 20,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            drain_window: Duration::from_secs(10),
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
    /// When clients that are turned away are to come back.
    pub(crate) moments: Moments,
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
            // The workers' numbers are smaller.
            moments: Moments::numbered(u32::from(u16::MAX)),
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
