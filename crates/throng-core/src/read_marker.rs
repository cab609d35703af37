//! Read markers: how far a user has read the messages of the inbox, or of a channel whose rule has
//! [`read_markers`](crate::Rule::read_markers).
//!
//! A marker is a cursor of the user, not of a connection: it is the same on all devices. The
//! journal of the log that it is in keeps it. That of an inbox is kept with the log: without a
//! message there is nothing to mark, and the marker is forgotten. Markers in channels are entries
//! of a table, of which a user has at most [`MARKED_CHANNELS_MAX`].
//!
//! When a marker has moved, those that follow the user's inbox are told, but for the one that has
//! moved it: by a volatile message without a body, whose attribute has the [`UnreadNotice`].

use throng_wire::{ErrorCode, ErrorResponse};

use crate::connection_name::ConnectionName;
use crate::id::MessageId;
use crate::name::{ChannelName, Kind};

/// Messages of an inbox that are counted as unread. Beyond it the count stays, so that no query
/// passes a whole log.
const UNREAD_OF_INBOX_MAX: u64 = 10_000;

/// The same of a channel. Each of its many readers may have them counted at any time.
const UNREAD_OF_CHANNEL_MAX: u64 = 1_000;

/// Channels of one journal in which one user has a marker, at most.
pub const MARKED_CHANNELS_MAX: usize = 1_000;

/// A marker, by the log that it is in and the user whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MarkerKey {
    log: ChannelName,
    /// The user, unless the log is the user's inbox.
    reader: Option<Box<str>>,
}

impl MarkerKey {
    /// The marker of a user in the own inbox.
    pub fn inbox(user: &str) -> MarkerKey {
        MarkerKey { log: ChannelName::user(user), reader: None }
    }

    /// The marker of a user in a channel.
    pub fn channel(channel: ChannelName, user: &str) -> MarkerKey {
        debug_assert_eq!(channel.kind(), Kind::Channel);
        MarkerKey { log: channel, reader: Some(user.into()) }
    }

    /// The channel or inbox that it is in.
    pub fn log(&self) -> &ChannelName {
        &self.log
    }

    /// The user, if it is in a channel.
    pub fn reader(&self) -> Option<&str> {
        self.reader.as_deref()
    }

    /// The inbox of the user, whose followers are told.
    pub fn told(&self) -> ChannelName {
        self.reader().map_or_else(|| self.log.clone(), ChannelName::user)
    }

    /// Messages that are counted as unread, at most.
    pub fn unread_max(&self) -> u64 {
        if self.reader.is_none() { UNREAD_OF_INBOX_MAX } else { UNREAD_OF_CHANNEL_MAX }
    }
}

/// Markers in channels that are erased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkersOf<'a> {
    /// Those of a user, in all channels.
    User(&'a str),
    /// Those of all users, in a channel.
    Channel(&'a ChannelName),
}

/// Markers that were erased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MarkersErased {
    pub count: u64,
    /// True if others are left: so that no step takes long, erase again.
    pub are_more: bool,
}

/// The engine's answer about an erasure of markers.
pub type ErasedMarkers = Result<MarkersErased, ErrorResponse>;

/// Why a channel has no markers.
pub(crate) fn no_markers() -> ErrorResponse {
    let message = "the channel has no read markers: `read-markers` of its rule is not set";
    ErrorResponse::new(ErrorCode::BadRequest, message)
}

/// Why a user gets no further marker.
pub fn too_many_markers() -> ErrorResponse {
    let message = format!(
        "the user has read markers in {MARKED_CHANNELS_MAX} channels, which is the most: those of \
         erased channels are gone"
    );
    ErrorResponse::new(ErrorCode::TooManyChannels, message)
}

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
    /// The messages after it that can be read, at most [`MarkerKey::unread_max`].
    pub unread: u64,
    /// True if this call has moved it.
    pub has_moved: bool,
}

/// The engine's answer about a marker.
pub type Marked = Result<ReadMarker, ErrorResponse>;

/// The new place of a read marker, in a message of the inbox.
///
/// As a value: the number of unread messages, and the id of the last one read behind a space, if
/// there is one. Of a channel: that number, the id or `-`, and the name of the channel, each behind
/// a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadNotice<'a> {
    /// The name of the channel that the marker is in; `None`: it is in the inbox.
    pub channel: Option<&'a str>,
    /// The id of the message up to which the user has read.
    pub read: Option<&'a str>,
    pub unread: u64,
}

impl UnreadNotice<'_> {
    pub(crate) fn write(of: &MarkerKey, marker: &ReadMarker) -> String {
        let ReadMarker { read, unread, .. } = marker;
        let read = read.map(|id| id.to_string());
        match (of.reader(), read) {
            (None, None) => unread.to_string(),
            (None, Some(read)) => format!("{unread} {read}"),
            (Some(_), read) => {
                format!("{unread} {} {}", read.as_deref().unwrap_or("-"), of.log().name())
            }
        }
    }

    /// Reads a value, which may be from elsewhere.
    pub(crate) fn read(value: &[u8]) -> Option<UnreadNotice<'_>> {
        let mut parts = str::from_utf8(value).ok()?.splitn(3, ' ');
        let unread = parts.next()?.parse().ok()?;
        let (read, channel) = (parts.next(), parts.next());
        if channel.is_some_and(str::is_empty) {
            return None;
        }
        let read = read.filter(|read| channel.is_none() || *read != "-");
        if read.is_some_and(|read| read.parse::<MessageId>().is_err()) {
            return None;
        }
        Some(UnreadNotice { channel, read, unread })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Epoch;

    #[test]
    fn a_notice_that_cannot_be_read_is_none() {
        let read = Some(MessageId { epoch: Epoch::numbered(7), offset: 5 });
        let inbox = MarkerKey::inbox("ann");
        let of_channel = MarkerKey::channel(ChannelName::channel("a room"), "ann");
        for (of, channel) in [(&inbox, None), (&of_channel, Some("a room"))] {
            for (read, unread) in [(None, 0), (read, 0), (read, of.unread_max())] {
                let marker = ReadMarker { read, unread, has_moved: true };
                let value = UnreadNotice::write(of, &marker);
                let read = read.map(|id| id.to_string());
                let expected = UnreadNotice { channel, read: read.as_deref(), unread };
                assert_eq!(UnreadNotice::read(value.as_bytes()), Some(expected));
            }
        }
        let bad = ["", "x", " ", "3 ", "3 x", "-1", "3 a-1 ", "3 -", "3 x a", "\u{ff}"];
        for value in bad {
            assert_eq!(UnreadNotice::read(value.as_bytes()), None, "{value:?}");
        }
        assert_eq!(UnreadNotice::read(&[0xff]), None);
    }
}
