//! Inspects the next request before hyper sees a byte of it: which plane serves it, and where it
//! ends.
//!
//! Called by the [request boundary](crate::socket::request_boundary). It uses the same parsers as
//! the workers: if the planes disagreed about a request, its connection would be handed back and
//! forth forever. These parsers also refuse every ambiguous request, which is how requests are
//! smuggled behind others.
//!
//! What hyper would refuse is refused here: hyper's own responses have no error code and are not
//! counted.

use http::Uri;
use throng_core::Listener;
use throng_dialect::paths;
use throng_wire::head::{self, ChunkedBody, Limits, Parsed};
use throng_wire::subscribe::Route;
use throng_wire::{ErrorCode, ErrorResponse};

use crate::authentication::Operation;
use crate::control::Control;
use crate::http::answer::{ApiError, Reader};
use crate::http::origin;
use crate::settings::Settings;

/// Maximum length of a body, whatever the settings are: sums of lengths do not overflow, and hyper
/// accepts the length.
const BODY_BYTES_MAX: u64 = 1 << 62;

/// Maximum length of a request target: the limit of hyper's type for them. The target of a request
/// that subscribes may be longer, because hyper does not see it.
const TARGET_BYTES_MAX: usize = u16::MAX as usize - 1;

/// The body that follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyFraming {
    /// A body of this many bytes.
    Length(u64),
    /// The last chunk alone, of this many bytes.
    NoChunks(usize),
    /// Chunks. Only hyper knows where they end, so the request is the connection's last.
    Chunked,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Inspection {
    Partial,
    Request {
        head_bytes: usize,
        body: BodyFraming,
    },
    /// A request for a worker, with the error that the worker would respond with, if any.
    Subscription(Option<ErrorResponse>),
    /// A malformed request. Where the next one begins is unknown.
    Malformed(ErrorResponse),
}

/// Inspects `bytes`, which begin with a request head.
pub(super) fn inspect(bytes: &[u8], max_head_bytes: usize) -> Inspection {
    let (head, head_bytes) = match head::parse(bytes, Limits { max_head_bytes }) {
        Ok(Parsed::Incomplete) => return Inspection::Partial,
        Ok(Parsed::Complete { head, length }) => (head, length),
        Err(error) => return Inspection::Malformed(error),
    };
    match throng_dialect::route(&head) {
        Ok(Route::Subscribe(_)) => return Inspection::Subscription(None),
        Err(error) => return Inspection::Subscription(Some(error)),
        Ok(Route::Other) => {}
    }
    let target = raw_target(bytes);
    if target.len() > TARGET_BYTES_MAX {
        let message = format!("the request target is longer than {TARGET_BYTES_MAX} bytes");
        return Inspection::Malformed(ErrorResponse::new(ErrorCode::UriTooLong, message));
    }
    if Uri::try_from(target).is_err() {
        let message = "the request target has a character that must be percent-encoded";
        return Inspection::Malformed(ErrorResponse::new(ErrorCode::BadRequest, message));
    }
    if head.is_chunked() {
        let takes_body = ["POST", "PUT", "PATCH"].contains(&head.method);
        return match head::chunked_body(&bytes[head_bytes..]) {
            _ if takes_body => Inspection::Request { head_bytes, body: BodyFraming::Chunked },
            ChunkedBody::Incomplete => Inspection::Partial,
            ChunkedBody::Empty(bytes) => {
                Inspection::Request { head_bytes, body: BodyFraming::NoChunks(bytes) }
            }
            ChunkedBody::Other => Inspection::Request { head_bytes, body: BodyFraming::Chunked },
        };
    }
    // Without a length and without chunks a request has no body (RFC 9112 section 6.3).
    let length = head.content_length().unwrap_or(0);
    if length > BODY_BYTES_MAX {
        let message = format!("a request body of {length} bytes is too large");
        return Inspection::Malformed(ErrorResponse::new(ErrorCode::TooLarge, message));
    }
    Inspection::Request { head_bytes, body: BodyFraming::Length(length) }
}

/// Checks a request that subscribes, which begins `bytes`: may it be handed off to a worker as one
/// that sees the status? `None` if the worker decides: it is for channels, at the public listener,
/// or for the status of a server without keys.
pub(super) fn check_viewer(
    control: &Control,
    listener: Listener,
    bytes: &[u8],
) -> Option<Result<(), ApiError>> {
    let limits = Limits { max_head_bytes: control.settings.max_head_bytes };
    let Ok(Parsed::Complete { head, .. }) = head::parse(bytes, limits) else { return None };
    let Ok(Route::Subscribe(request)) = throng_dialect::route(&head) else { return None };
    let demands_key = control.authentication.demands_key(listener);
    if listener == Listener::Public && !(request.is_status() && demands_key) {
        return None;
    }
    let check = || {
        origin::check_viewer(&control.settings, listener, &request)?;
        if demands_key {
            control.authentication.operator(|name| head.headers(name), Operation::Status)?;
        }
        Ok(())
    };
    Some(check())
}

/// The reader of an error response to the request at the start of `bytes`.
pub(super) fn reader(bytes: &[u8], settings: &Settings, listener: Listener) -> Reader {
    let unknown = Reader { is_head: head::is_head(bytes), ..Reader::default() };
    let limits = Limits { max_head_bytes: settings.max_head_bytes };
    let Ok(Parsed::Complete { head, .. }) = head::parse(bytes, limits) else { return unknown };
    let dialect = paths::find(head.target).map(|path| path.dialect);
    let origin = head.header("origin").map(|origin| str::from_utf8(origin).unwrap_or_default());
    let is_allowed = |origin: &str| origin::is_allowed(settings, listener, origin, head.host());
    if origin.is_some_and(|origin| !is_allowed(origin)) {
        return Reader { dialect, ..unknown };
    }
    let subscription = match throng_dialect::route(&head) {
        Ok(Route::Subscribe(request)) => Some(request),
        Ok(Route::Other) | Err(_) => None,
    };
    Reader { origin: origin.map(str::to_owned), subscription, dialect, ..unknown }
}

/// The request target of a well-formed head, not decoded.
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
    fn only_a_get_that_subscribes_is_for_a_worker() {
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
    fn the_body_has_the_length_of_the_headers_or_is_chunked() {
        let post = |fields: &str| of(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\nrest"));
        let body = |inspection| match inspection {
            Inspection::Request { body, .. } => Some(body),
            _ => None,
        };
        assert_eq!(body(post("")), Some(BodyFraming::Length(0)));
        assert_eq!(body(post("content-length: 17\r\n")), Some(BodyFraming::Length(17)));
        assert_eq!(body(post("transfer-encoding: chunked\r\n")), Some(BodyFraming::Chunked));
        let get = |rest: &str| {
            of(&format!("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{rest}"))
        };
        assert_eq!(get("0\r\n"), Inspection::Partial);
        assert_eq!(body(get("0\r\n\r\nGET")), Some(BodyFraming::NoChunks(5)));
        assert_eq!(body(get("1\r\n")), Some(BodyFraming::Chunked));
    }
}
