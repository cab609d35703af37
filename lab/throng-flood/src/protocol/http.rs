//! Parses the heads of HTTP/1 responses.

use std::borrow::Cow;
use std::str;

use super::chunked::{Chunked, Piece};

/// The largest head: what servers and proxies allow for requests.
pub(crate) const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The most headers: enough for any server behind any proxy.
pub(crate) const HEADERS_MAX: usize = 64;

/// The head of a response.
#[derive(Debug)]
pub struct ResponseHead<'a> {
    /// The status code.
    pub status: u16,
    /// The offset of the body.
    pub bytes: usize,
    is_http_10: bool,
    headers: [httparse::Header<'a>; HEADERS_MAX],
}

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// By its length.
    Bytes(u64),
    /// By the last chunk.
    Chunked,
    /// By the end of the connection.
    Connection,
}

/// The part of a body that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub struct Body<'a> {
    /// Without the sizes of chunks.
    pub content: Cow<'a, [u8]>,
    /// Its length as sent, with sizes of chunks.
    pub bytes: usize,
    /// False for a body that ends with the connection.
    pub is_whole: bool,
}

impl<'a> ResponseHead<'a> {
    /// The head at the start of `bytes`; `None` if it is incomplete.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<ResponseHead<'a>>, &'static str> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(bytes).map_err(|error| match error {
            httparse::Error::TooManyHeaders => "the answer has too many headers",
            httparse::Error::Version => "the answer is not HTTP/1",
            _ => "the answer is not HTTP",
        })?;
        match parsed {
            httparse::Status::Complete(length) if length <= HEAD_BYTES_MAX => {
                let status = response.code.unwrap_or_default();
                let is_http_10 = response.version == Some(0);
                Ok(Some(ResponseHead { status, bytes: length, is_http_10, headers }))
            }
            httparse::Status::Partial if bytes.len() <= HEAD_BYTES_MAX => Ok(None),
            _ => Err("the answer's head is too long"),
        }
    }

    /// The first header of this name, if it is ASCII.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.values(name).next()
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let headers = self.headers.iter().take_while(|header| !header.name.is_empty());
        let named = headers.filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.filter_map(|header| str::from_utf8(header.value).ok())
    }

    /// True if a list header has this item.
    pub(crate) fn has_item(&self, name: &str, item: &str) -> bool {
        let mut items = self.values(name).flat_map(|value| value.split(','));
        items.any(|found| found.trim().eq_ignore_ascii_case(item))
    }

    /// How the end of the body is found.
    pub(crate) fn body_end(&self) -> Result<BodyEnd, &'static str> {
        if matches!(self.status, 100..200 | 204 | 304) {
            return Ok(BodyEnd::Bytes(0));
        }
        if self.has_item("transfer-encoding", "chunked") {
            return Ok(BodyEnd::Chunked);
        }
        let Some(length) = self.header("content-length") else { return Ok(BodyEnd::Connection) };
        let length = length.trim().parse().map_err(|_| "the answer's length is not a number")?;
        Ok(BodyEnd::Bytes(length))
    }

    /// The body at the start of `bytes`, which follow the head.
    pub fn body<'b>(&self, bytes: &'b [u8]) -> Result<Body<'b>, &'static str> {
        let length = match self.body_end()? {
            BodyEnd::Bytes(length) => usize::try_from(length).unwrap_or(usize::MAX),
            BodyEnd::Chunked => return unchunked(bytes),
            BodyEnd::Connection => usize::MAX,
        };
        let content = &bytes[..bytes.len().min(length)];
        let is_whole = content.len() == length;
        Ok(Body { content: Cow::Borrowed(content), bytes: content.len(), is_whole })
    }

    /// True if the connection stays open after the response.
    pub(crate) fn keeps_alive(&self) -> bool {
        if self.is_http_10 {
            self.has_item("connection", "keep-alive")
        } else {
            !self.has_item("connection", "close")
        }
    }

    /// True if the server announces a gap after the id that the client asked to resume from.
    pub(crate) fn has_gap(&self) -> bool {
        self.header("throng-recovered") == Some("false")
    }
}

fn unchunked(bytes: &[u8]) -> Result<Body<'_>, &'static str> {
    let (mut chunked, mut content) = (Chunked::default(), Vec::new());
    let (mut rest, mut is_whole) = (bytes, false);
    while !is_whole && let Some((piece, after)) = chunked.next(rest)? {
        rest = after;
        match piece {
            Piece::Data(data) => content.extend_from_slice(data),
            Piece::End => is_whole = true,
            Piece::None => {}
        }
    }
    Ok(Body { content: Cow::Owned(content), bytes: bytes.len() - rest.len(), is_whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_found_in_pieces_of_any_size() {
        let bytes = b"HTTP/1.1 200 OK\r\nA: b\r\nTransfer-Encoding: gzip, Chunked\r\n\r\nrest";
        let end = bytes.len() - 4;
        for cut in 0..end {
            assert!(ResponseHead::parse(&bytes[..cut]).expect("a head").is_none(), "{cut}");
        }
        let head = ResponseHead::parse(bytes).expect("a head").expect("whole");
        assert_eq!((head.status, head.bytes, head.header("a")), (200, end, Some("b")));
        assert_eq!(head.body_end(), Ok(BodyEnd::Chunked));
        assert!(head.keeps_alive());
    }

    #[test]
    fn body_lengths_and_keep_alive() {
        let length = |head: &str| {
            let head = format!("HTTP/1.0 {head}\r\n\r\n");
            let head = ResponseHead::parse(head.as_bytes()).expect("a head").expect("whole");
            (head.body_end(), head.keeps_alive())
        };
        assert_eq!(length("200 OK\r\nContent-Length: 12"), (Ok(BodyEnd::Bytes(12)), false));
        assert_eq!(length("204 No\r\nConnection: keep-alive"), (Ok(BodyEnd::Bytes(0)), true));
        assert_eq!(length("200 OK").0, Ok(BodyEnd::Connection));
        assert!(length("200 OK\r\nContent-Length: -1").0.is_err());
    }

    #[test]
    fn limits_are_enforced() {
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(HEAD_BYTES_MAX));
        assert!(ResponseHead::parse(long.as_bytes()).is_err());
        assert!(ResponseHead::parse(format!("{long}\r\n\r\n").as_bytes()).is_err());
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
        assert!(ResponseHead::parse(many.as_bytes()).is_err());
        assert!(ResponseHead::parse(b"SSH-2.0-x\r\n").is_err());
    }
}
