//! Request bodies, limited in size, in time and in total memory.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};
use hyper::body::{Body as _, Frame, Incoming};
use throng_wire::ErrorCode;
use tokio::time::{sleep, timeout};

use super::answer::ApiError;
use crate::drain::Drain;
use crate::memory_quota::{EvictionSignal, MemoryQuota, Reservation};
use crate::settings::Settings;

/// The content of a body, which decides its limits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BodyKind {
    /// One message, up to `max-message-bytes`.
    Message,
    /// A batch of messages, up to `max-batch-bytes`.
    Batch,
}

/// The limits of one kind of body.
#[derive(Debug)]
struct BodyLimits {
    max_bytes: usize,
    /// Memory of all bodies of this kind that are arriving or being published.
    quota: Arc<MemoryQuota>,
}

impl BodyLimits {
    fn new(max_bytes: usize, quota_bytes: u64) -> BodyLimits {
        BodyLimits { max_bytes, quota: Arc::new(MemoryQuota::new(quota_bytes)) }
    }

    fn check(&self, bytes: usize) -> Result<(), ApiError> {
        if bytes > self.max_bytes {
            let message = format!("the request body is larger than {} bytes", self.max_bytes);
            return Err(ApiError::new(ErrorCode::TooLarge, message).closing());
        }
        Ok(())
    }
}

/// A body that has arrived completely.
#[derive(Debug)]
pub(crate) struct Whole {
    bytes: Bytes,
    was_awaited: bool,
    /// Its share of the quota; `None` for a body that came in one piece, which is small.
    _reservation: Option<Reservation>,
}

impl Whole {
    /// True if it came later than its head, so that permissions may have changed.
    pub(crate) fn was_awaited(&self) -> bool {
        self.was_awaited
    }
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

#[derive(Debug)]
pub(crate) struct BodyReader {
    message: BodyLimits,
    batch: BodyLimits,
    body_timeout: Duration,
    /// Time between two pieces of a body.
    idle_timeout: Duration,
    /// The same, once the server is shutting down.
    drain_body_timeout: Duration,
}

impl BodyReader {
    pub(crate) fn new(settings: &Settings) -> BodyReader {
        BodyReader {
            message: BodyLimits::new(
                settings.max_message_bytes,
                settings.limits.max_partial_messages_bytes,
            ),
            batch: BodyLimits::new(
                settings.max_batch_bytes,
                settings.limits.max_partial_batches_bytes,
            ),
            body_timeout: settings.limits.body_timeout,
            idle_timeout: settings.idle_timeout,
            drain_body_timeout: settings.limits.drain_body_timeout,
        }
    }

    /// Memory of bodies that are arriving or being published.
    pub(crate) fn buffered_bytes(&self) -> u64 {
        self.message.quota.bytes() + self.batch.quota.bytes()
    }

    fn limits(&self, kind: BodyKind) -> &BodyLimits {
        match kind {
            BodyKind::Message => &self.message,
            BodyKind::Batch => &self.batch,
        }
    }

    /// The length that the head announces; `None` if it does not say.
    ///
    /// # Errors
    ///
    /// `too_large`.
    pub(crate) fn length(
        &self,
        headers: &HeaderMap,
        kind: BodyKind,
    ) -> Result<Option<usize>, ApiError> {
        let limits = self.limits(kind);
        let bytes = announced(headers).map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        limits.check(bytes.unwrap_or(0))?;
        Ok(bytes)
    }

    pub(crate) async fn read(
        &self,
        drain: &Drain,
        headers: &HeaderMap,
        body: &mut Incoming,
        kind: BodyKind,
    ) -> Result<Whole, ApiError> {
        // Checked before the first read, which makes hyper send `100 Continue`.
        self.length(headers, kind)?;
        let limits = self.limits(kind);
        // Most messages are a single piece that came with the head. It is used without a copy, and
        // needs no timer.
        let first = match next_now(body).await {
            Poll::Ready(Some(frame)) => data(frame)?,
            Poll::Ready(None) => Some(Bytes::new()),
            Poll::Pending => None,
        };
        if let Some(bytes) = &first
            && body.is_end_stream()
        {
            limits.check(bytes.len())?;
            let bytes = bytes.clone();
            return Ok(Whole { bytes, was_awaited: false, _reservation: None });
        }
        // Boxed: it is larger than all else of a request, whose future moves.
        let reading = Box::pin(self.collect(drain, body, limits, first));
        timeout(self.body_timeout, reading).await.unwrap_or_else(|_| Err(too_slow()))
    }

