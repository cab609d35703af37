//! The client's side of HTTP/1.1, chunks, SSE and WebSocket, written from the standards.
//!
//! A [`Decoder`] takes bytes in parts of any size, and returns the pieces that are complete.

pub(crate) mod events;
pub(crate) mod frames;
pub(crate) mod frozen;
pub(crate) mod http;

use crate::{Check, ensure};
use events::{Event, Events};
use frames::Frame;
use http::Head;

/// A complete piece of what the server sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Head(Head),
    /// The body of a response of known length.
    Body(Vec<u8>),
    Frame(Frame),
    Event(Event),
    /// A line of a stream, without its line feed.
    Line(Vec<u8>),
    /// The chunk that ends a body.
    LastChunk,
}

/// The meaning of the next bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Head,
    Body(usize),
    /// WebSocket frames; whether messages may be compressed.
    Frames(bool),
    Chunks(Content),
    /// A body that ends with the connection.
    Plain(Content),
    /// After the last chunk.
    Ended,
}

/// The content of a body of unknown length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Events,
    Lines,
}

#[derive(Debug)]
pub(crate) struct Decoder {
    mode: Mode,
    bytes: Vec<u8>,
    events: Events,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { mode: Mode::Head, bytes: Vec::new(), events: Events::default() }
    }
}

impl Decoder {
    /// Takes more bytes. Returns the pieces that they complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Check<Vec<Piece>> {
        self.bytes.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        let mut at = 0;
        while let Some(consumed) = self.step(at, &mut pieces)? {
            at += consumed;
        }
        self.bytes.drain(..at);
        Ok(pieces)
    }

    /// True if no piece is incomplete.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.bytes.is_empty() && self.events.is_at_rest()
    }

    fn step(&mut self, at: usize, pieces: &mut Vec<Piece>) -> Check<Option<usize>> {
        let rest = &self.bytes[at..];
        if rest.is_empty() {
            return Ok(None);
        }
        match self.mode {
            Mode::Head => {
                let Some((head, length)) = http::head(rest)? else { return Ok(None) };
                self.mode = after(&head)?;
                pieces.push(Piece::Head(head));
                Ok(Some(length))
            }
            Mode::Body(length) => {
                let Some(body) = rest.get(..length) else { return Ok(None) };
                pieces.push(Piece::Body(body.to_vec()));
                self.mode = Mode::Head;
                Ok(Some(length))
            }
            Mode::Frames(may_compress) => {
                let Some((frame, length)) = frames::frame(rest, may_compress)? else {
                    return Ok(None);
                };
                pieces.push(Piece::Frame(frame));
                Ok(Some(length))
            }
            Mode::Chunks(content) => {
                let Some((chunk, length)) = http::chunk(rest)? else { return Ok(None) };
                if chunk.is_empty() {
                    ensure!(self.events.is_at_rest(), "the body ends within an event");
                    pieces.push(Piece::LastChunk);
                    self.mode = Mode::Ended;
                    return Ok(Some(length));
                }
                match content {
                    Content::Events => {
                        pieces.extend(self.events.feed(chunk)?.into_iter().map(Piece::Event))
                    }
                    Content::Lines => {
                        let line = chunk.strip_suffix(b"\n").ok_or("a chunk is not a line")?;
                        pieces.push(Piece::Line(line.to_vec()));
                    }
                }
                Ok(Some(length))
            }
            Mode::Plain(Content::Events) => {
                let length = rest.len();
                pieces.extend(self.events.feed(rest)?.into_iter().map(Piece::Event));
                Ok(Some(length))
            }
            Mode::Plain(Content::Lines) => {
                let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
                    return Ok(None);
                };
                pieces.push(Piece::Line(rest[..end].to_vec()));
                Ok(Some(end + 1))
            }
            Mode::Ended => Err("bytes follow the last chunk".into()),
        }
    }
}

/// The bytes after the head of a response.
fn after(head: &Head) -> Check<Mode> {
    if head.status == 101 {
        return Ok(Mode::Frames(head.header("sec-websocket-extensions").is_some()));
    }
    if head.status == 204 {
        ensure!(head.header("content-length").is_none(), "a 204 with Content-Length");
        return Ok(Mode::Head);
    }
    if let Some(length) = head.header("content-length") {
        let length = length.parse().map_err(|_| format!("Content-Length `{length}`"))?;
        return Ok(if length == 0 { Mode::Head } else { Mode::Body(length) });
    }
    let is_events = head.header("content-type") == Some("text/event-stream");
    let content = if is_events { Content::Events } else { Content::Lines };
    match head.header("transfer-encoding") {
        Some("chunked") => Ok(Mode::Chunks(content)),
        Some(other) => Err(format!("Transfer-Encoding `{other}`")),
        None if head.header("connection") == Some("close") => Ok(Mode::Plain(content)),
        None => Err("a body without a length".into()),
    }
}
