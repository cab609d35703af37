//! Decodes the responses to long-polls.

use std::borrow::Cow;

use super::chunked::{Chunked, Piece};
use super::http::{Head, Length};
use super::{Event, check_length};
use crate::failure::Failure;
use crate::protocol::refusal;

/// A response.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// `200` with messages; `204` or `304` without.
    pub status: u16,
    /// The messages.
    pub body: Cow<'a, [u8]>,
    /// What the next request resumes after.
    pub next: Next<'a>,
    /// Whether the next request can use the same connection.
    pub keeps_alive: bool,
    /// Whether the server announces a gap after the id that the client asked to resume from.
    pub has_gap: bool,
    /// Whether the body is a page for people.
    pub is_page: bool,
}

impl Answer<'_> {
    /// The failure, if the response is a rejection.
    pub fn refusal(&self) -> Failure {
        if self.is_page {
            Failure::Status(self.status)
        } else {
            refusal::of_text(self.status, &self.body)
        }
    }
}

/// Headers that the next request resumes with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Next<'a> {
    /// `Throng-Id`, for `since=`.
    pub id: Option<&'a str>,
    /// `Last-Modified`, for `If-Modified-Since`.
    pub last_modified: Option<&'a str>,
    /// `ETag`, for `If-None-Match`.
    pub etag: Option<&'a str>,
}

/// Passes each complete response to `sink`. Returns how many bytes were used.
pub(super) fn decode(
    bytes: &[u8],
    sink: &mut impl FnMut(Event<'_>),
) -> Result<usize, &'static str> {
    let mut used = 0;
    while let Some(head) = Head::parse(&bytes[used..])? {
        let Some((body, length)) = body(&head, &bytes[used + head.bytes..])? else { break };
        used += head.bytes + length;
        if head.status < 200 {
            continue;
        }
        sink(Event::Answer(Answer {
            status: head.status,
            body,
            next: Next {
                id: head.header("throng-id"),
                last_modified: head.header("last-modified"),
                etag: head.header("etag"),
            },
            keeps_alive: head.keeps_alive(),
            has_gap: head.has_gap(),
            is_page: head.header("content-type").is_some_and(refusal::is_page),
        }));
    }
    Ok(used)
}

/// A body, and its length as sent.
type Body<'a> = (Cow<'a, [u8]>, usize);

/// The body at the start of `bytes`; `None` if it is incomplete.
fn body<'a>(head: &Head<'_>, bytes: &'a [u8]) -> Result<Option<Body<'a>>, &'static str> {
    match head.length()? {
        Length::Bytes(length) => {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            check_length(length)?;
            Ok(bytes.get(..length).map(|body| (Cow::Borrowed(body), length)))
        }
        Length::Chunked => dechunked(bytes),
        Length::Connection => Err("the answer does not say how long it is"),
    }
}

fn dechunked(bytes: &[u8]) -> Result<Option<Body<'_>>, &'static str> {
    let (mut chunked, mut body, mut rest) = (Chunked::default(), Vec::new(), bytes);
    while !rest.is_empty() {
        let (piece, after) = chunked.next(rest)?;
        rest = after;
        match piece {
            Piece::Data(data) => body.extend_from_slice(data),
            Piece::End => return Ok(Some((Cow::Owned(body), bytes.len() - rest.len()))),
            Piece::None => {}
        }
    }
    Ok(None)
}
