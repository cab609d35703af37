//! What a WebSocket client sends.

use throng_core::{Action, Body, Counter, Kind, Publication, PublishError};
use throng_wire::ErrorCode;
use throng_wire::websocket::{Event, Opcode, Reader, Step, write_frame};

use super::Worker;
use super::close::Farewell;
use crate::close_reason::CloseReason;
use crate::connection::{Flags, State};
use crate::net::Net;

/// How much larger than a message a command of `throng.v1` may be: its JSON may escape every byte
/// of a body as six.
const COMMAND_FACTOR: usize = 6;
/// And room for its other fields, in bytes.
const COMMAND_SLACK_BYTES: usize = 4096;

impl<N: Net> Worker<N> {
    /// Handles frames. Returns how many bytes were consumed; all of them if nothing more counts.
    pub(super) fn frames(&mut self, index: u32, bytes: &mut [u8]) -> usize {
        let Some(connection) = self.connections.get_mut(index) else { return bytes.len() };
        if connection.has(Flags::PEER_CLOSED) {
            return bytes.len();
        }
        let bytes_max = match connection.has(Flags::V1) {
            true => self.settings.max_message_bytes * COMMAND_FACTOR + COMMAND_SLACK_BYTES,
            false => self.settings.max_message_bytes,
        };
        let io = connection.io.as_mut();
        let mut reader = io.map(|io| std::mem::take(&mut io.reader)).unwrap_or_default();
        let mut at = 0;
        let mut is_new = reader.is_idle();
        while self.steps > 0 {
            self.steps -= 1;
            match reader.next(&mut bytes[at..], bytes_max) {
                Ok(Step::Incomplete { consumed }) => {
                    at += consumed;
                    break;
                }
                Ok(Step::Fragment { consumed }) => at += consumed,
                Ok(Step::Event { event, consumed }) => {
                    at += consumed;
                    is_new |= matches!(event, Event::Message { .. });
                    self.event(index, event);
                }
                Err(violation) => {
                    self.close_websocket(index, CloseReason::Violation(violation));
                }
            }
            let connection = self.connections.get(index);
            let listens = |it: &crate::connection::Connection<N::Socket>| {
                it.state == State::Parked && !it.has(Flags::PEER_CLOSED)
            };
            if !connection.is_some_and(listens) {
                return bytes.len();
            }
        }
        self.keep_reader(index, reader, is_new);
        at
    }

    /// Keeps what has come of a message; `is_new` says that it began only now.
    fn keep_reader(&mut self, index: u32, reader: Reader, is_new: bool) {
        if let Some(connection) = self.connections.get_mut(index)
            && !reader.is_idle()
        {
            let io = connection.io_mut();
            io.reader = reader;
            if is_new {
                io.message_since = self.now.tick;
            }
        }
    }

    fn event(&mut self, index: u32, event: Event<'_>) {
        match event {
            Event::Message { is_text, payload } => self.message(index, is_text, &payload),
            Event::Ping(payload) => {
                let mut pong = Vec::with_capacity(payload.len() + 2);
                write_frame(&mut pong, Opcode::Pong, payload);
                self.send(index, &pong);
            }
            Event::Pong => {}
            Event::Close { code, .. } => {
                let Some(connection) = self.connections.get_mut(index) else { return };
                connection.flags.set(Flags::PEER_CLOSED, true);
                let token = Self::token(index, connection.generation);
                self.farewells.push(Farewell { token, code });
            }
        }
    }

    fn message(&mut self, index: u32, is_text: bool, payload: &[u8]) {
        let Some(connection) = self.connections.get(index) else { return };
        let text = is_text.then(|| std::str::from_utf8(payload).unwrap_or_default());
        match (connection.has(Flags::V1), text) {
            (true, Some(text)) => self.command(index, text),
            (true, None) => self.close_websocket(index, CloseReason::BinaryCommand),
            (false, Some(text)) => self.publish_frame(index, Body::Text(text.into())),
            (false, None) => self.publish_frame(index, Body::Binary(payload.into())),
        }
    }

    /// A plain frame is published to the connection's channel.
    fn publish_frame(&mut self, index: u32, body: Body) {
        let Some(connection) = self.connections.get(index) else { return };
        let mut own = self.subscriptions_in_order(index).into_iter();
        let channel = own.next().and_then(|first| self.subscriptions.channel(first));
        // A user that a channel's URL names besides does not make the channel less clear.
        let is_clear = !connection.has(Flags::MULTIPLE)
            || own
                .all(|other| self.subscriptions.channel(other).is_some_and(|(_, is_user)| is_user));
        let name = channel.and_then(|(channel, _)| self.engine.name(channel));
        let Some(name) = name.filter(|name| is_clear || name.kind() == Kind::User) else {
            let message =
                "this connection follows several channels: publish with throng.v1 or over HTTP";
            let reason = CloseReason::Refused(ErrorCode::BadRequest);
            return self.close_websocket_with(index, reason, message);
        };
        if let Err(error) = self.permit(index, Action::Publish(&name)) {
            let reason = CloseReason::Refused(error.code);
            return self.close_websocket_with(index, reason, &error.message);
        }
        let publication = Publication {
            channel: name,
            body,
            content_type: None,
            idempotency_key: None,
            excluded: None,
        };
        match self.engine.publish(self.now.unix_ms, publication) {
            Ok(_) => self.count(Counter::Published),
            Err(PublishError::Busy) => {
                self.count(Counter::RefusedBusy);
                self.close_overloaded(index, "delivery is behind, the message was not accepted");
            }
        }
    }
}
