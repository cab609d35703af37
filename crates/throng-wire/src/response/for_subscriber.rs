//! The response to a subscription that is refused for now: the server is full, busy or draining.
//!
//! A client must be able to tell such a error from one for good. An `EventSource` gives up for
//! ever on any status but 200, and a page cannot read why a WebSocket was not opened. So both are
//! opened, told when to try again, and ended; everything else is answered `503`. For clients that
//! read headers, `Retry-After` tells each of these from the beginning of a subscription.

use super::push_upgrade;
use crate::error::{ErrorResponse, ResponseOptions, RetryAfter};
use crate::header::{push_connection, push_cors, push_date, push_header, push_nosniff};
use crate::sse;
use crate::subscribe::{Request, Transport};
use crate::websocket::write_close;

impl ErrorResponse {
    /// Appends the whole response to a request that subscribes, after which the connection ends.
    /// An error that may be retried takes the form of the request's transport.
    pub fn write_for_subscriber(
        &self,
        out: &mut Vec<u8>,
        request: &Request,
        options: &ResponseOptions<'_>,
    ) {
        match (&request.transport, options.retry_after, self.code.close_code()) {
            (Transport::WebSocket { accept, is_v1 }, Some(retry_after), Some(close_code)) => {
                push_upgrade(out, accept, *is_v1);
                push_date(out, options.date);
                push_header(out, "Retry-After", &retry_after.seconds().to_string());
                push_cors(out, options.allow_origin);
                out.extend_from_slice(b"\r\n");
                write_close(out, close_code, &retry_after.close_reason());
            }
            (Transport::Sse, Some(retry_after), _) => self.write_events(out, retry_after, options),
            _ => self.write_response(out, options),
        }
    }

    fn write_events(
        &self,
        out: &mut Vec<u8>,
        retry_after: RetryAfter,
        options: &ResponseOptions<'_>,
    ) {
        // A comment for people; clients skip it.
        let mut body = format!(": {}: {}\n", self.code, self.message).into_bytes();
        sse::write_retry(&mut body, retry_after.ms());
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        push_header(out, "Content-Type", "text/event-stream");
        push_header(out, "Content-Length", &body.len().to_string());
        push_header(out, "Cache-Control", "no-store");
        push_nosniff(out);
        push_date(out, options.date);
        push_header(out, "Retry-After", &retry_after.seconds().to_string());
        push_cors(out, options.allow_origin);
        push_connection(out, false);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use crate::head::{self, Limits, Parsed};
    use crate::subscribe::{Route, route};

    fn refused(code: ErrorCode, fields: &str) -> Vec<u8> {
        let text = format!("GET /channels/a HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let Ok(Parsed::Complete { head, .. }) =
            head::parse(text.as_bytes(), Limits { max_head_bytes: 1000 })
        else {
            panic!("a head")
        };
        let Ok(Route::Subscribe(request)) = route(&head) else { panic!("a subscription") };
        let mut out = Vec::new();
        let options = ResponseOptions {
            keep_alive: false,
            allow_origin: Some("http://a"),
            retry_after: code.retry().map(|_| RetryAfter::from_ms(2345)),
            date: None,
        };
        ErrorResponse::from(code).write_for_subscriber(&mut out, &request, &options);
        out
    }

    #[test]
    fn an_event_stream_names_the_retry_and_ends() {
        let out = refused(ErrorCode::Full, "Accept: text/event-stream\r\n");
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"));
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())));
        assert!(head.contains("\r\nRetry-After: 3\r\nAccess-Control-Allow-Origin: http://a\r\n"));
        assert!(head.ends_with("\r\nConnection: close"));
        assert!(body.starts_with(": full: ") && body.ends_with("\nretry: 2345\n\n"), "{body}");
    }

    #[test]
    fn a_websocket_opens_and_closes_with_the_retry() {
        let fields = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let v1 = "Sec-WebSocket-Protocol: throng.v1\r\n";
        for (error, code) in
            [(ErrorCode::Full, 1013u16), (ErrorCode::Busy, 1013), (ErrorCode::Draining, 1012)]
        {
            let out = refused(error, &format!("{fields}{v1}"));
            let at = out.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
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
    fn everything_else_is_a_503_with_the_retry() {
        for fields in ["", "Prefer: wait=3\r\n"] {
            let text = String::from_utf8(refused(ErrorCode::Draining, fields)).unwrap();
            assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
            assert!(text.contains("\r\nRetry-After: 3\r\n"), "{text}");
            assert!(text.contains("{\"error\":\"draining\""), "{text}");
        }
    }

    #[test]
    fn an_error_for_good_has_its_status_on_every_transport() {
        let text = refused(ErrorCode::Forbidden, "Accept: text/event-stream\r\n");
        assert!(text.starts_with(b"HTTP/1.1 403 "));
    }
}
