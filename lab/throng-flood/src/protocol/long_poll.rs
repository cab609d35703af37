//! Decodes the responses to long-polls.

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
        match head.body_end()? {
            BodyEnd::Bytes(length) => check_length(usize::try_from(length).unwrap_or(usize::MAX))?,
            BodyEnd::Chunked => {}
            BodyEnd::Connection => return Err("the answer does not say how long it is"),
        }
        let body = head.body(&bytes[used + head.bytes..])?;
        if !body.is_whole {
            break;
        }
        used += head.bytes + body.bytes;
        if head.status < 200 {
            continue;
        }
        sink(Event::Response(LongPollResponse {
            status: head.status,
            body: body.content,
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
