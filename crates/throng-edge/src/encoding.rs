//! The framing of messages for each transport. The first subscriber that needs an encoding makes
//! it, and all others share it.

use std::borrow::Cow;

use throng_core::{Body, Message};
use throng_wire::websocket::{Opcode, write_frame};
use throng_wire::{chunk, sse};

/// The name of the SSE event that tells whether messages come late.
pub(crate) const LATE_EVENT: &str = "late";

/// The name of the SSE event that tells who is in a channel.
pub(crate) const PRESENCE_EVENT: &str = "presence";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    WebSocket,
    Sse,
    Line,
}

/// A framing of messages. Its number is the slot of the message that keeps the encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Encoding {
    /// A WebSocket frame with the published bytes.
    #[default]
    WebSocket,
    /// A WebSocket text frame with an envelope.
    WebSocketEnvelope,
    /// An SSE event in a chunk.
    Sse,
    /// An SSE event with an envelope, in a chunk.
    SseEnvelope,
    /// A line in a chunk.
    Line,
    /// An envelope as a line, in a chunk.
    LineEnvelope,
    /// A WebSocket frame with the published bytes, compressed if that is worth it.
    WebSocketDeflate,
    /// A WebSocket text frame with an envelope, compressed if that is worth it.
    WebSocketEnvelopeDeflate,
}

const _: () =
    assert!(Encoding::WebSocketEnvelopeDeflate as usize + 1 == throng_core::message::ENCODINGS);

impl Encoding {
    pub(crate) const COMPRESSED: [Encoding; 2] =
        [Encoding::WebSocketDeflate, Encoding::WebSocketEnvelopeDeflate];

    /// The encoding with this number, which frozen state has: a number is never used again.
    pub(crate) fn numbered(number: u32) -> Encoding {
        match number {
            0 => Encoding::WebSocket,
            1 => Encoding::WebSocketEnvelope,
            2 => Encoding::Sse,
            3 => Encoding::SseEnvelope,
            4 => Encoding::Line,
            5 => Encoding::LineEnvelope,
            6 => Encoding::WebSocketDeflate,
            _ => Encoding::WebSocketEnvelopeDeflate,
        }
    }

    /// The protocol that it belongs to.
    pub(crate) fn framing(self) -> Framing {
        match self.uncompressed() {
            Encoding::Sse | Encoding::SseEnvelope => Framing::Sse,
            Encoding::Line | Encoding::LineEnvelope => Framing::Line,
            _ => Framing::WebSocket,
        }
    }

    pub(crate) fn is_compressed(self) -> bool {
        self != self.uncompressed()
    }

    pub(crate) fn uncompressed(self) -> Encoding {
        match self {
            Encoding::WebSocketDeflate => Encoding::WebSocket,
            Encoding::WebSocketEnvelopeDeflate => Encoding::WebSocketEnvelope,
            other => other,
        }
    }

    /// The same with compression, where there is one.
    pub(crate) fn compressed(self) -> Encoding {
        match self {
            Encoding::WebSocket => Encoding::WebSocketDeflate,
            Encoding::WebSocketEnvelope => Encoding::WebSocketEnvelopeDeflate,
            other => other,
        }
    }

    /// The encoding that the message has for a subscriber with this one: the same without
    /// compression unless the message has been compressed.
    pub(crate) fn of(self, message: &Message) -> Encoding {
        let is_there = |encoding: Encoding| {
            message.made_encoding(encoding as usize).is_some_and(|bytes| !bytes.is_empty())
        };
        if self.is_compressed() && is_there(self) { self } else { self.uncompressed() }
    }

