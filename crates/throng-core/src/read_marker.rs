//! Read markers: how far a user has read the messages of the inbox.
//!
//! A marker is a cursor of the user, not of a connection: it is the same on all devices. The engine
//! keeps it with the log of the inbox. Without a message in the log there is nothing to mark, and
//! the marker is forgotten; so the logs bound what markers take.
//!
//! When a marker has moved, those that follow the inbox are told, but for the one that has moved
//! it: by a volatile message without a body, whose attribute has the [`UnreadNotice`].

use throng_wire::ErrorResponse;

use crate::connection_name::ConnectionName;
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
    /// The connection that moves it, if that is known.
    pub mover: Option<Mover>,
}

impl Mark {
    /// A mark of an unknown connection.
    pub fn new(id: MessageId, may_go_back: bool) -> Mark {
        Mark { id, may_go_back, mover: None }
    }
}

/// The connection that moves a marker. It is not told, because it gets the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mover {
    pub connection: ConnectionName,
    /// True if it is known to follow the inbox.
    pub is_follower: bool,
}

/// A user's position in a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadMarker {
    /// The message up to which the user has read; `None` if the engine knows of none.
    pub read: Option<MessageId>,
    /// The messages after it that can be read, at most 10,000.
    pub unread: u64,
    /// True if this call has moved it.
    pub has_moved: bool,
}

/// The engine's answer about a marker.
pub type Marked = Result<ReadMarker, ErrorResponse>;

/// The new place of a read marker, in a message of the inbox.
///
/// As a value: the number of unread messages, and the id of the last one read behind a space, if
/// there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadNotice<'a> {
    /// The id of the message up to which the user has read.
    pub read: Option<&'a str>,
    pub unread: u64,
}

impl UnreadNotice<'_> {
    pub(crate) fn write(marker: &ReadMarker) -> String {
        let ReadMarker { read, unread, .. } = marker;
        read.map_or_else(|| unread.to_string(), |read| format!("{unread} {read}"))
    }

    /// Reads a value, which may be from elsewhere.
    pub(crate) fn read(value: &[u8]) -> Option<UnreadNotice<'_>> {
        let text = str::from_utf8(value).ok()?;
        let (unread, read) =
            text.split_once(' ').map_or((text, None), |(unread, read)| (unread, Some(read)));
        if read.is_some_and(|read| read.parse::<MessageId>().is_err()) {
            return None;
        }
        Some(UnreadNotice { read, unread: unread.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Epoch;

    #[test]
    fn a_notice_that_cannot_be_read_is_none() {
        let read = Some(MessageId { epoch: Epoch::numbered(7), offset: 5 });
        for (read, unread) in [(None, 0), (read, 0), (read, UNREAD_MAX)] {
            let marker = ReadMarker { read, unread, has_moved: true };
            let value = UnreadNotice::write(&marker);
            let read = read.map(|id| id.to_string());
            let expected = UnreadNotice { read: read.as_deref(), unread };
            assert_eq!(UnreadNotice::read(value.as_bytes()), Some(expected));
        }
        for value in ["", "x", " ", "3 ", "3 x", "-1", "3 a-1 b", "\u{ff}"] {
            assert_eq!(UnreadNotice::read(value.as_bytes()), None, "{value:?}");
        }
        assert_eq!(UnreadNotice::read(&[0xff]), None);
    }
}
