//! What the data plane can be told.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use throng_wire::OriginPolicy;

use crate::limits::Limits;

/// The most that [`Settings::max_head_bytes`] may be: a head travels between threads in one piece,
/// with what was read behind it, and an ordinary socket takes no piece of more than 208 KiB.
pub const HEAD_BYTES_MAX: usize = 64 << 10;

/// Whether fan-outs go through io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoUringSetting {
    /// Where the kernel has it and allows it.
    #[default]
    Auto,
    /// Always: without it the data plane does not start.
    On,
    /// Never.
    Off,
}

/// Settings of the data plane; see `docs/reference/settings.md`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Whether the status is shown at another listener, and not at this one.
    pub has_admin_listener: bool,
    /// Worker threads, at least; 0 for as many as cores.
    pub workers: usize,
    /// Open connections; 0 for what `workers` hold. More than they hold start further workers.
    pub max_connections: usize,
    /// Whether fan-outs go through io_uring.
    pub io_uring: IoUringSetting,
    /// Origins whose pages may connect, beside the server's own.
    pub allowed_origins: Vec<String>,
    /// Host names under which it answers, beside addresses and those of these origins.
    pub allowed_hosts: Vec<String>,
    /// A connection is not silent for longer: it gets a pong, a comment or a blank chunk. Zero for
    /// none, and no pings.
    pub heartbeat: Duration,
    /// Interval of pings; a WebSocket that does not answer one in time is closed. Zero for none.
    pub ping_interval: Duration,
    /// Greet each subscription.
    pub welcome: bool,
    /// A request head must be there by then.
    pub head_timeout: Duration,
    /// A kept-alive connection without a request is closed after this.
    pub idle_timeout: Duration,
    /// On stop, clients are told to come back at a moment spread over this.
    pub drain_window: Duration,
    /// On stop, undelivered messages are given this long.
    pub drain_timeout: Duration,
    /// Request line and headers.
    pub max_head_bytes: usize,
    /// One message.
    pub max_message_bytes: usize,
    /// Channels of one connection.
    pub max_channels_per_connection: usize,
    /// How much is taken on before anything is refused or closed.
    pub limits: Limits,
}

impl Settings {
    /// Who may talk to the server.
    pub(crate) fn origin_policy(&self) -> OriginPolicy<'_> {
        OriginPolicy {
            listen: self.listen.ip(),
            origins: &self.allowed_origins,
            hosts: &self.allowed_hosts,
            is_same_port_only: false,
        }
    }
}

impl Settings {
    /// Values for tests. Users' defaults are in the binary's table of settings.
    pub fn for_tests() -> Settings {
        Settings {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            has_admin_listener: false,
            workers: 0,
            max_connections: 0,
            io_uring: IoUringSetting::Auto,
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            heartbeat: Duration::from_secs(25),
            ping_interval: Duration::from_secs(225),
            welcome: false,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            drain_window: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            max_head_bytes: 16 << 10,
            max_message_bytes: 64 << 10,
            max_channels_per_connection: 128,
            limits: Limits::default(),
        }
    }
}
