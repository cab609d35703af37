//! Notices: JSON that the server sends a subscriber beside messages.

use throng_core::{ChannelName, Later, Ticket};
use throng_wire::subscribe::Request;
use throng_wire::websocket::{Opcode, write_frame};

use crate::connection::{ConnectionId, Flags};
use crate::encoding::frame_notice;
use crate::net::Net;
use crate::worker::Worker;

impl<N: Net> Worker<N> {
    /// Writes a JSON notice in the framing of the connection: a text frame, a named event, or a
    /// line.
    pub(in crate::worker) fn notify(
        &mut self,
        id: ConnectionId,
        event: &str,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let connection = &self[id];
        let mut json = Vec::new();
        write(&mut json);
        let mut out = Vec::with_capacity(json.len() + 16);
        frame_notice(&mut out, connection.encoding(), connection.has(Flags::CHUNKED), event, &json);
        self.send(id, &out);
    }

    /// The count of unread messages in a welcome, of the user of a request; `None` without a user.
    /// `fetched` has the engine's earlier answers.
    pub(in crate::worker) fn unread_of(
        &self,
        request: &Request,
        fetched: Option<u64>,
    ) -> Option<u64> {
        let inbox = ChannelName::user(request.user()?);
        fetched.or_else(|| {
            // An engine that answers later has been asked.
            let mut issue = || Ticket::new(drop);
            let later = Later::new(&mut issue);
            let answer = self.engine.read_marker(self.clock().unix_ms(), &inbox, None, later);
            answer.now()?.ok().map(|marker| marker.unread)
        })
    }

    /// Writes one JSON text as a frame.
    pub(in crate::worker) fn reply(&mut self, id: ConnectionId, write: impl FnOnce(&mut Vec<u8>)) {
        let mut json = Vec::new();
        write(&mut json);
        let mut frame = Vec::with_capacity(json.len() + 8);
        write_frame(&mut frame, Opcode::Text, &json);
        self.send(id, &frame);
    }
}
