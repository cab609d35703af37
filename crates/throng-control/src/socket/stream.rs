//! A socket of a client, with or without TLS.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;

use super::tls_stream::TlsStream;
use crate::edge::TlsConnection;

/// Number of bytes to read at once. Most requests are smaller.
const READ_BYTES: usize = 8 << 10;

/// The socket, and what is between it and the content.
#[derive(Debug)]
pub(crate) enum ClientStream {
    /// Content as it is, and the number of bytes moved so far.
    Plain(TcpStream, u64),
    Tls(TlsStream),
}

impl ClientStream {
    /// Requires the runtime, and a socket in nonblocking mode.
    pub(super) fn new(
        socket: std::net::TcpStream,
        tls: Option<Box<TlsConnection>>,
    ) -> io::Result<ClientStream> {
        let socket = TcpStream::from_std(socket)?;
        Ok(match tls {
            None => ClientStream::Plain(socket, 0),
            Some(tls) => ClientStream::Tls(TlsStream::new(socket, tls)),
        })
    }

    /// The socket and its TLS, for another owner. Everything must be flushed.
    pub(super) fn into_parts(
        self,
    ) -> io::Result<(std::net::TcpStream, Option<Box<TlsConnection>>)> {
        match self {
            ClientStream::Plain(socket, _) => Ok((socket.into_std()?, None)),
            ClientStream::Tls(stream) => {
                let (socket, tls) = stream.into_parts();
                Ok((socket.into_std()?, Some(tls)))
            }
        }
    }

    fn socket(&self) -> &TcpStream {
        match self {
            ClientStream::Plain(socket, _) => socket,
            ClientStream::Tls(stream) => &stream.socket,
        }
    }

    pub(super) fn is_tls(&self) -> bool {
        matches!(self, ClientStream::Tls(_))
    }

    pub(super) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket().peer_addr()
    }

    /// A value that changes whenever bytes are read from or written to the socket.
    pub(super) fn progress(&self) -> u64 {
        match self {
            ClientStream::Plain(_, progress) => *progress,
            ClientStream::Tls(stream) => stream.progress(),
        }
    }

    /// True if it has content that is not written to the socket yet.
    pub(super) fn has_output(&self) -> bool {
        match self {
            ClientStream::Plain(..) => false,
            ClientStream::Tls(stream) => stream.has_output(),
        }
    }

    /// Appends content to `into`; returns 0 at its end. Keeps no buffer while it waits for input.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        match self {
            ClientStream::Plain(socket, progress) => {
                // Read here first, so that only what has come takes memory of the heap: a buffer of
                // the largest size for each request would keep its allocator busy.
                let mut here = [MaybeUninit::uninit(); READ_BYTES];
                let mut here = ReadBuf::uninit(&mut here);
                let filled = Pin::new(socket).poll_read(cx, &mut here);
                if filled.is_pending() {
                    release(into);
                }
                ready!(filled)?;
                into.extend_from_slice(here.filled());
                *progress += here.filled().len() as u64;
                Poll::Ready(Ok(here.filled().len()))
            }
            ClientStream::Tls(stream) => {
                let filled = stream.poll_fill(cx, into);
                if filled.is_pending() {
                    release(into);
                }
                filled
            }
        }
    }

    /// Takes content to write, at least a part of it. It is written once
    /// [`ClientStream::poll_flush`] is ready.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        content: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match self {
            ClientStream::Plain(socket, progress) => {
                let written = ready!(Pin::new(socket).poll_write(cx, content))?;
                *progress += written as u64;
                written
            }
            ClientStream::Tls(stream) => ready!(stream.poll_write(cx, content))?,
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        Poll::Ready(Ok(written))
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            ClientStream::Plain(..) => Poll::Ready(Ok(())),
            ClientStream::Tls(stream) => stream.poll_flush(cx),
        }
    }

    /// Writes a part of `out`, and removes it.
    pub(super) async fn write_some(&mut self, out: &mut BytesMut) -> io::Result<()> {
        let written = poll_fn(|cx| self.poll_write(cx, out)).await?;
        out.advance(written);
        Ok(())
    }

    /// Tells the client that nothing more follows, as far as TLS does.
    pub(super) fn end(&mut self) {
        if let ClientStream::Tls(stream) = self {
            stream.seal_end();
        }
    }

    /// The socket alone, for a lingering close, which reads and drops.
    pub(super) fn into_socket(self) -> TcpStream {
        match self {
            ClientStream::Plain(socket, _) => socket,
            ClientStream::Tls(stream) => stream.into_parts().0,
        }
    }
}

/// A buffer with nothing in it is freed while nobody knows how long it would lie there.
fn release(buffer: &mut BytesMut) {
    if buffer.is_empty() {
        *buffer = BytesMut::new();
    }
}