    /// The payload of a WebSocket frame with the message.
    pub(crate) fn payload(self, message: &Message) -> Cow<'_, [u8]> {
        if self.is_envelope() && !is_notice(message) {
            Cow::Owned(envelope(message))
        } else {
            Cow::Borrowed(message.body.bytes())
        }
    }

    /// The opcode of such a frame.
    pub(crate) fn opcode(self, message: &Message) -> Opcode {
        match message.body {
            Body::Binary(_) if !self.is_envelope() => Opcode::Binary,
            _ => Opcode::Text,
        }
    }

    pub(crate) fn is_envelope(self) -> bool {
        matches!(
            self.uncompressed(),
            Encoding::WebSocketEnvelope | Encoding::SseEnvelope | Encoding::LineEnvelope
        )
    }

    /// The bytes of the message on the wire. `is_chunked` applies to SSE and lines only.
    pub fn encode(self, message: &Message, is_chunked: bool) -> &[u8] {
        let own = self.of(message);
        let bytes = message.encoding(own as usize, |message| own.write(message));
        match self.framing() {
            Framing::WebSocket => bytes,
            _ if is_chunked => bytes,
            // HTTP/1.0 has no chunks: the same encoding without its chunk header and trailer.
            _ => chunk::inner(bytes),
        }
    }

    /// Appends the message as it looks to a connection with this position after it: as its id, or
    /// in its envelope. Nobody shares these bytes.
    pub(crate) fn compose(
        self,
        message: &Message,
        position: &str,
        is_chunked: bool,
        out: &mut Vec<u8>,
    ) {
        let mut inner = Vec::new();
        if is_notice(message) {
            return out.extend_from_slice(self.uncompressed().encode(message, is_chunked));
        }
        match self.uncompressed() {
            Encoding::Sse => {
                let shared = event(message);
                let own_id = shared.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
                inner.extend_from_slice(format!("id: {position}\n").as_bytes());
                inner.extend_from_slice(&shared[own_id..]);
            }
            Encoding::SseEnvelope => {
                sse::write_event(&mut inner, Some(position), None, &envelope(message));
            }
            Encoding::LineEnvelope => {
                inner = positioned(message, position);
                inner.push(b'\n');
            }
            Encoding::WebSocketEnvelope => {
                return write_frame(out, Opcode::Text, &positioned(message, position));
            }
            other => {
                debug_assert!(false, "{other:?} shows no position");
                inner.extend_from_slice(other.encode(message, false));
            }
        }
        if is_chunked {
            chunk::write_chunk(out, &inner);
        } else {
            out.extend_from_slice(&inner);
        }
    }

    fn write(self, message: &Message) -> Vec<u8> {
        let mut out = Vec::with_capacity(message.body.bytes().len() + 16);
        if is_notice(message) {
            frame_notice(&mut out, self, true, PRESENCE_EVENT, message.body.bytes());
            return out;
        }
        match self {
            // Servers do not mask (RFC 6455 section 5.1), so that a frame is the same for all.
            Encoding::WebSocket
            | Encoding::WebSocketEnvelope
            | Encoding::WebSocketDeflate
            | Encoding::WebSocketEnvelopeDeflate => {
                write_frame(&mut out, self.opcode(message), &self.payload(message));
            }
            Encoding::Sse => chunk::write_chunk(&mut out, &event(message)),
            Encoding::SseEnvelope => {
                let mut inner = Vec::new();
                sse::write_event(
                    &mut inner,
                    Some(&message.id.to_string()),
                    None,
                    &envelope(message),
                );
                chunk::write_chunk(&mut out, &inner);
            }
            Encoding::Line => {
                let mut inner = message.body.bytes().to_vec();
                inner.push(b'\n');
                chunk::write_chunk(&mut out, &inner);
            }
            Encoding::LineEnvelope => {
                let mut inner = envelope(message);
                inner.push(b'\n');
                chunk::write_chunk(&mut out, &inner);
            }
        }
        out
    }
}

/// True if a message is one of the server, a JSON object that is complete in itself: it has neither
/// an id nor an envelope.
pub(crate) fn is_notice(message: &Message) -> bool {
    message.channel.is_presence_events()
}

