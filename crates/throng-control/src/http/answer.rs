//! Answers and refusals, as `docs/reference/http.md` words them.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, UPGRADE,
};
use http::{Response, StatusCode};
use http_body_util::{Either, Full};
use throng_core::clock;
use throng_wire::error::ResponseOptions;
use throng_wire::subscribe::Request;
use throng_wire::{Date, ErrorCode, ErrorResponse, RetryAfter};

use crate::control::Control;
use crate::memory_quota::{Cut, Pot, Share};

/// The body of an answer: whole for the API, axum's for pages.
pub(crate) type Payload = Either<Full<Bytes>, Body>;

/// An answer.
pub(crate) type Answer = Response<Payload>;

/// Where a subscription starts or a log ends.
pub(crate) const THRONG_ID: HeaderName = HeaderName::from_static("throng-id");
/// Whether nothing is missing after the id that was given.
pub(crate) const THRONG_RECOVERED: HeaderName = HeaderName::from_static("throng-recovered");
/// The connection that does not get the message.
pub(crate) const THRONG_EXCLUDE: HeaderName = HeaderName::from_static("throng-exclude");
/// The content type of most answers.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The same key on the same channel publishes once.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// An error response of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The code and the message.
    pub(crate) error: ErrorResponse,
    /// The methods that the path takes, for [`ErrorCode::MethodNotAllowed`].
    pub(crate) allow: Option<&'static str>,
    /// Whether the rest of the request is not worth reading.
    pub(crate) closes: bool,
}

impl Refused {
    pub(crate) fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Refused {
        ErrorResponse::new(code, message).into()
    }

    /// … and the connection ends with it.
    pub(crate) fn closing(self) -> Refused {
        Refused { closes: true, ..self }
    }

    pub(crate) fn method(allow: &'static str) -> Refused {
        let message = format!("this path takes {allow}");
        Refused { allow: Some(allow), ..Refused::new(ErrorCode::MethodNotAllowed, message) }
    }

    pub(crate) fn parameter(message: impl Into<Cow<'static, str>>) -> Refused {
        Refused::new(ErrorCode::BadParameter, message)
    }

    /// Counts it.
    pub(crate) fn count(&self, control: &Control) {
        control.figures.refused(self.error.code).add(1);
    }

    /// Counts it and makes the answer of it.
    pub(crate) fn into_answer(self, control: &Control) -> Answer {
        self.count(control);
        let code = self.error.code;
        let mut answer = json(status(code), self.error.body());
        answer.extensions_mut().insert(code);
        let headers = answer.headers_mut();
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(retry_after) = retry_after(control, code) {
            headers.insert(RETRY_AFTER, HeaderValue::from(retry_after.seconds()));
        }
        if code == ErrorCode::UpgradeRequired {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        if self.closes {
            close(&mut answer);
        }
        answer
    }

    /// Counts it and writes the whole answer, for a connection that hyper does not hold (any more).
    /// Pages of `allow_origin` may read it. If it is the answer to a `subscription`, it may need
    /// another form.
    pub(crate) fn write_raw(
        &self,
        control: &Control,
        allow_origin: Option<&str>,
        subscription: Option<&Request>,
        out: &mut Vec<u8>,
    ) {
        self.count(control);
        let options = ResponseOptions {
            keep_alive: false,
            allow_origin,
            retry_after: retry_after(control, self.error.code),
            date: Some(Date::at_ms(clock::told_ms(clock::now_ms()))),
        };
        match subscription {
            Some(request) => self.error.write_for_subscriber(out, request, &options),
            None => self.error.write_response(out, &options),
        }
    }
}

/// The next client's `Retry-After`, for a code that has one.
pub(crate) fn retry_after(control: &Control, code: ErrorCode) -> Option<RetryAfter> {
    let window_ms = code.retry()?.window_ms(control.settings.drain_window);
    Some(RetryAfter::from_ms(control.moments.next_ms(&window_ms)))
}

/// The status of a code. Every one is a status: a test holds it.
pub(crate) fn status(code: ErrorCode) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

impl<E: Into<ErrorResponse>> From<E> for Refused {
    fn from(error: E) -> Refused {
        Refused { error: error.into(), allow: None, closes: false }
    }
}

/// Makes it the last answer of its connection.
pub(crate) fn close(answer: &mut Answer) {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

/// A short answer in JSON. What it says is true only now.
pub(crate) fn json(status: StatusCode, body: Vec<u8>) -> Answer {
    whole(status, JSON, body.into())
}

/// An answer that may be large, of any type. It takes of a pot until the client has taken it, or
/// until its connection has to give way.
pub(crate) fn large(content_type: HeaderValue, body: Vec<u8>, room: Room) -> Answer {
    let Room(mut share) = room;
    share.settle(body.len());
    // Only tests answer outside of a connection's task, where `OWN_CUT` is not set.
    let _ = OWN_CUT.try_with(|cut| share.set_movable(cut));
    whole(StatusCode::OK, content_type, Bytes::from_owner(Counted { body, _share: share }))
}

tokio::task_local! {
    /// Tells the connection that is being served that its answers have to give way.
    pub(crate) static OWN_CUT: Arc<Cut>;
}

/// Room in `pot` for an answer of `bytes`, unless clients leave too much unread.
pub(crate) fn room(control: &Control, pot: &Arc<Pot>, bytes: usize) -> Result<Room, Refused> {
    let mut share = Share::of(pot);
    // Whatever the limit is, one answer alone can be given.
    let max = control.settings.answer_bytes_max.max(bytes as u64);
    if share.grow_within(bytes, max) {
        return Ok(Room(share));
    }
    let message = "too many answers have not been read by their clients; try again later";
    Err(Refused::new(ErrorCode::Busy, message))
}

/// Room for a large answer.
#[derive(Debug)]
pub(crate) struct Room(Share);

/// Bytes that are counted for as long as they are there. Hyper keeps them, not a copy, until they
/// are written.
struct Counted {
    body: Vec<u8>,
    _share: Share,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

fn whole(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(body)));
    *answer.status_mut() = status;
    answer.headers_mut().reserve(4);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(Bytes::new())));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_status() {
        for &code in ErrorCode::ALL {
            assert_eq!(status(code).as_u16(), code.status(), "{code}");
        }
    }
}
