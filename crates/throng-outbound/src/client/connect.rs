//! Opens connections, with TLS or without.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::error::RequestError;
use super::race::{self, SlowAddresses};
use super::trust::Trust;
use crate::endpoint::{Endpoint, LOCALHOST};

pub(super) enum OriginStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects to an endpoint. The caller sets the deadline.
pub(super) async fn connect(
    endpoint: &Endpoint,
    trust: &Trust,
    slow: &SlowAddresses,
) -> Result<OriginStream, RequestError> {
    let addresses = addresses(endpoint).await.map_err(RequestError::Connect)?;
    let stream = race::connect(addresses, slow).await.map_err(RequestError::Connect)?;
    // A request is one write: without this option it leaves as soon.
    let _ = stream.set_nodelay(true);
    if !endpoint.is_tls {
        return Ok(OriginStream::Plain(stream));
    }
    let name = ServerName::try_from(endpoint.host.to_string())
        .map_err(|error| RequestError::Tls(io::Error::other(error)))?;
    let nobody = || RequestError::Tls(io::Error::other("no authority is trusted"));
    let connector = TlsConnector::from(Arc::clone(trust.0.as_ref().ok_or_else(nobody)?));
    let stream = connector.connect(name, stream).await.map_err(RequestError::Tls)?;
    Ok(OriginStream::Tls(Box::new(stream)))
}

/// The addresses of an endpoint. DNS is not asked about `localhost`: without TLS, only loopback is
/// allowed.
async fn addresses(endpoint: &Endpoint) -> io::Result<Vec<SocketAddr>> {
    let of = |ip: IpAddr| SocketAddr::new(ip, endpoint.port);
    if let Ok(ip) = endpoint.host.parse() {
        return Ok(vec![of(ip)]);
    }
    if endpoint.host.eq_ignore_ascii_case(LOCALHOST) {
        return Ok(vec![of(Ipv4Addr::LOCALHOST.into()), of(Ipv6Addr::LOCALHOST.into())]);
    }
    Ok(lookup_host((&*endpoint.host, endpoint.port)).await?.collect())
}

impl AsyncRead for OriginStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            OriginStream::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            OriginStream::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for OriginStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            OriginStream::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            OriginStream::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            OriginStream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            OriginStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            OriginStream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            OriginStream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
