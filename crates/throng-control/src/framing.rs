//! Where a request begins and ends on a kept-alive connection, decided before hyper sees a byte.
//!
//! Called by the [gate](crate::gate) only. Two readers that disagree about the end of a request
//! are how requests are smuggled: whatever could be read in two ways is refused here, and what is
//! let through has exactly one reading, which is hyper's too.

use std::mem::MaybeUninit;

use httparse::{Header, Request, Status};

use crate::answer::{Code, Refused};

/// Header fields of one request: more than any browser sends, and the same as hyper's own limit.
const FIELDS_MAX: usize = 100;

/// What follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// So many bytes.
    Length(u64),
    /// Chunks; hyper finds their end, and nothing may follow.
    Chunked,
}

/// What the bytes at the start of a request are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inspection {
    /// A head that has not ended yet.
    Partial,
    /// A request for hyper.
    Request {
        /// The length of its head.
        head_bytes: usize,
        /// What follows.
        body: Body,
    },
    /// A request for a worker.
    Subscription,
    /// Not to be served; what follows cannot be made sense of.
    Refused(Refused),
}

/// Looks at what begins with a request head. The search for its end starts at `searched`, which is
/// moved forward so that a head that comes byte by byte is not searched anew for each.
pub(crate) fn inspect(bytes: &[u8], searched: &mut usize, head_bytes_max: usize) -> Inspection {
    let Some(end) = find_end(bytes, *searched) else {
        // The end is at most three bytes, two of which may be there.
        *searched = bytes.len().saturating_sub(2);
        return if bytes.len() > head_bytes_max { too_large(bytes) } else { Inspection::Partial };
    };
    if end > head_bytes_max {
        return too_large(&bytes[..end]);
    }
    let mut fields = [const { MaybeUninit::<Header<'_>>::uninit() }; FIELDS_MAX];
    let mut request = Request::new(&mut []);
    match request.parse_with_uninit_headers(&bytes[..end], &mut fields) {
        Ok(Status::Complete(head_bytes)) => judge(&request, head_bytes)
            .unwrap_or_else(|refused| Inspection::Refused(refused.closing())),
        Ok(Status::Partial) => malformed("the request head does not end where it should"),
        Err(httparse::Error::Version) => Inspection::Refused(
            Refused::new(Code::BadVersion, "the server speaks HTTP/1.0 and HTTP/1.1").closing(),
        ),
        Err(httparse::Error::TooManyHeaders) => Inspection::Refused(
            Refused::new(
                Code::HeadTooLarge,
                format!("the request has more than {FIELDS_MAX} header fields"),
            )
            .closing(),
        ),
        Err(error) => malformed(format!("the request head is malformed: {error}")),
    }
}

fn malformed(sentence: impl Into<std::borrow::Cow<'static, str>>) -> Inspection {
    Inspection::Refused(Refused::new(Code::BadRequest, sentence).closing())
}

fn too_large(bytes: &[u8]) -> Inspection {
    let refused = if memchr::memchr(b'\n', bytes).is_none() {
        Refused::new(Code::UriTooLong, "the request line is too long")
    } else {
        Refused::new(Code::HeadTooLarge, "the request head is too large")
    };
    Inspection::Refused(refused.closing())
}

/// Behind the empty line that ends a head.
fn find_end(bytes: &[u8], from: usize) -> Option<usize> {
    let from = from.min(bytes.len());
    memchr::memchr_iter(b'\n', &bytes[from..]).map(|at| from + at).find_map(|at| {
        match &bytes[at + 1..] {
            [b'\n', ..] => Some(at + 2),
            [b'\r', b'\n', ..] => Some(at + 3),
            _ => None,
        }
    })
}

fn judge(request: &Request<'_, '_>, head_bytes: usize) -> Result<Inspection, Refused> {
    let body = body_of(request)?;
    let target = request.path.unwrap_or_default();
    if request.method == Some("GET") && is_subscription(target) {
        if body != Body::Length(0) {
            let sentence = "a request that subscribes has no body";
            return Err(Refused::new(Code::BadRequest, sentence));
        }
        return Ok(Inspection::Subscription);
    }
    Ok(Inspection::Request { head_bytes, body })
}

fn body_of(request: &Request<'_, '_>) -> Result<Body, Refused> {
    let is_http_11 = request.version == Some(1);
    let bad_length = |sentence| Err(Refused::new(Code::BadLength, sentence));
    let mut length = None;
    let mut is_chunked = false;
    let mut hosts = 0;
    for field in request.headers.iter() {
        if field.name.eq_ignore_ascii_case("content-length") {
            if length.is_some() {
                return bad_length("the request has more than one Content-Length");
            }
            let Some(bytes) = decimal(field.value) else {
                return bad_length("the Content-Length is not a number");
            };
            length = Some(bytes);
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            if !is_http_11 {
                return bad_length("HTTP/1.0 has no transfer codings");
            }
            if is_chunked || !field.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                let sentence = "the only transfer coding is `chunked`, once";
                return Err(Refused::new(Code::NotImplemented, sentence));
            }
            is_chunked = true;
        } else if field.name.eq_ignore_ascii_case("host") {
            hosts += 1;
        }
    }
    if hosts > 1 || (hosts == 0 && is_http_11) {
        return Err(Refused::new(Code::BadRequest, "a request names its host once"));
    }
    match (length, is_chunked) {
        (Some(_), true) => bad_length("the request has both a Content-Length and chunks"),
        (None, true) => Ok(Body::Chunked),
        (length, false) => Ok(Body::Length(length.unwrap_or(0))),
    }
}

/// Digits only: `+5`, `5, 5` and the like are read differently by different readers. The largest
/// number is left out, for it stands for "no end" in the gate.
fn decimal(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    if value.is_empty() || value.len() > 19 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok().filter(|bytes| *bytes < u64::MAX / 2)
}

/// Whether a `GET` of this target subscribes: `/channels/x`, `/users/x`, `/subscribe`.
fn is_subscription(target: &str) -> bool {
    let target = match target.split_once("://") {
        Some((_, rest)) if !target.starts_with('/') => {
            rest.find('/').map_or("/", |slash| &rest[slash..])
        }
        _ => target,
    };
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let name = path.strip_prefix("/channels/").or_else(|| path.strip_prefix("/users/"));
    path == "/subscribe" || name.is_some_and(|name| !name.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(head: &str) -> Inspection {
        inspect(head.as_bytes(), &mut 0, 1000)
    }

    fn code(head: &str) -> Option<&'static str> {
        match of(head) {
            Inspection::Refused(refused) => Some(refused.code.name()),
            _ => None,
        }
    }

    #[test]
    fn ends_are_found_however_the_head_is_cut() {
        for head in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n"] {
            let mut searched = 0;
            for end in 0..head.len() {
                let part = &head.as_bytes()[..end];
                assert_eq!(inspect(part, &mut searched, 1000), Inspection::Partial, "{end}");
            }
            let whole = Inspection::Request { head_bytes: head.len(), body: Body::Length(0) };
            assert_eq!(inspect(head.as_bytes(), &mut searched, 1000), whole);
        }
    }

    #[test]
    fn only_gets_of_channels_users_and_subscribe_subscribe() {
        for target in [
            "/channels/a",
            "/channels/",
            "/users/a%2Fb?since=a-1",
            "/subscribe",
            "/subscribe?channel=a/b",
            "http://a/channels/b",
        ] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(of(&head), Inspection::Subscription, "{target}");
            let head = format!("HEAD {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(matches!(of(&head), Inspection::Request { .. }), "{target}");
        }
        for target in ["/", "/channels", "/channels/a/history", "/subscriber", "/chat", "*"] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(matches!(of(&head), Inspection::Request { .. }), "{target}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let post = |fields: &str| format!("POST /channels/a HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        for fields in [
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5\r\ncontent-length: 6\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: -1\r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length:\r\n",
            "Content-Length: 18446744073709551615\r\n",
        ] {
            assert_eq!(code(&post(fields)), Some("bad_length"), "{fields:?}");
        }
        for fields in [
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked, identity\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        ] {
            assert_eq!(code(&post(fields)), Some("not_implemented"), "{fields:?}");
        }
        for fields in ["Host: b\r\n", "Content-Length : 5\r\n", " folded\r\n", "\0: a\r\n"] {
            assert_eq!(code(&post(fields)), Some("bad_request"), "{fields:?}");
        }
        assert_eq!(code("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), Some("bad_length"));
        assert_eq!(code("GET / HTTP/1.1\r\n\r\n"), Some("bad_request"));
        assert_eq!(code("GET / HTTP/2.0\r\nHost: a\r\n\r\n"), Some("bad_version"));
        let get = "GET /channels/a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n";
        assert_eq!(code(get), Some("bad_request"));
    }

    #[test]
    fn heads_are_limited() {
        let long = "x".repeat(1000);
        assert_eq!(code(&format!("GET /{long}")), Some("uri_too_long"));
        assert_eq!(code(&format!("GET / HTTP/1.1\r\na: {long}")), Some("head_too_large"));
        assert_eq!(code(&format!("GET / HTTP/1.1\r\na: {long}\r\n\r\n")), Some("head_too_large"));
        let many = "a: b\r\n".repeat(101);
        assert_eq!(code(&format!("GET / HTTP/1.1\r\n{many}\r\n")), Some("head_too_large"));
    }

    #[test]
    fn bodies_are_measured() {
        let post = |fields: &str| of(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\nrest"));
        let body = |inspection| match inspection {
            Inspection::Request { body, .. } => Some(body),
            _ => None,
        };
        assert_eq!(body(post("")), Some(Body::Length(0)));
        assert_eq!(body(post("content-length: 017\r\n")), Some(Body::Length(17)));
        assert_eq!(body(post("transfer-encoding: Chunked\r\n")), Some(Body::Chunked));
    }
}
