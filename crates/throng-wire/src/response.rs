//! Response heads of subscriptions, one function for each transport.
//!
//! # Invariants
//!
//! * No value can end its header: one with a byte that headers may not contain is left out,
//!   whatever its source.
//! * Browsers never treat a message as a page of the server's origin: they must not guess its
//!   content type, and run no script of a long-poll's body.
//! * Every transport reports where the subscription starts, so that a client has an id to resume
//!   from before the first message.

use crate::date::Date;
use crate::error::RetryAfter;
use crate::header::{
    push_connection, push_cors, push_date, push_header, push_no_referrer, push_nosniff,
    push_request_id,
};
use crate::subscribe::Subprotocol;
use crate::websocket::extension::Deflate;

mod for_subscriber;

/// The content security policy of a message that a browser opens as a page: it runs no script,
/// loads nothing, and has an opaque origin instead of the server's.
pub const MESSAGE_POLICY: &str = "sandbox; default-src 'none'";

/// The headers that describe a subscription.
#[derive(Debug, Clone, Copy, Default)]
pub struct SubscriptionHeaders<'a> {
    /// `Throng-Id`; left out when empty.
    pub id: &'a str,
    /// `Throng-Recovered`, if the request gave an id.
    pub recovered: Option<bool>,
    /// `Throng-Ended`: all of its channels have ended, and nothing comes after this response.
    pub has_ended: bool,
    /// `Throng-State` of a long poll that begins with a state: true once the client has all of it.
    pub state: Option<bool>,
    /// `Throng-Connection`, if the connection has a name.
    pub connection: Option<&'a str>,
    /// `X-Request-Id`, if the request brings one.
    pub request_id: Option<&'a str>,
    /// The request's origin, if it is allowed.
    pub allow_origin: Option<&'a str>,
    /// True if pages of this origin may send cookies.
    pub allow_credentials: bool,
    /// True if browsers must not tell others the URL, because it contains a token.
    pub no_referrer: bool,
    pub date: Option<Date>,
}

/// The body of a long-poll's response.
#[derive(Debug, Clone, Copy)]
pub struct PollBody<'a> {
    /// `Content-Type`; left out if the message has none.
    pub content_type: Option<&'a str>,
    pub length: usize,
}

/// Appends the `101` that opens a WebSocket; frames follow. `deflate` is the accepted offer of
/// compression.
pub fn websocket(
    out: &mut Vec<u8>,
    accept: &[u8; 28],
    subprotocol: Option<Subprotocol>,
    deflate: Option<Deflate>,
    headers: &SubscriptionHeaders<'_>,
) {
    push_upgrade(out, accept, subprotocol);
    if let Some(deflate) = deflate {
        push_header(out, "Sec-WebSocket-Extensions", deflate.answer());
    }
    push_subscription(out, headers);
    out.extend_from_slice(b"\r\n");
}

/// Appends the status line and the headers that every `101` has.
pub(crate) fn push_upgrade(out: &mut Vec<u8>, accept: &[u8; 28], subprotocol: Option<Subprotocol>) {
    out.extend_from_slice(
        b"HTTP/1.1 101 Switching Protocols\r\n\
        Upgrade: websocket\r\n\
        Connection: Upgrade\r\n\
        Sec-WebSocket-Accept: ",
    );
    out.extend_from_slice(accept);
    out.extend_from_slice(b"\r\n");
    if let Some(subprotocol) = subprotocol {
        push_header(out, "Sec-WebSocket-Protocol", subprotocol.name());
    }
}

/// Appends the head of an event stream. Events follow, in chunks if `is_chunked`.
pub fn sse(out: &mut Vec<u8>, is_chunked: bool, headers: &SubscriptionHeaders<'_>) {
    stream(out, is_chunked, "text/event-stream", headers);
}

/// Appends the head of an endless body. The body follows, in chunks if `is_chunked`, otherwise up
/// to the end of the connection.
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
    // A proxy that compresses would hold messages back until it has enough of them.
    push_header(out, "Cache-Control", "no-store, no-transform");
    push_nosniff(out);
    // Reverse proxies must not buffer the stream.
    push_header(out, "X-Accel-Buffering", "no");
    push_subscription(out, headers);
    out.extend_from_slice(b"\r\n");
}

