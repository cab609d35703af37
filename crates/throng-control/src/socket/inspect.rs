//! Whose the next request is, and where it ends, decided before hyper sees a byte of it.
//!
//! Called by the [request boundary](crate::socket::request_boundary). It uses the same parsers as
//! the workers: if the planes disagreed about a request, its connection would be handed back and
//! forth forever. These parsers also refuse every ambiguous request, which is how requests are
//! smuggled behind others.
//!
//! What hyper would refuse is refused here as well: its own refusals are neither worded as in the
//! reference nor counted.

use http::Uri;
use throng_core::Listener;
use throng_wire::head::{self, Limits, Parsed};
use throng_wire::subscribe::{self, Request, Route};
use throng_wire::{ErrorCode, ErrorResponse};

use crate::control::Settings;
use crate::http::answer::Refused;
use crate::http::origin;

/// No body is longer, whatever the limits are set to: sums of lengths do not overflow, and hyper
/// takes the length.
const BODY_BYTES_MAX: u64 = 1 << 62;

/// No request target for hyper is longer: its type for them holds no more. A `GET` that subscribes
/// may be, and never gets here.
const TARGET_BYTES_MAX: usize = u16::MAX as usize - 1;

/// What follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// So many bytes.
    Length(u64),
    /// Chunks; hyper finds their end, and nothing may follow.
    Chunked,
}

/// What the bytes at the start of a request are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inspection {
    /// A head that has not ended yet.
    Partial,
    /// A request for hyper.
    Request {
        /// The length of its head.
        head_bytes: usize,
        /// What follows.
        body: Body,
    },
    /// A request for a worker, which may well refuse it: then with these words.
    Subscription(Option<ErrorResponse>),
    /// Not to be served; what follows cannot be made sense of.
    Refused(ErrorResponse),
}

/// Looks at what begins with a request head.
pub(crate) fn inspect(bytes: &[u8], head_bytes_max: usize) -> Inspection {
    let (head, head_bytes) = match head::parse(bytes, Limits { head_bytes_max }) {
        Ok(Parsed::Incomplete) => return Inspection::Partial,
        Ok(Parsed::Complete { head, length }) => (head, length),
        Err(refusal) => return Inspection::Refused(refusal),
    };
    match subscribe::route(&head) {
        Ok(Route::Subscribe(_)) => return Inspection::Subscription(None),
        Err(refusal) => return Inspection::Subscription(Some(refusal)),
        Ok(Route::Other) => {}
    }
    let target = raw_target(bytes);
    if target.len() > TARGET_BYTES_MAX {
        let sentence = format!("the request target is longer than {TARGET_BYTES_MAX} bytes");
        return Inspection::Refused(ErrorResponse::new(ErrorCode::UriTooLong, sentence));
    }
    if Uri::try_from(target).is_err() {
        let sentence = "the request target has a character that must be percent-encoded";
        return Inspection::Refused(ErrorResponse::new(ErrorCode::BadRequest, sentence));
    }
    if head.is_chunked() {
        return Inspection::Request { head_bytes, body: Body::Chunked };
    }
    match head.content_length().unwrap_or(0) {
        length if length <= BODY_BYTES_MAX => {
            Inspection::Request { head_bytes, body: Body::Length(length) }
        }
        length => {
            let sentence = format!("nobody takes a request body of {length} bytes");
            Inspection::Refused(ErrorResponse::new(ErrorCode::TooLarge, sentence))
        }
    }
}

/// Whether the request that `bytes` begin with, which came in at the admin listener, may go to a
/// worker.
pub(crate) fn check_viewer(settings: &Settings, bytes: &[u8]) -> Result<(), Refused> {
    let limits = Limits { head_bytes_max: settings.head_bytes_max };
    match head::parse(bytes, limits)? {
        Parsed::Complete { head, .. } => match subscribe::route(&head)? {
            Route::Subscribe(request) => origin::check_viewer(settings, &request),
            Route::Other => Err(Refused::from(ErrorCode::NotFound)),
        },
        Parsed::Incomplete => Err(Refused::from(ErrorCode::NotFound)),
    }
}

/// To whom a refusal of the request that `bytes` begin with goes: its origin, if its pages may read
/// the answer, and what it asks for, if it subscribes and its origin may.
pub(crate) fn reader(
    bytes: &[u8],
    settings: &Settings,
    listener: Listener,
) -> (Option<String>, Option<Box<Request>>) {
    let limits = Limits { head_bytes_max: settings.head_bytes_max };
    let Ok(Parsed::Complete { head, .. }) = head::parse(bytes, limits) else {
        return (None, None);
    };
    let origin = head.header("origin").map(|origin| str::from_utf8(origin).unwrap_or_default());
    let is_allowed = |origin: &str| origin::is_allowed(settings, listener, origin, head.host());
    if origin.is_some_and(|origin| !is_allowed(origin)) {
        return (None, None);
    }
    let subscription = match subscribe::route(&head) {
        Ok(Route::Subscribe(request)) => Some(request),
        Ok(Route::Other) | Err(_) => None,
    };
    (origin.map(str::to_owned), subscription)
}

/// The target as it stands in a well-formed head.
fn raw_target(head: &[u8]) -> &[u8] {
    head.trim_ascii_start().split(|byte| *byte == b' ').nth(1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(head: &str) -> Inspection {
        inspect(head.as_bytes(), 1000)
    }

    #[test]
    fn only_gets_of_channels_users_and_subscribe_are_for_a_worker() {
        for target in ["/channels/a", "/users/a%2Fb?since=a-1", "/subscribe?channel=a/b"] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(of(&head), Inspection::Subscription(None), "{target}");
            let head = format!("HEAD {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(matches!(of(&head), Inspection::Request { .. }), "{target}");
        }
        let head = "GET /channels/.. HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(matches!(of(head), Inspection::Subscription(Some(_))));
        for target in ["/", "/channels/a/history", "/chat", "/health?a=b"] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(matches!(of(&head), Inspection::Request { .. }), "{target}");
        }
    }

    #[test]
    fn bodies_are_measured() {
        let post = |fields: &str| of(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\nrest"));
        let body = |inspection| match inspection {
            Inspection::Request { body, .. } => Some(body),
            _ => None,
        };
        assert_eq!(body(post("")), Some(Body::Length(0)));
        assert_eq!(body(post("content-length: 17\r\n")), Some(Body::Length(17)));
        assert_eq!(body(post("transfer-encoding: chunked\r\n")), Some(Body::Chunked));
    }
}
