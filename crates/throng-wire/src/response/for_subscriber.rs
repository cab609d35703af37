//! The response to a subscription that is refused: for now, because the server is full, busy or
//! draining or a limit is reached; or because of the client's token.
//!
//! A client must be able to tell an error for now from one for good. An `EventSource` gives up for
//! ever on any status but 200, and a page cannot read why a WebSocket was not opened. So for an
//! error for now both are opened, told when to try again, and ended. For clients that read
//! headers, `Retry-After` tells each of these from the beginning of a subscription. A token that
//! is missing, bad or not enough closes a WebSocket that is opened only to say so. An
//! `EventSource` gets the status: it must not come back with the same token. Everything else is
//! answered with the status.

use super::push_upgrade;
use crate::error::{ErrorResponse, ResponseOptions, RetryAfter, push_options};
use crate::header::{push_connection, push_header, push_nosniff};
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
        let options = &ResponseOptions {
            no_referrer: request.has_query_token,
            request_id: request.request_id.as_deref(),
            ..*options
        };
        match (&request.transport, options.retry_after, self.code.subscription_close_code()) {
            (Transport::WebSocket { accept, subprotocol, .. }, retry_after, Some(close_code)) => {
                push_upgrade(out, accept, *subprotocol);
                push_options(out, options);
                out.extend_from_slice(b"\r\n");
                match retry_after {
                    Some(retry_after) => write_close(out, close_code, &retry_after.close_reason()),
                    None => write_close(out, close_code, &self.message),
                }
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
        push_options(out, options);
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
        refused_at("/channels/a", code, fields)
    }

    fn refused_at(target: &str, code: ErrorCode, fields: &str) -> Vec<u8> {
        let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
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
            ..ResponseOptions::default()
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

    const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

    /// Splits a response into its head and what follows.
    fn split(out: &[u8]) -> (&str, &[u8]) {
        let at = out.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        (str::from_utf8(&out[..at]).unwrap(), &out[at..])
    }

    #[test]
    fn a_websocket_opens_and_closes_with_the_retry() {
        let v1 = "Sec-WebSocket-Protocol: throng.v1\r\n";
        for (error, code) in [
            (ErrorCode::Full, 1013u16),
            (ErrorCode::Busy, 1013),
            (ErrorCode::Draining, 1012),
            (ErrorCode::TooManyRequests, 4006),
        ] {
            let out = refused(error, &format!("{UPGRADE}{v1}"));
            let (head, frames) = split(&out);
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
            assert!(head.contains("\r\nSec-WebSocket-Protocol: throng.v1\r\n"), "{head}");
            assert!(head.contains("\r\nRetry-After: 3\r\n"), "{head}");
            let mut frame = Vec::new();
            write_close(&mut frame, code, "reconnect in 2345 ms");
            assert_eq!(frames, frame);
        }
    }

    #[test]
    fn a_websocket_with_a_bad_token_opens_and_closes() {
        let plain = "Sec-WebSocket-Protocol: throng.token.abc, throng.plain\r\n";
        for (error, code) in [
            (ErrorCode::Unauthorized, 4003u16),
            (ErrorCode::InvalidToken, 4003),
            (ErrorCode::TokenExpired, 4002),
            (ErrorCode::TokenRevoked, 4004),
            (ErrorCode::Forbidden, 4005),
        ] {
            let out = refused(error, &format!("{UPGRADE}{plain}"));
            let (head, frames) = split(&out);
            assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
            assert!(head.contains("\r\nSec-WebSocket-Protocol: throng.plain\r\n"), "{head}");
            assert!(!head.contains("\r\nRetry-After:"), "{head}");
            let mut frame = Vec::new();
            write_close(&mut frame, code, error.message());
            assert_eq!(frames, frame);
        }
        let text = refused(ErrorCode::OriginRefused, UPGRADE);
        assert!(text.starts_with(b"HTTP/1.1 403 "));
    }

    #[test]
    fn an_event_source_with_a_bad_token_gets_the_status() {
        let events = "Accept: text/event-stream\r\n";
        let text = refused_at("/channels/a?token=abc", ErrorCode::TokenExpired, events);
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("HTTP/1.1 401 "), "{text}");
        assert!(text.contains("\r\nReferrer-Policy: no-referrer\r\n"), "{text}");
        assert!(text.contains("{\"error\":\"token_expired\""), "{text}");
        let text = refused(ErrorCode::TooManyRequests, events);
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("\nretry: 2345\n"), "{text}");
    }

    #[test]
    fn every_form_repeats_the_id_of_the_request() {
        let events = "Accept: text/event-stream\r\n";
        for fields in ["", "Prefer: wait=3\r\n", events, UPGRADE] {
            let out = refused(ErrorCode::Full, &format!("{fields}X-Request-Id: r-7\r\n"));
            assert!(split(&out).0.contains("\r\nX-Request-Id: r-7\r\n"), "{fields}");
            let out = refused(ErrorCode::Full, &format!("{fields}X-Request-Id: r 7\r\n"));
            assert!(!split(&out).0.contains("\r\nX-Request-Id:"), "{fields}");
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
