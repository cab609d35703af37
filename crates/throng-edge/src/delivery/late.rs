//! Clients are told that messages come late, and when they do not any more.
//!
//! No connection remembers what it was told: a scan tells those that are there, and each that comes
//! while messages are late is told then. Two scans may be under way, so each tells what holds when
//! it comes to a connection. A dialect without a word for it is not told: its clients would take it
//! for a message.

use throng_dialect::Saying;

use crate::connection::{ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::delivery::{Delivery, write_saying};
use crate::net::Net;

impl<N: Net> Delivery<N> {
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }

    /// Messages come late from now on, or do not. Returns whether that is new.
    pub(crate) fn becomes_late(&mut self, is_late: bool) -> bool {
        std::mem::replace(&mut self.is_late, is_late) != is_late
    }

    fn may_hear_of_lateness(&self, id: ConnectionId) -> bool {
        let connection = &self[id];
        connection.state() == State::Streaming && !connection.has(Flags::VIEWER)
    }

    /// Tells a connection whether messages come late.
    pub(crate) fn tell_late(&mut self, id: ConnectionId) {
        if self.may_hear_of_lateness(id) && self.say(id, &Saying::Late(self.is_late)) {
            self.count(Counter::ToldLate);
        }
    }

    /// Appends that messages come late to what a new connection is told, if they do.
    pub(crate) fn greet_with_lateness(&mut self, id: ConnectionId, out: &mut Vec<u8>) {
        if !self.is_late || !self.may_hear_of_lateness(id) {
            return;
        }
        let before = out.len();
        write_saying(&self[id], &Saying::Late(true), None, out);
        if out.len() > before {
            self.count(Counter::ToldLate);
        }
    }
}
