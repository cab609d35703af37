//! The state of one client.

use std::collections::BTreeSet;
use std::mem::size_of;

use super::reader::Reader;
use super::resume::MessageId;
use crate::audit::Track;
use crate::protocol::PartialMessage;

/// The most memory of an idle client in user space.
pub(super) const CLIENT_BYTES_MAX: usize = 64;

const _: () = assert!(size_of::<Client>() <= CLIENT_BYTES_MAX);

/// A client, at its position in its thread's slab.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// The audit of the one stream that it follows; for several, see [`Extra::tracks`].
    pub(super) track: Track,
    /// The start of its last connect, or of its subscription, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) since_ns: u64,
    /// Buffers that only some clients have, and only for a while.
    pub(super) extra: Option<Box<Extra>>,
    /// The message id to resume after.
    pub(super) resume: MessageId,
    pub(super) state: ClientState,
    pub(super) start: AuditStart,
    /// The body of the response is chunked.
    pub(super) is_chunked: bool,
    /// The client does not read.
    pub(super) is_slow: bool,
    /// The client reconnects after failures until it is subscribed once more.
    pub(super) returns: bool,
    /// `track` is in use, also while the client is disconnected.
    pub(super) is_tracked: bool,
    /// A long-poll that has had no response. Messages before the first one may have been published
    /// before the server knew the client.
    pub(super) is_unsure: bool,
}

/// The state of a client's connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ClientState {
    /// The client was never opened.
    #[default]
    New,
    /// The client waits to be opened.
    Waiting,
    /// The connect is in progress.
    Connecting,
    /// The request is sent, and the response head has not arrived.
    Handshaking,
    /// The client waits for the message that confirms the subscription.
    Joining,
    /// The client is subscribed.
    Active,
    /// The client is closed, and does not reconnect by itself.
    Closed,
}

impl ClientState {
    /// True if a connect or handshake is in progress.
    pub(super) fn is_in_flight(self) -> bool {
        matches!(self, ClientState::Connecting | ClientState::Handshaking | ClientState::Joining)
    }
}

/// Whether the first message of a client's audit is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum AuditStart {
    /// With the one that its tracks say.
    #[default]
    Known,
    /// Not yet: the counters have not been updated since the client subscribed.
    New,
    /// Not yet: the counters have been updated once since.
    UpdatedOnce,
}

/// The clients of a thread whose start may be unknown, each at least in the list of its state.
#[derive(Debug, Default)]
pub(super) struct PendingStarts {
    pub(super) new: Vec<u32>,
    pub(super) updated_once: Vec<u32>,
}

impl PendingStarts {
    /// Adds a client that became [`AuditStart::New`].
    pub(super) fn push(&mut self, position: usize) {
        // A thread has fewer than 2^32 clients.
        self.new.push(position as u32);
    }
}

/// Buffers that only some clients have, and only for a while.
#[derive(Debug, Default)]
pub(super) struct Extra {
    /// A message that has not arrived completely.
    pub(super) partial: Option<Box<PartialMessage>>,
    /// A response head that has not arrived completely.
    pub(super) head: Vec<u8>,
    /// Bytes that the connection has not accepted.
    pub(super) unsent: Vec<u8>,
    /// The audits of a client that follows several streams, sorted by stream.
    pub(super) tracks: Box<[(u32, Track)]>,
    /// Its subscriptions that the server has confirmed, while it joins.
    pub(super) confirmed: usize,
    /// The channels, by their numbers, of which the server has said that it skipped messages, until
    /// the next message of each comes.
    pub(super) skipped: BTreeSet<u32>,
    /// The ages of its messages, if it is measured by itself.
    pub(super) reader: Option<Box<Reader>>,
}

impl Extra {
    fn is_empty(&self) -> bool {
        self.partial.is_none()
            && self.head.is_empty()
            && self.unsent.is_empty()
            && self.tracks.is_empty()
            && self.confirmed == 0
            && self.skipped.is_empty()
            && self.reader.is_none()
    }
}

impl Client {
    /// The buffers, allocated if there are none.
    pub(super) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Bytes that the connection has not accepted.
    pub(super) fn unsent(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| extra.unsent.len())
    }

    /// The audits of the streams that it follows: `stream`, or several.
    pub(super) fn tracks(&self, stream: Option<u32>) -> impl Iterator<Item = (u32, &Track)> {
        let extra = self.extra.as_ref().filter(|_| stream.is_none());
        let several = extra.map_or(&[][..], |extra| &extra.tracks);
        let one = stream.map(|stream| (stream, &self.track)).into_iter();
        one.chain(several.iter().map(|(stream, track)| (*stream, track)))
    }

    /// As [`tracks`](Self::tracks).
    pub(super) fn tracks_mut(
        &mut self,
        stream: Option<u32>,
    ) -> impl Iterator<Item = (u32, &mut Track)> {
        let extra = self.extra.as_mut().filter(|_| stream.is_none());
        let several = extra.map(|extra| &mut extra.tracks[..]).unwrap_or_default();
        let one = stream.map(|stream| (stream, &mut self.track)).into_iter();
        one.chain(several.iter_mut().map(|(stream, track)| (*stream, track)))
    }

    /// Frees the buffers if all are empty.
    pub(super) fn shrink(&mut self) {
        if self.extra.as_ref().is_some_and(|extra| extra.is_empty()) {
            self.extra = None;
        }
    }

    /// Takes the partial message, for the decoder.
    pub(super) fn take_partial(&mut self) -> Option<Box<PartialMessage>> {
        self.extra.as_mut()?.partial.take()
    }

    /// Stores the partial message of the decoder.
    pub(super) fn put_partial(&mut self, partial: Option<Box<PartialMessage>>) {
        if partial.is_some() {
            self.extra().partial = partial;
        } else {
            self.shrink();
        }
    }
}
