//! The socket as hyper sees it: one request at a time, and no subscription.
//!
//! A kept-alive connection may ask to subscribe, and then belongs to a worker. So each head is
//! [inspected](super::inspect) first, and hyper reads exactly the bytes of the requests that it
//! serves. At any other request the boundary closes: hyper waits for bytes that never arrive, its
//! connection is dropped once it has flushed all responses, and no byte of the next request is
//! lost.
//!
//! # Invariants
//!
//! * Hyper reads bytes in order, and none beyond the request that it serves.
//! * From a chunked request on hyper reads everything, because only hyper knows where the chunks
//!   end. The response to that request ends the connection.
//! * A request without a method for a body, whose chunked body has no bytes, is one without a body:
//!   hyper gets neither the last chunk nor the header, and the connection stays open.
//! * What hyper writes is collected and written to the socket when the connection's task has run,
//!   so that the responses to pipelined requests share a system call. The task must call
//!   [`RequestBoundary::poll_flush`] before it sleeps.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use throng_wire::ErrorResponse;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::inspect::{BodyFraming, Inspection, inspect};
use super::stream::ClientStream;

/// Maximum size of collected responses: more is written to the socket before hyper may add to it. A
/// client that reads nothing occupies this memory, in addition to the quota for large responses.
const OUT_BYTES_MAX: usize = 16 << 10;
/// An empty buffer with more capacity than this is freed.
const OUT_BYTES_KEPT: usize = 4 << 10;
/// The value of `readable` while hyper may read without end.
const UNLIMITED: u64 = u64::MAX;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// The next request subscribes; with the error that a worker would respond with, if any.
    Subscription(Option<ErrorResponse>),
    Malformed(ErrorResponse),
    /// The next request is another process's, or begins later.
    Moving,
}

/// A socket, and the bytes between it and hyper.
#[derive(Debug)]
pub(super) struct RequestBoundary {
    stream: ClientStream,
    /// Maximum size of a request head.
    max_head_bytes: usize,
    /// Bytes that were read from the socket and not yet by hyper.
    unread: BytesMut,
    /// Bytes hyper may still read before the next head.
    readable: u64,
    /// Set once the next request is not hyper's. Hyper reads nothing from then on.
    closed: Option<Closed>,
    /// True if hyper has flushed its responses since the boundary closed.
    is_flushed: bool,
    /// True if hyper has flushed all its output.
    has_hyper_flushed: bool,
    /// True if hyper gets no further request.
    is_moving: bool,
    /// Responses of hyper that are not written to the socket yet.
    out: BytesMut,
    /// Number of heads that hyper has been given. Compared with the number of responses it tells
    /// whether a request is in progress.
    heads: u64,
}

impl RequestBoundary {
    /// A boundary for `stream`, from which `bytes` were read already.
    pub(super) fn new(
        stream: ClientStream,
        bytes: &[u8],
        max_head_bytes: usize,
    ) -> RequestBoundary {
        RequestBoundary {
            stream,
            max_head_bytes,
            unread: BytesMut::from(bytes),
            readable: 0,
            closed: None,
            is_flushed: false,
            has_hyper_flushed: true,
            is_moving: false,
            out: BytesMut::new(),
            heads: 0,
        }
    }

    /// True if the boundary has closed and hyper has written all responses.
    pub(super) fn is_done(&self) -> bool {
        self.closed.is_some() && self.is_flushed
    }

    /// Gives hyper no further request. The one that it has is served.
    pub(super) fn begin_move(&mut self) {
        self.is_moving = true;
    }

    /// True if hyper has answered all its requests, which were `answers` in number.
    pub(super) fn has_answered(&self, answers: u64) -> bool {
        self.readable == 0 && self.heads == answers
    }

    /// True if the socket has all output of hyper.
    pub(super) fn has_written_all(&self) -> bool {
        self.has_hyper_flushed && !self.has_output()
    }

    pub(super) fn is_moving(&self) -> bool {
        self.is_moving
    }

    /// Takes the reason why the boundary has closed.
    pub(super) fn take_closed(&mut self) -> Option<Closed> {
        self.closed.take()
    }

    /// True if a head has begun that hyper does not have yet. Empty lines do not begin a head: some
    /// old clients send them after a body.
    pub(super) fn is_mid_head(&self) -> bool {
        self.readable == 0 && self.unread.iter().any(|byte| !matches!(byte, b'\r' | b'\n'))
    }

    /// True if hyper has read all of the request that it serves.
    pub(super) fn has_whole_request(&self) -> bool {
        self.readable == 0
    }

    /// True if no known input is unread. Such a socket can be closed without a reset, which could
    /// destroy its last response.
    pub(super) fn is_clean(&self) -> bool {
        self.readable == 0 && self.unread.is_empty()
    }

    /// Bytes that hyper has not read; they begin with the next request.
    pub(super) fn unread(&self) -> &[u8] {
        &self.unread
    }

    /// Number of heads that hyper has been given.
    pub(super) fn heads(&self) -> u64 {
        self.heads
    }

    /// A value that changes whenever bytes are read from or written to the socket.
    pub(super) fn progress(&self) -> u64 {
        self.stream.progress()
    }

    pub(super) fn is_tls(&self) -> bool {
        self.stream.is_tls()
    }

    /// True if responses wait to be written to the socket.
    pub(super) fn has_output(&self) -> bool {
        !self.out.is_empty() || self.stream.has_output()
    }

