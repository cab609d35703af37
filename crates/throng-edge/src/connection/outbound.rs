//! Bytes that wait for a socket, beside messages.
//!
//! They are kept in pieces, so that the memory of what is written is freed at once, and no bytes
//! are moved to grow the buffer or to remove its front.

use std::collections::VecDeque;

/// Short answers share pieces of this many bytes.
const PIECE_BYTES: usize = 4 << 10;

/// Answers in the order in which they are to be written.
#[derive(Debug, Default)]
pub(crate) struct Outbound {
    /// None of them is empty.
    pieces: VecDeque<Vec<u8>>,
    /// The number of bytes of the first piece that are written.
    written: usize,
    /// Bytes that have been written of all that were ever added.
    written_in_all: u64,
    /// Answers that hold messages, in order.
    deliveries: VecDeque<Delivery>,
    /// The memory of the pieces.
    capacity_bytes: usize,
    /// How far the client had read its answer when that was last examined.
    pub(crate) progress: Progress,
}

/// Messages that are delivered once all bytes before `end` have been written.
#[derive(Debug)]
struct Delivery {
    /// Counted as [`Outbound::written_in_all`] is.
    end: u64,
    messages: u64,
}

/// How much of an answer was left, and since when the client has been reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    /// The tick since which the client has had this answer to take.
    pub(crate) since: u32,
    /// The rest at the last examination.
    pub(crate) left: Left,
}

/// Bytes that a client has not taken yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Left {
    /// Bytes that are not written to the socket.
    pub(crate) here: usize,
    /// Bytes that are written, and not acknowledged by the peer.
    pub(crate) in_kernel: usize,
}

/// The rest of an [`Outbound`], in one piece.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct OutboundRest {
    pub(crate) bytes: Vec<u8>,
    /// For each answer that holds messages the end of its last byte in `bytes`, in order, and the
    /// number of its messages.
    pub(crate) deliveries: Vec<(u64, u64)>,
    pub(crate) progress: Progress,
}

impl OutboundRest {
    /// The same behind the rest of a message.
    pub(crate) fn behind_message(self, rest: &[u8]) -> OutboundRest {
        let length = rest.len() as u64;
        let behind = self.deliveries.into_iter().map(|(end, messages)| (length + end, messages));
        let deliveries = std::iter::once((length, 1)).chain(behind).collect();
        OutboundRest { bytes: [rest, &self.bytes].concat(), deliveries, progress: self.progress }
    }
}

impl Left {
    /// True if less is left than `before`: whether the socket has taken some, or the client has
    /// acknowledged some. Either may happen long before the other.
    pub(crate) fn is_less_than(self, before: Left) -> bool {
        self.here < before.here || self.here + self.in_kernel < before.here + before.in_kernel
    }
}

