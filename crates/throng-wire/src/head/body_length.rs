//! The headers that delimit and route a request: `Content-Length`, `Transfer-Encoding`, `Host` and
//! `Connection`.
//!
//! Two servers that disagree on these see different requests in the same bytes (request smuggling).
//! An ambiguous length is refused, not repaired.

use crate::error::{ErrorCode, ErrorResponse};
use crate::origin::split_authority;

/// How the end of a request body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyLength {
    /// No header announces a body.
    None,
    /// `Content-Length`, in bytes.
    Known(u64),
    Chunked,
}

/// The values of these headers.
pub(super) struct Fields<'a> {
    pub host: Option<&'a str>,
    pub body: BodyLength,
    pub keep_alive: bool,
}

pub(super) fn read<'a>(
    headers: &[httparse::Header<'a>],
    is_http10: bool,
) -> Result<Fields<'a>, ErrorResponse> {
    let mut host = None;
    let mut length = None;
    let mut codings = None;
    let mut has_close = false;
    let mut has_keep_alive = false;
    for header in headers {
        let name = header.name;
        if name.eq_ignore_ascii_case("host") {
            if host.is_some() {
                return Err(ErrorResponse::bad_request("the header `Host` is given twice"));
            }
            host = Some(read_host(header.value)?);
        } else if name.eq_ignore_ascii_case("content-length") {
            if length.is_some() {
                return Err(bad_length("the header `Content-Length` is given twice"));
            }
            length = Some(read_length(header.value)?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            codings.get_or_insert_with(Codings::default).read(header.value)?;
        } else if name.eq_ignore_ascii_case("connection") {
            for item in items(header.value) {
                has_close |= item.eq_ignore_ascii_case(b"close");
                has_keep_alive |= item.eq_ignore_ascii_case(b"keep-alive");
            }
        }
    }
    if host.is_none() && !is_http10 {
        return Err(ErrorResponse::bad_request("the header `Host` is missing"));
    }
    let keep_alive = !has_close && (!is_http10 || has_keep_alive);
    Ok(Fields { host, body: read_body(length, codings, is_http10)?, keep_alive })
}

fn read_body(
    length: Option<u64>,
    codings: Option<Codings>,
    is_http10: bool,
) -> Result<BodyLength, ErrorResponse> {
    let Some(codings) = codings else {
        return Ok(length.map_or(BodyLength::None, BodyLength::Known));
    };
    if length.is_some() {
        return Err(bad_length("`Content-Length` and `Transfer-Encoding` exclude each other"));
    }
    if is_http10 {
        return Err(bad_length("HTTP/1.0 has no `Transfer-Encoding`"));
    }
    if codings.has_other || !codings.has_chunked {
        return Err(ErrorCode::NotImplemented.into());
    }
    Ok(BodyLength::Chunked)
}

/// The transfer codings, over all `Transfer-Encoding` headers so far.
#[derive(Default)]
struct Codings {
    has_chunked: bool,
    has_other: bool,
}

impl Codings {
    fn read(&mut self, value: &[u8]) -> Result<(), ErrorResponse> {
        for item in items(value) {
            let name = item.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
            let is_chunked = name.eq_ignore_ascii_case(b"chunked");
            if name.is_empty() || (is_chunked && name != item) {
                return Err(bad_length("the header `Transfer-Encoding` is malformed"));
            }
            if self.has_chunked {
                return Err(bad_length("`chunked` must be the last transfer coding, and once"));
            }
            self.has_chunked |= is_chunked;
            self.has_other |= !is_chunked;
        }
        Ok(())
    }
}

fn read_host(value: &[u8]) -> Result<&str, ErrorResponse> {
    str::from_utf8(value)
        .ok()
        .filter(|host| split_authority(host).is_some())
        .ok_or_else(|| ErrorResponse::bad_request("the header `Host` is not a host and a port"))
}

/// `str::parse` accepts a sign, the header does not.
fn read_length(value: &[u8]) -> Result<u64, ErrorResponse> {
    str::from_utf8(value)
        .ok()
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| bad_length("the header `Content-Length` is not a number of bytes"))
}

fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

fn bad_length(message: &'static str) -> ErrorResponse {
    ErrorResponse::new(ErrorCode::BadLength, message)
}
