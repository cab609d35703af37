//! Frames of `throng.v1` with several messages.
//!
//! Each message with a compact envelope is made as a frame of its own, `[0,[17,5,"hi"]]`, and
//! shared by all that get it. A frame with several has one header, the same `[0`, and of each of
//! those frames the middle, `,[17,5,"hi"]`, so that nothing is copied.
//!
//! A frame that begins with `[1` asks its client to acknowledge it. The channel decides that, so
//! that the frame of one message can be shared; one with several asks if any of them does.

use throng_wire::websocket::{Opcode, write_frame_head};

/// The payload of a frame before its messages.
const BEGIN: &[u8; 2] = b"[0";

/// The same of a frame that the client is to acknowledge.
const BEGIN_ASKING: &[u8; 2] = b"[1";

/// The payload of a frame after its messages.
pub const END: &[u8] = b"]";

/// Bytes of messages that a frame with several gets, at most.
pub const FRAME_BYTES: usize = 4 << 10;

/// The longest header of a frame.
const HEADER_BYTES_MAX: usize = 10;

/// The bytes of a frame before its messages.
#[derive(Debug, Clone, Copy)]
pub struct Begin {
    bytes: [u8; HEADER_BYTES_MAX + BEGIN.len()],
    length: usize,
}

impl Begin {
    /// Begins a frame with messages of `message_bytes` bytes in all, which `asks` its client to
    /// acknowledge it.
    pub fn of(message_bytes: usize, asks: bool) -> Begin {
        let mut begun = Vec::with_capacity(HEADER_BYTES_MAX + BEGIN.len());
        write_frame_head(&mut begun, Opcode::Text, BEGIN.len() + message_bytes + END.len());
        begun.extend_from_slice(if asks { BEGIN_ASKING } else { BEGIN });
        let mut bytes = [0; HEADER_BYTES_MAX + BEGIN.len()];
        bytes[..begun.len()].copy_from_slice(&begun);
        Begin { bytes, length: begun.len() }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A message in a frame with several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element<'f> {
    /// Its bytes, behind the begin of the frame or the message before.
    pub bytes: &'f [u8],
    /// True if its client is asked to acknowledge it.
    pub asks: bool,
}

/// The message of a frame of its own; `None` if it is no message, and stays a frame of its own.
pub fn element(frame: &[u8]) -> Option<Element<'_>> {
    let header_bytes = match frame.get(1)? & 0x7f {
        126 => 4,
        127 => HEADER_BYTES_MAX,
        _ => 2,
    };
    let (begin, rest) = frame.get(header_bytes..)?.split_first_chunk()?;
    let asks = match begin {
        BEGIN => false,
        BEGIN_ASKING => true,
        _ => return None,
    };
    Some(Element { bytes: rest.strip_suffix(END)?, asks })
}

/// Joins messages that belong to one connection.
#[derive(Debug, Default)]
pub struct Joiner {
    elements: Vec<u8>,
    /// True if one of them asks.
    asks: bool,
}

impl Joiner {
    /// Takes the frame of the next message. Appends what is ready to `out`.
    pub fn add(&mut self, frame: &[u8], out: &mut Vec<u8>) {
        match element(frame) {
            Some(element) => {
                if self.elements.len() + element.bytes.len() > FRAME_BYTES {
                    self.finish(out);
                }
                self.elements.extend_from_slice(element.bytes);
                self.asks |= element.asks;
            }
            None => {
                self.finish(out);
                out.extend_from_slice(frame);
            }
        }
    }

    /// Appends the rest.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.elements.is_empty() {
            let asks = std::mem::take(&mut self.asks);
            out.extend_from_slice(Begin::of(self.elements.len(), asks).bytes());
            out.append(&mut self.elements);
            out.extend_from_slice(END);
        }
    }
}

#[cfg(test)]
mod tests {
    use throng_wire::websocket::{parse_server_frame, write_frame};

    use super::*;

    fn frame(payload: &str) -> Vec<u8> {
        let mut frame = Vec::new();
        write_frame(&mut frame, Opcode::Text, payload.as_bytes());
        frame
    }

    #[test]
    fn messages_of_any_length_are_joined() {
        for length in [0, 50, 100, 110, 120, 130, 4_000, 70_000] {
            let message = format!("[17,5,\"{}\"]", "a".repeat(length));
            let alone = frame(&format!("[0,{message}]"));
            let bytes = format!(",{message}");
            let expected = Element { bytes: bytes.as_bytes(), asks: false };
            assert_eq!(element(&alone), Some(expected), "{length}");
            let (mut joiner, mut out) = (Joiner::default(), Vec::new());
            joiner.add(&alone, &mut out);
            joiner.finish(&mut out);
            assert_eq!(out, alone, "{length}");
        }
        let (mut joiner, mut out) = (Joiner::default(), Vec::new());
        let notice = frame("{\"type\":\"presence\"}");
        for alone in [&frame("[0,[1,2,3]]"), &frame("[0,[1,3,3]]"), &notice, &frame("[0,[1,4,3]]")]
        {
            joiner.add(alone, &mut out);
        }
        joiner.finish(&mut out);
        let expected = [frame("[0,[1,2,3],[1,3,3]]"), notice, frame("[0,[1,4,3]]")].concat();
        assert_eq!(out, expected);
    }

    #[test]
    fn a_frame_asks_if_one_of_its_messages_does() {
        let asking = frame("[1,[17,5,\"hi\"]]");
        let expected = Element { bytes: b",[17,5,\"hi\"]", asks: true };
        assert_eq!(element(&asking), Some(expected));
        let (mut joiner, mut out) = (Joiner::default(), Vec::new());
        for alone in [&frame("[0,[1,2,3]]"), &asking, &frame("{}"), &frame("[0,[1,4,3]]")] {
            joiner.add(alone, &mut out);
        }
        joiner.finish(&mut out);
        let expected =
            [frame("[1,[1,2,3],[17,5,\"hi\"]]"), frame("{}"), frame("[0,[1,4,3]]")].concat();
        assert_eq!(out, expected);
    }

    #[test]
    fn a_joined_frame_has_a_bounded_size() {
        let (mut joiner, mut out) = (Joiner::default(), Vec::new());
        let alone = frame(&format!("[0,[17,5,\"{}\"]]", "a".repeat(90)));
        (0..1000).for_each(|_| joiner.add(&alone, &mut out));
        joiner.finish(&mut out);
        let (mut rest, mut messages) = (&out[..], 0);
        while !rest.is_empty() {
            let frame = parse_server_frame(rest).expect("a frame").expect("all of it");
            assert!(frame.payload.len() <= FRAME_BYTES + BEGIN.len() + END.len());
            let payload = &rest[frame.payload.clone()];
            messages += payload.windows(3).filter(|window| window == b",[1").count();
            rest = &rest[frame.length..];
        }
        assert_eq!(messages, 1000);
    }

    #[test]
    fn what_is_no_message_has_no_element() {
        for other in [&frame("{\"type\":\"pong\"}")[..], &frame("")[..], &[0x81][..], &[][..]] {
            assert_eq!(element(other), None, "{other:?}");
        }
    }
}
