//! An error with its message, and the HTTP response that carries it.

use std::borrow::Cow;
use std::fmt;

use super::{ErrorCode, RetryAfter};
use crate::date::Date;
use crate::header::{
    push_connection, push_cors, push_date, push_header, push_no_referrer, push_nosniff,
    push_request_id,
};
use crate::json::write_json_string;

/// Why a request, a command or a line of a batch is refused, as the client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorResponse {
    pub code: ErrorCode,
    /// One sentence for people: what is wrong and, where it helps, what would be right.
    pub message: Cow<'static, str>,
}

/// The facts about a connection that the writer of a response needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResponseOptions<'a> {
    /// True if the request is a `HEAD`, whose answer has no body.
    pub is_head: bool,
    /// True if the connection stays open for another request.
    pub keep_alive: bool,
    /// The request's origin, if its pages may read the response.
    pub allow_origin: Option<&'a str>,
    /// True if these pages may send cookies.
    pub allow_credentials: bool,
    /// True if browsers must not tell others the URL, because it contains a token.
    pub no_referrer: bool,
    /// The id of the request, if it has brought one.
    pub request_id: Option<&'a str>,
    /// When the client may try again: for exactly the codes that have a [`Retry`](super::Retry).
    pub retry_after: Option<RetryAfter>,
    /// When the response is made.
    pub date: Option<Date>,
}

impl ErrorResponse {
    /// An error with a message of its own.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    pub(crate) fn bad_parameter(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::BadParameter, message)
    }

    /// Only clients on the same machine may see this; see [`is_local`](crate::is_local).
    pub fn not_local() -> Self {
        let message = "status, metrics and lists are served by the admin listener \
            (--admin-listen); without one, by a server that listens on loopback, under a loopback \
            address";
        Self::new(ErrorCode::Forbidden, message)
    }

    /// A request for more than `max_channels` channels.
    pub fn too_many_channels(max_channels: usize) -> Self {
        let message = format!("one connection may follow at most {max_channels} channels");
        Self::new(ErrorCode::TooManyChannels, message)
    }

    /// A message of more than `max_bytes` bytes.
    pub fn message_too_large(max_bytes: usize) -> Self {
        let message = format!("a message may have at most {max_bytes} bytes");
        Self::new(ErrorCode::TooLarge, message)
    }

    /// A request or command that needs an answer from elsewhere (a decision about access, say)
    /// which did not come in time.
    pub fn unanswered() -> Self {
        let message = "an answer that this needs did not come in time; try again later";
        Self::new(ErrorCode::Busy, message)
    }

    /// A connection that ends because another one needs its place.
    pub fn no_more_connections() -> Self {
        let message = "the server takes no more connections for now";
        Self::new(ErrorCode::Full, message)
    }

    /// A request without TLS at an address where all connections begin with it.
    pub fn not_tls() -> Self {
        let message = "this address speaks TLS: use https:// or wss://";
        Self::new(ErrorCode::BadRequest, message)
    }

    /// A request for which there is no memory now.
    pub fn short_of_memory() -> Self {
        Self::new(ErrorCode::Busy, "the server is short of memory; try again later")
    }

    /// A subscription that has to come back at its own moment.
    pub fn crowded() -> Self {
        let message = "too many clients are connecting at once; reconnect after the given time";
        Self::new(ErrorCode::Busy, message)
    }

    /// A request head that is not complete after the head timeout.
    pub fn slow_head() -> Self {
        Self::new(ErrorCode::TooSlow, "the request head did not arrive in time")
    }

    /// The body of the response: one line of JSON, with a line feed.
    pub fn body(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(32 + self.message.len());
        self.write_body(&mut body);
        body.push(b'\n');
        body
    }

    /// Appends the error as a JSON object, as in bodies and in the answer lines of a batch.
    pub fn write_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"error\":\"");
        // The names of codes need no escapes.
        out.extend_from_slice(self.code.name().as_bytes());
        out.extend_from_slice(b"\",\"message\":");
        write_json_string(out, &self.message);
        out.push(b'}');
    }

    /// Appends the whole HTTP response.
    pub fn write_response(&self, out: &mut Vec<u8>, options: &ResponseOptions<'_>) {
        debug_assert_eq!(options.retry_after.is_some(), self.code.retry().is_some(), "{self}");
        let body = self.body();
        let status = self.code.status();
        let reason = reason_phrase(status);
        out.extend_from_slice(format!("HTTP/1.1 {status} {reason}\r\n").as_bytes());
        push_header(out, "Content-Type", "application/json");
        push_header(out, "Content-Length", &body.len().to_string());
        push_header(out, "Cache-Control", "no-store");
        push_nosniff(out);
        push_date(out, options.date);
        push_request_id(out, options.request_id);
        if let Some(retry_after) = options.retry_after {
            push_header(out, "Retry-After", &retry_after.seconds().to_string());
        }
        if self.code == ErrorCode::UpgradeRequired {
            push_header(out, "Upgrade", "websocket");
            push_header(out, "Sec-WebSocket-Version", "13");
        }
        if let Some(challenge) = self.code.challenge() {
            push_header(out, "WWW-Authenticate", challenge);
        }
        if options.no_referrer {
            push_no_referrer(out);
        }
        push_cors(out, options.allow_origin, options.allow_credentials);
        push_connection(out, options.keep_alive);
        out.extend_from_slice(b"\r\n");
        if !options.is_head {
            out.extend_from_slice(&body);
        }
    }
}

