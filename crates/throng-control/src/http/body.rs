//! Request bodies: limited in size, in time, and all together.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};
use hyper::body::{Body as _, Incoming};
use tokio::time::{sleep, timeout};

use crate::control::Control;
use crate::http::answer::Refused;
use crate::memory_quota::{Cut, Pot, Share};
use throng_wire::ErrorCode;

/// What a body is to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// The body of one message, up to `max-message-bytes`.
    Message,
    /// Messages of a batch, one a line, up to `max-batch-bytes`.
    Batch,
}

impl Kind {
    fn bytes_max(self, control: &Control) -> usize {
        match self {
            Kind::Message => control.settings.message_bytes_max,
            Kind::Batch => control.settings.batch_bytes_max,
        }
    }

    /// What it takes of while it arrives, and how much of that there is.
    fn pot(self, control: &Control) -> (&Arc<Pot>, u64) {
        match self {
            Kind::Message => {
                (&control.figures.message_bodies, control.settings.partial_messages_bytes_max)
            }
            Kind::Batch => {
                (&control.figures.batch_bodies, control.settings.partial_batches_bytes_max)
            }
        }
    }
}

/// A body that has arrived.
#[derive(Debug)]
pub(crate) struct Whole {
    bytes: Bytes,
    /// What it takes of its pot; nothing if it came in one piece, which is small.
    _share: Option<Share>,
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the whole body.
pub(crate) async fn read(
    control: &Control,
    headers: &HeaderMap,
    body: &mut Incoming,
    kind: Kind,
) -> Result<Whole, Refused> {
    let bytes_max = kind.bytes_max(control);
    // Refused before a byte of it is read, or `100 Continue` is sent.
    if announced(headers).is_some_and(|bytes| bytes > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    let reading = collect(control, body, kind);
    timeout(control.settings.body_timeout, reading).await.unwrap_or_else(|_| Err(too_slow()))
}

/// Reads what is left of a body that nobody wanted, because the next request stands behind it.
/// Returns whether it is worth waiting for that one.
pub(crate) async fn discard(control: &Control, headers: &HeaderMap, body: &mut Incoming) -> bool {
    if body.is_end_stream() {
        return true;
    }
    // Who has been answered without `100 Continue` may or may not send the body.
    let is_coming = !headers.contains_key(EXPECT)
        && announced(headers).is_some_and(|n| n <= control.settings.message_bytes_max as u64);
    let reading = async { while let Ok(Some(_)) = next(control, body).await {} };
    is_coming
        && timeout(control.settings.body_timeout, reading).await.is_ok()
        && body.is_end_stream()
}

/// The length that the head announces.
fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_slow() -> Refused {
    Refused::new(ErrorCode::TooSlow, "the request body did not arrive in time").closing()
}

fn too_large(bytes_max: usize) -> Refused {
    let sentence = format!("the request body is larger than {bytes_max} bytes");
    Refused::new(ErrorCode::TooLarge, sentence).closing()
}

async fn collect(control: &Control, body: &mut Incoming, kind: Kind) -> Result<Whole, Refused> {
    let (bytes_max, (pot, pot_bytes_max)) = (kind.bytes_max(control), kind.pot(control));
    // Most messages are one piece, and are not copied then.
    let first = next(control, body).await?.unwrap_or_default();
    if first.len() > bytes_max {
        return Err(too_large(bytes_max));
    }
    if body.is_end_stream() {
        return Ok(Whole { bytes: first, _share: None });
    }
    let cut = Arc::new(Cut::default());
    let mut share = Share::of(pot);
    share.set_movable(&cut);
    if !share.grow_within(first.len(), pot_bytes_max) {
        return Err(too_many());
    }
    let mut whole = BytesMut::from(first);
    loop {
        let piece = tokio::select! {
            biased;
            () = cut.wait() => return Err(too_many()),
            piece = next(control, body) => piece?,
        };
        let Some(piece) = piece else { break };
        if whole.len() + piece.len() > bytes_max {
            return Err(too_large(bytes_max));
        }
        if !share.grow_within(piece.len(), pot_bytes_max) {
            return Err(too_many());
        }
        whole.extend_from_slice(&piece);
    }
    // It is acted upon now, and not to be stopped half-way.
    share.set_fixed();
    Ok(Whole { bytes: whole.freeze(), _share: Some(share) })
}

fn too_many() -> Refused {
    let sentence = "too many large requests at once; try again later";
    Refused::new(ErrorCode::Busy, sentence).closing()
}

/// The next piece; trailers are skipped. A client that sends nothing for long is not waited for,
/// nor one that is slow when the server shuts down.
async fn next(control: &Control, body: &mut Incoming) -> Result<Option<Bytes>, Refused> {
    loop {
        let settings = &control.settings;
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
        let frame = tokio::select! {
            biased;
            frame = frame => frame,
            () = sleep(settings.idle_timeout) => return Err(too_slow()),
            () = control.drain.wait_with(settings.drain_patience) => {
                return Err(Refused::from(ErrorCode::Draining).closing());
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
                let sentence = "the request body does not end as its length or chunks say";
                return Err(Refused::new(ErrorCode::BadLength, sentence).closing());
            }
        }
    }
}