    /// The socket, the bytes that hyper has not read, and the responses that are not written.
    pub(super) fn into_parts(self) -> (ClientStream, BytesMut, BytesMut) {
        (self.stream, self.unread, self.out)
    }

    /// Writes the collected responses. Pending while the socket is blocked.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() {
            return self.stream.poll_flush(cx);
        }
        while !self.out.is_empty() {
            let written = ready!(self.stream.poll_write(cx, &self.out))?;
            self.out.advance(written);
        }
        if self.out.capacity() > OUT_BYTES_KEPT {
            self.out = BytesMut::new();
        } else {
            self.out.clear();
        }
        self.stream.poll_flush(cx)
    }

    /// Reads from the socket; returns 0 at the end of input. Keeps no buffer while it waits for
    /// input.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.stream.poll_fill(cx, &mut self.unread)
    }

    /// Collects what hyper writes, up to the maximum.
    fn poll_collect(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.out.len() >= OUT_BYTES_MAX {
            ready!(self.poll_flush(cx))?;
        }
        self.has_hyper_flushed = false;
        let before = self.out.len();
        for slice in slices {
            let free = OUT_BYTES_MAX - self.out.len();
            self.out.extend_from_slice(&slice[..slice.len().min(free)]);
        }
        Poll::Ready(Ok(self.out.len() - before))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.closed.is_some() {
                // Without a waker: hyper's connection is dropped once it has flushed its responses.
                return Poll::Pending;
            }
            if self.readable > 0 {
                if self.unread.is_empty() && ready!(self.poll_fill(cx))? == 0 {
                    return Poll::Ready(Ok(()));
                }
                self.pass_to_hyper(into);
                return Poll::Ready(Ok(()));
            }
            if !self.inspect_next() && self.closed.is_none() && ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Passes on the bytes that hyper may read.
    fn pass_to_hyper(&mut self, into: &mut ReadBuf<'_>) {
        let readable = usize::try_from(self.readable).unwrap_or(usize::MAX);
        let bytes = self.unread.len().min(into.remaining()).min(readable);
        into.put_slice(&self.unread[..bytes]);
        self.unread.advance(bytes);
        if self.readable != UNLIMITED {
            self.readable -= bytes as u64;
        }
    }

    /// Inspects the next head. Returns whether hyper serves the request.
    fn inspect_next(&mut self) -> bool {
        debug_assert_eq!(self.readable, 0, "hyper has not read all of its request");
        debug_assert_eq!(self.closed, None, "no request is hyper's once the boundary has closed");
        if self.is_moving {
            self.closed = Some(Closed::Moving);
            self.is_flushed = false;
            return false;
        }
        if self.unread.is_empty() {
            return false;
        }
        match inspect(&self.unread, self.max_head_bytes) {
            Inspection::Partial => return false,
            Inspection::Request { head_bytes, body } => {
                self.readable = match body {
                    BodyFraming::Length(body_bytes) => body_bytes.saturating_add(head_bytes as u64),
                    BodyFraming::NoChunks(body_bytes) => {
                        remove_chunks(&mut self.unread, head_bytes, body_bytes)
                    }
                    BodyFraming::Chunked => UNLIMITED,
                };
                self.heads += 1;
                return true;
            }
            Inspection::Subscription(error) => self.closed = Some(Closed::Subscription(error)),
            Inspection::Malformed(error) => self.closed = Some(Closed::Malformed(error)),
        }
        self.is_flushed = false;
        false
    }
}

/// Makes a request with an empty chunked body, which begins `unread`, one without a body. Returns
/// the length of its head.
fn remove_chunks(unread: &mut BytesMut, head_bytes: usize, body_bytes: usize) -> u64 {
    let rest = unread.split_off(head_bytes + body_bytes);
    let whole = std::mem::take(unread);
    let name = b"transfer-encoding:";
    for line in whole[..head_bytes].split_inclusive(|&byte| byte == b'\n') {
        let is_coding = line.get(..name.len()).is_some_and(|it| it.eq_ignore_ascii_case(name));
        if !is_coding {
            unread.extend_from_slice(line);
        }
    }
    let length = unread.len() as u64;
    unread.unsplit(rest);
    length
}

/// A [`RequestBoundary`] that hyper and the connection's task share. The task polls hyper, so the
/// two never run at the same time, and the lock is never contended.
#[derive(Debug, Clone)]
pub(super) struct SharedBoundary(Arc<Mutex<RequestBoundary>>);

impl SharedBoundary {
    pub(super) fn new(boundary: RequestBoundary) -> SharedBoundary {
        SharedBoundary(Arc::new(Mutex::new(boundary)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RequestBoundary> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The boundary itself, once hyper has dropped its handle; `None` before.
    pub(super) fn into_inner(self) -> Option<RequestBoundary> {
        let boundary = Arc::into_inner(self.0)?;
        Some(boundary.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsyncRead for SharedBoundary {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.lock().poll_read(cx, into)
    }
}

impl AsyncWrite for SharedBoundary {
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

    /// Hyper calls this when it has written all it has. The socket is written to later.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut boundary = self.lock();
        (boundary.is_flushed, boundary.has_hyper_flushed) = (true, true);
        Poll::Ready(Ok(()))
    }

    /// Hyper calls this at its end. The socket stays open: it may still be needed.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.lock().poll_flush(cx)
    }
}
