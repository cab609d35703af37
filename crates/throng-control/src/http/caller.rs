//! What is known about the client of a request, apart from what the request says.

use std::net::SocketAddr;

use http::request::Parts;
use throng_core::Listener;

/// The client of a connection. Each request of the connection carries it as an extension.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Caller {
    /// The listener that accepted the connection. It decides what the client may see.
    pub(crate) listener: Listener,
    /// The other end of the connection, if it is still known: the client or a proxy.
    pub(crate) peer: Option<SocketAddr>,
}

impl Caller {
    /// The client that sent this request.
    pub(crate) fn of(head: &Parts) -> Caller {
        head.extensions.get().copied().unwrap_or_default()
    }
}
