//! A TLS connection over a socket: seals what is written, opens what is read.
//!
//! The record layer ([`throng_tls`]) is the same as the workers', so a connection goes from plane
//! to plane with a few numbers and keys, and without a word to its client.
//!
//! # Invariants
//!
//! * What is sealed is written before anything else is sealed, or the connection is closed. So at
//!   most one record waits, and a slow client holds back its own responses.
//! * A key update is written whatever becomes of the data behind it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use throng_tls::{Alert, End, HEADER_BYTES, SealError, StreamEnd};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;

use crate::edge::TlsConnection;

/// Number of bytes to read at once. Most requests are smaller.
const READ_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub(crate) struct TlsStream {
    pub(super) socket: TcpStream,
    tls: Box<TlsConnection>,
    /// How the client has ended what it sends, if it has. What came before it was passed on.
    end: Option<End>,
    /// Bytes read from and written to the socket so far.
    progress: u64,
}

impl TlsStream {
    pub(super) fn new(socket: TcpStream, tls: Box<TlsConnection>) -> TlsStream {
        // A worker may have opened the record that says so.
        let has_ended = tls.incoming.stream_end() == StreamEnd::Clean;
        let end = has_ended.then_some(End::Closed);
        TlsStream { socket, tls, end, progress: 0 }
    }

    pub(super) fn into_parts(self) -> (TcpStream, Box<TlsConnection>) {
        (self.socket, self.tls)
    }

    pub(super) fn progress(&self) -> u64 {
        self.progress
    }

    /// True if a sealed record is not written yet.
    pub(super) fn has_output(&self) -> bool {
        !self.tls.outbound.is_empty()
    }

    /// Appends what the client sent to `into`; 0 at the end of what it sends. Keeps no buffer
    /// while it waits.
    ///
    /// An end without `close_notify` is the same here: where a request ends is in its head.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(opened) = self.open(into) {
                return Poll::Ready(Ok(opened));
            }
            if let Some(end) = self.end {
                return Poll::Ready(self.ended(end));
            }
            if self.socket.poll_read_ready(cx)?.is_pending() {
                if self.tls.inbound.is_empty() {
                    self.tls.inbound = Vec::new();
                }
                return Poll::Pending;
            }
            let inbound = &mut self.tls.inbound;
            let before = inbound.len();
            inbound.resize(before + READ_BYTES, 0);
            let mut free = ReadBuf::new(&mut inbound[before..]);
            let read = Pin::new(&mut self.socket).poll_read(cx, &mut free);
            let count = free.filled().len();
            inbound.truncate(before + count);
            ready!(read)?;
            self.progress += count as u64;
            if count == 0 {
                self.end = Some(End::Closed);
            }
        }
    }

    /// Opens the records that have come; `None` if there is no content in them.
    fn open(&mut self, into: &mut BytesMut) -> Option<usize> {
        if self.tls.inbound.len() < HEADER_BYTES {
            return None;
        }
        let TlsConnection { outgoing, incoming, inbound, .. } = &mut *self.tls;
        let opened = incoming.open(outgoing, inbound);
        into.extend_from_slice(&inbound[..opened.content_bytes]);
        inbound.drain(..opened.used_bytes);
        if inbound.is_empty() {
            // Else a request that came in many records would leave a large one behind.
            *inbound = Vec::new();
        }
        self.end = self.end.or(opened.end);
        Some(opened.content_bytes).filter(|count| *count > 0)
    }

    /// Acts on the end of what the client sends, behind all content.
    fn ended(&mut self, end: End) -> io::Result<usize> {
        match end {
            End::Closed => Ok(0),
            End::Failed(alert) => {
                // The client may be told or not: the connection is closed in both cases.
                let TlsConnection { outgoing, outbound, .. } = &mut *self.tls;
                let _ = outgoing.seal_alert(alert, outbound);
                let _ = self.socket.try_write(outbound);
                outbound.clear();
                Err(io::Error::new(io::ErrorKind::InvalidData, "a client broke TLS"))
            }
            End::PeerFailed(_) => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outbound = &mut self.tls.outbound;
        while !outbound.is_empty() {
            let written = ready!(Pin::new(&mut self.socket).poll_write(cx, outbound))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.progress += written as u64;
            outbound.drain(..written);
        }
        // A parked response has written a record; a connection that waits needs no room for one.
        *outbound = Vec::new();
        Poll::Ready(Ok(()))
    }

    /// Seals as much of `content` as fits into a record, and returns how much that is. Pending
    /// until the record before is written.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        content: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(cx))?;
        let TlsConnection { outgoing, incoming, outbound, .. } = &mut *self.tls;
        if outgoing.check() == Err(SealError::KeyUpdateDue) {
            incoming.seal_key_update(outgoing, outbound).map_err(io::Error::other)?;
        }
        let sealed = outgoing.seal([content], outbound).map_err(io::Error::other)?;
        let content_bytes = sealed.content_bytes();
        outgoing.keep(sealed);
        // The next call writes the rest.
        if let Poll::Ready(Err(error)) = self.poll_flush(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(content_bytes))
    }

    /// Seals the end of what is sent. Nothing can be written after it.
    pub(super) fn seal_end(&mut self) {
        let TlsConnection { outgoing, outbound, .. } = &mut *self.tls;
        // It fails if an alert was sealed before, which says the same.
        let _ = outgoing.seal_alert(Alert::CloseNotify, outbound);
    }
}