/// Appends a JSON notice as a text frame, a named event, or a line.
pub(crate) fn frame_notice(
    out: &mut Vec<u8>,
    encoding: Encoding,
    is_chunked: bool,
    event: &str,
    json: &[u8],
) {
    let mut inner = Vec::with_capacity(json.len() + 32);
    match encoding.framing() {
        Framing::WebSocket => {
            // Never in a chunk: after the upgrade the connection is not HTTP (RFC 9110 section
            // 7.8).
            return write_frame(out, Opcode::Text, json);
        }
        Framing::Sse => {
            // Without an id, so that the browser resumes behind the last message and not behind
            // this.
            sse::write_event(&mut inner, None, Some(event), json)
        }
        Framing::Line => {
            inner.extend_from_slice(json);
            inner.push(b'\n');
        }
    }
    if is_chunked {
        chunk::write_chunk(out, &inner);
    } else {
        out.extend_from_slice(&inner);
    }
}

fn envelope(message: &Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.body.bytes().len() + 128);
    message.write_envelope(&mut out);
    out
}

fn positioned(message: &Message, position: &str) -> Vec<u8> {
    let mut out = envelope(message);
    debug_assert_eq!(out.last(), Some(&b'}'));
    out.pop();
    out.extend_from_slice(format!(r#","position":"{position}"}}"#).as_bytes());
    out
}

fn event(message: &Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.body.bytes().len() + 48);
    let id = message.id.to_string();
    match &message.body {
        Body::Text(text) | Body::Json(text) => {
            sse::write_event(&mut out, Some(&id), None, text.as_bytes());
        }
        Body::Binary(bytes) => {
            use base64::Engine as _;
            let text = base64::engine::general_purpose::STANDARD.encode(bytes);
            sse::write_event(&mut out, Some(&id), Some("binary"), text.as_bytes());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_core::{ChannelName, Epoch, MessageId};

    fn message(body: Body) -> Message {
        let id = MessageId { epoch: Epoch::numbered(1), offset: 7 };
        Message::new(id, 6, 1234, ChannelName::channel("a"), body)
    }

    fn encoded(encoding: Encoding, body: Body, is_chunked: bool) -> String {
        String::from_utf8_lossy(encoding.encode(&message(body), is_chunked)).into_owned()
    }

    #[test]
    fn text_is_framed_in_each_way() {
        let text = |encoding, is_chunked| encoded(encoding, Body::Text("hi".into()), is_chunked);
        let id = message(Body::Text("".into())).id;
        assert_eq!(text(Encoding::WebSocket, false), "\u{fffd}\u{2}hi");
        assert_eq!(text(Encoding::Line, false), "hi\n");
        assert_eq!(text(Encoding::Line, true), "3\r\nhi\n\r\n");
        assert_eq!(text(Encoding::Sse, false), format!("id: {id}\ndata: hi\n\n"));
        let envelope =
            format!(r#"{{"type":"message","channel":"a","id":"{id}","time":1234,"data":"hi"}}"#);
        assert_eq!(text(Encoding::LineEnvelope, false), envelope.clone() + "\n");
        assert_eq!(text(Encoding::SseEnvelope, false), format!("id: {id}\ndata: {envelope}\n\n"));
        assert!(text(Encoding::WebSocketEnvelope, false).ends_with(&envelope));
    }

    #[test]
    fn bytes_are_a_binary_frame_and_a_named_event() {
        let bytes = |encoding| encoded(encoding, Body::Binary([0xff, 0].into()), false);
        assert!(bytes(Encoding::WebSocket).starts_with('\u{fffd}'));
        assert_eq!(message(Body::Binary([0].into())).content_type(), "application/octet-stream");
        assert!(bytes(Encoding::Sse).ends_with("event: binary\ndata: /wA=\n\n"));
    }

    #[test]
    fn an_encoding_is_made_once() {
        let message = message(Body::Text("hi".into()));
        let first = Encoding::Line.encode(&message, true).as_ptr();
        assert_eq!(Encoding::Line.encode(&message, true).as_ptr(), first);
    }
}
