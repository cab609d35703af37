//! Responses that may be large. Their memory is limited until the clients have read them.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderValue};
use throng_wire::ErrorCode;

use super::answer::{self, Answer, ApiError};
use super::gzip;
use crate::memory_quota::{EvictionSignal, MemoryQuota, Reservation};
use crate::settings::Settings;

tokio::task_local! {
    /// Tells the connection whose task this is that the memory of its responses was evicted.
    pub(crate) static CONNECTION_EVICTION: Arc<EvictionSignal>;
}

/// Reserves memory for a response of `bytes`. Fails with `busy` if unread responses of other
/// clients take the quota and none is large enough to be evicted.
pub(crate) fn reserve(quota: &Arc<MemoryQuota>, bytes: usize) -> Result<Reservation, ApiError> {
    let mut reservation = Reservation::new(quota);
    if reservation.grow_oversized(bytes) {
        return Ok(reservation);
    }
    let message = "too many responses have not been read by their clients; try again later";
    Err(ApiError::new(ErrorCode::Busy, message))
}

/// A response that keeps its reservation until the client has read it, or until the connection is
/// closed because the reservation was evicted.
pub(crate) fn answer(
    content_type: HeaderValue,
    body: impl Into<Bytes>,
    mut reservation: Reservation,
) -> Answer {
    let body = body.into();
    reservation.resize(body.len());
    // Not set only in tests that make responses outside a connection's task.
    let _ = CONNECTION_EVICTION.try_with(|signal| reservation.set_evictable(signal));
    let body = Bytes::from_owner(ReservedBytes { body, _reservation: reservation });
    answer::complete(StatusCode::OK, content_type, body)
}

/// A response in JSON that takes its memory from `quota`.
pub(crate) fn json(quota: &Arc<MemoryQuota>, body: impl Into<Bytes>) -> Result<Answer, ApiError> {
    let body = body.into();
    let reservation = reserve(quota, body.len())?;
    Ok(answer(answer::JSON, body, reservation))
}

/// A response whose body may be compressed, and says so.
pub(crate) fn encoded(
    content_type: HeaderValue,
    body: EncodedBody,
    reservation: Reservation,
) -> Answer {
    let mut answer = answer(content_type, body.bytes, reservation);
    gzip::mark(&mut answer, body.is_compressed);
    answer
}

/// A body, compressed or not.
#[derive(Debug, Clone)]
pub(crate) struct EncodedBody {
    pub(crate) bytes: Bytes,
    pub(crate) is_compressed: bool,
}

impl EncodedBody {
    /// Compresses a body if `request` accepts it, `settings` allow it and it is worth it. The parts
    /// between `cuts` are compressed each by itself; see [`gzip`].
    pub(crate) async fn of(
        body: Vec<u8>,
        cuts: &[usize],
        settings: &Settings,
        request: &HeaderMap,
    ) -> EncodedBody {
        let is_large = settings.compression_min_bytes.is_some_and(|least| body.len() >= least);
        if is_large
            && gzip::is_accepted(request)
            && let Some(compressed) = gzip::compress(&body, cuts).await
        {
            return EncodedBody { bytes: compressed.into(), is_compressed: true };
        }
        EncodedBody { bytes: body.into(), is_compressed: false }
    }
}

/// Bytes with the reservation for them. Hyper keeps these bytes, not a copy, until it has written
/// them.
struct ReservedBytes {
    body: Bytes,
    _reservation: Reservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}
