//! HTTP request heads.
//!
//! The worker either serves a request itself or hands its bytes to the control plane, and a proxy
//! may have read them before. All of them must agree on what the head says. So this parser refuses
//! everything on which parsers are known to differ: bare line feeds, repeated lengths, folded
//! headers.
//!
//! # Invariants
//!
//! * An incomplete head costs one search for line feeds and no parse.
//! * The result does not depend on how the bytes arrive: an error that is returned before the head
//!   is complete is the one that the complete head would get.
//! * Only an error allocates.

mod body_length;
mod empty_body;
mod kept;
#[cfg(test)]
mod tests;

use memchr::memchr_iter;

pub use self::empty_body::{ChunkedBody, chunked_body};
pub use self::kept::KeptHead;

use self::body_length::{BodyLength, Fields};
use crate::error::{ErrorCode, ErrorResponse};
use crate::origin::split_authority;
use crate::request_id;

/// The limit on headers of one request. Browsers send about 15, and proxies add a few.
pub const HEADERS_MAX: usize = 64;

/// How many empty lines before a request are skipped. Old clients send one after a body.
const LEADING_LINES_MAX: usize = 2;

/// Limits of a request head.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The limit on request line and headers together, with the empty lines around them. The
    /// request line has no lower limit: it may name every channel that a connection may follow.
    pub max_head_bytes: usize,
}

/// The result of [`parse`].
#[derive(Debug)]
// Boxing the head would cost an allocation per request. The value lives on the stack, briefly.
#[allow(clippy::large_enum_variant)]
pub enum Parsed<'a> {
    /// More bytes are needed.
    Incomplete,
    /// A well-formed head.
    Complete {
        head: Head<'a>,
        /// Its length in bytes, with the empty lines before it and the one that ends it.
        length: usize,
    },
}

/// The HTTP version of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    Http10,
    Http11,
}

/// The head of a request.
#[derive(Debug)]
pub struct Head<'a> {
    /// The method, case-sensitive.
    pub method: &'a str,
    /// The path and query, beginning with a slash; or `*`.
    pub target: &'a str,
    pub version: Version,
    host: Option<&'a str>,
    body: BodyLength,
    keep_alive: bool,
    headers: [httparse::Header<'a>; HEADERS_MAX],
    headers_count: usize,
}

impl<'a> Head<'a> {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers(name).next()
    }

    /// The id that the request brings for itself.
    pub fn request_id(&self) -> Option<&'a str> {
        request_id::given(self.headers(request_id::X_REQUEST_ID))
    }

    /// All headers of this name, in order.
    pub fn headers<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'h> {
        self.headers[..self.headers_count]
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name))
            .map(|header| header.value)
    }

    /// The items of a comma-separated list, over all headers of this name.
    pub fn items<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'h> {
        self.headers(name)
            .flat_map(|value| value.split(|&byte| byte == b','))
            .map(<[u8]>::trim_ascii)
    }

    /// True if such a list contains this item, ignoring case.
    pub fn has_item(&self, name: &str, item: &str) -> bool {
        self.items(name).any(|listed| listed.eq_ignore_ascii_case(item.as_bytes()))
    }

    /// The names of all headers, in order.
    pub fn header_names(&self) -> impl Iterator<Item = &'a str> + use<'a, '_> {
        self.headers[..self.headers_count].iter().map(|header| header.name)
    }

    /// The host and port that the request is for: from the target if it names them, otherwise from
    /// `Host`.
    pub fn host(&self) -> Option<&'a str> {
        self.host
    }

    /// True if the client wants to keep the connection open after the response.
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// The length of the body, if `Content-Length` gives it.
    pub fn content_length(&self) -> Option<u64> {
        match self.body {
            BodyLength::Known(length) => Some(length),
            BodyLength::None | BodyLength::Chunked => None,
        }
    }

    /// True if the body is chunked.
    pub fn is_chunked(&self) -> bool {
        self.body == BodyLength::Chunked
    }

    /// True if the head announces at least one byte of body. Of chunks it cannot say: see
    /// [`chunked_body`].
    pub fn has_body(&self) -> bool {
        matches!(self.body, BodyLength::Known(1..))
    }
}

/// True if the request that begins `bytes` is a `HEAD`, well-formed or not: its answer has no body.
pub fn is_head(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"HEAD ")
}

/// Parses the head at the start of `bytes`, which may end before the head does or go on behind it.
pub fn parse<'a>(bytes: &'a [u8], limits: Limits) -> Result<Parsed<'a>, ErrorResponse> {
    match find_end(bytes, limits.max_head_bytes)? {
        None => Ok(Parsed::Incomplete),
        Some((start, end)) => {
            let head = parse_complete(&bytes[start..end])?;
            Ok(Parsed::Complete { head, length: end })
        }
    }
}

