//! What servers send, decoded: bytes in, events out, no I/O.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`http`] | response heads |
//! | [`chunked`] | chunked transfer coding |
//! | [`sse`] | blocks of an event stream |
//! | [`websocket`] | frames, messages and controls |
//! | [`poll`] | whole answers, one after the other |
//!
//! # Invariants
//!
//! * How the input is cut into pieces does not change which events come out of it.
//! * When no message is half read, nothing is kept: [`feed`] leaves `None`.
//! * Nothing kept grows beyond [`MESSAGE_BYTES_MAX`], and no input makes a decoder panic.

pub mod chunked;
pub mod http;
pub mod poll;
pub mod sse;
pub mod websocket;

use std::borrow::Cow;

use memchr::memchr;

use chunked::{Chunked, Piece};

/// The longest message or answer that is put together from pieces: well above what push servers
/// send, and a bound for one that floods back.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// How a subscribed connection's bytes are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Frames.
    WebSocket,
    /// An event stream, in chunks or up to the end of the connection.
    Sse {
        /// Whether in chunks.
        is_chunked: bool,
    },
    /// A message a line, likewise.
    Lines {
        /// Whether in chunks.
        is_chunked: bool,
    },
    /// Whole answers.
    Poll,
}

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A message.
    Message(&'a [u8]),
    /// The id to go on after; the message that it belongs to comes before it.
    Id(&'a [u8]),
    /// One that needs no answer: a pong, a comment of an event stream, an empty line of a stream.
    Heartbeat,
    /// A ping of the protocol, to be answered with the same payload.
    Ping(&'a [u8]),
    /// The server closes the WebSocket, with its code if it gives one.
    Close(Option<u16>),
    /// The body is complete.
    End,
    /// An answer to a long-poll.
    Answer(poll::Answer<'a>),
}

/// What is kept of a message that is half read.
#[derive(Debug, Default)]
pub struct Half {
    /// Not decoded yet.
    kept: Vec<u8>,
    decoder: Decoder,
}

/// Where decoding stands.
#[derive(Debug, Default)]
struct Decoder {
    /// The message so far: fragments, or lines of a body whose chunks cut messages.
    message: Vec<u8>,
    /// Whether a fragmented message has begun, which may be empty so far.
    is_in_message: bool,
    chunked: Chunked,
}

/// Decodes what was received, and keeps what is half read in `half`.
pub fn feed(
    framing: Framing,
    half: &mut Option<Box<Half>>,
    bytes: &[u8],
    sink: &mut impl FnMut(Event<'_>),
) -> Result<(), &'static str> {
    if let Some(mut held) = half.take() {
        held.kept.extend_from_slice(bytes);
        let used = held.decoder.decode(framing, &held.kept, sink)?;
        held.kept.drain(..used);
        check_length(held.kept.len())?;
        if !held.kept.is_empty() || !held.decoder.is_idle() {
            *half = Some(held);
        }
        return Ok(());
    }
    let mut decoder = Decoder::default();
    let used = decoder.decode(framing, bytes, sink)?;
    if used < bytes.len() || !decoder.is_idle() {
        *half = Some(Box::new(Half { kept: bytes[used..].to_vec(), decoder }));
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

    /// Returns how many bytes need not be seen again.
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

    /// All bytes are used: what is half read is in `message` and `chunked`.
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

/// Several parts as one, without copying if there is one.
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
