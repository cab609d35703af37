//! Response headers, as both the heads of subscriptions and errors write them.

use crate::date::Date;
use crate::request_id::X_REQUEST_ID;

/// Forbids browsers to guess the content type from the body.
pub(crate) fn push_nosniff(out: &mut Vec<u8>) {
    push_header(out, "X-Content-Type-Options", "nosniff");
}

/// Appends the header `Date`.
pub(crate) fn push_date(out: &mut Vec<u8>, date: Option<Date>) {
    let Some(date) = date else { return };
    out.extend_from_slice(b"Date: ");
    out.extend_from_slice(date.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Forbids browsers to tell others the URL.
pub(crate) fn push_no_referrer(out: &mut Vec<u8>) {
    push_header(out, "Referrer-Policy", "no-referrer");
}

/// Repeats the id of the request, if it has brought one.
pub(crate) fn push_request_id(out: &mut Vec<u8>, id: Option<&str>) {
    if let Some(id) = id {
        push_header(out, X_REQUEST_ID, id);
    }
}

/// Lets pages of this origin read the response, also of requests with cookies if
/// `allow_credentials`.
pub(crate) fn push_cors(out: &mut Vec<u8>, allow_origin: Option<&str>, allow_credentials: bool) {
    let Some(origin) = allow_origin else { return };
    push_header(out, "Access-Control-Allow-Origin", origin);
    if allow_credentials {
        push_header(out, "Access-Control-Allow-Credentials", "true");
    }
    out.extend_from_slice(
        b"Vary: Origin\r\n\
        Access-Control-Expose-Headers: \
        Throng-Id, Throng-Recovered, Throng-Ended, Throng-State, Throng-Connection, \
        Retry-After, X-Request-Id\r\n",
    );
}

/// Appends `Connection`. `keep-alive` is for HTTP/1.0 clients; HTTP/1.1 assumes it.
pub(crate) fn push_connection(out: &mut Vec<u8>, keep_alive: bool) {
    push_header(out, "Connection", if keep_alive { "keep-alive" } else { "close" });
}

/// Appends one header, or nothing if the value contains a byte other than visible ASCII, space or
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
