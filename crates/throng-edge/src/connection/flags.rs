//! Facts about a connection, packed into four bytes.

/// Facts about a connection, one bit each.
///
/// Bit 2 (`throng.v1`) and bit 10 (WebSocket) are in frozen state only: here the encoding says
/// both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags(u32);

/// The facts that frozen state has.
const FROZEN_MASK: u32 = (1 << 20) - 1;
/// The bits that facts of a connection have, the highest one excluded. The rest is room for more.
const USED_BITS: u32 = 22;
const _: () = assert!(u32::BITS - USED_BITS >= 10, "room for ten more facts");

impl Flags {
    /// The client speaks HTTP/1.1: a stream is sent in chunks.
    pub(crate) const CHUNKED: Flags = Flags::bit(0);
    /// It named several channels: each id that it gets is a position in all of them.
    pub(crate) const MULTIPLE: Flags = Flags::bit(1);
    /// The next request may follow the answer to this one.
    pub(crate) const KEEP_ALIVE: Flags = Flags::bit(3);
    /// Something was read since the last ping.
    pub(crate) const HEARD: Flags = Flags::bit(4);
    /// Something was written since the last check of its heartbeat.
    pub(crate) const WRITTEN: Flags = Flags::bit(5);
    /// The socket takes no more for now.
    pub(crate) const BLOCKED: Flags = Flags::bit(6);
    /// An event follows when the socket takes more.
    pub(crate) const WATCHES_WRITABLE: Flags = Flags::bit(7);
    /// The sending side is shut down.
    pub(crate) const FINISHED: Flags = Flags::bit(8);
    /// The client has sent its close frame: what follows is ignored (RFC 6455 section 5.5.1).
    pub(crate) const PEER_CLOSED: Flags = Flags::bit(9);
    /// It has had a request before: while it sends nothing it is idle, not slow, and it has its
    /// place until it closes.
    pub(crate) const SERVED: Flags = Flags::bit(11);
    /// It has more to read, or to act upon, and is in the worker's list of deferred reads.
    pub(crate) const READ_DEFERRED: Flags = Flags::bit(12);
    /// Its request is for the control plane, which takes no more for now.
    pub(crate) const AWAITS_CONTROL: Flags = Flags::bit(13);
    /// The peer has finished sending while an answer was being written to it.
    pub(crate) const PEER_ENDED: Flags = Flags::bit(14);
    /// It follows the server's samples for the status page. Before its request is read: the admin
    /// listener accepted it, and the control plane has checked that it may follow them.
    pub(crate) const VIEWER: Flags = Flags::bit(15);
    /// It lacks messages, its socket may take them, and it is in the worker's list of deferred
    /// deliveries.
    pub(crate) const DELIVERY_DEFERRED: Flags = Flags::bit(16);
    /// It is a viewer with a place in the reserve.
    pub(crate) const IN_RESERVE: Flags = Flags::bit(17);
    /// Another thread handed it off for its first request: it is not handed off again, and may take
    /// a place that was kept for a handoff.
    pub(crate) const HANDED_OFF: Flags = Flags::bit(18);
    /// It has to begin with a PROXY header, which has not arrived in full.
    pub(crate) const AWAITS_PROXY_HEADER: Flags = Flags::bit(19);

    /// It belongs to the server's own canary: it follows an internal log over any transport, takes
    /// the place of a request head, and is left out of what is counted and logged of clients. It is
    /// a viewer, too. Not frozen: its other end belongs to this process.
    pub(crate) const CANARY: Flags = Flags::bit(20);

    /// It has had a frame with messages within the present interval, and its messages are joined:
    /// the next ones wait for the end of that. Not frozen: an interval is a moment.
    pub(crate) const HAD_FRAME: Flags = Flags::bit(21);

    /// In frozen state only: the connection speaks `throng.v1`.
    pub(super) const FROZEN_V1: Flags = Flags::bit(2);
    /// In frozen state only: the connection is a WebSocket.
    pub(super) const FROZEN_WEBSOCKET: Flags = Flags::bit(10);

    const fn bit(number: u32) -> Flags {
        assert!(number < USED_BITS);
        Flags(1 << number)
    }

    /// The facts as a number, which frozen state has: a bit is never given another meaning.
    pub(super) const fn facts(self) -> u32 {
        self.0 & FROZEN_MASK
    }

    /// The inverse of [`Flags::facts`]; `None` if there is an unknown one.
    pub(super) fn from_facts(facts: u32) -> Option<Flags> {
        (facts <= FROZEN_MASK).then_some(Flags(facts))
    }

    pub(crate) fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }

    pub(crate) fn set(&mut self, flag: Flags, value: bool) {
        let others = self.0 & !flag.0;
        self.0 = if value { others | flag.0 } else { others };
    }

    pub(crate) fn with(mut self, flag: Flags, value: bool) -> Flags {
        self.set(flag, value);
        self
    }
}
