//! Publishes by WebSocket frames, on a connection that opens like a subscriber's.
//!
//! Received messages are dropped. Pings of WebSocket and of protocols are answered.

use std::sync::Arc;

use throng_wire::websocket::{Opcode, write_masked_frame};

use super::request::RequestBuilder;
use crate::clients::request::MASK;
use crate::failure::Failure;
use crate::plan::Streams;
use crate::protocol::http::ResponseHead;
use crate::protocol::{self, Event, Framing, PartialMessage, refusal};
use crate::random::random;
use crate::template::TemplateValues;

/// A WebSocket connection, from its handshake on.
#[derive(Debug)]
pub(super) struct WebSocket {
    builder: Arc<RequestBuilder>,
    /// The number of the client that it connects as.
    client: usize,
    /// How many messages were sent; each has its own mask.
    messages: u64,
    is_open: bool,
    is_ready: bool,
    /// A response head that has not arrived completely.
    head: Vec<u8>,
    /// A message that has not arrived completely.
    partial: Option<Box<PartialMessage>>,
}

impl WebSocket {
    /// The publishing connection with this number.
    pub(super) fn new(builder: Arc<RequestBuilder>, number: usize) -> WebSocket {
        let client = builder.first_client + number;
        let (head, partial) = (Vec::new(), None);
        WebSocket { builder, client, messages: 0, is_open: false, is_ready: false, head, partial }
    }

    /// Appends the handshake request.
    pub(super) fn write_handshake(&self, out: &mut Vec<u8>) {
        self.builder.requests.write(&self.values(), None, out);
    }

    /// Appends the frame of a payload.
    pub(super) fn write_message(&mut self, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
        let mut text = Vec::with_capacity(payload.len() + 64);
        self.builder.write_frame_text(stream, payload, &mut text);
        // Masks protect proxies from web pages; there is none here.
        let mask = (random(self.client as u64, self.messages) as u32).to_be_bytes();
        self.messages += 1;
        write_masked_frame(out, Opcode::Text, &text, mask);
    }

    /// Takes received bytes, and appends the replies to them. Returns whether they complete the
    /// subscription, so that the first message can be sent.
    pub(super) fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<bool, Failure> {
        let was_ready = self.is_ready;
        if self.is_open {
            self.take_frames(bytes, out)?;
        } else {
            self.head.extend_from_slice(bytes);
            if let Some(head_bytes) = self.read_head()? {
                self.is_open = true;
                self.is_ready = self.builder.requests.joined_by.is_none();
                self.builder.requests.write_hello(&self.values(), out);
                let head = std::mem::take(&mut self.head);
                self.take_frames(&head[head_bytes..], out)?;
            }
        }
        Ok(self.is_ready && !was_ready)
    }

    /// The length of the head, once it is complete. The error is the rejection in a response with
    /// another status than 101, once that has arrived.
    fn read_head(&self) -> Result<Option<usize>, Failure> {
        let head = ResponseHead::parse(&self.head).map_err(Failure::Handshake)?;
        let Some(head) = head else { return Ok(None) };
        if head.status != 101 {
            let refusal = refusal::of_response(&head, &self.head[head.bytes..]);
            return refusal.map_or(Ok(None), Err);
        }
        self.builder.requests.check_accept(&head).map(|()| Some(head.bytes))
    }

    fn take_frames(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let framing = Framing::WebSocket { may_compress: false };
        let (requests, is_ready) = (&self.builder.requests, &mut self.is_ready);
        let mut next = Ok(());
        let fed = protocol::feed(framing, &mut self.partial, bytes, &mut |event| match event {
            _ if next.is_err() => {}
            Event::Ping(payload) => write_masked_frame(out, Opcode::Pong, payload, MASK),
            Event::Close(code, _) => next = Err(Failure::Closed(code)),
            Event::Message(text) => {
                let joined_by = requests.joined_by.as_ref();
                *is_ready |= joined_by.is_some_and(|part| part.find(text).is_some());
                if !*is_ready {
                    next = requests.check_refusal(text);
                }
                requests.answers(text).iter().for_each(|answer| out.extend_from_slice(answer));
            }
            _ => {}
        });
        next.and(fed.map_err(Failure::Protocol))
    }

    fn values(&self) -> TemplateValues<'static> {
        let stream = match self.builder.streams {
            Streams::One => 0,
            Streams::Spread(streams) => self.client % streams.max(1) as usize,
            // A stream above those of the subscribers, so that none is taken from them.
            Streams::Own | Streams::Friends { .. } => self.client,
        };
        let stream = u32::try_from(stream).unwrap_or_default();
        let (client, run) = (self.client, self.builder.run);
        TemplateValues { client, run, stream, ..TemplateValues::default() }
    }
}
