//! Decodes plain HTTP responses: answers to long-polls and to publishes.

use std::borrow::Cow;

use super::event::{Event, Response, ResumeHeaders, check_length};
use super::http::{BodyEnd, ResponseHead};
use super::{moment, refusal};

/// Passes each complete response to `sink`. Returns how many bytes were used.
pub(super) fn decode(
    bytes: &[u8],
    sink: &mut impl FnMut(Event<'_>),
) -> Result<usize, &'static str> {
    let mut used = 0;
    while let Some(head) = ResponseHead::parse(&bytes[used..])? {
        if let BodyEnd::Bytes(length) = head.body_end()? {
            check_length(usize::try_from(length).unwrap_or(usize::MAX))?;
        }
        let body = head.body(&bytes[used + head.bytes..])?;
        if !body.is_whole {
            break;
        }
        used += head.bytes + body.bytes;
        // The final response follows an interim one.
        if head.status >= 200 {
            sink(Event::Response(response(&head, body.content, head.keeps_alive())));
        }
    }
    Ok(used)
}

/// Passes a response that ends with the connection to `sink`, if the rest is one.
pub(super) fn decode_last(bytes: &[u8], sink: &mut impl FnMut(Event<'_>)) {
    if let Ok(Some(head)) = ResponseHead::parse(bytes)
        && head.body_end() == Ok(BodyEnd::Connection)
    {
        sink(Event::Response(response(&head, Cow::Borrowed(&bytes[head.bytes..]), false)));
    }
}

fn response<'a>(head: &ResponseHead<'a>, body: Cow<'a, [u8]>, keeps_alive: bool) -> Response<'a> {
    Response {
        status: head.status,
        body,
        next: ResumeHeaders {
            id: head.header("throng-id"),
            last_modified: head.header("last-modified"),
            etag: head.header("etag"),
        },
        keeps_alive,
        has_gap: head.has_gap(),
        retry_after_s: moment::seconds(head),
        is_page: head.header("content-type").is_some_and(refusal::is_page),
    }
}
