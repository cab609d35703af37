//! Read markers: how far a user has read the messages of the inbox.
//!
//! A marker is a cursor of the user, not of a connection: it is the same on all devices. The engine
//! keeps it with the log of the inbox. Without a message in the log there is nothing to mark, and
//! the marker is forgotten; so the logs bound what markers take.

use throng_wire::ErrorResponse;

use crate::id::MessageId;

/// Messages that are counted as unread. Beyond it the count stays, so that no query passes a whole
/// log.
pub const UNREAD_MAX: u64 = 10_000;

/// A change of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The message up to which the user has read. An id that the log never gave out changes
    /// nothing.
    pub id: MessageId,
    pub may_go_back: bool,
}

/// A user's position in a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadMarker {
    /// The message up to which the user has read; `None` if the engine knows of none.
    pub read: Option<MessageId>,
    /// The messages after it that can be read, at most 10,000.
    pub unread: u64,
}

/// The engine's answer about a marker.
pub type Marked = Result<ReadMarker, ErrorResponse>;
