//! Facts about a connection, and its encoding, packed into three bytes.

use crate::encoding::Encoding;

/// Facts about a connection, one bit each, and the encoding of its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flags([u8; 3]);

/// The first bit of the encoding; the facts have those below.
const ENCODING_SHIFT: u32 = 21;
/// The facts that frozen state has.
const FROZEN_MASK: u32 = (1 << 20) - 1;
/// The bits of the encoding, once shifted.
const ENCODING_MASK: u32 = 0b111;

impl Flags {
    /// The client speaks HTTP/1.1: a stream is sent in chunks.
    pub(crate) const CHUNKED: Flags = Flags::bit(0);
    /// It named several channels: each id that it gets is a position in all of them.
    pub(crate) const MULTIPLE: Flags = Flags::bit(1);
    pub(crate) const V1: Flags = Flags::bit(2);
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
    pub(crate) const WEBSOCKET: Flags = Flags::bit(10);
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

    const fn bit(number: u32) -> Flags {
        assert!(number < ENCODING_SHIFT);
        Flags::from_bits(1 << number)
    }

    const fn bits(self) -> u32 {
        let Flags([low, middle, high]) = self;
        u32::from_le_bytes([low, middle, high, 0])
    }

    const fn from_bits(bits: u32) -> Flags {
        let [low, middle, high, _] = bits.to_le_bytes();
        Flags([low, middle, high])
    }

    /// The facts as a number, which frozen state has: a bit is never given another meaning.
    pub(super) const fn facts(self) -> u32 {
        self.bits() & FROZEN_MASK
    }

    /// The inverse of [`Flags::facts`]; `None` if there is an unknown one.
    pub(super) fn from_facts(facts: u32) -> Option<Flags> {
        (facts <= FROZEN_MASK).then_some(Flags::from_bits(facts))
    }

    pub(crate) fn has(self, flag: Flags) -> bool {
        self.bits() & flag.bits() != 0
    }

    pub(crate) fn set(&mut self, flag: Flags, value: bool) {
        let others = self.bits() & !flag.bits();
        *self = Flags::from_bits(if value { others | flag.bits() } else { others });
    }

    pub(crate) fn with(mut self, flag: Flags, value: bool) -> Flags {
        self.set(flag, value);
        self
    }

    pub(crate) fn encoding(self) -> Encoding {
        Encoding::numbered(self.bits() >> ENCODING_SHIFT & ENCODING_MASK)
    }

    pub(crate) fn with_encoding(self, encoding: Encoding) -> Flags {
        let others = self.bits() & !(ENCODING_MASK << ENCODING_SHIFT);
        Flags::from_bits(others | (encoding as u32) << ENCODING_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_and_encoding_do_not_change_each_other() {
        let all = [
            Encoding::WebSocket,
            Encoding::WebSocketEnvelope,
            Encoding::Sse,
            Encoding::SseEnvelope,
            Encoding::Line,
            Encoding::LineEnvelope,
            Encoding::WebSocketDeflate,
            Encoding::WebSocketEnvelopeDeflate,
        ];
        assert_eq!(Flags::default().encoding(), Encoding::WebSocket);
        for encoding in all {
            for flag in [Flags::CHUNKED, Flags::FINISHED, Flags::HANDED_OFF] {
                let mut flags = Flags::default().with_encoding(encoding).with(flag, true);
                assert!(flags.has(flag) && !flags.has(Flags::V1));
                assert_eq!(flags.encoding(), encoding);
                flags = flags.with_encoding(Encoding::Line);
                assert!(flags.has(flag));
                flags.set(flag, false);
                assert_eq!(flags, Flags::default().with_encoding(Encoding::Line));
            }
        }
    }
}
