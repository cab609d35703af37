//! Why a client pool cannot start.

use throng_tunnel::TunnelError;

/// Why a pool cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ClientPoolError {
    /// The target's URL cannot be used.
    #[error("the target {url:?} cannot be loaded: {reason}")]
    Url {
        /// The URL, rendered for the first client.
        url: String,
        reason: String,
    },
    /// Name resolution failed.
    #[error("the host {host:?} has no address: {reason}")]
    Dns {
        /// The host of the URL.
        host: String,
        reason: String,
    },
    /// A thread cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(std::io::Error),
    /// TLS cannot be spoken, for this reason.
    #[error("{0}")]
    Tls(String),
    /// The tunnel cannot be opened.
    #[error(transparent)]
    Tunnel(#[from] TunnelError),
    /// The plan does not say how to publish.
    #[error("the plan does not say how to publish")]
    NoPublishTarget,
    /// There are more clients than 32-bit numbers.
    #[error("{0} clients are more than can be numbered")]
    TooMany(usize),
}
