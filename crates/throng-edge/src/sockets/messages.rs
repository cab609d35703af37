//! Writes messages that many connections share, to one connection or to many in one call.
//!
//! # Invariants
//!
//! A cursor is never past a message that is not written in full, unless the connection keeps the
//! rest of that message as its [`Partial`]. At most one message is partly written.

use std::io::IoSlice;
use std::sync::Arc;

use throng_core::{Message, Piece};
use throng_dialect::{CloseReason, Encoding};

use super::Sockets;
use super::budget::Budget;
use super::own_metrics::OwnMetrics;
use crate::compression::COST_FACTOR;
use crate::connection::{Connection, ConnectionId, Flags, Partial};
use crate::counters::Counter;
use crate::net::{Net, Transfer, WriteRequest};

/// The costs of a write beside its bytes.
pub(crate) struct Costs<'a> {
    budget: &'a mut Budget,
    metrics: &'a OwnMetrics,
}

impl Costs<'_> {
    /// Counts what was compressed, if anything, and charges it to the slice.
    pub(crate) fn compressed(&mut self, bytes: usize) {
        if bytes > 0 {
            self.budget.charge_slice(bytes.saturating_mul(COST_FACTOR));
            self.metrics.add(Counter::MessagesCompressed, 1);
        }
    }

    pub(crate) fn is_slice_spent(&self) -> bool {
        self.budget.is_slice_spent()
    }
}

impl<N: Net> Sockets<N> {
    /// Writes a connection its share of the messages in one call, framed by `encode`: up to the
    /// first one that is left for the next call.
    pub(crate) fn write_messages<'m>(
        &mut self,
        id: ConnectionId,
        messages: impl Iterator<Item = &'m Arc<Message>>,
        mut encode: impl FnMut(
            &'m Message,
            &Connection<N::Socket>,
            &mut Costs<'_>,
        ) -> Option<(Encoding, &'m [u8])>,
    ) -> Outcome {
        let Sockets { net, connections, clock, budget, metrics, .. } = self;
        let connection = &connections[id];
        let (reader, now_ms) = (connections.reader_of(id, connection), clock.unix_ms());
        let is_for = |message: &Message| message.is_for(reader, now_ms);
        let mut costs = Costs { budget, metrics };
        let encode = |message| encode(message, connection, &mut costs);
        write(net, &connection.socket, messages, is_for, encode)
    }

    /// Writes a connection messages that stand in one piece. Returns as well the offset of the one
    /// that was written in part, and the first byte of it that was not: the caller keeps its rest.
    pub(crate) fn write_piece(
        &mut self,
        id: ConnectionId,
        piece: Piece<'_>,
    ) -> (Outcome, Option<(u64, u32)>) {
        let bytes = piece.bytes();
        let transfer = self.net.write(&self.connections[id].socket, &[IoSlice::new(bytes)]);
        let advanced_to = piece.messages().last().map(|(_, offset)| offset);
        let mut outcome = Outcome { advanced_to, ..Outcome::default() };
        let cut = outcome.settle(transfer, bytes.len(), piece.messages());
        (outcome, cut)
    }

    /// Writes to several connections in one call: to the one of each item the bytes that `bytes`
    /// finds for it. Appends the results to `transfers`.
    pub(crate) fn write_each<'b, T>(
        &mut self,
        items: &[T],
        id_of: impl Fn(&T) -> ConnectionId,
        transfers: &mut Vec<Transfer>,
        mut bytes: impl FnMut(&T, &Connection<N::Socket>, &mut Costs<'_>) -> &'b [u8],
    ) {
        let Sockets { net, connections, budget, metrics, .. } = self;
        let mut costs = Costs { budget, metrics };
        let request = |item: &T| {
            let connection = &connections[id_of(item)];
            WriteRequest { socket: &connection.socket, bytes: bytes(item, connection, &mut costs) }
        };
        let requests: Vec<_> = items.iter().map(request).collect();
        net.write_each(&requests, transfers);
        debug_assert_eq!(items.len(), transfers.len());
    }

    /// Counts the messages that were written, and keeps the rest of a partly written one.
    pub(crate) fn conclude_write(&mut self, id: ConnectionId, outcome: Outcome) {
        let connection = &mut self.connections[id];
        let is_written = outcome.sent_bytes > 0 || connection.has(Flags::WRITTEN);
        connection.flags.set(Flags::WRITTEN, is_written);
        if outcome.partial.is_some() {
            connection.io_mut().partial = outcome.partial;
        }
        self.metrics.add(connection.delivery_counter(), outcome.deliveries);
        self.metrics.add(Counter::SentBytes, outcome.sent_bytes);
        self.budget.charge_slice(outcome.sent_bytes as usize);
        if outcome.is_gone {
            self.condemn(id, CloseReason::Peer);
        } else if outcome.is_blocked {
            self.block(id);
        }
    }
}

/// Messages in one write. The kernel takes 1024 (`UIO_MAXIOV`); far fewer already make the cost of
/// the call small.
const MESSAGES_PER_WRITE: usize = 64;

