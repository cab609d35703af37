//! Events of decoders: messages, ids, heartbeats, and plain responses.

use std::borrow::Cow;

use super::refusal;
use crate::failure::Failure;

/// The largest message or response that is assembled from parts: well above what push servers
/// send, and a limit for a server that floods.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// A complete message.
    Message(&'a [u8]),
    /// A complete compressed message, as the payload of its frames.
    Compressed(&'a [u8]),
    /// The id to resume after. It follows its message.
    Id(&'a [u8]),
    /// A heartbeat that needs no answer: a pong, a comment of an event stream, an empty line of a
    /// stream.
    Heartbeat,
    /// A WebSocket ping, which is answered with its payload.
    Ping(&'a [u8]),
    /// The server closes the WebSocket, perhaps with a code and the time until it wants the client
    /// back, in milliseconds.
    Close(Option<u16>, Option<u64>),
    /// The end of the body.
    End,
    /// A response to a long-poll or a publish.
    Response(Response<'a>),
}

/// A complete response to a long-poll or a publish.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response<'a> {
    /// To a long-poll: `200` with messages, `204` or `304` without.
    pub status: u16,
    /// To a long-poll: the messages, in a body of any type.
    pub body: Cow<'a, [u8]>,
    /// The place that the next request resumes after.
    pub next: ResumeHeaders<'a>,
    /// True if the next request can use the same connection.
    pub keeps_alive: bool,
    /// True if the server announces a gap after the id that the client asked to resume from.
    pub has_gap: bool,
    /// True if the body is a page for people.
    pub is_page: bool,
    /// The seconds of `Retry-After`.
    pub retry_after_s: Option<u64>,
}

impl Response<'_> {
    /// The failure, if the response is a rejection.
    pub(crate) fn refusal(&self) -> Failure {
        refusal::of_content(self.status, self.is_page, &self.body)
    }
}

/// Headers that the next request resumes with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ResumeHeaders<'a> {
    /// `Throng-Id`, for `since=`.
    pub id: Option<&'a str>,
    /// `Last-Modified`, for `If-Modified-Since`.
    pub last_modified: Option<&'a str>,
    /// `ETag`, for `If-None-Match`.
    pub etag: Option<&'a str>,
}

/// Fails if a message or response of this size would be too long.
pub(crate) fn check_length(bytes: usize) -> Result<(), &'static str> {
    if bytes > MESSAGE_BYTES_MAX { Err("the message is too long") } else { Ok(()) }
}