    /// Reads and drops the rest of a body, because the next request follows it. Returns whether the
    /// connection can be kept for that request.
    pub(crate) async fn discard(
        &self,
        drain: &Drain,
        headers: &HeaderMap,
        body: &mut Incoming,
    ) -> bool {
        if body.is_end_stream() {
            return true;
        }
        // A client that expects `100 Continue` and got a final response instead may or may not send
        // the body.
        let is_coming = !headers.contains_key(EXPECT)
            && announced(headers).is_some_and(|bytes| bytes <= self.message.max_bytes as u64);
        let reading = async { while let Ok(Some(_)) = self.next(drain, body).await {} };
        let reading = Box::pin(reading);
        is_coming && timeout(self.body_timeout, reading).await.is_ok() && body.is_end_stream()
    }

    async fn collect(
        &self,
        drain: &Drain,
        body: &mut Incoming,
        limits: &BodyLimits,
        first: Option<Bytes>,
    ) -> Result<Whole, ApiError> {
        let first = match first {
            Some(first) => first,
            None => self.next(drain, body).await?.unwrap_or_default(),
        };
        limits.check(first.len())?;
        if body.is_end_stream() {
            return Ok(Whole { bytes: first, was_awaited: true, _reservation: None });
        }
        let eviction = Arc::new(EvictionSignal::default());
        let mut reservation = Reservation::new(&limits.quota);
        reservation.set_evictable(&eviction);
        if !reservation.grow(first.len()) {
            return Err(too_many());
        }
        let mut whole = BytesMut::from(first);
        loop {
            let piece = tokio::select! {
                biased;
                () = eviction.wait() => return Err(too_many()),
                piece = self.next(drain, body) => piece?,
            };
            let Some(piece) = piece else { break };
            limits.check(whole.len() + piece.len())?;
            if !reservation.grow(piece.len()) {
                return Err(too_many());
            }
            whole.extend_from_slice(&piece);
        }
        // From here on it is published, which must not stop half-way.
        reservation.pin();
        let bytes = whole.freeze();
        Ok(Whole { bytes, was_awaited: true, _reservation: Some(reservation) })
    }

    /// The next piece of the body; `None` at its end. Trailers are skipped. Fails if no piece
    /// arrives in time, which is less time once the server is shutting down.
    async fn next(&self, drain: &Drain, body: &mut Incoming) -> Result<Option<Bytes>, ApiError> {
        loop {
            let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
            let frame = tokio::select! {
                biased;
                // First: a piece that has arrived counts, even if its time is over by now.
                frame = frame => frame,
                () = sleep(self.idle_timeout) => return Err(too_slow()),
                () = drain.cut_body(self.drain_body_timeout) => {
                    return Err(ApiError::from(ErrorCode::Draining).closing());
                }
            };
            match frame {
                None => return Ok(None),
                Some(frame) => {
                    if let Some(piece) = data(frame)? {
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }
}

/// The next part of the body, if it is here.
async fn next_now(body: &mut Incoming) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await
}

/// The data of a part of a body; `None` for trailers.
fn data(frame: Result<Frame<Bytes>, hyper::Error>) -> Result<Option<Bytes>, ApiError> {
    let Ok(frame) = frame else {
        let message = "the request body does not end as its length or chunks say";
        return Err(ApiError::new(ErrorCode::BadLength, message).closing());
    };
    Ok(frame.into_data().ok())
}

/// The length of the body that the head announces.
pub(crate) fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_slow() -> ApiError {
    ApiError::new(ErrorCode::TooSlow, "the request body did not arrive in time").closing()
}

fn too_many() -> ApiError {
    let message = "too many large requests at once; try again later";
    ApiError::new(ErrorCode::Busy, message).closing()
}
