//! The settings of the data plane.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use throng_access::{AllowedPages, SharedPages};
use throng_core::Admission;
use throng_dialect::LateIdentity;
use throng_tls::Acceptor;
use throng_wire::OriginPolicy;

use crate::compression::CompressionSettings;
use crate::limits::Limits;

/// The maximum of [`Settings::max_head_bytes`]. A head is handed off between threads in one
/// packet, with the input behind it, and by default a socket takes packets of at most 208 KiB
/// (`net.core.wmem_default`).
pub const HEAD_BYTES_MAX: usize = 64 << 10;

/// Whether fan-outs go through io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoUringSetting {
    /// If the kernel has it and allows it.
    #[default]
    Auto,
    /// Always; without io_uring the data plane does not start.
    On,
    /// Never, even if the kernel has it.
    Off,
}

/// Where and how TLS is spoken.
#[derive(Debug, Clone)]
pub struct TlsSettings {
    /// The address and port to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Begins the handshakes of new connections.
    pub acceptor: Acceptor,
}

/// Settings of the data plane; see `docs/reference/settings.md`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The address and port to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// A second address, where all connections begin with a TLS handshake; `None` without TLS.
    pub tls: Option<TlsSettings>,
    /// True if a request is refused that came through a proxy.
    pub refuses_proxies: bool,
    /// True if the status page is served at a listener of its own, and not at this one.
    pub has_admin_listener: bool,
    /// The least number of worker threads; 0 for the number of cores.
    pub workers: usize,
    /// The number of connections to have room for; 0 for as many as `workers` hold. If they hold
    /// fewer, further workers are started.
    pub max_connections: usize,
    pub io_uring: IoUringSetting,
    /// Which pages may connect, beside the server's own, and under which names.
    pub pages: SharedPages,
    /// The longest silence on a connection: after it the connection gets a pong, a comment or a
    /// blank line. Zero for no heartbeats and no pings.
    pub heartbeat: Duration,
    /// The interval of pings; a WebSocket that does not answer one in time is closed. Zero for
    /// none.
    pub ping_interval: Duration,
    /// How clients show who they are once their connection stands, beside the rules of their
    /// dialects: for tests.
    pub late_identity: LateIdentity,
    /// True if each subscription begins with a `welcome` notice.
    pub welcome: bool,
    /// True if the end of each connection that streams is logged.
    pub logs_connections: bool,
    /// The moments that clients are told when they come faster than they can be served.
    pub admission: Arc<Admission>,
    /// The time from the start of a request head, or of its connection, to the end of the head.
    pub head_timeout: Duration,
    /// The time after which a kept-alive connection without a request is closed.
    pub idle_timeout: Duration,
    /// The time over which a shutdown spreads the clients that it tells to come back.
    pub drain_window: Duration,
    /// The time that a shutdown gives undelivered messages.
    pub drain_timeout: Duration,
    /// The size of a request line with its headers.
    pub max_head_bytes: usize,
    pub max_message_bytes: usize,
    /// The number of channels that one connection may follow.
    pub max_channels_per_connection: usize,
    /// Whether and how messages are compressed for WebSockets.
    pub compression: CompressionSettings,
    /// Limits that users do not set, but for one.
    pub limits: Limits,
}

impl Settings {
    /// The address that decides which host names requests may have: the TLS listener's if it
    /// lets others in and the plain one does not.
    pub(crate) fn reachable_ip(&self) -> IpAddr {
        let plain = self.listen.ip();
        // A server for this machine only stays one, whoever shows a certificate.
        let tls = self.tls.as_ref().filter(|_| !self.refuses_proxies);
        let tls = tls.filter(|_| plain.to_canonical().is_loopback());
        tls.map_or(plain, |tls| tls.listen.ip())
    }

    /// Which pages may send requests, and to which hosts.
    pub(crate) fn origin_policy<'p>(&self, pages: &'p AllowedPages) -> OriginPolicy<'p> {
        pages.public(self.reachable_ip())
    }
}

impl Settings {
    /// Values for tests. Users' defaults are in the binary's table of settings.
    pub fn for_tests() -> Settings {
        Settings {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            tls: None,
            refuses_proxies: true,
            has_admin_listener: false,
            workers: 0,
            max_connections: 0,
            io_uring: IoUringSetting::Auto,
            pages: SharedPages::default(),
            heartbeat: Duration::from_secs(25),
            ping_interval: Duration::from_secs(225),
            late_identity: LateIdentity::default(),
            welcome: false,
            logs_connections: false,
            admission: Arc::default(),
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            drain_window: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            max_head_bytes: 16 << 10,
            max_message_bytes: 64 << 10,
            max_channels_per_connection: 128,
            compression: CompressionSettings::default(),
            limits: Limits::default(),
        }
    }
}
