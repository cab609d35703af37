//! Who asks: what is known of the client of a request, apart from what the request says.

use std::net::SocketAddr;

use http::request::Parts;
use throng_core::Listener;

/// The client of a connection. Each of its requests carries it as an extension.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Caller {
    /// Where the connection came in.
    pub(crate) listener: Listener,
    /// The other end, for the log: known if the log has requests.
    pub(crate) peer: Option<SocketAddr>,
}

impl Caller {
    /// The one who sent this request.
    pub(crate) fn of(head: &Parts) -> Caller {
        head.extensions.get().copied().unwrap_or_default()
    }
}