/// Appends the head of a long-poll's response. Without a body it is a whole `204`.
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
                // A second barrier, in case a proxy removes the policy.
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
    if headers.has_ended {
        push_header(out, "Throng-Ended", "true");
    }
    if let Some(is_whole) = headers.state {
        push_header(out, "Throng-State", if is_whole { "whole" } else { "part" });
    }
    if let Some(connection) = headers.connection {
        push_header(out, "Throng-Connection", connection);
    }
    push_request_id(out, headers.request_id);
    if headers.no_referrer {
        push_no_referrer(out);
    }
    push_cors(out, headers.allow_origin, headers.allow_credentials);
}

/// True if browsers render this type as a page that may contain scripts.
fn is_page(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    matches!(&*essence, "text/html" | "text/xml" | "application/xml" | "application/pdf")
        || essence.ends_with("+xml")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: SubscriptionHeaders<'_> = SubscriptionHeaders {
        id: "k3-17",
        recovered: Some(true),
        has_ended: false,
        state: None,
        connection: Some("c1"),
        request_id: Some("r1"),
        allow_origin: Some("http://a"),
        allow_credentials: false,
        no_referrer: false,
        date: None,
    };

    const HEADER_LINES: &str = "Throng-Id: k3-17\r\nThrong-Recovered: true\r\n\
        Throng-Connection: c1\r\nX-Request-Id: r1\r\n\
        Access-Control-Allow-Origin: http://a\r\nVary: Origin\r\n\
        Access-Control-Expose-Headers: \
        Throng-Id, Throng-Recovered, Throng-Ended, Throng-State, Throng-Connection, \
        Retry-After, X-Request-Id\r\n";

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("a head is text")
    }

    #[test]
    fn a_websocket_response_is_a_101() {
        let accept = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        assert_eq!(
            written(|out| websocket(out, accept, None, None, &SubscriptionHeaders::default())),
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
        );
        for subprotocol in [Subprotocol::V1, Subprotocol::Plain] {
            let text = written(|out| websocket(out, accept, Some(subprotocol), None, &HEADERS));
            let line = format!("\r\nSec-WebSocket-Protocol: {}\r\n", subprotocol.name());
            assert!(text.ends_with(&format!("={line}{HEADER_LINES}\r\n")), "{text}");
        }
    }

    #[test]
    fn streams_are_chunked_or_end_with_the_connection() {
        assert_eq!(
            written(|out| sse(out, true, &HEADERS)),
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                Transfer-Encoding: chunked\r\nCache-Control: no-store, no-transform\r\n\
                X-Content-Type-Options: nosniff\r\n\
                X-Accel-Buffering: no\r\n{HEADER_LINES}\r\n"
            )
        );
        assert_eq!(
            written(|out| stream(out, false, "text/plain", &SubscriptionHeaders::default())),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\
            Cache-Control: no-store, no-transform\r\nX-Content-Type-Options: nosniff\r\n\
            X-Accel-Buffering: no\r\n\r\n"
        );
    }

    #[test]
    fn long_polls_have_a_body_or_are_a_204() {
        let body = PollBody { content_type: Some("text/plain"), length: 12 };
        let start = SubscriptionHeaders {
            connection: None,
            request_id: None,
            allow_origin: None,
            ..HEADERS
        };
        assert_eq!(
            written(|out| poll(out, Some(body), true, None, &start)),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 12\r\n\
            X-Content-Type-Options: nosniff\r\n\
            Content-Security-Policy: sandbox; default-src 'none'\r\n\
            Cache-Control: no-store\r\nThrong-Id: k3-17\r\nThrong-Recovered: true\r\n\
            Connection: keep-alive\r\n\r\n"
        );
        let end = SubscriptionHeaders { has_ended: true, ..SubscriptionHeaders::default() };
        assert_eq!(
            written(|out| poll(out, None, true, None, &end)),
            "HTTP/1.1 204 No Content\r\nCache-Control: no-store\r\nThrong-Ended: true\r\n\
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
    fn a_url_with_a_token_stays_here() {
        let headers = SubscriptionHeaders { no_referrer: true, allow_credentials: true, ..HEADERS };
        let line = "\r\nReferrer-Policy: no-referrer\r\n";
        let credentials = "\r\nAccess-Control-Allow-Credentials: true\r\n";
        for text in [
            written(|out| sse(out, true, &headers)),
            written(|out| poll(out, None, true, None, &headers)),
        ] {
            assert!(text.contains(line) && text.contains(credentials), "{text}");
        }
    }

    #[test]
    fn pages_are_downloaded_and_not_rendered() {
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
    fn no_value_can_end_its_header() {
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
