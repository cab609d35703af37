//! Responses, and error responses as `docs/reference/http.md` defines them.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, UPGRADE,
    WWW_AUTHENTICATE,
};
use http::{Response, StatusCode};
use http_body_util::{Either, Full};
use throng_access::limit::Refusal;
use throng_core::clock;
use throng_core::spread::{self, RetrySchedule};
use throng_dialect::Dialect;
use throng_wire::error::ResponseOptions;
use throng_wire::subscribe::Request;
use throng_wire::{Date, ErrorCode, ErrorResponse, RetryAfter};

use crate::drain::Draining;

/// The body of a response: complete for the API, axum's for pages.
pub(crate) type Payload = Either<Full<Bytes>, Body>;

/// A response of the control plane.
pub(crate) type Answer = Response<Payload>;

/// In responses: where a subscription starts, or a log ends.
pub(crate) const THRONG_ID: HeaderName = HeaderName::from_static("throng-id");
/// In responses: whether no message after the given id is missing.
pub(crate) const THRONG_RECOVERED: HeaderName = HeaderName::from_static("throng-recovered");
/// In responses of applications' requests: what is shown lacks something of other nodes.
pub(crate) const THRONG_PARTIAL: HeaderName = HeaderName::from_static("throng-partial");
/// In responses: the preferences of the request that it obeys (RFC 7240).
pub(crate) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");
/// In requests: the connection that does not get the message.
pub(crate) const THRONG_EXCLUDE: HeaderName = HeaderName::from_static("throng-exclude");
pub(crate) const THRONG_EXPIRES_IN: HeaderName = HeaderName::from_static("throng-expires-in");
/// In requests: the name of the message's event.
pub(crate) const THRONG_EVENT: HeaderName = HeaderName::from_static("throng-event");
/// In requests: the message's tags.
pub(crate) const THRONG_TAGS: HeaderName = HeaderName::from_static("throng-tags");
pub(crate) const THRONG_STATE_KEY: HeaderName = HeaderName::from_static("throng-state-key");
/// In requests: a second message with the same key on the same channel is not published.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The content type of most responses.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Why the control plane refuses a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) error: ErrorResponse,
    /// The methods that the path takes, for [`ErrorCode::MethodNotAllowed`].
    pub(crate) allow: Option<&'static str>,
    /// True if the connection ends with the response, because the rest of the request is not worth
    /// reading.
    pub(crate) closes: bool,
    /// The earliest moment to come back, in milliseconds from now, if that is known.
    pub(crate) retry_ms: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> ApiError {
        ErrorResponse::new(code, message).into()
    }

    /// The same error, which also ends the connection.
    pub(crate) fn closing(self) -> ApiError {
        ApiError { closes: true, ..self }
    }

    /// The path takes only the methods of `allow`.
    pub(crate) fn method(allow: &'static str) -> ApiError {
        let message = format!("this path takes {allow}");
        ApiError { allow: Some(allow), ..ApiError::new(ErrorCode::MethodNotAllowed, message) }
    }

    /// The client is beyond a limit.
    pub(crate) fn limited(refusal: Refusal) -> ApiError {
        ApiError { retry_ms: refusal.after_ms, ..refusal.into() }
    }

    /// A query parameter or header is invalid.
    pub(crate) fn parameter(message: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::new(ErrorCode::BadParameter, message)
    }
}

impl<E: Into<ErrorResponse>> From<E> for ApiError {
    fn from(error: E) -> ApiError {
        ApiError { error: error.into(), allow: None, closes: false, retry_ms: None }
    }
}

impl From<Draining> for ErrorResponse {
    fn from(Draining: Draining) -> ErrorResponse {
        ErrorCode::Draining.into()
    }
}

/// The error of a response, as an extension, until the log has been told.
#[derive(Debug, Clone)]
pub(crate) struct Refused(pub(crate) ErrorResponse);

/// The reader of an error outside hyper; unknown if its request is malformed.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The origin of the request, if its pages may read the error.
    pub(crate) origin: Option<String>,
    /// True if it asks for the head of an answer only.
    pub(crate) is_head: bool,
    /// The subscription that it asks for, if its origin may: the error takes the form that the
    /// transport needs.
    pub(crate) subscription: Option<Box<Request>>,
    /// The dialect of its path, if such paths subscribe.
    pub(crate) dialect: Option<&'static dyn Dialect>,
}

