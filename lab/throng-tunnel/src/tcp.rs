//! The client side of one TCP connection (RFC 9293): a state machine without I/O, clock or buffers.
//!
//! Data is accepted in order only. A segment after a gap is answered with an acknowledgement of
//! the expected sequence number, like any unacceptable segment, and the server retransmits.
//!
//! # Invariants
//!
//! * `expected` advances only over bytes that are passed to the client.
//! * `first_unacknowledged` advances only over numbers that were sent.
//! * A reset is accepted only with exactly the expected sequence number (RFC 5961). One elsewhere
//!   in the window is challenged.

use std::mem::size_of;
use std::ops::Range;

use crate::packet::{Flags, Segment};

/// The most memory that an idle connection may take, besides its client.
const CONNECTION_BYTES_MAX: usize = 12;

const _: () = assert!(size_of::<Connection>() <= CONNECTION_BYTES_MAX);

/// The client's end of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Connection {
    /// The first sequence number sent and not acknowledged, or else the next to send.
    pub(crate) first_unacknowledged: u32,
    /// The sequence number of the next byte from the server.
    pub(crate) expected: u32,
    /// Bytes that the server can receive.
    pub(crate) window: u16,
    pub(crate) state: State,
    pub(crate) marks: Marks,
}

/// The state of a connection, from the client's side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// There is no connection.
    #[default]
    Closed,
    /// `SYN` is sent.
    Connecting,
    /// Established; the server may have sent `FIN`.
    Open,
    /// `FIN` is sent. The client gets no more data.
    Closing,
}

/// Conditions of a connection, one bit each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Marks(u8);

impl Marks {
    /// An acknowledgement is pending.
    pub(crate) const ACK_PENDING: Marks = Marks(1);
    /// The server has sent `FIN`.
    pub(crate) const PEER_FINISHED: Marks = Marks(2);
    /// There is an entry in the stack's `unacknowledged`: bytes or flags in flight, or unsent
    /// bytes.
    pub(crate) const UNACKNOWLEDGED: Marks = Marks(4);
    /// `send` did not accept all bytes, and the client waits to be told that it can send again.
    pub(crate) const WAITS_FOR_SPACE: Marks = Marks(8);
    /// The client has stopped reading, and the stack keeps received bytes for it.
    pub(crate) const KEEPS_UNREAD: Marks = Marks(16);
    /// No data has arrived from the server yet.
    pub(crate) const NOTHING_RECEIVED: Marks = Marks(32);

    pub(crate) fn has(self, mark: Marks) -> bool {
        self.0 & mark.0 != 0
    }

    pub(crate) fn set(&mut self, mark: Marks, is_set: bool) {
        self.0 = if is_set { self.0 | mark.0 } else { self.0 & !mark.0 };
    }

    /// Sets the mark. Returns whether it was clear before.
    pub(crate) fn insert(&mut self, mark: Marks) -> bool {
        let is_new = !self.has(mark);
        self.set(mark, true);
        is_new
    }
}

/// The tasks of the stack after a segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Outcome {
    /// The part of the payload that is new and in order.
    pub(crate) accepted: Range<usize>,
    /// How many sequence numbers the server acknowledged for the first time.
    pub(crate) acknowledged: u32,
    pub(crate) reply: Reply,
    pub(crate) is_connected: bool,
    pub(crate) end: Option<End>,
    /// The segment was a retransmission, or arrived out of order and will be retransmitted.
    pub(crate) is_retransmitted: bool,
}

/// The reply to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Reply {
    #[default]
    Nothing,
    /// An acknowledgement that can wait for the end of the batch, or travel with data.
    DelayedAck,
    /// An immediate acknowledgement.
    Ack,
    /// A reset with this sequence number.
    Reset(u32),
}

/// How the server ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The server has sent `FIN`.
    Finished,
    /// The server has reset an established connection.
    Reset,
    /// The server has refused the connection.
    Refused,
}

impl Connection {
    /// Processes a segment. `in_flight` is the count of sequence numbers sent and not
    /// acknowledged, `receive_space` the bytes that the client can receive.
    pub(crate) fn receive(
        &mut self,
        segment: &Segment<'_>,
        in_flight: u32,
        receive_space: usize,
    ) -> Outcome {
        match self.state {
            State::Closed => {
                let reply = reset_without_connection(segment);
                Outcome { reply, ..Outcome::default() }
            }
            State::Connecting => self.receive_connecting(segment, in_flight),
            State::Open | State::Closing => self.receive_open(segment, in_flight, receive_space),
        }
    }

