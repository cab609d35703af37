//! A connection of a worker: what it costs while it is parked, and what it owns while it is not.

use std::sync::Arc;

use throng_core::{Counter, Message, Parked, SubscriptionId};
use throng_wire::websocket::Reader;

use crate::framing::Framing;
use crate::outbound::Outbound;
use crate::worker::Held;

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// A request head is awaited or being read.
    Head,
    /// It follows channels and gets what is published.
    Parked,
    /// It follows channels and waits for one answer.
    Polling,
    /// Its last words are written or queued; what it still sends is thrown away.
    Closing,
}

/// A connection. There may be a million: what is not needed by all of them is in [`Io`].
#[derive(Debug)]
pub struct Connection<S> {
    pub(crate) socket: S,
    /// Tells this connection from others that had or will have its index.
    pub(crate) generation: u32,
    /// In ticks: when something is to be done about it, whatever that is in its state.
    pub(crate) due: u32,
    pub(crate) first: Option<SubscriptionId>,
    pub(crate) io: Option<Box<Io>>,
    pub(crate) state: State,
    pub(crate) framing: Framing,
    pub(crate) flags: Flags,
}

// With `OwnedFd` as the socket; the slab adds nothing, for there is a niche.
const _: () =
    assert!(throng_core::slab::Slab::<Connection<std::os::fd::OwnedFd>>::ENTRY_BYTES == 32);

/// Facts about a connection, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u32);

impl Flags {
    /// HTTP/1.1: what is streamed is framed in chunks.
    pub(crate) const CHUNKED: Flags = Flags(1);
    /// It named several channels: its ids are positions in all of them.
    pub(crate) const MULTIPLE: Flags = Flags(1 << 1);
    /// It speaks `throng.v1`.
    pub(crate) const V1: Flags = Flags(1 << 2);
    /// After this answer the next request may follow.
    pub(crate) const KEEP_ALIVE: Flags = Flags(1 << 3);
    /// Something was read since the last ping.
    pub(crate) const HEARD: Flags = Flags(1 << 4);
    /// Something was written since its heartbeat was last looked at.
    pub(crate) const WRITTEN: Flags = Flags(1 << 5);
    /// The socket takes no more for now.
    pub(crate) const BLOCKED: Flags = Flags(1 << 6);
    /// An event will tell when the socket takes more.
    pub(crate) const WATCHES_WRITABLE: Flags = Flags(1 << 7);
    /// The sending side is finished.
    pub(crate) const FINISHED: Flags = Flags(1 << 8);
    /// It has sent its close frame: nothing it sends afterwards counts.
    pub(crate) const PEER_CLOSED: Flags = Flags(1 << 9);
    /// It is a WebSocket.
    pub(crate) const WEBSOCKET: Flags = Flags(1 << 10);
    /// It has had a request before: silence is idleness, not slowness.
    pub(crate) const SERVED: Flags = Flags(1 << 11);
    /// It has more to read, or to act upon, and is in the worker's list of those.
    pub(crate) const UNREAD: Flags = Flags(1 << 12);
    /// What it asks is the control plane's to answer, which takes no more for now.
    pub(crate) const AWAITS_CONTROL: Flags = Flags(1 << 13);
    /// The peer has ended its side while an answer was being written to it.
    pub(crate) const PEER_ENDED: Flags = Flags(1 << 14);
    /// It follows the server's samples for the status page. Before its request is read: it came in
    /// at the admin listener, and the control plane has checked that it may.
    pub(crate) const VIEWER: Flags = Flags(1 << 15);
    /// It lacks messages, its socket may take them, and it is in the worker's list of those.
    pub(crate) const POSTPONED: Flags = Flags(1 << 16);
    /// It is a viewer whose place is of the reserve.
    pub(crate) const IN_RESERVE: Flags = Flags(1 << 17);

    pub(crate) fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) fn set(&mut self, flag: Flags, value: bool) {
        if value { self.0 |= flag.0 } else { self.0 &= !flag.0 }
    }

    pub(crate) fn with(mut self, flag: Flags, value: bool) -> Flags {
        self.set(flag, value);
        self
    }
}

/// What a connection owns while something is half read or half written, or asked and not answered,
/// and long-polls with an origin.
#[derive(Debug, Default)]
pub(crate) struct Io {
    /// Read, but not yet complete enough to act on.
    pub(crate) inbound: Vec<u8>,
    pub(crate) reader: Reader,
    /// A message of which the socket took a part, and from which byte it is to go on.
    pub(crate) partial: Option<Partial>,
    /// To be written after that.
    pub(crate) outbound: Option<Box<Outbound>>,
    pub(crate) poll: Option<Box<Poll>>,
    /// Questions that it has asked and that are to be answered later.
    pub(crate) asked: u32,
    /// What the worker counts for it; see [`Io::held_bytes`].
    pub(crate) held: Held,
    /// Since when the message in `reader` has been coming, in ticks.
    pub(crate) message_since: u32,
}

/// A partly written message, shared with everyone else who gets it.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) message: Arc<Message>,
    pub(crate) from: u32,
}

/// What a long-poll's answer will need.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Poll {
    pub(crate) origin: Option<String>,
    pub(crate) is_recovered: Option<bool>,
}

impl Io {
    /// The memory that nobody shares: of what is half read, of answers that wait to be written,
    /// and of the origin that a long-poll's answer will name, which is as long as its client likes.
    pub(crate) fn held_bytes(&self) -> usize {
        let outbound = self.outbound.as_ref().map_or(0, |outbound| outbound.capacity_bytes());
        let origin = self.poll.as_ref().and_then(|poll| poll.origin.as_ref());
        let origin = origin.map_or(0, String::capacity);
        self.inbound.capacity() + self.reader.buffered_bytes() + outbound + origin
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.inbound.is_empty()
            && self.reader.is_idle()
            && self.partial.is_none()
            && self.outbound.as_ref().is_none_or(|outbound| outbound.is_empty())
            && self.poll.is_none()
            && self.asked == 0
    }
}

impl<S> Connection<S> {
    pub(crate) fn has(&self, flag: Flags) -> bool {
        self.flags.has(flag)
    }

    /// How it gets its messages, while it is parked.
    pub(crate) fn parked(&self) -> Option<Parked> {
        Some(match (self.state, self.framing) {
            (State::Head | State::Closing, _) => return None,
            (State::Polling, _) => Parked::Poll,
            (State::Parked, _) if self.has(Flags::VIEWER) => Parked::Status,
            (State::Parked, Framing::WebSocket | Framing::WebSocketEnvelope) => Parked::WebSocket,
            (State::Parked, Framing::Sse | Framing::SseEnvelope) => Parked::Sse,
            (State::Parked, Framing::Line | Framing::LineEnvelope) => Parked::Stream,
        })
    }

    /// What counts the messages written to it.
    pub(crate) fn delivery_counter(&self) -> Counter {
        if self.has(Flags::VIEWER) { Counter::StatusDeliveries } else { Counter::Deliveries }
    }

    /// What only some connections own; made on demand.
    pub(crate) fn io_mut(&mut self) -> &mut Io {
        self.io.get_or_insert_with(Box::default)
    }

    /// What the worker counts for it.
    pub(crate) fn held(&self) -> Held {
        self.io.as_ref().map_or(Held::default(), |io| io.held)
    }
}
