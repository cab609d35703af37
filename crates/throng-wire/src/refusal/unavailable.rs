//! Refusals that pass: the server is full, busy or going away, and another moment will do.
//!
//! A client must be able to tell them from a refusal for good. An `EventSource` gives up for ever
//! on any status but 200, and a page cannot read why a WebSocket was not opened. So both are
//! opened, told when to come back, and ended; everything else is answered `503`. For clients that
//! read headers, `Retry-After` tells each of these from the beginning of a subscription.

use std::ops::Range;
use std::time::Duration;

use super::{Refusal, ResponseOptions};
use crate::date::Date;
use crate::response::{
    push_connection, push_cors, push_date, push_header, push_nosniff, push_upgrade,
};
use crate::sse;
use crate::subscribe::{Request, Transport};
use crate::websocket::write_close;

/// Room comes back when somebody leaves: not at once, and nobody waits longer than this before a
/// page.
const FULL_WINDOW_MS: Range<u64> = 1_000..10_000;

/// Pace comes back sooner.
const BUSY_WINDOW_MS: Range<u64> = 1_000..5_000;

/// Why a request is refused for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// No place is left for another subscriber.
    Full,
    /// The server does not keep up.
    Busy,
    /// The server is going away.
    Draining,
}

/// When and to whom.
#[derive(Debug, Clone, Copy, Default)]
pub struct ComeBack<'a> {
    /// The moment for the client to come back, in milliseconds from now.
    pub after_ms: u64,
    /// The same for `Retry-After`.
    pub after_s: u32,
    /// The request's origin, if it is allowed to read the answer.
    pub allow_origin: Option<&'a str>,
    /// When the answer is made.
    pub date: Option<Date>,
}

impl Unavailable {
    /// The refusal in words.
    pub fn refusal(self) -> Refusal {
        let (code, sentence) = match self {
            Unavailable::Full => {
                ("full", "there is no room for another connection; try again later")
            }
            Unavailable::Busy => {
                ("busy", "the server does not keep up with requests; try again later")
            }
            Unavailable::Draining => {
                ("draining", "the server is shutting down; another one will take over")
            }
        };
        Refusal::new(503, code, sentence)
    }

    /// The window, in milliseconds, over which the moments to come back are spread. Those of a
    /// drain are the operator's to choose.
    pub fn window_ms(self, drain_window: Duration) -> Range<u64> {
        match self {
            Unavailable::Full => FULL_WINDOW_MS,
            Unavailable::Busy => BUSY_WINDOW_MS,
            Unavailable::Draining => 0..drain_window.as_millis() as u64,
        }
    }

    /// The close code for a WebSocket: RFC 6455 registry, "service restart" and "try again later".
    fn close_code(self) -> u16 {
        match self {
            Unavailable::Draining => 1012,
            Unavailable::Full | Unavailable::Busy => 1013,
        }
    }

    /// Appends the whole answer to a request that subscribes. The connection ends with it.
    pub fn write(self, out: &mut Vec<u8>, request: &Request, when: &ComeBack<'_>) {
        match &request.transport {
            Transport::WebSocket { accept, is_v1 } => {
                push_upgrade(out, accept, *is_v1);
                push_date(out, when.date);
                push_header(out, "Retry-After", &when.after_s.to_string());
                push_cors(out, when.allow_origin);
                out.extend_from_slice(b"\r\n");
                write_close(out, self.close_code(), &close_reason(when.after_ms));
            }
            Transport::Sse => self.write_events(out, when),
            Transport::Stream | Transport::Poll { .. } => self.write_503(out, when),
        }
    }

    /// Appends the whole answer to a request that does not subscribe.
    pub fn write_503(self, out: &mut Vec<u8>, when: &ComeBack<'_>) {
        let options = ResponseOptions {
            keep_alive: false,
            allow_origin: when.allow_origin,
            retry_after_s: Some(when.after_s),
            date: when.date,
        };
        self.refusal().write_response(out, &options);
    }

    fn write_events(self, out: &mut Vec<u8>, when: &ComeBack<'_>) {
        let refusal = self.refusal();
        // A comment, for people: clients skip it.
        let mut body = format!(": {}: {}\n", refusal.code, refusal.message).into_bytes();
        sse::write_retry(&mut body, when.after_ms);
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        push_header(out, "Content-Type", "text/event-stream");
        push_header(out, "Content-Length", &body.len().to_string());
        push_header(out, "Cache-Control", "no-store");
        push_nosniff(out);
        push_date(out, when.date);
        push_header(out, "Retry-After", &when.after_s.to_string());
        push_cors(out, when.allow_origin);
        push_connection(out, false);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&body);
    }
}

/// The reason of a close frame after which the client is to come back.
pub fn close_reason(after_ms: u64) -> String {
    format!("reconnect in {after_ms} ms")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::{self, Limits, Parsed};
    use crate::subscribe::{Route, route};

    const WHEN: ComeBack<'_> =
        ComeBack { after_ms: 2345, after_s: 3, allow_origin: Some("http://a"), date: None };

    fn refused(why: Unavailable, fields: &str) -> Vec<u8> {
        let text = format!("GET /channels/a HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let Ok(Parsed::Complete { head, .. }) =
            head::parse(text.as_bytes(), Limits { head_bytes_max: 1000 })
        else {
            panic!("a head")
        };
        let Ok(Route::Subscribe(request)) = route(&head) else { panic!("a subscription") };
        let mut out = Vec::new();
        why.write(&mut out, &request, &WHEN);
        out
    }

    #[test]
    fn events_begin_say_when_and_end() {
        let out = refused(Unavailable::Full, "Accept: text/event-stream\r\n");
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"));
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())));
        assert!(head.contains("\r\nRetry-After: 3\r\nAccess-Control-Allow-Origin: http://a\r\n"));
        assert!(head.ends_with("\r\nConnection: close"));
        assert!(body.starts_with(": full: ") && body.ends_with("\nretry: 2345\n\n"), "{body}");
    }

    #[test]
    fn a_websocket_opens_and_closes_with_the_moment() {
        let fields = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let v1 = "Sec-WebSocket-Protocol: throng.v1\r\n";
        for (why, code) in
            [(Unavailable::Full, 1013u16), (Unavailable::Busy, 1013), (Unavailable::Draining, 1012)]
        {
            let out = refused(why, &format!("{fields}{v1}"));
            let at = out.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
            let head = str::from_utf8(&out[..at]).unwrap();
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
            assert!(head.contains("\r\nSec-WebSocket-Protocol: throng.v1\r\n"), "{head}");
            assert!(head.contains("\r\nRetry-After: 3\r\n"), "{head}");
            let mut frame = Vec::new();
            write_close(&mut frame, code, "reconnect in 2345 ms");
            assert_eq!(out[at..], frame);
        }
    }

    #[test]
    fn everything_else_is_a_503_with_the_moment() {
        for fields in ["", "Prefer: wait=3\r\n"] {
            let text = String::from_utf8(refused(Unavailable::Draining, fields)).unwrap();
            assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
            assert!(text.contains("\r\nRetry-After: 3\r\n"), "{text}");
            assert!(text.contains("{\"error\":\"draining\""), "{text}");
        }
    }
}
