//! Decodes the responses to long-polls.

use std::borrow::Cow;

use super::chunked::{Chunked, Piece};
use super::event::{Event, LongPollResponse, ResumeHeaders, check_length};
use super::http::{BodyEnd, ResponseHead};
use super::{moment, refusal};

/// Passes each complete response to `sink`. Returns how many bytes were used.
pub(super) fn decode(
    bytes: &[u8],
    sink: &mut impl FnMut(Event<'_>),
) -> Result<usize, &'static str> {
    let mut used = 0;
    while let Some(head) = ResponseHead::parse(&bytes[used..])? {
        let Some((body, length)) = body(&head, &bytes[used + head.bytes..])? else { break };
        used += head.bytes + length;
        if head.status < 200 {
            continue;
        }
        sink(Event::Response(LongPollResponse {
            status: head.status,
            body,
            next: ResumeHeaders {
                id: head.header("throng-id"),
                last_modified: head.header("last-modified"),
                etag: head.header("etag"),
            },
            keeps_alive: head.keeps_alive(),
            has_gap: head.has_gap(),
            retry_after_s: moment::seconds(&head),
            is_page: head.header("content-type").is_some_and(refusal::is_page),
        }));
    }
    Ok(used)
}

/// A body, and its length as sent.
type BodyAndLength<'a> = (Cow<'a, [u8]>, usize);

/// The body at the start of `bytes`; `None` if it is incomplete.
fn body<'a>(
    head: &ResponseHead<'_>,
    bytes: &'a [u8],
) -> Result<Option<BodyAndLength<'a>>, &'static str> {
    match head.body_end()? {
        BodyEnd::Bytes(length) => {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            check_length(length)?;
            Ok(bytes.get(..length).map(|body| (Cow::Borrowed(body), length)))
        }
        BodyEnd::Chunked => dechunked(bytes),
        BodyEnd::Connection => Err("the answer does not say how long it is"),
    }
}

fn dechunked(bytes: &[u8]) -> Result<Option<BodyAndLength<'_>>, &'static str> {
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