impl From<ErrorCode> for ErrorResponse {
    /// The error with its default message.
    fn from(code: ErrorCode) -> Self {
        Self::new(code, code.message())
    }
}

impl fmt::Display for ErrorResponse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}: {}", self.code.status(), self.code, self.message)
    }
}

impl std::error::Error for ErrorResponse {}

/// Appends the headers that follow from the options alone.
pub(crate) fn push_options(out: &mut Vec<u8>, options: &ResponseOptions<'_>) {
    push_date(out, options.date);
    push_request_id(out, options.request_id);
    if let Some(retry_after) = options.retry_after {
        push_header(out, "Retry-After", &retry_after.seconds().to_string());
    }
    if options.no_referrer {
        push_no_referrer(out);
    }
    push_cors(out, options.allow_origin, options.allow_credentials);
}

/// Appends a response with a status, headers and a body of its own, beside the headers of every
/// response.
pub fn write_answer(
    out: &mut Vec<u8>,
    status: u16,
    headers: &[(&'static str, String)],
    body: &[u8],
    options: &ResponseOptions<'_>,
) {
    let reason = reason_phrase(status);
    out.extend_from_slice(format!("HTTP/1.1 {status} {reason}\r\n").as_bytes());
    headers.iter().for_each(|(name, value)| push_header(out, name, value));
    push_header(out, "Content-Length", &body.len().to_string());
    push_nosniff(out);
    push_options(out, options);
    push_connection(out, options.keep_alive);
    out.extend_from_slice(b"\r\n");
    if !options.is_head {
        out.extend_from_slice(body);
    }
}

/// The words after the status of an error; `Error` for any other status.
fn reason_phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(error: &ErrorResponse, options: &ResponseOptions<'_>) -> String {
        let mut out = Vec::new();
        error.write_response(&mut out, options);
        String::from_utf8(out).expect("a response is text")
    }

    #[test]
    fn an_error_is_a_whole_response() {
        let error = ErrorResponse::new(ErrorCode::BadName, "say \"hi\"\n");
        let body = String::from_utf8(error.body()).unwrap();
        assert_eq!(body, "{\"error\":\"bad_name\",\"message\":\"say \\\"hi\\\"\\n\"}\n");
        assert_eq!(error.to_string(), "400 bad_name: say \"hi\"\n");
        assert_eq!(
            written(&error, &ResponseOptions::default()),
            format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\
                Content-Length: {}\r\nCache-Control: no-store\r\n\
                X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{body}",
                body.len(),
            )
        );
    }

    #[test]
    fn options_become_headers() {
        let options = ResponseOptions {
            keep_alive: true,
            allow_origin: Some("http://a"),
            retry_after: Some(RetryAfter::from_ms(6_001)),
            ..Default::default()
        };
        let text = written(&ErrorCode::Full.into(), &options);
        assert!(!text.contains("close"));
        assert!(text.contains("\r\nRetry-After: 7\r\n"));
        assert!(text.contains("\r\nAccess-Control-Allow-Origin: http://a\r\nVary: Origin\r\n"));
    }

    #[test]
    fn a_missing_upgrade_is_named() {
        let text = written(&ErrorCode::UpgradeRequired.into(), &ResponseOptions::default());
        assert!(text.contains("\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"));
    }

    #[test]
    fn a_missing_token_and_a_bad_one_have_different_challenges() {
        let challenge = |code: ErrorCode| {
            let text = written(&code.into(), &ResponseOptions::default());
            let (_, rest) = text.split_once("\r\nWWW-Authenticate: ")?;
            Some(rest.lines().next().expect("a value").to_owned())
        };
        assert_eq!(challenge(ErrorCode::Unauthorized).as_deref(), Some("Bearer"));
        let bad = Some("Bearer error=\"invalid_token\"".to_owned());
        assert_eq!(challenge(ErrorCode::InvalidToken), bad);
        assert_eq!(challenge(ErrorCode::TokenExpired), bad);
        assert_eq!(challenge(ErrorCode::TokenRevoked), bad);
        assert_eq!(challenge(ErrorCode::Forbidden), None);
    }

    #[test]
    fn only_listed_pages_may_send_cookies() {
        let options = ResponseOptions {
            allow_origin: Some("http://a"),
            allow_credentials: true,
            ..Default::default()
        };
        let text = written(&ErrorCode::Forbidden.into(), &options);
        assert!(text.contains("\r\nAccess-Control-Allow-Credentials: true\r\n"));
        let options = ResponseOptions { allow_origin: None, ..options };
        assert!(!written(&ErrorCode::Forbidden.into(), &options).contains("Access-Control"));
    }

    #[test]
    fn every_status_has_its_words() {
        for code in ErrorCode::ALL {
            assert_ne!(reason_phrase(code.status()), "Error", "{code}");
        }
    }

    #[test]
    fn an_origin_cannot_end_its_header() {
        let options = ResponseOptions {
            allow_origin: Some("http://a\r\nSet-Cookie: x"),
            ..Default::default()
        };
        let text = written(&ErrorCode::BadName.into(), &options);
        assert!(!text.contains("Set-Cookie") && !text.contains("Access-Control-Allow-Origin"));
    }
}
