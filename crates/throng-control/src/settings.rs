//! The settings of the control plane.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use throng_access::SharedPages;

/// Limits and timeouts. The binary makes them of its settings, which `docs/reference/settings.md`
/// describes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The address of the public listener. It decides which origins are the server's own.
    pub listen: IpAddr,
    /// Which pages may use the API, beside the server's own, and under which names each listener
    /// answers.
    pub pages: SharedPages,
    /// True if the public listener refuses requests that came through a proxy.
    pub refuses_proxies: bool,
    /// True if the admin listener refuses them.
    pub admin_refuses_proxies: bool,
    /// True if there is an admin listener. Then only that listener serves status and metrics.
    pub has_admin_listener: bool,
    /// True if the demo pages are served.
    pub has_demo: bool,
    /// Maximum size of the request line and headers, in bytes.
    pub max_head_bytes: usize,
    /// Maximum size of a message, in bytes.
    pub max_message_bytes: usize,
    /// Maximum size of a batch, in bytes.
    pub max_batch_bytes: usize,
    /// The least size of a page of history, or of a batch's answers, that is compressed for clients
    /// that accept it; `None`: none is.
    pub compression_min_bytes: Option<usize>,
    /// Maximum number of channels that a request may name.
    pub max_channels_per_connection: usize,
    /// Maximum number of subscribers and control connections together. The control plane accepts a
    /// few more, so that a server full of subscribers can still be published to.
    pub max_connections: usize,
    /// Maximum number of control connections: the descriptors that the process has for them.
    pub max_control_connections: usize,
    /// Time from the first byte of a request head to its last.
    pub head_timeout: Duration,
    /// Time without progress after which a connection is closed: no request on a kept-alive
    /// connection, nothing more of a body, or nothing taken of a response.
    pub idle_timeout: Duration,
    /// Time between two messages of the canary; zero for none.
    pub canary_interval: Duration,
    /// On shutdown, clients are told to reconnect at times spread over this window.
    pub drain_window: Duration,
    /// On shutdown, time for publications in progress to finish.
    pub drain_timeout: Duration,
    /// Limits that are no settings.
    pub limits: Limits,
}

/// Limits that suit every server. They are parameters because tests have to reach them.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Quota for responses that clients have not read yet, in bytes: one for responses to
    /// publishers, another one for all other responses. A single response may exceed it.
    pub max_answer_bytes: u64,
    /// Quota for messages that are still arriving or being published, in bytes.
    pub max_partial_messages_bytes: u64,
    /// Quota for batches that are still arriving or being published, in bytes.
    pub max_partial_batches_bytes: u64,
    /// Time from the end of a request head to the end of the body.
    pub body_timeout: Duration,
    /// On shutdown, maximum time between two pieces of a request body.
    pub drain_body_timeout: Duration,
}

impl Settings {
    /// Values for tests. Users' defaults are in the binary's table of settings.
    pub fn for_tests() -> Settings {
        Settings {
            listen: Ipv4Addr::LOCALHOST.into(),
            pages: SharedPages::default(),
            refuses_proxies: true,
            admin_refuses_proxies: true,
            has_admin_listener: false,
            has_demo: true,
            max_head_bytes: 16 << 10,
            max_message_bytes: 64 << 10,
            max_batch_bytes: 8 << 20,
            compression_min_bytes: Some(1024),
            max_channels_per_connection: 128,
            max_connections: 10_000,
            max_control_connections: 10_000,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            canary_interval: Duration::ZERO,
            drain_window: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            // A hundred full pages of history; most pages are far smaller.
            max_answer_bytes: 128 << 20,
            max_partial_messages_bytes: 128 << 20,
            max_partial_batches_bytes: 256 << 20,
            body_timeout: Duration::from_secs(60),
            drain_body_timeout: Duration::from_secs(1),
        }
    }
}
