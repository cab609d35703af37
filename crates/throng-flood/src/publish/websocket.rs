//! Publishing by WebSocket frames: a connection that is made like a subscriber's, and speaks.
//!
//! What it hears is dropped, but for what keeps it alive: pings of both kinds are answered.

use std::io::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use throng_wire::websocket::{Opcode, accept_key, parse_server_frame, write_masked_frame};

use super::random::random;
use super::recipe::{Place, Recipe};
use crate::plan::{Streams, Subscribed};
use crate::protocol::http::Head;
use crate::refusal;
use crate::tally::Failure;
use crate::template::Values;

/// More than the head of any answer to a handshake.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// More than any server sends.
const HEADERS_MAX: usize = 64;

/// The largest frame that is listened to.
const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The first message can be sent.
    Ready,
    /// Nothing that matters.
    Nothing,
}

/// One connection, from its handshake on.
#[derive(Debug)]
pub struct WebSocket {
    recipe: Arc<Recipe>,
    /// As which client it connects.
    client: usize,
    key: String,
    /// Messages sent: each has a mask of its own.
    messages: u64,
    is_open: bool,
    is_ready: bool,
    /// Received and not understood yet.
    held: Vec<u8>,
}

impl WebSocket {
    /// The publishing connection of this number.
    pub fn new(recipe: Arc<Recipe>, number: usize) -> WebSocket {
        let client = recipe.first_client + number;
        let word = |index| random(u64::from(recipe.run), client as u64 * 2 + index).to_be_bytes();
        let key = STANDARD.encode([word(0), word(1)].concat());
        let held = Vec::new();
        WebSocket { recipe, client, key, messages: 0, is_open: false, is_ready: false, held }
    }

    /// Appends the request.
    pub fn write_handshake(&self, out: &mut Vec<u8>) {
        let target = &self.recipe.target;
        let values = self.values();
        let url = target.url.rendered(&values);
        let Some(place) = Place::of(&url) else { return };
        // Writing to a `Vec` cannot fail, here and below.
        let _ = write!(
            out,
            "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {}\r\nSec-WebSocket-Version: 13\r\n",
            place.path, place.authority, self.key
        );
        if let Some(subprotocol) = &target.subprotocol {
            let _ = write!(out, "Sec-WebSocket-Protocol: {subprotocol}\r\n");
        }
        for (name, value) in &target.headers {
            let _ = write!(out, "{name}: ");
            value.render(&values, out);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Appends the frame that publishes a payload.
    pub fn write_message(&mut self, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
        let mut text = Vec::with_capacity(payload.len() + 64);
        self.recipe.write_frame_text(stream, payload, &mut text);
        self.write_frame(Opcode::Text, &text, out);
    }

    /// Takes what was received; appends what is to be answered.
    pub fn hear(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Heard, Failure> {
        let was_ready = self.is_ready;
        self.held.extend_from_slice(bytes);
        if !self.is_open && self.read_head()? {
            self.is_open = true;
            self.is_ready = self.recipe.target.subscribed == Subscribed::Handshake;
            self.greet(out);
        }
        if self.is_open {
            self.read_frames(out)?;
        }
        Ok(if self.is_ready && !was_ready { Heard::Ready } else { Heard::Nothing })
    }

    fn greet(&mut self, out: &mut Vec<u8>) {
        let recipe = Arc::clone(&self.recipe);
        for hello in &recipe.target.hello {
            let text = hello.rendered(&self.values());
            self.write_frame(Opcode::Text, text.as_bytes(), out);
        }
    }

    /// Whether the head is there, and takes it away.
    fn read_head(&mut self) -> Result<bool, Failure> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let head_bytes = match response.parse(&self.held) {
            Ok(httparse::Status::Complete(bytes)) => bytes,
            Ok(httparse::Status::Partial) if self.held.len() < HEAD_BYTES_MAX => return Ok(false),
            Ok(httparse::Status::Partial) => {
                return Err(Failure::Handshake("the head of the answer does not end"));
            }
            Err(_) => return Err(Failure::Handshake("the answer is not HTTP")),
        };
        if response.code != Some(101) {
            return self.refusal().map_or(Ok(false), Err);
        }
        let accept = accept_key(self.key.as_bytes());
        let is_accepted = response.headers.iter().any(|header| {
            header.name.eq_ignore_ascii_case("sec-websocket-accept")
                && header.value.trim_ascii() == accept
        });
        if !is_accepted {
            return Err(Failure::Handshake("Sec-WebSocket-Accept is wrong"));
        }
        self.held.drain(..head_bytes);
        Ok(true)
    }

    /// What the server says with another status than 101, as soon as it has said it.
    fn refusal(&self) -> Option<Failure> {
        match Head::parse(&self.held) {
            Ok(Some(head)) => refusal::of_answer(&head, &self.held[head.bytes..]),
            Ok(None) => None,
            Err(wrong) => Some(Failure::Handshake(wrong)),
        }
    }

    fn read_frames(&mut self, out: &mut Vec<u8>) -> Result<(), Failure> {
        let held = std::mem::take(&mut self.held);
        let mut rest = &held[..];
        while let Some(frame) =
            parse_server_frame(rest).map_err(|_| Failure::Protocol("not a frame"))?
        {
            let payload = &rest[frame.payload.clone()];
            match frame.opcode {
                Opcode::Ping => self.write_frame(Opcode::Pong, payload, out),
                Opcode::Close => {
                    let code = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
                    return Err(Failure::Closed(code));
                }
                Opcode::Text | Opcode::Binary => self.on_message(payload, out)?,
                Opcode::Continuation | Opcode::Pong => {}
            }
            rest = &rest[frame.length..];
        }
        if rest.len() > FRAME_BYTES_MAX {
            return Err(Failure::Protocol("a frame is too large"));
        }
        self.held = rest.to_vec();
        Ok(())
    }

    fn on_message(&mut self, text: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let recipe = Arc::clone(&self.recipe);
        if let Subscribed::Message(part) = &recipe.target.subscribed
            && memchr::memmem::find(text, part.as_bytes()).is_some()
        {
            self.is_ready = true;
        }
        if !self.is_ready {
            let mut refused = recipe.target.refused.iter();
            let refusal = refused.find_map(|refusal| Failure::said(text, refusal));
            refusal.map_or(Ok(()), Err)?;
        }
        // Several messages may come as the lines of one frame.
        let answer_to = |line| recipe.target.pings.iter().find(|ping| ping.ask.as_bytes() == line);
        let lines = text.split(|&byte| byte == b'\n').filter_map(answer_to);
        for ping in lines {
            self.write_frame(Opcode::Text, ping.answer.as_bytes(), out);
        }
        Ok(())
    }

    fn write_frame(&mut self, opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
        // Masks protect proxies from what pages can make a browser send: there is no page here.
        let mask = (random(self.client as u64, self.messages) as u32).to_be_bytes();
        self.messages += 1;
        write_masked_frame(out, opcode, payload, mask);
    }

    fn values(&self) -> Values<'static> {
        let stream = match self.recipe.target.streams {
            Streams::One => 0,
            Streams::Spread(streams) => self.client % streams.max(1) as usize,
            // Behind the last subscriber's, so that none is taken away from it.
            Streams::Own | Streams::Friends { .. } => self.client,
        };
        let stream = u32::try_from(stream).unwrap_or_default();
        Values { client: self.client, run: self.recipe.run, stream, ..Values::default() }
    }
}
