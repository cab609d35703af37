//! Publishes by WebSocket frames, on a connection that opens like a subscriber's.
//!
//! Received messages are dropped. Pings of WebSocket and of protocols are answered.

use std::io::Write as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use throng_wire::websocket::{Opcode, accept_key, parse_server_frame, write_masked_frame};

use super::request::RequestBuilder;
use crate::failure::Failure;
use crate::plan::{Streams, Subscribed};
use crate::protocol::http::ResponseHead;
use crate::protocol::refusal;
use crate::protocol::url::HttpUrl;
use crate::random::random;
use crate::template::TemplateValues;

/// The header that asks for a sub-protocol.
const SUBPROTOCOL: &str = "Sec-WebSocket-Protocol";

/// The largest frame that is received.
const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A WebSocket connection, from its handshake on.
#[derive(Debug)]
pub(super) struct WebSocket {
    builder: Arc<RequestBuilder>,
    /// The number of the client that it connects as.
    client: usize,
    key: String,
    /// How many messages were sent; each has its own mask.
    messages: u64,
    is_open: bool,
    is_ready: bool,
    /// Received bytes that are not decoded yet.
    received: Vec<u8>,
}

impl WebSocket {
    /// The publishing connection with this number.
    pub(super) fn new(builder: Arc<RequestBuilder>, number: usize) -> WebSocket {
        let client = builder.first_client + number;
        let word = |index| random(u64::from(builder.run), client as u64 * 2 + index).to_be_bytes();
        let key = STANDARD.encode([word(0), word(1)].concat());
        let received = Vec::new();
        WebSocket { builder, client, key, messages: 0, is_open: false, is_ready: false, received }
    }

    /// Appends the handshake request.
    pub(super) fn write_handshake(&self, out: &mut Vec<u8>) {
        let target = &self.builder.target;
        let values = self.values();
        let url = target.url.rendered(&values);
        let Some(place) = HttpUrl::parse(&url) else { return };
        // Writing to a `Vec` cannot fail, here and below.
        let _ = write!(
            out,
            "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {}\r\nSec-WebSocket-Version: 13\r\n",
            place.path, place.authority, self.key
        );
        let subprotocol = target.subprotocol.iter().map(|value| (SUBPROTOCOL, value));
        let headers = target.headers.iter().map(|(name, value)| (name.as_str(), value));
        for (name, value) in subprotocol.chain(headers) {
            let _ = write!(out, "{name}: ");
            value.render(&values, out);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Appends the frame of a payload.
    pub(super) fn write_message(&mut self, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
        let mut text = Vec::with_capacity(payload.len() + 64);
        self.builder.write_frame_text(stream, payload, &mut text);
        self.write_frame(Opcode::Text, &text, out);
    }

    /// Takes received bytes, and appends the replies to them. Returns whether they complete the
    /// subscription, so that the first message can be sent.
    pub(super) fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<bool, Failure> {
        let was_ready = self.is_ready;
        self.received.extend_from_slice(bytes);
        if !self.is_open && self.read_head()? {
            self.is_open = true;
            self.is_ready = self.builder.target.subscribed == Subscribed::Handshake;
            self.greet(out);
        }
        if self.is_open {
            self.read_frames(out)?;
        }
        Ok(self.is_ready && !was_ready)
    }

    fn greet(&mut self, out: &mut Vec<u8>) {
        let builder = Arc::clone(&self.builder);
        for hello in &builder.target.hello {
            let text = hello.rendered(&self.values());
            self.write_frame(Opcode::Text, text.as_bytes(), out);
        }
    }

    /// Reads and removes the head. Returns whether it was complete. The error is the rejection in
    /// a response with another status than 101, once that has arrived.
    fn read_head(&mut self) -> Result<bool, Failure> {
        let head = ResponseHead::parse(&self.received).map_err(Failure::Handshake)?;
        let Some(head) = head else { return Ok(false) };
        if head.status != 101 {
            let refusal = refusal::of_response(&head, &self.received[head.bytes..]);
            return refusal.map_or(Ok(false), Err);
        }
        let accept = accept_key(self.key.as_bytes());
        if head.header("sec-websocket-accept").map(|value| value.trim().as_bytes()) != Some(&accept)
        {
            return Err(Failure::Handshake("Sec-WebSocket-Accept is wrong"));
        }
        let bytes = head.bytes;
        self.received.drain(..bytes);
        Ok(true)
    }

    fn read_frames(&mut self, out: &mut Vec<u8>) -> Result<(), Failure> {
        let received = std::mem::take(&mut self.received);
        let mut rest = &received[..];
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
        self.received = rest.to_vec();
        Ok(())
    }

    fn on_message(&mut self, text: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let builder = Arc::clone(&self.builder);
        if let Subscribed::Message(part) = &builder.target.subscribed
            && memchr::memmem::find(text, part.as_bytes()).is_some()
        {
            self.is_ready = true;
        }
        if !self.is_ready {
            let mut refused = builder.target.refused.iter();
            let refusal = refused.find_map(|mark| refusal::containing(text, mark));
            refusal.map_or(Ok(()), Err)?;
        }
        // One frame may contain several messages, one per line.
        let answer_to = |line| builder.target.pings.iter().find(|ping| ping.ask.as_bytes() == line);
        let lines = text.split(|&byte| byte == b'\n').filter_map(answer_to);
        for ping in lines {
            self.write_frame(Opcode::Text, ping.answer.as_bytes(), out);
        }
        Ok(())
    }

    fn write_frame(&mut self, opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
        // Masks protect proxies from web pages; there is none here.
        let mask = (random(self.client as u64, self.messages) as u32).to_be_bytes();
        self.messages += 1;
        write_masked_frame(out, opcode, payload, mask);
    }

    fn values(&self) -> TemplateValues<'static> {
        let stream = match self.builder.target.streams {
            Streams::One => 0,
            Streams::Spread(streams) => self.client % streams.max(1) as usize,
            // A stream above those of the subscribers, so that none is taken from them.
            Streams::Own | Streams::Friends { .. } => self.client,
        };
        let stream = u32::try_from(stream).unwrap_or_default();
        TemplateValues {
            client: self.client,
            run: self.builder.run,
            stream,
            ..TemplateValues::default()
        }
    }
}
