//! Answers to long-polls that several connections share.

use throng_dialect::Encoding;
use throng_wire::Date;
use throng_wire::response::SubscriptionHeaders;

use crate::connection::LongPoll;

/// The headers of an answer. `position` is the client's after it, which is the end of all of its
/// channels if it `has_ended`.
pub(super) fn headers<'a>(
    position: &'a str,
    poll: Option<&'a LongPoll>,
    has_ended: bool,
    date: Date,
) -> SubscriptionHeaders<'a> {
    SubscriptionHeaders {
        id: position,
        recovered: poll.and_then(|poll| poll.is_recovered),
        has_ended,
        state: poll.and_then(|poll| poll.wants_state.then_some(true)),
        connection: None,
        request_id: poll.and_then(|poll| poll.request_id.as_deref()),
        allow_origin: poll.and_then(|poll| poll.origin.as_deref()),
        allow_credentials: poll.is_some_and(|poll| poll.allow_credentials),
        no_referrer: poll.is_some_and(|poll| poll.no_referrer),
        date: Some(date),
    }
}

/// Terms of an answer beside the channel: connections that wait for one channel only, and are kept
/// alive, share the answers to equal terms.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) cursor: u64,
    pub(super) encoding: Encoding,
    pub(super) poll: Option<Box<LongPoll>>,
}

/// One answer for all long-polls with the same terms.
#[derive(Debug)]
pub(super) struct SharedAnswer {
    pub(super) terms: Terms,
    pub(super) bytes: Vec<u8>,
    pub(super) messages: u64,
    /// The offset of its last message.
    pub(super) to: u64,
}
