//! Decoders for what servers send: bytes in, events out, no I/O.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | this one | [`feed`], which keeps the state of a partial message |
//! | `event` | what decoders report |
//! | [`http`] | response heads |
//! | [`chunked`] | chunked transfer coding |
//! | [`url`] | `http://` and `ws://` URLs |
//! | [`sse`] | blocks of an event stream |
//! | [`websocket`] | WebSocket frames and messages |
//! | `responses` | plain responses, to long-polls and publishes |
//! | [`refusal`] | the text of a rejection |
//!
//! # Invariants
//!
//! * How the input is split does not change the events.
//! * Between messages nothing is kept: [`feed`] leaves `None`.
//! * Nothing grows beyond `event::MESSAGE_BYTES_MAX`, and no input makes a decoder panic.

pub(crate) mod chunked;
mod event;
pub(crate) mod http;
pub(crate) mod moment;
pub(crate) mod refusal;
mod responses;
mod sse;
pub(crate) mod url;
mod websocket;

use memchr::memchr;

use chunked::{Chunked, Piece};
use event::check_length;
pub(crate) use event::{Event, MESSAGE_BYTES_MAX, Response, ResumeHeaders};

/// How to decode a subscribed connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A sequence of WebSocket frames.
    WebSocket {
        /// Whether messages may be compressed.
        may_compress: bool,
    },
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
    /// A sequence of plain responses.
    Responses,
}

/// The state of a message that has not arrived completely.
#[derive(Debug, Default)]
pub(crate) struct PartialMessage {
    /// Bytes that are not decoded yet.
    kept: Vec<u8>,
    decoder: Decoder,
}

/// The state of the decoder.
#[derive(Debug, Default)]
struct Decoder {
    /// The message so far: fragments, or lines that chunks have split.
    message: Vec<u8>,
    /// The fragmented message that has started, which may be empty so far.
    fragmented: Option<websocket::Fragmented>,
    chunked: Chunked,
}

/// Decodes received bytes, and keeps the state of a partial message in `half`.
pub(crate) fn feed(
    framing: Framing,
    partial: &mut Option<Box<PartialMessage>>,
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
        *partial = Some(Box::new(PartialMessage { kept: bytes[used..].to_vec(), decoder }));
    }
    Ok(())
}

/// Decodes the rest of a connection that has ended: a response may end with it.
pub(crate) fn finish(partial: Option<Box<PartialMessage>>, sink: &mut impl FnMut(Event<'_>)) {
    if let Some(partial) = partial {
        responses::decode_last(&partial.kept, sink);
    }
}

impl Decoder {
    fn is_idle(&self) -> bool {
        self.message.is_empty() && self.fragmented.is_none() && self.chunked.is_idle()
    }

    /// Decodes, and returns how many bytes were used.
    fn decode(
        &mut self,
        framing: Framing,
        bytes: &[u8],
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, &'static str> {
        match framing {
            Framing::WebSocket { may_compress } => {
                let half = (&mut self.message, &mut self.fragmented);
                websocket::decode(half, bytes, may_compress, sink)
            }
            Framing::Responses => responses::decode(bytes, sink),
            Framing::Sse { is_chunked } => self.body(is_chunked, sse_events, bytes, sink),
            Framing::Lines { is_chunked } => self.body(is_chunked, lines, bytes, sink),
        }
    }

    /// Partial messages are in `message` and `chunked`. A partial line between chunks is not used.
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
        while let Some((piece, after)) = self.chunked.next(rest)? {
            rest = after;
            match piece {
                Piece::Data(data) => self.content(decode, data, sink)?,
                Piece::End => {
                    sink(Event::End);
                    return Ok(bytes.len());
                }
                Piece::None => {}
            }
        }
        Ok(bytes.len() - rest.len())
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
            sse::SsePart::Comment => return sink(Event::Heartbeat),
            sse::SsePart::Block(block) => block,
        };
        let fields = sse::EventFields::of(block);
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

#[cfg(test)]
mod tests;
