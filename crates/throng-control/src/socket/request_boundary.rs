//! The socket as hyper sees it: one request at a time, and no subscription ever.
//!
//! # What it is for
//!
//! A kept-alive connection may ask to subscribe, and then belongs to a worker. So every head passes
//! [`framing`] first, and hyper is given exactly the bytes of the requests that are its own. When
//! something else comes, the gate closes: hyper waits for bytes that never arrive, its connection
//! is dropped once it has flushed all answers, and nothing of the next request is lost.
//!
//! # Invariants
//!
//! * Bytes reach hyper in order, and none beyond the request that it is working on.
//! * After a chunked request the gate gives hyper whatever comes, because only hyper knows where
//!   the chunks end; the answer to it ends the connection.
//! * What hyper writes is collected and leaves at the end of a turn of the connection's task, so
//!   that pipelined requests share a system call. The task must call [`Gate::poll_drain`] before it
//!   sleeps.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use throng_wire::ErrorResponse;

use crate::socket::inspect::{self, Body, Inspection};

/// Bytes read at once: most requests are smaller.
const READ_BYTES: usize = 8 << 10;
/// Collected answers beyond this are written before hyper may add to them. A client that reads
/// nothing keeps so much here, beside what is counted with its answer.
const OUT_BYTES_MAX: usize = 16 << 10;
/// An empty buffer larger than this is given back.
const OUT_BYTES_KEPT: usize = 4 << 10;
/// Stands for "as long as hyper reads".
const WITHOUT_END: u64 = u64::MAX;

/// Why the gate has closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The next request subscribes; a worker may have these objections.
    Subscription(Option<ErrorResponse>),
    /// The next request is not to be served.
    Refused(ErrorResponse),
}

/// A socket and what is on its way through it.
#[derive(Debug)]
pub(crate) struct Gate {
    stream: TcpStream,
    head_bytes_max: usize,
    /// Read, and not given to hyper yet.
    unread: BytesMut,
    /// Of the coming bytes, so many are hyper's.
    open: u64,
    closed: Option<Closed>,
    /// Whether hyper has flushed since the gate closed.
    is_flushed: bool,
    out: BytesMut,
    /// Heads let through.
    heads: u64,
    /// Bytes that came or went: whether anything happens at all.
    progress: u64,
}

impl Gate {
    /// A gate in front of `stream`, from which `bytes` were read already.
    pub(crate) fn new(stream: TcpStream, bytes: &[u8], head_bytes_max: usize) -> Gate {
        Gate {
            stream,
            head_bytes_max,
            unread: BytesMut::from(bytes),
            open: 0,
            closed: None,
            is_flushed: false,
            out: BytesMut::new(),
            heads: 0,
            progress: 0,
        }
    }

    /// Whether the gate has closed and hyper has nothing more to say.
    pub(crate) fn is_done(&self) -> bool {
        self.closed.is_some() && self.is_flushed
    }

    /// Why the gate has closed.
    pub(crate) fn take_closed(&mut self) -> Option<Closed> {
        self.closed.take()
    }

    /// Whether a head has begun that hyper has not been given. Empty lines are not the beginning of
    /// one: clients of old send them after a body.
    pub(crate) fn is_mid_head(&self) -> bool {
        self.open == 0 && self.unread.iter().any(|byte| !matches!(byte, b'\r' | b'\n'))
    }

    /// Whether hyper has been given all of the request that it is at.
    pub(crate) fn has_whole_request(&self) -> bool {
        self.open == 0
    }

    /// Whether nothing is known to follow that nobody has read: such a socket can be closed
    /// without the risk that its last answer is lost with it.
    pub(crate) fn is_clean(&self) -> bool {
        self.open == 0 && self.unread.is_empty()
    }