/// Where the request line starts and where the final empty line ends, once that has arrived.
fn find_end(bytes: &[u8], max_head_bytes: usize) -> Result<Option<(usize, usize)>, ErrorResponse> {
    let mut start = 0;
    let mut leading_lines = 0;
    let mut line_start = 0;
    for line_feed in memchr_iter(b'\n', bytes) {
        let line = &bytes[line_start..line_feed];
        let is_request_line = line_start == start;
        if is_request_line {
            check_request_line(line_feed + 1, max_head_bytes)?;
        }
        if line_feed >= max_head_bytes {
            return Err(ErrorCode::HeadTooLarge.into());
        }
        match line {
            [b'\r'] if !is_request_line => return Ok(Some((start, line_feed + 1))),
            [b'\r'] if leading_lines == LEADING_LINES_MAX => {
                return Err(ErrorResponse::bad_request("the request begins with empty lines"));
            }
            [b'\r'] => {
                leading_lines += 1;
                start = line_feed + 1;
            }
            [.., b'\r'] => {}
            _ => {
                return Err(ErrorResponse::bad_request(
                    "a line of the head ends in a line feed without a carriage return",
                ));
            }
        }
        line_start = line_feed + 1;
    }
    if line_start == start {
        check_request_line(bytes.len() + 1, max_head_bytes)?;
    }
    if bytes.len() >= max_head_bytes {
        return Err(ErrorCode::HeadTooLarge.into());
    }
    Ok(None)
}

/// Checks the length of the request line, complete or not. `end` is a lower bound for the length of
/// the head up to the end of that line.
fn check_request_line(end: usize, max_head_bytes: usize) -> Result<(), ErrorResponse> {
    if end <= max_head_bytes {
        return Ok(());
    }
    let message = format!("the request line is longer than {max_head_bytes} bytes");
    Err(ErrorResponse::new(ErrorCode::UriTooLong, message))
}

fn parse_complete<'a>(bytes: &'a [u8]) -> Result<Head<'a>, ErrorResponse> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(bytes).map_err(|error| syntax_error(error, bytes))?;
    let (method, target, version, headers_count) = match (parsed, &request) {
        (
            httparse::Status::Complete(length),
            httparse::Request { method: Some(method), path: Some(path), version, headers },
        ) if length == bytes.len() => {
            let version = if *version == Some(0) { Version::Http10 } else { Version::Http11 };
            (*method, *path, version, headers.len())
        }
        _ => return Err(ErrorResponse::bad_request("the request head is malformed")),
    };
    let (authority, target) = split_target(method, target)?;
    let Fields { host, body, keep_alive } =
        body_length::read(&headers[..headers_count], version == Version::Http10)?;
    // RFC 9112, section 3.2.2: the authority in the target overrides the header.
    let host = authority.or(host);
    Ok(Head { method, target, version, host, body, keep_alive, headers, headers_count })
}

/// Splits a request target into its authority, if it has one, and the path with the query.
fn split_target<'a>(
    method: &str,
    target: &'a str,
) -> Result<(Option<&'a str>, &'a str), ErrorResponse> {
    if target.contains('#') {
        return Err(ErrorResponse::bad_request("the request target contains a fragment (`#`)"));
    }
    if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        return Ok((None, target));
    }
    let malformed =
        || ErrorResponse::bad_request("the request target is not a path, nor an http URL");
    let rest = strip_prefix_ignoring_case(target, "http://")
        .or_else(|| strip_prefix_ignoring_case(target, "https://"))
        .ok_or_else(malformed)?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if split_authority(authority).is_none() || path.starts_with('?') {
        return Err(malformed());
    }
    Ok((Some(authority), if path.is_empty() { "/" } else { path }))
}

fn strip_prefix_ignoring_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

fn syntax_error(error: httparse::Error, bytes: &[u8]) -> ErrorResponse {
    match error {
        httparse::Error::Version if names_other_version(bytes) => ErrorCode::BadVersion.into(),
        httparse::Error::TooManyHeaders => {
            let message = format!("the request has more than {HEADERS_MAX} headers");
            ErrorResponse::new(ErrorCode::HeadTooLarge, message)
        }
        httparse::Error::HeaderName => ErrorResponse::bad_request("a header name is malformed"),
        httparse::Error::HeaderValue => ErrorResponse::bad_request("a header value is malformed"),
        _ => ErrorResponse::bad_request("the request line is malformed"),
    }
}

/// True if the request line ends in some HTTP version, such as `HTTP/2.0`.
fn names_other_version(bytes: &[u8]) -> bool {
    let line = bytes.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let words: Vec<_> = line.split(|&byte| byte == b' ').collect();
    let &[_, _, version] = &words[..] else { return false };
    match version.strip_prefix(b"HTTP/") {
        Some([major]) => major.is_ascii_digit(),
        Some([major, b'.', minor]) => major.is_ascii_digit() && minor.is_ascii_digit(),
        _ => false,
    }
}
