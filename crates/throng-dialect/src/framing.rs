//! The framing of what a dialect says: WebSocket frames, server-sent events, or lines.

use throng_wire::sse::ServerEvent;
use throng_wire::websocket::{Opcode, write_close, write_frame};
use throng_wire::{chunk, sse};

/// How a connection delimits what it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    WebSocket,
    /// Server-sent events.
    Sse,
    /// Lines of a response body.
    Line,
}

/// Frames what a dialect says to one connection, or to all with the same encoding.
#[derive(Debug)]
pub struct Out<'o> {
    framing: Framing,
    /// True if the body is sent in chunks. A WebSocket has none: after the upgrade the connection
    /// is not HTTP (RFC 9110 section 7.8).
    is_chunked: bool,
    /// Of payloads that are joined in one frame: what goes between them.
    between: Option<&'static [u8]>,
    bytes: &'o mut Vec<u8>,
}

impl<'o> Out<'o> {
    /// Appends to `bytes`, in chunks if the body `is_chunked`.
    pub fn new(framing: Framing, is_chunked: bool, bytes: &'o mut Vec<u8>) -> Out<'o> {
        let is_chunked = is_chunked && framing != Framing::WebSocket;
        Out { framing, is_chunked, between: None, bytes }
    }

    /// Appends payloads to `bytes`, for one frame, with `between` between any two.
    pub fn joined(between: &'static [u8], bytes: &'o mut Vec<u8>) -> Out<'o> {
        Out { framing: Framing::WebSocket, is_chunked: false, between: Some(between), bytes }
    }

    fn frame(&mut self, opcode: Opcode, payload: &[u8]) {
        let Some(between) = self.between else {
            return write_frame(self.bytes, opcode, payload);
        };
        if !self.bytes.is_empty() {
            self.bytes.extend_from_slice(between);
        }
        self.bytes.extend_from_slice(payload);
    }

    /// A text frame, an event without an id, or a line.
    pub fn text(&mut self, payload: &[u8]) {
        match self.framing {
            Framing::WebSocket => self.frame(Opcode::Text, payload),
            Framing::Sse => self.event(None, None, payload),
            Framing::Line => self.line(payload),
        }
    }

    /// A binary frame. Events and lines have no other form for bytes than text.
    pub fn binary(&mut self, payload: &[u8]) {
        match self.framing {
            Framing::WebSocket => self.frame(Opcode::Binary, payload),
            Framing::Sse | Framing::Line => self.text(payload),
        }
    }

    /// A text frame, an event of this name, or a line. The event has no id, so that a browser
    /// resumes behind the last message and not behind this.
    pub fn notice(&mut self, event: ServerEvent, json: &[u8]) {
        match self.framing {
            Framing::Sse => self.event(None, Some(event.name()), json),
            Framing::WebSocket | Framing::Line => self.text(json),
        }
    }

    /// A server-sent event.
    pub fn event(&mut self, id: Option<&str>, name: Option<&str>, data: &[u8]) {
        debug_assert_eq!(self.framing, Framing::Sse);
        let mut event = Vec::with_capacity(data.len() + 64);
        sse::write_event(&mut event, id, name, data);
        self.part(&event);
    }

    fn line(&mut self, payload: &[u8]) {
        let mut line = Vec::with_capacity(payload.len() + 1);
        line.extend_from_slice(payload);
        line.push(b'\n');
        self.part(&line);
    }

    /// A close frame.
    pub fn close(&mut self, code: u16, reason: &str) {
        debug_assert_eq!(self.framing, Framing::WebSocket);
        write_close(self.bytes, code, reason);
    }

    /// Ends the body as complete. A stream that lacks messages ends without it (RFC 9112 section
    /// 8).
    pub fn last(&mut self) {
        if self.is_chunked {
            self.bytes.extend_from_slice(chunk::LAST);
        }
    }

    /// A part of a response body as it is.
    pub fn part(&mut self, part: &[u8]) {
        if self.is_chunked {
            chunk::write_chunk(self.bytes, part);
        } else {
            self.bytes.extend_from_slice(part);
        }
    }
}