impl Outbound {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        // Never grows a piece: that would copy it.
        if let Some(last) = self.pieces.back_mut()
            && last.capacity() - last.len() >= bytes.len()
        {
            last.extend_from_slice(bytes);
            return;
        }
        // The first piece is often the only one: it takes no more than it needs.
        let least = if self.pieces.is_empty() { 0 } else { PIECE_BYTES };
        let mut piece = Vec::with_capacity(bytes.len().max(least));
        piece.extend_from_slice(bytes);
        self.capacity_bytes += piece.capacity();
        self.pieces.push_back(piece);
    }

    /// Adds bytes that end with the last of `messages` messages.
    pub(crate) fn push_messages(&mut self, bytes: &[u8], messages: u64) {
        self.push(bytes);
        if messages > 0 {
            // Positions count from the first byte ever added, so that they need no update.
            let end = self.written_in_all + self.bytes() as u64;
            self.deliveries.push_back(Delivery { end, messages });
        }
    }

    /// The bytes to write next; empty if nothing is left.
    pub(crate) fn front(&self) -> &[u8] {
        self.pieces.front().map_or(&[], |piece| &piece[self.written..])
    }

    /// Removes the first `bytes` of [`Outbound::front`], which have been written. Returns the
    /// number of messages that are delivered with them.
    pub(crate) fn advance(&mut self, bytes: usize) -> u64 {
        self.written += bytes;
        self.written_in_all += bytes as u64;
        if let Some(first) = self.pieces.front()
            && self.written >= first.len()
        {
            self.written = 0;
            self.capacity_bytes -= first.capacity();
            self.pieces.pop_front();
        }
        let mut messages = 0;
        while let Some(delivery) =
            self.deliveries.pop_front_if(|delivery| delivery.end <= self.written_in_all)
        {
            messages += delivery.messages;
        }
        messages
    }

    /// The rest, for another process to write.
    pub(crate) fn rest(&self) -> OutboundRest {
        let mut bytes = Vec::with_capacity(self.bytes());
        let mut written = self.written;
        for piece in &self.pieces {
            bytes.extend_from_slice(&piece[written..]);
            written = 0;
        }
        let end = |delivery: &Delivery| (delivery.end - self.written_in_all, delivery.messages);
        let deliveries = self.deliveries.iter().map(end).collect();
        OutboundRest { bytes, deliveries, progress: self.progress }
    }

    /// Goes on with what was left.
    pub(crate) fn resume(rest: OutboundRest) -> Outbound {
        let OutboundRest { bytes, deliveries, progress } = rest;
        let delivery = |(end, messages)| Delivery { end, messages };
        Outbound {
            capacity_bytes: bytes.capacity(),
            pieces: Some(bytes).filter(|bytes| !bytes.is_empty()).into_iter().collect(),
            deliveries: deliveries.into_iter().map(delivery).collect(),
            progress,
            ..Outbound::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The memory that it takes, in bytes.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
            + self.pieces.capacity() * size_of::<Vec<u8>>()
            + self.deliveries.capacity() * size_of::<Delivery>()
    }

    /// The number of bytes that are left.
    pub(crate) fn bytes(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum::<usize>() - self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in_and_memory_is_given_back() {
        let mut outbound = Outbound::default();
        let mut expected = Vec::new();
        for nth in 0..2000_usize {
            let bytes = vec![nth as u8; nth * 7 % 300];
            outbound.push(&bytes);
            expected.extend(bytes);
        }
        outbound.push(&[1; 100_000]);
        expected.extend([1; 100_000]);
        assert_eq!(outbound.bytes(), expected.len());
        assert!(outbound.capacity_bytes() < expected.len() + expected.len() / 4);
        let mut got = Vec::new();
        for step in (1..700).cycle() {
            let front = outbound.front();
            if front.is_empty() {
                break;
            }
            let count = front.len().min(step);
            got.extend_from_slice(&front[..count]);
            outbound.advance(count);
            assert_eq!(outbound.bytes(), expected.len() - got.len());
        }
        assert!(got == expected && outbound.is_empty() && outbound.capacity_bytes == 0);
    }

    #[test]
    fn after_a_thaw_a_message_counts_with_its_last_byte() {
        let mut outbound = Outbound::default();
        outbound.push(b"head");
        outbound.push_messages(b"one", 1);
        outbound.push_messages(b"two, three", 2);
        outbound.push(b"end");
        let mut delivered = Vec::new();
        while !outbound.is_empty() {
            delivered.push(outbound.advance(1));
            outbound = Outbound::resume(outbound.rest());
        }
        let at: Vec<_> = (1..).zip(delivered).filter(|&(_, messages)| messages > 0).collect();
        assert_eq!(at, [(7, 1), (17, 2)]);
    }

    #[test]
    fn short_answers_share_a_piece() {
        let mut outbound = Outbound::default();
        (0..10_000).for_each(|_| outbound.push(b"\x8a\0"));
        assert!(outbound.capacity_bytes() < 30_000, "{}", outbound.capacity_bytes());
    }
}
