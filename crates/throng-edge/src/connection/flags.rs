//! Facts about a connection, packed.

/// Facts about a connection, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u32);

impl Flags {
    /// The client speaks HTTP/1.1: a stream is sent in chunks.
    pub(crate) const CHUNKED: Flags = Flags(1);
    /// It named several channels: each id that it gets is a position in all of them.
    pub(crate) const MULTIPLE: Flags = Flags(1 << 1);
    /// It speaks `throng.v1`.
    pub(crate) const V1: Flags = Flags(1 << 2);
    /// The next request may follow the answer to this one.
    pub(crate) const KEEP_ALIVE: Flags = Flags(1 << 3);
    /// Something was read since the last ping.
    pub(crate) const HEARD: Flags = Flags(1 << 4);
    /// Something was written since the last check of its heartbeat.
    pub(crate) const WRITTEN: Flags = Flags(1 << 5);
    /// The socket takes no more for now.
    pub(crate) const BLOCKED: Flags = Flags(1 << 6);
    /// An event follows when the socket takes more.
    pub(crate) const WATCHES_WRITABLE: Flags = Flags(1 << 7);
    /// The sending side is shut down.
    pub(crate) const FINISHED: Flags = Flags(1 << 8);
    /// The client has sent its close frame: what follows is ignored (RFC 6455 section 5.5.1).
    pub(crate) const PEER_CLOSED: Flags = Flags(1 << 9);
    /// It is a WebSocket.
    pub(crate) const WEBSOCKET: Flags = Flags(1 << 10);
    /// It has had a request before: while it sends nothing it is idle, not slow, and it has its
    /// place until it closes.
    pub(crate) const SERVED: Flags = Flags(1 << 11);
    /// It has more to read, or to act upon, and is in the worker's list of deferred reads.
    pub(crate) const READ_DEFERRED: Flags = Flags(1 << 12);
    /// Its request is for the control plane, which takes no more for now.
    pub(crate) const AWAITS_CONTROL: Flags = Flags(1 << 13);
    /// The peer has finished sending while an answer was being written to it.
    pub(crate) const PEER_ENDED: Flags = Flags(1 << 14);
    /// It follows the server's samples for the status page. Before its request is read: the admin
    /// listener accepted it, and the control plane has checked that it may follow them.
    pub(crate) const VIEWER: Flags = Flags(1 << 15);
    /// It lacks messages, its socket may take them, and it is in the worker's list of deferred
    /// deliveries.
    pub(crate) const DELIVERY_DEFERRED: Flags = Flags(1 << 16);
    /// It is a viewer with a place in the reserve.
    pub(crate) const IN_RESERVE: Flags = Flags(1 << 17);
    /// Another thread handed it off for its first request: it is not handed off again, and may take
    /// a place that was kept for a handoff.
    pub(crate) const HANDED_OFF: Flags = Flags(1 << 18);

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