    /// Bytes that were read and not yet given to hyper; they begin with the next request.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.unread
    }

    /// Heads let through so far.
    pub(crate) fn heads(&self) -> u64 {
        self.heads
    }

    /// Changes whenever bytes come or go.
    pub(crate) fn progress(&self) -> u64 {
        self.progress
    }

    /// Whether there are answers that the client has not taken yet.
    pub(crate) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// The socket, what was read from it and belongs to nobody yet, and what is still to be
    /// written.
    pub(crate) fn into_parts(self) -> (TcpStream, BytesMut, BytesMut) {
        (self.stream, self.unread, self.out)
    }

    /// Writes what was collected, as far as the socket takes it.
    pub(crate) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while !self.out.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.out))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.progress += written as u64;
            self.out.advance(written);
        }
        if self.out.capacity() > OUT_BYTES_KEPT {
            self.out = BytesMut::new();
        } else {
            self.out.clear();
        }
        Poll::Ready(Ok(()))
    }

    /// Reads some more; 0 at the end. While there is nothing to read, nothing is kept to read into.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.stream.poll_read_ready(cx)?.is_pending() {
            if self.unread.is_empty() {
                self.unread = BytesMut::new();
            }
            return Poll::Pending;
        }
        self.unread.reserve(READ_BYTES);
        let read = ready!(pin!(self.stream.read_buf(&mut self.unread)).poll(cx))?;
        self.progress += read as u64;
        Poll::Ready(Ok(read))
    }

    /// Takes of `slices` what there is room for.
    fn poll_collect(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.out.len() >= OUT_BYTES_MAX {
            ready!(self.poll_drain(cx))?;
        }
        let before = self.out.len();
        for slice in slices {
            let room = OUT_BYTES_MAX - self.out.len();
            self.out.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        Poll::Ready(Ok(self.out.len() - before))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.closed.is_some() {
                return Poll::Pending;
            }
            if self.open > 0 {
                if self.unread.is_empty() && ready!(self.poll_fill(cx))? == 0 {
                    return Poll::Ready(Ok(()));
                }
                self.give(into);
                return Poll::Ready(Ok(()));
            }
            if !self.look() && self.closed.is_none() && ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Hands hyper what is its own of what is there.
    fn give(&mut self, into: &mut ReadBuf<'_>) {
        let open = usize::try_from(self.open).unwrap_or(usize::MAX);
        let bytes = self.unread.len().min(into.remaining()).min(open);
        into.put_slice(&self.unread[..bytes]);
        self.unread.advance(bytes);
        if self.open != WITHOUT_END {
            self.open -= bytes as u64;
        }
    }

    /// Looks at the next head. Returns whether it is hyper's.
    fn look(&mut self) -> bool {
        if self.unread.is_empty() {
            return false;
        }
        match inspect::inspect(&self.unread, self.head_bytes_max) {
            Inspection::Partial => return false,
            Inspection::Request { head_bytes, body } => {
                self.open = match body {
                    Body::Length(body_bytes) => body_bytes.saturating_add(head_bytes as u64),
                    Body::Chunked => WITHOUT_END,
                };
                self.heads += 1;
                return true;
            }
            Inspection::Subscription(refusal) => {
                self.closed = Some(Closed::Subscription(refusal));
            }
            Inspection::Refused(refusal) => self.closed = Some(Closed::Refused(refusal)),
        }
        self.is_flushed = false;
        false
    }
}

/// Hyper's hold on a [`Gate`]. The connection's task holds it too; the two never run at once, so
/// the lock is always free.
#[derive(Debug, Clone)]
pub(crate) struct Handle(pub(crate) Arc<Mutex<Gate>>);

impl Handle {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Gate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for Handle {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.lock().poll_read(cx, into)
    }
}

impl AsyncWrite for Handle {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.lock().poll_collect(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.lock().poll_collect(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Hyper calls this when it has handed over everything it has.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.lock().is_flushed = true;
        Poll::Ready(Ok(()))
    }

    /// Hyper is done when everything is written; the socket may still be needed.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.lock().poll_drain(cx)
    }
}
