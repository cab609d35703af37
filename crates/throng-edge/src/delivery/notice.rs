//! Notices: JSON that the server sends a subscriber beside messages.

use throng_wire::websocket::{Opcode, write_frame};

use crate::connection::{ConnectionId, Flags};
use crate::delivery::Delivery;
use crate::encoding::frame_notice;
use crate::net::Net;

impl<N: Net> Delivery<N> {
    /// Writes a JSON notice in the framing of the connection: a text frame, a named event, or a
    /// line.
    pub(crate) fn notify(
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

    /// Writes one JSON text as a frame.
    pub(crate) fn reply(&mut self, id: ConnectionId, write: impl FnOnce(&mut Vec<u8>)) {
        let mut json = Vec::new();
        write(&mut json);
        let mut frame = Vec::with_capacity(json.len() + 8);
        write_frame(&mut frame, Opcode::Text, &json);
        self.send(id, &frame);
    }
}
