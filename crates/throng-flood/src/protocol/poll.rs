//! Long-poll: whole answers, one after the other on a connection.

use std::borrow::Cow;

use super::chunked::{Chunked, Piece};
use super::http::{Head, Length};
use super::{Event, check_length};
use crate::refusal;
use crate::tally::Failure;

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// `200` with messages, `204` or `304` without.
    pub status: u16,
    /// The messages.
    pub body: Cow<'a, [u8]>,
    /// Where the next request is to go on.
    pub next: Next<'a>,
    /// Whether it can use the same connection.
    pub keeps_alive: bool,
    /// Whether what the client asked to go on after is not all there any more.
    pub has_gap: bool,
    /// Whether the body is a page for people.
    pub is_page: bool,
}

impl Answer<'_> {
    /// What the answer is if it is a refusal.
    pub fn refusal(&self) -> Failure {
        match self.is_page {
            true => Failure::Status(self.status),
            false => refusal::of_text(self.status, &self.body),
        }
    }
}

/// What a server says about the next request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Next<'a> {
    /// `Throng-Id`, for `since=`.
    pub id: Option<&'a str>,
    /// `Last-Modified`, for `If-Modified-Since`.
    pub last_modified: Option<&'a str>,
    /// `ETag`, for `If-None-Match`.
    pub etag: Option<&'a str>,
}

/// Hands each whole answer to `sink`, and returns how many bytes need not be seen again.
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

/// A body, and how long it is as sent.
type Body<'a> = (Cow<'a, [u8]>, usize);

/// The body that `bytes` begins with; `None` when it has not arrived whole.
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
