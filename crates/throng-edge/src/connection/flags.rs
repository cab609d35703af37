//! Facts about a connection, packed.

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
    pub(crate) const READ_DEFERRED: Flags = Flags(1 << 12);
    /// What it asks is the control plane's to answer, which takes no more for now.
    pub(crate) const AWAITS_CONTROL: Flags = Flags(1 << 13);
    /// The peer has ended its side while an answer was being written to it.
    pub(crate) const PEER_ENDED: Flags = Flags(1 << 14);
    /// It follows the server's samples for the status page. Before its request is read: it came in
    /// at the admin listener, and the control plane has checked that it may.
    pub(crate) const VIEWER: Flags = Flags(1 << 15);
    /// It lacks messages, its socket may take them, and it is in the worker's list of those.
    pub(crate) const DELIVERY_DEFERRED: Flags = Flags(1 << 16);
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
