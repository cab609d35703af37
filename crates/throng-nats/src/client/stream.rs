//! The bytes to and from a server, with or without TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connection to a server.
#[derive(Debug)]
pub(super) enum ServerStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl ServerStream {
    pub(super) fn is_tls(&self) -> bool {
        matches!(self, ServerStream::Tls(_))
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            ServerStream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            ServerStream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            ServerStream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ServerStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            ServerStream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
