//! The heads of subscriptions, one function per transport.
//!
//! # Invariants
//!
//! * No value ends a header early: one with a byte that a header may not hold is left out,
//!   wherever it comes from.
//! * What a publisher chose is never taken for a page of the server's own: browsers take the
//!   content type as it is told, and run nothing of a long-poll's body.
//! * Where the subscription starts is said on every transport, so that no client has to wait for a
//!   message to learn an id.

use crate::RetryAfter;
use crate::date::Date;

/// What browsers may make of a message that is opened as a page: nothing runs, nothing is loaded,
/// and the page has an origin of its own, not the server's.
pub const MESSAGE_POLICY: &str = "sandbox; default-src 'none'";

/// What a response says about the subscription that it begins.
#[derive(Debug, Clone, Copy, Default)]
pub struct SubscriptionHeaders<'a> {
    /// `Throng-Id`; left out when empty.
    pub id: &'a str,
    /// `Throng-Recovered`, if the request gave an id.
    pub recovered: Option<bool>,
    /// `Throng-Connection`, if the connection has a name.
    pub connection: Option<&'a str>,
    /// The request's origin, if it is allowed.
    pub allow_origin: Option<&'a str>,
    /// When it is made.
    pub date: Option<Date>,
}

/// What a long-poll answers with.
#[derive(Debug, Clone, Copy)]
pub struct PollBody<'a> {
    /// `Content-Type` of the message; left out if there is none.
    pub content_type: Option<&'a str>,
    /// `Content-Length`.
    pub length: usize,
}

/// Appends the `101` that opens a WebSocket; frames follow.
pub fn websocket(
    out: &mut Vec<u8>,
    accept: &[u8; 28],
    is_v1: bool,
    headers: &SubscriptionHeaders<'_>,
) {
    push_upgrade(out, accept, is_v1);
    push_subscription(out, headers);
    out.extend_from_slice(b"\r\n");
}

/// Appends what every `101` says.
pub(crate) fn push_upgrade(out: &mut Vec<u8>, accept: &[u8; 28], is_v1: bool) {
    out.extend_from_slice(
        b"HTTP/1.1 101 Switching Protocols\r\n\
        Upgrade: websocket\r\n\
        Connection: Upgrade\r\n\
        Sec-WebSocket-Accept: ",
    );
    out.extend_from_slice(accept);
    out.extend_from_slice(b"\r\n");
    if is_v1 {
        out.extend_from_slice(b"Sec-WebSocket-Protocol: throng.v1\r\n");
    }
}

/// Appends the head of an event stream; events follow, in chunks if `is_chunked`.
pub fn sse(out: &mut Vec<u8>, is_chunked: bool, headers: &SubscriptionHeaders<'_>) {
    stream(out, is_chunked, "text/event-stream", headers);
}

/// Appends the head of a body that does not end; it follows, in chunks if `is_chunked`, else up to
/// the end of the connection.
pub fn stream(
    out: &mut Vec<u8>,
    is_chunked: bool,
    content_type: &str,
    headers: &SubscriptionHeaders<'_>,
) {
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    push_header(out, "Content-Type", content_type);
    if is_chunked {
        push_header(out, "Transfer-Encoding", "chunked");
    } else {
        push_header(out, "Connection", "close");
    }
    push_header(out, "Cache-Control", "no-store");
    push_nosniff(out);
    // Asks reverse proxies in front not to collect what should arrive now.
    push_header(out, "X-Accel-Buffering", "no");
    push_subscription(out, headers);
    out.extend_from_slice(b"\r\n");
}

/// Appends the head of a long-poll's answer; `None` is a `204`, and its whole answer.
pub fn poll(
    out: &mut Vec<u8>,
    body: Option<PollBody<'_>>,
    keep_alive: bool,
    retry_after: Option<RetryAfter>,
    headers: &SubscriptionHeaders<'_>,
) {
    match body {
        None => out.extend_from_slice(b"HTTP/1.1 204 No Content\r\n"),
        Some(PollBody { content_type, length }) => {
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
            if let Some(content_type) = content_type {
                push_header(out, "Content-Type", content_type);
            }
            push_header(out, "Content-Length", &length.to_string());
            push_nosniff(out);
            push_header(out, "Content-Security-Policy", MESSAGE_POLICY);
            if content_type.is_some_and(is_page) {
                // Also where a proxy takes the policy away.
                push_header(out, "Content-Disposition", "attachment");
            }
        }
    }
    push_header(out, "Cache-Control", "no-store");
    if let Some(retry_after) = retry_after {
        push_header(out, "Retry-After", &retry_after.seconds().to_string());
    }
    push_subscription(out, headers);
    push_connection(out, keep_alive);
    out.extend_from_slice(b"\r\n");
}

fn push_subscription(out: &mut Vec<u8>, headers: &SubscriptionHeaders<'_>) {
    push_date(out, headers.date);
    if !headers.id.is_empty() {
        push_header(out, "Throng-Id", headers.id);
    }
    if let Some(is_recovered) = headers.recovered {
        push_header(out, "Throng-Recovered", if is_recovered { "true" } else { "false" });
    }
    if let Some(connection) = headers.connection {
        push_header(out, "Throng-Connection", connection);
    }
    push_cors(out, headers.allow_origin);
}

/// Whether browsers show a document of this type as a page that may hold scripts.
fn is_page(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    matches!(&*essence, "text/html" | "text/xml" | "application/xml" | "application/pdf")
        || essence.ends_with("+xml")
}

