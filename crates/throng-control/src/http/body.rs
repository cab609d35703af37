//! Request bodies, limited in size, in time and in total memory.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};
use hyper::body::{Body as _, Incoming};
use throng_wire::ErrorCode;
use tokio::time::{sleep, timeout};

use super::answer::ApiError;
use crate::drain::Drain;
use crate::memory_quota::{EvictionSignal, MemoryQuota, Reservation};
use crate::settings::Settings;

/// What a body is to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// One message, up to `max-message-bytes`.
    Message,
    /// A batch of messages, up to `max-batch-bytes`.
    Batch,
}

/// The limits of one kind of body.
#[derive(Debug)]
struct Limits {
    /// Maximum size of one body.
    max_bytes: usize,
    /// Memory of all bodies of this kind that are arriving or being published.
    quota: Arc<MemoryQuota>,
}

impl Limits {
    fn new(max_bytes: usize, quota_bytes: u64) -> Limits {
        Limits { max_bytes, quota: Arc::new(MemoryQuota::new(quota_bytes)) }
    }

    fn too_large(&self) -> ApiError {
        let message = format!("the request body is larger than {} bytes", self.max_bytes);
        ApiError::new(ErrorCode::TooLarge, message).closing()
    }
}

/// A body that has arrived completely.
#[derive(Debug)]
pub(crate) struct Whole {
    bytes: Bytes,
    /// Its share of the quota; `None` for a body that came in one piece, which is small.
    _reservation: Option<Reservation>,
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads request bodies.
#[derive(Debug)]
pub(crate) struct BodyReader {
    message: Limits,
    batch: Limits,
    /// Time for a complete body.
    body_timeout: Duration,
    /// Time between two pieces of a body.
    idle_timeout: Duration,
    /// The same, once the server is shutting down.
    drain_body_timeout: Duration,
}

impl BodyReader {
    pub(crate) fn new(settings: &Settings) -> BodyReader {
        BodyReader {
            message: Limits::new(
                settings.max_message_bytes,
                settings.limits.max_partial_messages_bytes,
            ),
            batch: Limits::new(settings.max_batch_bytes, settings.limits.max_partial_batches_bytes),
            body_timeout: settings.limits.body_timeout,
            idle_timeout: settings.idle_timeout,
            drain_body_timeout: settings.limits.drain_body_timeout,
        }
    }

    /// Memory of bodies that are arriving or being published.
    pub(crate) fn buffered_bytes(&self) -> u64 {
        self.message.quota.bytes() + self.batch.quota.bytes()
    }

    fn limits(&self, kind: Kind) -> &Limits {
        match kind {
            Kind::Message => &self.message,
            Kind::Batch => &self.batch,
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
        kind: Kind,
    ) -> Result<Option<usize>, ApiError> {
        let limits = self.limits(kind);
        let bytes = announced(headers).map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        match bytes {
            Some(bytes) if bytes > limits.max_bytes => Err(limits.too_large()),
            bytes => Ok(bytes),
        }
    }

    /// Reads a complete body.
    pub(crate) async fn read(
        &self,
        drain: &Drain,
        headers: &HeaderMap,
        body: &mut Incoming,
        kind: Kind,
    ) -> Result<Whole, ApiError> {
        // Checked before the first read, which makes hyper send `100 Continue`.
        self.length(headers, kind)?;
        let reading = self.collect(drain, body, self.limits(kind));
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
        is_coming && timeout(self.body_timeout, reading).await.is_ok() && body.is_end_stream()
    }

    async fn collect(
        &self,
        drain: &Drain,
        body: &mut Incoming,
        limits: &Limits,
    ) -> Result<Whole, ApiError> {
        // Most messages are a single piece, which is used without a copy.
        let first = self.next(drain, body).await?.unwrap_or_default();
        if first.len() > limits.max_bytes {
            return Err(limits.too_large());
        }
        if body.is_end_stream() {
            return Ok(Whole { bytes: first, _reservation: None });
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
            if whole.len() + piece.len() > limits.max_bytes {
                return Err(limits.too_large());
            }
            if !reservation.grow(piece.len()) {
                return Err(too_many());
            }
            whole.extend_from_slice(&piece);
        }
        // From here on it is published, which must not stop half-way.
        reservation.pin();
        Ok(Whole { bytes: whole.freeze(), _reservation: Some(reservation) })
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
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
                Some(Err(_)) => {
                    let message = "the request body does not end as its length or chunks say";
                    return Err(ApiError::new(ErrorCode::BadLength, message).closing());
                }
            }
        }
    }
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
