//! TCP as a client needs it (RFC 9293), one connection at a time: what a segment that arrives does
//! to it, without I/O, clock or memory of its own.
//!
//! Data are taken in order only. What comes after a gap is answered with what is expected, as
//! anything else that is not acceptable, and the server's kernel sends it again.
//!
//! # Invariants
//!
//! * `expected` moves over bytes only when they are handed on.
//! * `first_unacknowledged` moves only up to what has been sent.
//! * A reset is believed if it has exactly the number that is expected (RFC 5961); other numbers of
//!   the window are asked about.

use std::mem::size_of;
use std::ops::Range;

use super::packet::{Flags, Segment};

/// What a parked connection costs beside its client.
const CONNECTION_BYTES_MAX: usize = 12;

const _: () = assert!(size_of::<Connection>() <= CONNECTION_BYTES_MAX);

/// One end of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Connection {
    /// The first number that has been sent and not acknowledged, or the next to send.
    pub(super) first_unacknowledged: u32,
    /// The number of the next byte from the server.
    pub(super) expected: u32,
    /// Bytes that the server would take.
    pub(super) window: u16,
    pub(super) state: State,
    pub(super) marks: Marks,
}

/// Where a connection stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum State {
    /// There is none.
    #[default]
    Closed,
    /// `SYN` is sent.
    Connecting,
    /// Both sides know each other; the server may have said that it has no more to say.
    Open,
    /// `FIN` is sent: nothing that comes is handed on any more.
    Closing,
}

/// What is remembered of a connection besides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Marks(u8);

impl Marks {
    /// An acknowledgement is owed.
    pub(super) const OWES: Marks = Marks(1);
    /// The server has no more to say.
    pub(super) const ENDED: Marks = Marks(2);
    /// Something is sent and not acknowledged, or waits to be sent.
    pub(super) const UNACKNOWLEDGED: Marks = Marks(4);
    /// Not all that was to be sent was taken.
    pub(super) const WANTS_ROOM: Marks = Marks(8);
    /// Its client does not read: what came is held.
    pub(super) const HOLDS: Marks = Marks(16);
    /// Nothing has come from the server yet.
    pub(super) const YOUNG: Marks = Marks(32);

    pub(super) fn has(self, mark: Marks) -> bool {
        self.0 & mark.0 != 0
    }

    pub(super) fn set(&mut self, mark: Marks, is_set: bool) {
        self.0 = if is_set { self.0 | mark.0 } else { self.0 & !mark.0 };
    }

    /// Sets it, and says whether it was not.
    pub(super) fn raise(&mut self, mark: Marks) -> bool {
        let is_new = !self.has(mark);
        self.set(mark, true);
        is_new
    }
}

/// What there is to do after a segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Outcome {
    /// The part of the payload that is new and in order.
    pub(super) accepted: Range<usize>,
    /// Numbers that the server has acknowledged for the first time.
    pub(super) acknowledged: u32,
    pub(super) answer: Answer,
    pub(super) is_connected: bool,
    pub(super) end: Option<End>,
    /// The segment came again, or too early, so that it will come again.
    pub(super) is_repeated: bool,
}

/// What the server is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Answer {
    #[default]
    Nothing,
    /// What is expected, once for all segments of a batch, or with data if there are some.
    Later,
    /// What is expected, at once.
    Now,
    /// A reset with this number.
    Reset(u32),
}

/// How a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The server has no more to say.
    Finished,
    /// The server has reset it.
    Reset,
    /// Nobody listens there.
    Refused,
}

impl Connection {
    /// After a segment; `in_flight` are the numbers sent and not acknowledged, `room` the bytes
    /// that the client would take.
    pub(super) fn arrive(&mut self, segment: &Segment<'_>, in_flight: u32, room: usize) -> Outcome {
        match self.state {
            State::Closed => {
                let answer = reset_of_unknown(segment);
                Outcome { answer, ..Outcome::default() }
            }
            State::Connecting => self.arrive_connecting(segment, in_flight),
            State::Open | State::Closing => self.arrive_open(segment, in_flight, room),
        }
    }

