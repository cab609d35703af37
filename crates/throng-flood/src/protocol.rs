//! Decoders for what servers send: bytes in, events out, no I/O.
//!
//! # Layout
//!
//! | module | what it is |
//! | module | contents |
//! | [`http`] | response heads |
//! | [`chunked`] | chunked transfer coding |
//! | [`url`] | `http://` and `ws://` URLs |
//! | [`sse`] | blocks of an event stream |
//! | [`websocket`] | WebSocket frames and messages |
//! | [`poll`] | responses to long-polls |
//! | [`refusal`] | the text of a rejection |
//!
//! # Invariants
//!
//! * How the input is split does not change the events.
//! * Between messages nothing is kept: [`feed`] leaves `None`.
//! * Nothing grows beyond [`MESSAGE_BYTES_MAX`], and no input makes a decoder panic.

pub mod chunked;
pub mod http;
pub mod poll;
pub mod refusal;
pub mod sse;
pub mod url;
pub mod websocket;

use std::borrow::Cow;

use memchr::memchr;

use chunked::{Chunked, Piece};

/// The largest message or response that is assembled from parts: well above what push servers
/// send, and a limit for a server that floods.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// How to decode a subscribed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// WebSocket frames.
    WebSocket,
    /// An event stream, chunked or up to the end of the connection.
    Sse {
        /// Whether it is chunked.
        is_chunked: bool,
    },
    /// One message per line, chunked or up to the end of the connection.
    Lines {
        /// Whether it is chunked.
        is_chunked: bool,
    },
    /// Responses to long-polls.
    Poll,
}

/// What was received.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A message.
    Message(&'a [u8]),
    /// The id to resume after. It follows its message.
    Id(&'a [u8]),
    /// A heartbeat that needs no answer: a pong, a comment of an event stream, an empty line of a
    /// stream.
    Heartbeat,
    /// A WebSocket ping, which is answered with its payload.
    Ping(&'a [u8]),
    /// The server closes the WebSocket, perhaps with a code.
    Close(Option<u16>),
    /// The end of the body.
    End,
    /// A response to a long-poll.
    Answer(poll::Answer<'a>),
}

/// The state of a message that has not arrived completely.
#[derive(Debug, Default)]
pub struct Partial {
    /// Bytes that are not decoded yet.
    kept: Vec<u8>,
    decoder: Decoder,
}

/// The state of the decoder.
#[derive(Debug, Default)]
struct Decoder {
    /// The message so far: fragments, or lines that chunks have split.
    message: Vec<u8>,
    /// Whether a fragmented message has started, which may be empty so far.
    is_in_message: bool,
    chunked: Chunked,
}

/// Decodes received bytes, and keeps the state of a partial message in `half`.
pub fn feed(
    framing: Framing,
    partial: &mut Option<Box<Partial>>,
    bytes: &[u8],
    sink: &mut impl FnMut(Event<'_>),
) -> Result<(), &'static str> {
    if let Some(mut held) = partial.take() {
        held.kept.extend_from_slice(bytes);
        let used = held.decoder.decode(framing, &held.kept, sink)?;
        held.kept.drain(..used);
        check_length(held.kept.len())?;
        if !held.kept.is_empty() || !held.decoder.is_idle() {
            *partial = Some(held);
        }
        return Ok(());
    }
    let mut decoder = Decoder::default();
    let used = decoder.decode(framing, bytes, sink)?;
    if used < bytes.len() || !decoder.is_idle() {
        *partial = Some(Box::new(Partial { kept: bytes[used..].to_vec(), decoder }));
    }
    Ok(())
}

fn check_length(bytes: usize) -> Result<(), &'static str> {
    if bytes > MESSAGE_BYTES_MAX { Err("the message is too long") } else { Ok(()) }
}

impl Decoder {
    fn is_idle(&self) -> bool {
        self.message.is_empty() && !self.is_in_message && self.chunked.is_idle()
    }

    /// Decodes, and returns how many bytes were used.
    fn decode(
        &mut self,
        framing: Framing,
        bytes: &[u8],
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, &'static str> {
        match framing {
            Framing::WebSocket => {
                websocket::decode(&mut self.message, &mut self.is_in_message, bytes, sink)
            }
            Framing::Poll => poll::decode(bytes, sink),
            Framing::Sse { is_chunked } => self.body(is_chunked, sse_events, bytes, sink),
            Framing::Lines { is_chunked } => self.body(is_chunked, lines, bytes, sink),
        }
    }

    /// Uses all bytes: partial messages are in `message` and `chunked`.
    fn body<S: FnMut(Event<'_>)>(
        &mut self,
        is_chunked: bool,
        decode: fn(&[u8], &mut S) -> usize,
        bytes: &[u8],
        sink: &mut S,
    ) -> Result<usize, &'static str> {
        if !is_chunked {
            self.content(decode, bytes, sink)?;
            return Ok(bytes.len());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let (piece, after) = self.chunked.next(rest)?;
            rest = after;
            match piece {
                Piece::Data(data) => self.content(decode, data, sink)?,
                Piece::End => {
                    sink(Event::End);
                    break;
                }
                Piece::None => {}
            }
        }
        Ok(bytes.len())
    }

    fn content<S: FnMut(Event<'_>)>(
        &mut self,
        decode: fn(&[u8], &mut S) -> usize,
        data: &[u8],
        sink: &mut S,
    ) -> Result<(), &'static str> {
        if self.message.is_empty() {
            let used = decode(data, sink);
            self.message.extend_from_slice(&data[used..]);
        } else {
            self.message.extend_from_slice(data);
            let used = decode(&self.message, sink);
            self.message.drain(..used);
        }
        check_length(self.message.len())
    }
}

fn sse_events<S: FnMut(Event<'_>)>(bytes: &[u8], sink: &mut S) -> usize {
    sse::decode(bytes, &mut |part| {
        let block = match part {
            sse::Part::Comment => return sink(Event::Heartbeat),
            sse::Part::Block(block) => block,
        };
        let fields = sse::Fields::of(block);
        if let Some(data) = &fields.data {
            sink(Event::Message(data));
        }
        if let Some(id) = fields.id {
            sink(Event::Id(id));
        }
    })
}

/// Empty lines are heartbeats.
fn lines<S: FnMut(Event<'_>)>(bytes: &[u8], sink: &mut S) -> usize {
    let mut used = 0;
    while let Some(length) = memchr(b'\n', &bytes[used..]) {
        let line = &bytes[used..used + length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        sink(if line.is_empty() { Event::Heartbeat } else { Event::Message(line) });
        used += length + 1;
    }
    used
}

/// Joins parts with line feeds, without copying if there is one.
fn joined<'a>(before: Option<Cow<'a, [u8]>>, part: &'a [u8]) -> Cow<'a, [u8]> {
    match before {
        None => Cow::Borrowed(part),
        Some(before) => {
            let mut all = before.into_owned();
            all.push(b'\n');
            all.extend_from_slice(part);
            Cow::Owned(all)
        }
    }
}

#[cfg(test)]
mod tests;