/// Bytes in one write, roughly.
const BYTES_PER_WRITE: usize = 256 << 10;

/// The result of a write to a subscriber.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The offset up to which the cursor moves; `None` if it stays.
    pub(crate) advanced_to: Option<u64>,
    /// Messages that were written in full.
    pub(crate) deliveries: u64,
    pub(crate) sent_bytes: u64,
    /// The message that was written in part.
    pub(crate) partial: Option<Partial>,
    /// True if the socket takes no more for now.
    pub(crate) is_blocked: bool,
    /// True if some of what was written waits below for the socket: any of the messages may end
    /// there.
    pub(crate) is_held: bool,
    pub(crate) is_gone: bool,
}

impl Outcome {
    fn gone() -> Outcome {
        Outcome { is_gone: true, ..Outcome::default() }
    }

    /// Takes up what became of messages that have so many bytes together; `messages` are the
    /// length and the offset of each. Returns the offset of the one that was written in part, and
    /// the first byte of it that was not.
    fn settle(
        &mut self,
        transfer: Transfer,
        bytes: usize,
        messages: impl Iterator<Item = (usize, u64)>,
    ) -> Option<(u64, u32)> {
        let mut left = match transfer {
            Transfer::Bytes(written) | Transfer::Held(written) => written,
            Transfer::Blocked => 0,
            Transfer::Gone => {
                *self = Outcome::gone();
                return None;
            }
        };
        self.sent_bytes = left as u64;
        self.is_held = matches!(transfer, Transfer::Held(_));
        if left == bytes {
            self.deliveries = messages.count() as u64;
            self.is_blocked = self.is_held;
            return None;
        }
        // Messages that are passed over behind the last one that was written are looked at again.
        self.is_blocked = true;
        self.advanced_to = None;
        for (length, offset) in messages {
            if left < length {
                // The rest of it belongs to this connection now: the cursor is past it.
                let is_begun = left > 0;
                self.advanced_to = if is_begun { Some(offset) } else { self.advanced_to };
                return is_begun.then_some((offset, left as u32));
            }
            left -= length;
            self.advanced_to = Some(offset);
            self.deliveries += 1;
        }
        None
    }

    /// The outcome of writing one message in this encoding, which has `length` bytes.
    pub(crate) fn of_message(
        message: &Arc<Message>,
        encoding: Encoding,
        length: usize,
        transfer: Transfer,
    ) -> Outcome {
        let written = match transfer {
            Transfer::Bytes(written) | Transfer::Held(written) => written,
            Transfer::Blocked => 0,
            Transfer::Gone => return Outcome::gone(),
        };
        debug_assert!(written <= length, "more was written than there was");
        let is_whole = written == length;
        let is_held = matches!(transfer, Transfer::Held(_));
        let partial = (written > 0 && !is_whole).then(|| {
            let (message, from) = (Arc::clone(message), written as u32);
            Partial { message, encoding, from }
        });
        Outcome {
            // The connection keeps the rest of a partly written message: the cursor is past it. It
            // is also past one that its dialect has no word for.
            advanced_to: (written > 0 || is_whole).then_some(message.id.offset),
            deliveries: u64::from(is_whole && length > 0),
            sent_bytes: written as u64,
            partial,
            is_blocked: !is_whole || is_held,
            is_held,
            is_gone: false,
        }
    }
}

/// Writes messages in one call, as `encode` frames them, of those that are for the client. Writes
/// as many as one call takes, or up to the first that `encode` leaves for the next; the caller
/// calls again while the subscriber lacks more.
pub(crate) fn write<'a, N: Net>(
    net: &mut N,
    socket: &N::Socket,
    messages: impl Iterator<Item = &'a Arc<Message>>,
    is_for: impl Fn(&Message) -> bool,
    mut encode: impl FnMut(&'a Message) -> Option<(Encoding, &'a [u8])>,
) -> Outcome {
    let mut slices = [IoSlice::new(&[]); MESSAGES_PER_WRITE];
    let mut chosen: [Option<(&Arc<Message>, Encoding)>; MESSAGES_PER_WRITE] =
        [None; MESSAGES_PER_WRITE];
    let (mut count, mut bytes) = (0, 0);
    let mut outcome = Outcome::default();
    for message in messages {
        if is_for(message) {
            if count == MESSAGES_PER_WRITE || bytes >= BYTES_PER_WRITE {
                break;
            }
            let Some((encoding, encoded)) = encode(message) else { break };
            // A dialect may have no word for it.
            if !encoded.is_empty() {
                slices[count] = IoSlice::new(encoded);
                chosen[count] = Some((message, encoding));
                bytes += encoded.len();
                count += 1;
            }
        }
        // Also past one that is left out, which would be offered for ever.
        outcome.advanced_to = Some(message.id.offset);
    }
    if count == 0 {
        return outcome;
    }
    let transfer = net.write(socket, &slices[..count]);
    let chosen = chosen[..count].iter().flatten();
    let parts = slices.iter().zip(chosen.clone());
    let parts = parts.map(|(slice, (message, _))| (slice.len(), message.id.offset));
    if let Some((offset, from)) = outcome.settle(transfer, bytes, parts) {
        let cut = chosen.copied().find(|(message, _)| message.id.offset == offset);
        outcome.partial = cut.map(|(message, encoding)| {
            let message = Arc::clone(message);
            Partial { message, encoding, from }
        });
    }
    outcome
}

