//! A client: what is kept of it while nothing happens.

use std::mem::size_of;

use super::resume::Id;
use super::start::Start;
use crate::audit::Track;
use crate::protocol::Half;

/// What a parked client may cost in user space.
pub const CLIENT_BYTES_MAX: usize = 64;

const _: () = assert!(size_of::<Client>() <= CLIENT_BYTES_MAX);

/// A client, at its position in its thread's slab.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// What it got of the one stream that it follows; of several, see [`Extra::tracks`].
    pub(super) track: Track,
    /// When it began to connect, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) since_ns: u64,
    /// What only some have, and only for a while.
    pub(super) extra: Option<Box<Extra>>,
    /// Where it goes on after a reconnect.
    pub(super) resume: Id,
    pub(super) state: State,
    pub(super) start: Start,
    /// The response's body is in chunks.
    pub(super) is_chunked: bool,
    /// It does not read.
    pub(super) is_slow: bool,
    /// It comes back after a failure until it has been subscribed once more.
    pub(super) returns: bool,
    /// `track` counts, also while it is away.
    pub(super) is_tracked: bool,
    /// A long-poll that has had no answer: what came before the first one may have been published
    /// before the server knew it.
    pub(super) is_unsure: bool,
}

/// Where a client stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Never opened.
    #[default]
    New,
    /// To be opened (again).
    Waiting,
    /// Connecting.
    Connecting,
    /// The request is sent, the response head has not come.
    Handshaking,
    /// Waiting for the message that says that it is subscribed.
    Joining,
    /// Subscribed.
    Active,
    /// Closed, and not coming back by itself.
    Closed,
}

impl State {
    /// On the way to be subscribed.
    pub(super) fn is_in_flight(self) -> bool {
        matches!(self, State::Connecting | State::Handshaking | State::Joining)
    }
}

/// What only some clients have, and only for a while.
#[derive(Debug, Default)]
pub(super) struct Extra {
    /// A message that is half read.
    pub(super) half: Option<Box<Half>>,
    /// A response head that is half read.
    pub(super) head: Vec<u8>,
    /// What the connection did not take yet.
    pub(super) unsent: Vec<u8>,
    /// Of clients that follow several streams: each with what came of it, ascending.
    pub(super) tracks: Box<[(u32, Track)]>,
}

impl Extra {
    fn is_empty(&self) -> bool {
        self.half.is_none()
            && self.head.is_empty()
            && self.unsent.is_empty()
            && self.tracks.is_empty()
    }
}

impl Client {
    /// What there is besides, made if there is nothing.
    pub(super) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Gives back what is empty.
    pub(super) fn shrink(&mut self) {
        if self.extra.as_ref().is_some_and(|extra| extra.is_empty()) {
            self.extra = None;
        }
    }

    /// Takes the half message out, to feed the decoder with it.
    pub(super) fn take_half(&mut self) -> Option<Box<Half>> {
        self.extra.as_mut()?.half.take()
    }

    /// Puts back what is half read now.
    pub(super) fn put_half(&mut self, half: Option<Box<Half>>) {
        if half.is_some() {
            self.extra().half = half;
        } else {
            self.shrink();
        }
    }
}