/// Has browsers take the content type as it is told, instead of guessing from the body.
pub(crate) fn push_nosniff(out: &mut Vec<u8>) {
    push_header(out, "X-Content-Type-Options", "nosniff");
}

/// Says when the answer was made.
pub(crate) fn push_date(out: &mut Vec<u8>, date: Option<Date>) {
    let Some(date) = date else { return };
    out.extend_from_slice(b"Date: ");
    out.extend_from_slice(date.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Lets the page from this origin read the answer.
pub(crate) fn push_cors(out: &mut Vec<u8>, allow_origin: Option<&str>) {
    let Some(origin) = allow_origin else { return };
    push_header(out, "Access-Control-Allow-Origin", origin);
    out.extend_from_slice(
        b"Vary: Origin\r\n\
        Access-Control-Expose-Headers: \
        Throng-Id, Throng-Recovered, Throng-Connection, Retry-After\r\n",
    );
}

/// Says what becomes of the connection. HTTP/1.0 clients need both words, HTTP/1.1 ones only
/// `close`.
pub(crate) fn push_connection(out: &mut Vec<u8>, keep_alive: bool) {
    push_header(out, "Connection", if keep_alive { "keep-alive" } else { "close" });
}

/// Appends one header, or nothing if the value holds a byte other than visible ASCII, a space or a
/// tab.
pub(crate) fn push_header(out: &mut Vec<u8>, name: &str, value: &str) {
    if !value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
        return;
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: SubscriptionHeaders<'_> = SubscriptionHeaders {
        id: "k3-17",
        recovered: Some(true),
        connection: Some("c1"),
        allow_origin: Some("http://a"),
        date: None,
    };

    const HEADER_LINES: &str = "Throng-Id: k3-17\r\nThrong-Recovered: true\r\n\
        Throng-Connection: c1\r\nAccess-Control-Allow-Origin: http://a\r\nVary: Origin\r\n\
        Access-Control-Expose-Headers: \
        Throng-Id, Throng-Recovered, Throng-Connection, Retry-After\r\n";

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("a head is text")
    }

    #[test]
    fn a_websocket_opens() {
        let accept = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        assert_eq!(
            written(|out| websocket(out, accept, false, &SubscriptionHeaders::default())),
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
        );
        let text = written(|out| websocket(out, accept, true, &HEADERS));
        assert!(
            text.ends_with(&format!(
                "=\r\nSec-WebSocket-Protocol: throng.v1\r\n{HEADER_LINES}\r\n"
            ))
        );
    }

    #[test]
    fn streams_begin() {
        assert_eq!(
            written(|out| sse(out, true, &HEADERS)),
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                Transfer-Encoding: chunked\r\nCache-Control: no-store\r\n\
                X-Content-Type-Options: nosniff\r\n\
                X-Accel-Buffering: no\r\n{HEADER_LINES}\r\n"
            )
        );
        assert_eq!(
            written(|out| stream(out, false, "text/plain", &SubscriptionHeaders::default())),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\
            Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
            X-Accel-Buffering: no\r\n\r\n"
        );
    }

    #[test]
    fn long_polls_are_answered() {
        let body = PollBody { content_type: Some("text/plain"), length: 12 };
        let start = SubscriptionHeaders { connection: None, allow_origin: None, ..HEADERS };
        assert_eq!(
            written(|out| poll(out, Some(body), true, None, &start)),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 12\r\n\
            X-Content-Type-Options: nosniff\r\n\
            Content-Security-Policy: sandbox; default-src 'none'\r\n\
            Cache-Control: no-store\r\nThrong-Id: k3-17\r\nThrong-Recovered: true\r\n\
            Connection: keep-alive\r\n\r\n"
        );
        assert_eq!(
            written(|out| poll(
                out,
                None,
                false,
                Some(RetryAfter::from_ms(1_500)),
                &SubscriptionHeaders::default()
            )),
            "HTTP/1.1 204 No Content\r\nCache-Control: no-store\r\nRetry-After: 2\r\n\
            Connection: close\r\n\r\n"
        );
    }

    #[test]
    fn pages_are_not_shown() {
        for (content_type, is_page) in [
            ("text/html", true),
            ("Text/HTML ; charset=utf-8", true),
            ("image/svg+xml", true),
            ("application/xhtml+xml", true),
            ("application/pdf", true),
            ("image/png", false),
            ("application/json", false),
            ("text/plain; charset=utf-8", false),
        ] {
            let body = PollBody { content_type: Some(content_type), length: 1 };
            let text =
                written(|out| poll(out, Some(body), true, None, &SubscriptionHeaders::default()));
            let is_attached = text.contains("\r\nContent-Disposition: attachment\r\n");
            assert_eq!(is_attached, is_page, "{content_type}");
            assert!(text.contains("\r\nContent-Security-Policy: sandbox;"), "{content_type}");
        }
    }

    #[test]
    fn no_value_ends_its_header() {
        for bad in ["a\r\nX: y", "a\nb", "a\0", "\u{7f}", "ä"] {
            let start = SubscriptionHeaders {
                id: bad,
                connection: Some(bad),
                allow_origin: Some(bad),
                ..SubscriptionHeaders::default()
            };
            let text = written(|out| stream(out, true, bad, &start));
            assert!(!text.contains(bad), "{bad:?}");
            assert!(!text.contains("Throng-Id:") && !text.contains("Allow-Origin"), "{bad:?}");
        }
    }
}