#[cfg(test)]
mod tests {
    use throng_core::{
        Body, ChannelName, ConnectionName, Content, Epoch, Extras, MessageId, Reader, WorkerId,
    };

    use super::*;
    use crate::net::fixture::OneNet;

    fn name(number: u32) -> ConnectionName {
        ConnectionName::new(WorkerId(0), 1, number)
    }

    fn is_for(message: &Message) -> bool {
        message.is_for(Reader { name: name(7), has_notices: true }, 0)
    }

    /// Messages of four bytes at offsets from 1; those in `excluding` are not for the subscriber.
    fn messages(count: u64, excluding: &[u64]) -> Vec<Arc<Message>> {
        let message = |offset| {
            let id = MessageId { epoch: Epoch::numbered(1), offset };
            let excluded = excluding.contains(&offset).then(|| name(7));
            let body = Body::Text("four".into());
            let channel = ChannelName::channel("c");
            let content = Content {
                extras: Extras::new(excluded, None),
                ..Content::new(id, offset - 1, 0, channel, body)
            };
            Arc::new(Message::from(Arc::new(content)))
        };
        (1..=count).map(message).collect()
    }

    fn written(messages: &[Arc<Message>], taken: usize) -> Outcome {
        fn encode(message: &Message) -> Option<(Encoding, &[u8])> {
            Some((Encoding::LINE, message.body.bytes()))
        }
        write(&mut OneNet::taking(taken), &(), messages.iter(), is_for, encode)
    }

    #[test]
    fn the_cursor_moves_over_whole_messages_and_one_partly_written() {
        let messages = messages(3, &[]);
        let outcome = |taken| {
            let outcome = written(&messages, taken);
            let rest = outcome.partial.map(|partial| (partial.message.id.offset, partial.from));
            (outcome.advanced_to, outcome.deliveries, rest, outcome.is_blocked)
        };
        assert_eq!(outcome(0), (None, 0, None, true));
        assert_eq!(outcome(3), (Some(1), 0, Some((1, 3)), true));
        assert_eq!(outcome(4), (Some(1), 1, None, true));
        assert_eq!(outcome(9), (Some(3), 2, Some((3, 1)), true));
        assert_eq!(outcome(12), (Some(3), 3, None, false));
    }

    #[test]
    fn excluded_messages_are_passed_over_and_not_written() {
        let outcome = written(&messages(4, &[1, 3, 4]), 100);
        assert_eq!((outcome.advanced_to, outcome.sent_bytes), (Some(4), 4));
        let outcome = written(&messages(2, &[1, 2]), 0);
        assert_eq!((outcome.advanced_to, outcome.is_blocked), (Some(2), false), "nothing to write");
        let outcome = written(&messages(4, &[2, 3]), 6);
        assert_eq!(outcome.advanced_to, Some(4), "partly written");
        let outcome = written(&messages(4, &[2, 3]), 4);
        assert_eq!(outcome.advanced_to, Some(1), "those behind are looked at again");
    }

    #[test]
    fn a_write_has_a_limited_number_of_messages() {
        let outcome = written(&messages(100, &[]), usize::MAX);
        assert_eq!((outcome.deliveries, outcome.is_blocked), (MESSAGES_PER_WRITE as u64, false));
        assert_eq!(outcome.advanced_to, Some(MESSAGES_PER_WRITE as u64));
    }

    #[test]
    fn a_write_ends_before_what_is_left_for_the_next() {
        let messages = messages(5, &[2]);
        fn two_of(message: &Message) -> Option<(Encoding, &[u8])> {
            (message.id.offset <= 3).then(|| (Encoding::LINE, message.body.bytes()))
        }
        let outcome = write(&mut OneNet::taking(usize::MAX), &(), messages.iter(), is_for, two_of);
        assert_eq!((outcome.deliveries, outcome.advanced_to), (2, Some(3)));
        assert!(!outcome.is_blocked);
    }

    #[test]
    fn one_message_has_the_same_outcome_alone() {
        let messages = messages(1, &[]);
        for (taken, transfer) in
            [(0, Transfer::Blocked), (1, Transfer::Bytes(1)), (4, Transfer::Bytes(4))]
        {
            let alone = Outcome::of_message(&messages[0], Encoding::LINE, 4, transfer);
            let among = written(&messages, taken);
            assert_eq!(
                (alone.advanced_to, alone.deliveries, alone.sent_bytes, alone.is_blocked),
                (among.advanced_to, among.deliveries, among.sent_bytes, among.is_blocked)
            );
            let from = |outcome: Outcome| outcome.partial.map(|partial| partial.from);
            assert_eq!(from(alone), from(among));
        }
        assert!(Outcome::of_message(&messages[0], Encoding::LINE, 4, Transfer::Gone).is_gone);
    }
}
