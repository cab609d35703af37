//! How a message looks on a connection: encoded once per way, by the first who needs it.

use throng_core::{Body, Message};
use throng_wire::websocket::{Opcode, write_frame};
use throng_wire::{chunk, sse};

/// A way to frame messages. The number is the message's encoding slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Framing {
    /// A WebSocket frame with exactly what was published.
    WebSocket,
    /// A WebSocket text frame with an envelope.
    WebSocketEnvelope,
    /// An event in a chunk.
    Sse,
    /// An event with an envelope, in a chunk.
    SseEnvelope,
    /// A line in a chunk.
    Line,
    /// An envelope as a line, in a chunk.
    LineEnvelope,
}

const _: () = assert!(Framing::LineEnvelope as usize + 1 == throng_core::message::ENCODINGS);

impl Framing {
    /// Whether messages travel in envelopes.
    pub fn is_envelope(self) -> bool {
        matches!(self, Framing::WebSocketEnvelope | Framing::SseEnvelope | Framing::LineEnvelope)
    }

    /// The message as it goes over the wire; `is_chunked` concerns SSE and lines only.
    pub fn encode(self, message: &Message, is_chunked: bool) -> &[u8] {
        let bytes = message.encoding(self as usize, |message| self.write(message));
        match self {
            Framing::WebSocket | Framing::WebSocketEnvelope => bytes,
            _ if is_chunked => bytes,
            _ => chunk::inner(bytes),
        }
    }

    fn write(self, message: &Message) -> Vec<u8> {
        let mut out = Vec::with_capacity(message.body.bytes().len() + 16);
        match self {
            Framing::WebSocket => {
                let opcode = match message.body {
                    Body::Binary(_) => Opcode::Binary,
                    Body::Text(_) | Body::Json(_) => Opcode::Text,
                };
                write_frame(&mut out, opcode, message.body.bytes());
            }
            Framing::WebSocketEnvelope => write_frame(&mut out, Opcode::Text, &envelope(message)),
            Framing::Sse => chunk::write_chunk(&mut out, &event(message)),
            Framing::SseEnvelope => {
                let mut inner = Vec::new();
                sse::write_event(
                    &mut inner,
                    Some(&message.id.to_string()),
                    None,
                    &envelope(message),
                );
                chunk::write_chunk(&mut out, &inner);
            }
            Framing::Line => {
                let mut inner = message.body.bytes().to_vec();
                inner.push(b'\n');
                chunk::write_chunk(&mut out, &inner);
            }
            Framing::LineEnvelope => {
                let mut inner = envelope(message);
                inner.push(b'\n');
                chunk::write_chunk(&mut out, &inner);
            }
        }
        out
    }
}

fn envelope(message: &Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.body.bytes().len() + 128);
    message.write_envelope(&mut out);
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