/// Makes responses of errors, and counts them.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// By error code.
    counts: [AtomicU64; ErrorCode::ALL.len()],
    /// Spreads the `Retry-After` times of clients.
    retry_times: RetrySchedule,
    /// The period over which clients are told to reconnect on shutdown, at most.
    drain_window: Duration,
    /// The number of clients when the shutdown began, on which the period depends.
    clients: AtomicU64,
}

impl Refusals {
    pub(crate) fn new(drain_window: Duration) -> Refusals {
        Refusals {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            // The workers number theirs from zero, and there are fewer of them.
            retry_times: RetrySchedule::numbered(u32::from(u16::MAX)),
            drain_window,
            clients: AtomicU64::new(u64::MAX),
        }
    }

    /// How many times a code was the response since the start.
    pub(crate) fn count(&self, code: ErrorCode) -> u64 {
        self.counts[code as usize].load(Ordering::Relaxed)
    }

    /// Counts the errors of the processes before this one.
    pub(crate) fn resume(&self, count: impl Fn(ErrorCode) -> u64) {
        for code in ErrorCode::ALL.iter().copied() {
            self.counts[code as usize].fetch_add(count(code), Ordering::Relaxed);
        }
    }

    pub(crate) fn record(&self, code: ErrorCode) {
        self.counts[code as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The shutdown begins, with this many clients.
    pub(crate) fn begin_drain(&self, clients: u64) {
        self.clients.store(clients, Ordering::Relaxed);
    }

    /// The next client's `Retry-After`, for a code that has one.
    pub(crate) fn retry_after(&self, code: ErrorCode) -> Option<RetryAfter> {
        let clients = || self.clients.load(Ordering::Relaxed);
        let drain_window = || spread::window(clients(), self.drain_window);
        let window_ms = code.retry()?.window_ms(drain_window);
        Some(RetryAfter::from_ms(self.retry_times.next_ms(&window_ms)))
    }

    /// Makes the response for `error` and counts it.
    pub(crate) fn answer(&self, error: ApiError) -> Answer {
        let ApiError { error, allow, closes, retry_ms } = error;
        let code = error.code;
        self.record(code);
        let mut answer = json(status(code), error.body());
        answer.extensions_mut().insert(code);
        answer.extensions_mut().insert(Refused(error));
        let headers = answer.headers_mut();
        // Required with 405 (RFC 9110 section 15.5.6).
        if let Some(allow) = allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(retry_after) = self.retry_after(code) {
            let retry_after = RetryAfter::from_ms(retry_after.ms().max(retry_ms.unwrap_or(0)));
            headers.insert(RETRY_AFTER, HeaderValue::from(retry_after.seconds()));
        }
        // Required with 401 (RFC 9110 section 15.5.2).
        if let Some(challenge) = code.challenge() {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        // Required with 426 (RFC 9110 section 15.5.22).
        if code == ErrorCode::UpgradeRequired {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        if closes {
            close(&mut answer);
        }
        answer
    }

    /// Writes the response for `error` to `reader` as bytes, for a connection that hyper does not
    /// own, and counts it.
    pub(crate) fn write(&self, error: &ErrorResponse, reader: &Reader, out: &mut Vec<u8>) {
        self.record(error.code);
        let options = ResponseOptions {
            is_head: reader.is_head,
            keep_alive: false,
            allow_origin: reader.origin.as_deref(),
            allow_credentials: false,
            no_referrer: false,
            request_id: None,
            retry_after: self.retry_after(error.code),
            date: Some(Date::at_ms(clock::wall_ms(clock::now_ms()))),
        };
        match (reader.subscription.as_deref(), reader.dialect) {
            (None, Some(dialect)) => dialect.refuse(error, None, &options, out),
            (subscription, _) => throng_dialect::refuse(error, subscription, &options, out),
        }
    }
}

pub(crate) fn status(code: ErrorCode) -> StatusCode {
    // Does not fail: a test converts the status of every code.
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Makes this the last response of its connection.
pub(crate) fn close(answer: &mut Answer) {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

/// A small JSON response. Caches must not store it.
pub(crate) fn json(status: StatusCode, body: Vec<u8>) -> Answer {
    complete(status, JSON, body.into())
}

/// A response whose body is complete. Caches must not store it.
pub(super) fn complete(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(body)));
    *answer.status_mut() = status;
    answer.headers_mut().reserve(4);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

pub(crate) fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(Bytes::new())));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_valid_status() {
        for &code in ErrorCode::ALL {
            assert_eq!(status(code).as_u16(), code.status(), "{code}");
        }
    }
}
