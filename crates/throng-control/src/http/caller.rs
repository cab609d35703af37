//! The client of a request, as the server knows it apart from the request itself.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::request::Parts;
use throng_access::address::{AddressSource, HeaderError};
use throng_core::Listener;
use throng_tls::CertifiedUser;
use throng_wire::{ErrorCode, ErrorResponse};

/// The client of a connection. Each request of the connection carries it as an extension.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Caller {
    /// The listener that accepted the connection. It decides what the client may see.
    pub(crate) listener: Listener,
    /// The other end of the connection, if it is still known: the client or a proxy.
    pub(crate) peer: Option<SocketAddr>,
    /// The client's address, as far as the connection shows it; `None` if nothing needs it.
    pub(crate) connected: Option<IpAddr>,
}

/// The user of a connection's certificate. Each request of the connection carries it as an
/// extension, if there is one.
#[derive(Debug, Clone)]
pub(crate) struct Certificate(pub(crate) Arc<CertifiedUser>);

impl Caller {
    /// The client that sent this request.
    pub(crate) fn of(head: &Parts) -> Caller {
        head.extensions.get().copied().unwrap_or_default()
    }

    /// The address of the client that sent this request: the peer of the connection, or the one
    /// that a trusted proxy names. `None` if it is not known, or if nothing needs it.
    pub(crate) fn address(
        self,
        source: &AddressSource,
        head: &Parts,
    ) -> Result<Option<IpAddr>, ErrorResponse> {
        let (Some(header), Some(peer)) = (source.header(), self.peer) else {
            return Ok(self.connected);
        };
        let values: Vec<_> = head.headers.get_all(header.name()).iter().collect();
        let values = values.iter().map(|value| value.as_bytes());
        let malformed =
            |error: HeaderError| ErrorResponse::new(ErrorCode::BadRequest, error.to_string());
        source.of_request(peer.ip(), values).map_err(malformed)
    }
}
