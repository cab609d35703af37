//! Clients are told that messages come late, and when they do not any more.
//!
//! No connection remembers what it was told: a scan tells those that are there, and each that comes
//! while messages are late is told then. Two scans may be under way, so each tells what holds when
//! it comes to a connection.

use throng_wire::v1;

use crate::connection::{ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::delivery::Delivery;
use crate::encoding::{Framing, LATE_EVENT, frame_notice};
use crate::net::Net;

impl<N: Net> Delivery<N> {
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }

    /// Messages come late from now on, or do not. Returns whether that is new.
    pub(crate) fn becomes_late(&mut self, is_late: bool) -> bool {
        std::mem::replace(&mut self.is_late, is_late) != is_late
    }

    /// True if the connection has a form for it that is no message. A frame of a WebSocket without
    /// `throng.v1` would be taken for one, and so would a line.
    fn hears_of_lateness(&self, id: ConnectionId) -> bool {
        let connection = &self[id];
        let has_form = connection.has(Flags::V1) || connection.encoding().framing() == Framing::Sse;
        connection.state == State::Streaming && has_form && !connection.has(Flags::VIEWER)
    }

    /// Tells a connection whether messages come late.
    pub(crate) fn tell_late(&mut self, id: ConnectionId) {
        if self.hears_of_lateness(id) {
            let is_late = self.is_late;
            self.count(Counter::ToldLate);
            self.notify(id, LATE_EVENT, |out| v1::late(out, is_late));
        }
    }

    /// Appends that messages come late to what a new connection is told, if they do.
    pub(crate) fn greet_with_lateness(&mut self, id: ConnectionId, out: &mut Vec<u8>) {
        if !self.is_late || !self.hears_of_lateness(id) {
            return;
        }
        self.count(Counter::ToldLate);
        let connection = &self[id];
        let (encoding, is_chunked) = (connection.encoding(), connection.has(Flags::CHUNKED));
        let mut json = Vec::new();
        v1::late(&mut json, true);
        frame_notice(out, encoding, is_chunked, LATE_EVENT, &json);
    }
}