    /// RFC 9293, 3.10.7.3.
    fn arrive_connecting(&mut self, segment: &Segment<'_>, in_flight: u32) -> Outcome {
        let mut outcome = Outcome::default();
        let flags = segment.flags;
        let ours = self.first_unacknowledged.wrapping_add(in_flight);
        if !flags.has(Flags::ACK) {
            return outcome;
        }
        if segment.acknowledged != ours {
            // A connection of before that the server still has: it is ended, and the next `SYN`
            // begins a new one.
            if !flags.has(Flags::RST) {
                outcome.answer = Answer::Reset(segment.acknowledged);
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
            outcome.answer = Answer::Later;
        }
        outcome
    }

    /// RFC 9293, 3.10.7.4.
    fn arrive_open(&mut self, segment: &Segment<'_>, in_flight: u32, room: usize) -> Outcome {
        let mut outcome = Outcome::default();
        let flags = segment.flags;
        if flags.has(Flags::RST) {
            let ahead = segment.sequence.wrapping_sub(self.expected);
            if ahead == 0 {
                self.state = State::Closed;
                outcome.end = Some(End::Reset);
            } else if (ahead as usize) < room {
                outcome.answer = Answer::Now;
            }
            return outcome;
        }
        if flags.has(Flags::SYN) {
            outcome.answer = Answer::Now;
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
            // It acknowledges what was never sent.
            outcome.answer = Answer::Now;
            return outcome;
        }
        self.take(segment, room, &mut outcome);
        let is_all_acknowledged = outcome.acknowledged == in_flight;
        let is_closing = self.state == State::Closing;
        if is_closing && is_all_acknowledged && self.marks.has(Marks::ENDED) {
            self.state = State::Closed;
        }
        outcome
    }

    /// Takes what is new and in order.
    fn take(&mut self, segment: &Segment<'_>, room: usize, outcome: &mut Outcome) {
        let length = segment.length();
        let behind = self.expected.wrapping_sub(segment.sequence);
        if length == 0 {
            // A probe whether anybody is there has a number that was acknowledged long ago.
            if behind != 0 {
                outcome.answer = Answer::Now;
            }
            return;
        }
        if behind >= length {
            // All of it came before, or it comes after a gap.
            outcome.answer = Answer::Now;
            outcome.is_repeated = true;
            return;
        }
        if self.state == State::Closing && segment.payload.len() > behind as usize {
            // Nobody reads it any more, and the server had better know.
            self.state = State::Closed;
            outcome.answer = Answer::Reset(segment.acknowledged);
            return;
        }
        let from = behind as usize;
        let to = segment.payload.len().min(from + room).max(from);
        let is_whole = to >= segment.payload.len();
        outcome.accepted = from.min(segment.payload.len())..to.min(segment.payload.len());
        let accepted = outcome.accepted.len() as u32;
        self.expected = self.expected.wrapping_add(accepted);
        if is_whole && segment.flags.has(Flags::FIN) {
            self.expected = self.expected.wrapping_add(1);
            self.marks.set(Marks::ENDED, true);
            outcome.end = Some(End::Finished);
        }
        // What is accepted is told when the client has it, with the room that is left then.
        outcome.answer = if is_whole || accepted > 0 { Answer::Later } else { Answer::Now };
    }
}

/// What is told to who sends to a connection that is not there (RFC 9293, 3.10.7.1): a reset whose
/// number is acceptable where it goes.
pub(super) fn reset_of_unknown(segment: &Segment<'_>) -> Answer {
    match segment.flags {
        flags if flags.has(Flags::RST) => Answer::Nothing,
        flags if flags.has(Flags::ACK) => Answer::Reset(segment.acknowledged),
        _ => Answer::Reset(0),
    }
}