    /// `SYN-SENT`: RFC 9293, section 3.10.7.3.
    fn receive_connecting(&mut self, segment: &Segment<'_>, in_flight: u32) -> Outcome {
        let mut outcome = Outcome::default();
        let flags = segment.flags;
        let ours = self.first_unacknowledged.wrapping_add(in_flight);
        if !flags.has(Flags::ACK) {
            return outcome;
        }
        if segment.acknowledged != ours {
            // The server still has an old connection. A reset ends it, and the retransmitted `SYN`
            // opens the new one.
            if !flags.has(Flags::RST) {
                outcome.reply = Reply::Reset(segment.acknowledged);
            }
        } else if flags.has(Flags::RST) {
            self.state = State::Closed;
            outcome.end = Some(End::Refused);
        } else if flags.has(Flags::SYN) {
            self.state = State::Open;
            self.first_unacknowledged = ours;
            self.expected = segment.sequence.wrapping_add(1);
            self.window = segment.window;
            outcome.acknowledged = in_flight;
            outcome.is_connected = true;
            outcome.reply = Reply::DelayedAck;
        }
        outcome
    }

    /// Synchronized states: RFC 9293, section 3.10.7.4.
    fn receive_open(
        &mut self,
        segment: &Segment<'_>,
        in_flight: u32,
        receive_space: usize,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let flags = segment.flags;
        if flags.has(Flags::RST) {
            let ahead = segment.sequence.wrapping_sub(self.expected);
            if ahead == 0 {
                self.state = State::Closed;
                outcome.end = Some(End::Reset);
            } else if (ahead as usize) < receive_space {
                outcome.reply = Reply::Ack;
            }
            return outcome;
        }
        if flags.has(Flags::SYN) {
            outcome.reply = Reply::Ack;
            return outcome;
        }
        if !flags.has(Flags::ACK) {
            return outcome;
        }
        let acknowledged = segment.acknowledged.wrapping_sub(self.first_unacknowledged);
        if acknowledged <= in_flight {
            self.first_unacknowledged = segment.acknowledged;
            self.window = segment.window;
            outcome.acknowledged = acknowledged;
        } else if (acknowledged as i32) > 0 {
            // It acknowledges numbers that were never sent.
            outcome.reply = Reply::Ack;
            return outcome;
        }
        self.take(segment, receive_space, &mut outcome);
        let is_all_acknowledged = outcome.acknowledged == in_flight;
        let is_closing = self.state == State::Closing;
        if is_closing && is_all_acknowledged && self.marks.has(Marks::PEER_FINISHED) {
            self.state = State::Closed;
        }
        outcome
    }

    /// Accepts the bytes that are new and in order.
    fn take(&mut self, segment: &Segment<'_>, receive_space: usize, outcome: &mut Outcome) {
        let length = segment.length();
        let behind = self.expected.wrapping_sub(segment.sequence);
        if length == 0 {
            // A keep-alive probe has an old sequence number and expects an acknowledgement.
            if behind != 0 {
                outcome.reply = Reply::Ack;
            }
            return;
        }
        if behind >= length {
            // A retransmission, or a segment after a gap.
            outcome.reply = Reply::Ack;
            outcome.is_retransmitted = true;
            return;
        }
        if self.state == State::Closing && segment.payload.len() > behind as usize {
            // The client has closed, so a reset tells the server that the data is lost.
            self.state = State::Closed;
            outcome.reply = Reply::Reset(segment.acknowledged);
            return;
        }
        let from = behind as usize;
        let to = segment.payload.len().min(from + receive_space).max(from);
        let is_whole = to >= segment.payload.len();
        outcome.accepted = from.min(segment.payload.len())..to.min(segment.payload.len());
        let accepted = outcome.accepted.len() as u32;
        self.expected = self.expected.wrapping_add(accepted);
        if is_whole && segment.flags.has(Flags::FIN) {
            self.expected = self.expected.wrapping_add(1);
            self.marks.set(Marks::PEER_FINISHED, true);
            outcome.end = Some(End::Finished);
        }
        // Acknowledged once the client has the bytes, with the window that is left then.
        outcome.reply = if is_whole || accepted > 0 { Reply::DelayedAck } else { Reply::Ack };
    }
}

/// The reply to a segment without a connection (RFC 9293, section 3.10.7.1): a reset with a
/// sequence number that its receiver accepts.
pub(crate) fn reset_without_connection(segment: &Segment<'_>) -> Reply {
    match segment.flags {
        flags if flags.has(Flags::RST) => Reply::Nothing,
        flags if flags.has(Flags::ACK) => Reply::Reset(segment.acknowledged),
        _ => Reply::Reset(0),
    }
}
