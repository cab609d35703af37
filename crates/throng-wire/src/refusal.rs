//! The answer to a request that cannot be served: a status, a code for programs and one sentence
//! for people.
//!
//! Parsers return a [`Refusal`]; the owner of the socket writes it and counts it. One that passes
//! is an [`Unavailable`], which also knows the forms that subscriptions need.

mod unavailable;

use std::borrow::Cow;
use std::fmt;

pub use self::unavailable::{ComeBack, Unavailable, close_reason};
use crate::date::Date;
use crate::response::{push_connection, push_cors, push_date, push_header, push_nosniff};

/// What `Retry-After` says on a 503 whose writer does not know better: a moment.
const RETRY_AFTER_S: u32 = 1;

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The code, one of those in the HTTP reference; clients may rely on it.
    pub code: &'static str,
    /// One sentence that says what is wrong and, where it helps, what would be right.
    pub message: Cow<'static, str>,
}

/// What the writer of a refusal knows about the connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct ResponseOptions<'a> {
    /// Whether the connection stays open for another request.
    pub keep_alive: bool,
    /// The request's origin, if it is allowed to read the answer.
    pub allow_origin: Option<&'a str>,
    /// When to come back. A 503 says so even without.
    pub retry_after_s: Option<u32>,
    /// When it is made.
    pub date: Option<Date>,
}

impl Refusal {
    /// A refusal with these words.
    pub fn new(status: u16, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(400, "bad_request", message)
    }

    pub(crate) fn bad_parameter(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(400, "bad_parameter", message)
    }

    /// Only who sits at the machine may see this; see [`is_local`](crate::is_local).
    pub fn not_local() -> Self {
        let sentence = "status and metrics are served by the admin listener (--admin-listen); \
            without one, by a server that listens on loopback, under a loopback address";
        Self::new(403, "forbidden", sentence)
    }

    /// The body of the answer, one line of JSON.
    pub fn body(&self) -> String {
        let message = serde_json::Value::from(&*self.message);
        format!("{{\"error\":\"{}\",\"message\":{message}}}\n", self.code)
    }

    /// Appends the whole answer.
    pub fn write_response(&self, out: &mut Vec<u8>, options: &ResponseOptions<'_>) {
        let body = self.body();
        let status = self.status;
        let reason = reason_phrase(status);
        out.extend_from_slice(format!("HTTP/1.1 {status} {reason}\r\n").as_bytes());
        push_header(out, "Content-Type", "application/json");
        push_header(out, "Content-Length", &body.len().to_string());
        push_header(out, "Cache-Control", "no-store");
        push_nosniff(out);
        push_date(out, options.date);
        let retry_after_s = options.retry_after_s.or((status == 503).then_some(RETRY_AFTER_S));
        if let Some(seconds) = retry_after_s {
            push_header(out, "Retry-After", &seconds.to_string());
        }
        if status == 426 {
            push_header(out, "Upgrade", "websocket");
            push_header(out, "Sec-WebSocket-Version", "13");
        }
        push_cors(out, options.allow_origin);
        push_connection(out, options.keep_alive);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body.as_bytes());
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}: {}", self.status, self.code, self.message)
    }
}

impl std::error::Error for Refusal {}

/// The words after the status, for those that Throng sends; `Error` for others.
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        101 => "Switching Protocols",
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(refusal: &Refusal, options: &ResponseOptions<'_>) -> String {
        let mut out = Vec::new();
        refusal.write_response(&mut out, options);
        String::from_utf8(out).expect("a response is text")
    }

    #[test]
    fn a_refusal_is_a_whole_response() {
        let refusal = Refusal::new(400, "bad_name", "say \"hi\"\n");
        assert_eq!(refusal.body(), "{\"error\":\"bad_name\",\"message\":\"say \\\"hi\\\"\\n\"}\n");
        assert_eq!(refusal.to_string(), "400 bad_name: say \"hi\"\n");
        assert_eq!(
            written(&refusal, &ResponseOptions::default()),
            format!(
                "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\
                Content-Length: {}\r\nCache-Control: no-store\r\n\
                X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{}",
                refusal.body().len(),
                refusal.body()
            )
        );
    }

    #[test]
    fn options_show() {
        let options = ResponseOptions {
            keep_alive: true,
            allow_origin: Some("http://a"),
            retry_after_s: Some(7),
            date: None,
        };
        let text = written(&Refusal::new(503, "full", "full"), &options);
        assert!(!text.contains("close"));
        assert!(text.contains("\r\nRetry-After: 7\r\n"));
        assert!(text.contains("\r\nAccess-Control-Allow-Origin: http://a\r\nVary: Origin\r\n"));
    }

    #[test]
    fn some_statuses_say_more() {
        let text = written(&Refusal::new(503, "busy", "busy"), &ResponseOptions::default());
        assert!(text.contains("\r\nRetry-After: 1\r\n"));
        let refusal = Refusal::new(426, "upgrade_required", "upgrade");
        let text = written(&refusal, &ResponseOptions::default());
        assert!(text.contains("\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"));
    }

    #[test]
    fn an_origin_cannot_end_its_header() {
        let options = ResponseOptions {
            allow_origin: Some("http://a\r\nSet-Cookie: x"),
            ..Default::default()
        };
        let text = written(&Refusal::new(400, "bad_name", "no"), &options);
        assert!(!text.contains("Set-Cookie") && !text.contains("Access-Control-Allow-Origin"));
    }
}
