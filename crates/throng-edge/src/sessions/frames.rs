//! WebSocket frames from clients.

use std::iter;
use std::sync::Arc;

use throng_access::{Action, Details};
use throng_core::{Body, ChannelName, Outcome, Publication, PublishError, Replacement};
use throng_dialect::dialect::Heard;
use throng_dialect::{CloseReason, Saying};
use throng_wire::websocket::{
    Event, MessageLimits, Opcode, Reader, Step, write_close, write_frame,
};
use throng_wire::{ErrorCode, ErrorResponse, Labels};

use super::ask::{Stop, draft_of};
use crate::connection::{
    Answers, Asked, Connection, ConnectionId, Flags, Input, PendingClose, State,
};
use crate::counters::Counter;
use crate::net::Net;
use crate::sessions::Sessions;

/// The commands of one message: what is left of it is copied once for each at most.
const COMMANDS_MAX: u32 = 128;

impl<N: Net> Sessions<N> {
    /// Handles frames. Returns the number of bytes consumed; all of them if the rest is ignored.
    pub(crate) fn frames(&mut self, id: ConnectionId, bytes: &mut [u8]) -> usize {
        let connection = &self[id];
        if connection.has(Flags::PEER_CLOSED) {
            return bytes.len();
        }
        let limits = self.message_limits(connection);
        let connection = &mut self[id];
        // Taken out while its events change the worker; `keep_reader` puts it back.
        let io = connection.io.as_mut();
        let mut reader = io.map(|io| std::mem::take(&mut io.reader)).unwrap_or_default();
        let mut at = 0;
        let mut is_new = reader.is_idle();
        while self.budget().has_steps() {
            self.budget().take_step();
            match reader.next(&mut bytes[at..], limits) {
                Ok(Step::Incomplete { consumed }) => {
                    at += consumed;
                    break;
                }
                Ok(Step::Fragment { consumed }) => at += consumed,
                Ok(Step::Event { event, consumed }) => {
                    at += consumed;
                    is_new |= matches!(event, Event::Message { .. });
                    self.event(id, event);
                }
                Err(violation) => {
                    self.close_for(id, CloseReason::Violation(violation));
                }
            }
            let connection = &self[id];
            if connection.state() != State::Streaming || connection.has(Flags::PEER_CLOSED) {
                return bytes.len();
            }
            // Commands are executed in the order in which they came.
            if self.connections().pending(id).is_some() {
                break;
            }
        }
        self.keep_reader(id, reader, is_new);
        at
    }

    /// Limits of the messages that a WebSocket client may send.
    pub(crate) fn message_limits(&self, connection: &Connection<N::Socket>) -> MessageLimits {
        let dialect = connection.encoding().dialect();
        let max_bytes = dialect.max_input_bytes(self.settings.max_message_bytes);
        MessageLimits { max_bytes, may_compress: connection.encoding().has_deflate() }
    }

    /// Keeps a half-read message. `is_new` says that it began in this input: its deadline starts.
    fn keep_reader(&mut self, id: ConnectionId, reader: Reader, is_new: bool) {
        if !reader.is_idle() {
            let tick = self.clock().tick();
            let io = self[id].io_mut();
            io.reader = reader;
            if is_new {
                io.message_since = tick;
            }
        }
    }

    /// Acts on a complete message or control frame.
    fn event(&mut self, id: ConnectionId, event: Event<'_>) {
        match event {
            Event::Message { is_text, is_compressed: false, payload } => {
                self.message(id, is_text, &payload);
            }
            Event::Message { is_text, payload, .. } => self.inflate(id, is_text, &payload),
            Event::Ping(payload) => self.answer_ping(id, payload),
            Event::Pong => {}
            Event::Close { code, .. } => {
                let connection = &mut self[id];
                // The answer waits until the messages of before are written: see `turn`.
                connection.flags.set(Flags::PEER_CLOSED, true);
                let token = connection.token(id);
                self.closes.push(PendingClose { token, code });
            }
        }
    }

    fn answer_ping(&mut self, id: ConnectionId, payload: &[u8]) {
        let mut pong = Vec::with_capacity(payload.len() + 2);
        write_frame(&mut pong, Opcode::Pong, payload);
        let was_written = self[id].has(Flags::WRITTEN);
        self.send(id, &pong);
        let connection = &mut self[id];
        // A client whose dialect has an interval of its own waits for messages: a pong that its
        // library takes spares it no heartbeat.
        if connection.encoding().dialect().heartbeat_interval().is_some() {
            connection.flags.set(Flags::WRITTEN, was_written);
        }
    }

    /// Acts on a compressed message.
    fn inflate(&mut self, id: ConnectionId, is_text: bool, payload: &[u8]) {
        let max_bytes = self.message_limits(&self[id]).max_bytes;
        match self.compression.inflate(payload, is_text, max_bytes) {
            Ok(message) => {
                self.count(Counter::MessagesInflated);
                // A few bytes may be as much work as a long answer.
                self.budget().charge(message.len());
                self.message(id, is_text, &message);
            }
            Err(violation) => {
                self.budget().charge(max_bytes);
                self.close_for(id, CloseReason::Violation(violation));
            }
        }
    }

    fn message(&mut self, id: ConnectionId, is_text: bool, payload: &[u8]) {
        self.hear(id, Input::new(is_text, payload));
    }

    /// Acts on a message. Its commands are executed in the order in which they came, each as a step
    /// of the turn. One that waits keeps the rest, and so does the turn that is spent.
    pub(super) fn hear(&mut self, id: ConnectionId, mut input: Input<&[u8]>) {
        self.begin_replies(id, input.is_text);
        loop {
            input = self.hear_next(id, input, Answers::default());
            if input.bytes.is_empty() || !self.is_listening(id) || !self.budget().has_steps() {
                break;
            }
            self.budget().take_step();
        }
        self.end_replies(id);
        self.keep_unheard(id, input);
    }

    /// Acts on a command that has waited, which `input` begins with, with the answers that it has
    /// had. What is behind it has a turn of its own: this one may belong to another connection, or
    /// be the last before the worker is frozen.
    pub(super) fn hear_again(&mut self, id: ConnectionId, input: Input<&[u8]>, answers: Answers) {
        self.begin_replies(id, input.is_text);
        let rest = self.hear_next(id, input, answers);
        self.end_replies(id);
        self.keep_unheard(id, rest);
    }

    /// Refuses a command that has waited, which `input` begins with. What is behind it has a turn
    /// of its own.
    pub(super) fn refuse_waiting_input(
        &mut self,
        id: ConnectionId,
        input: Input<&[u8]>,
        error: &ErrorResponse,
    ) {
        let (heard, length) = self.understand(id, input);
        if let Heard::Command(received) = heard {
            self.refuse_command(id, received.reference.as_deref(), error);
        }
        self.keep_unheard(id, input.behind(length));
    }

    /// Acts on the first command of `input`. Returns what is behind it.
    fn hear_next<'b>(
        &mut self,
        id: ConnectionId,
        input: Input<&'b [u8]>,
        answers: Answers,
    ) -> Input<&'b [u8]> {
        if input.commands == COMMANDS_MAX {
            let message = "a message has too many commands";
            self.refuse_input(id, CloseReason::Refused(ErrorCode::BadRequest), message);
            return input.behind(input.bytes.len());
        }
        let (heard, length) = self.understand(id, input);
        match heard {
            Heard::Nothing => {}
            Heard::Command(received) => self.command(id, received, input, answers),
            Heard::Confirmed => self.confirmed(id),
            Heard::Message(body) => self.publish_frame(id, body, answers),
            Heard::Refused(reason) => self.refuse_input(id, reason, reason.message()),
        }
        input.behind(length)
    }

    /// The first command of `input`, and the length of its bytes.
    fn understand(&self, id: ConnectionId, input: Input<&[u8]>) -> (Heard, usize) {
        let speaker = self.speaker(id);
        self[id].encoding().dialect().hear(input.bytes, input.is_text, &speaker)
    }

    /// True if the connection's next command can be executed.
    fn is_listening(&self, id: ConnectionId) -> bool {
        self[id].state() == State::Streaming && self.connections().pending(id).is_none()
    }

    /// Keeps the rest of a message for the next turn, unless it has no meaning any more or waits
    /// with the command before it.
    fn keep_unheard(&mut self, id: ConnectionId, rest: Input<&[u8]>) {
        if !rest.bytes.is_empty() && self.is_listening(id) {
            self.wait_for_turn(id, Asked::Input(rest.to_boxed()), Answers::default());
        }
    }

    /// Publishes a frame without `throng.v1` to the connection's channel, if that is allowed, with
    /// the answers that it has had; or lets it wait for the next one.
    pub(crate) fn publish_frame(&mut self, id: ConnectionId, body: Body, mut answers: Answers) {
        let Some(name) = self.own_channel(id) else {
            let message =
                "this connection follows several channels: publish with throng.v1 or over HTTP";
            let reason = CloseReason::Refused(ErrorCode::BadRequest);
            return self.refuse_input(id, reason, message);
        };
        match self.permit_frame(id, &name, &body, &mut answers) {
            Ok(()) => {
                let own = || Replacement { body, content_type: None };
                let content = answers.replacement.map_or_else(own, Arc::unwrap_or_clone);
                self.publish_to(id, name, content);
            }
            Err(Stop::Refused(error)) => self.refuse_message(id, &error),
            Err(Stop::Limited(refusal)) => {
                self.count(Counter::RefusedLimit);
                self.close_limited(id, refusal);
            }
            Err(Stop::Later(wait)) => self.wait(id, wait, Asked::Message(body), answers),
        }
    }

    /// Fails unless a frame is allowed. One that has waited goes by the present rules.
    fn permit_frame(
        &mut self,
        id: ConnectionId,
        name: &ChannelName,
        body: &Body,
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        let action = Action::Publish(name);
        let client = self.client(id, action);
        if answers.is_allowed {
            return Ok(self.ask_again(&client, iter::once(action))?);
        }
        self.limit_publication(id, body.bytes().len())?;
        let own = || Ok(Replacement { body: body.clone(), content_type: None });
        let draft = self.draft(&client, action, own)?;
        let labels = Labels::default();
        let content = draft.as_ref().map(|draft| draft_of(draft, &labels));
        let details = Details { content, ..self.details(id, None) };
        self.ask_access(id, &client, details, iter::once(action), answers)
    }

    /// Refuses a plain frame. A client whose token does not allow it is told so, and stays: it may
    /// follow the channel. Without keys, only a close says so.
    pub(crate) fn refuse_message(&mut self, id: ConnectionId, error: &ErrorResponse) {
        self.tell_refusal(id, error);
        let is_about_token = matches!(error.code, ErrorCode::Forbidden | ErrorCode::Unauthorized);
        if is_about_token && self.access.has_keys() {
            self.count(Counter::RefusedCommand);
            self.say(id, &Saying::Error(error));
            return;
        }
        if error.code.retry().is_some() {
            let what = match error.code {
                ErrorCode::TooManyRequests => &error.message,
                _ => "whether this is allowed was not decided in time",
            };
            self.close_for_now(id, CloseReason::Unanswered, what, true);
        } else {
            self.refuse_input(id, CloseReason::Refused(error.code), &error.message);
        }
    }

    fn publish_to(&mut self, id: ConnectionId, channel: ChannelName, content: Replacement) {
        let Replacement { body, content_type } = content;
        let attributes = self.attributes(id, &channel, &Labels::default());
        let publication =
            Publication { content_type, attributes, ..Publication::new(channel, body) };
        match self.publish(id, publication) {
            Ok(outcome) => self.conclude_message(id, outcome),
            Err(wait) => self.wait(id, wait, Asked::Outcome, Answers::default()),
        }
    }

    /// Notes what became of a plain frame. Only a close can say that it was not published.
    pub(crate) fn conclude_message(&mut self, id: ConnectionId, outcome: Outcome) {
        let what = match outcome {
            Ok(_) => return self.count(Counter::MessagesPublished),
            Err(PublishError::Ended) => {
                self.count(Counter::RefusedCommand);
                return self.close_for(id, CloseReason::Refused(ErrorCode::Closed));
            }
            Err(PublishError::NotCreated) => {
                self.count(Counter::RefusedCommand);
                return self.close_for(id, CloseReason::Refused(ErrorCode::NotCreated));
            }
            Err(PublishError::OtherType) => {
                self.count(Counter::RefusedCommand);
                return self.close_for(id, CloseReason::Refused(ErrorCode::OtherType));
            }
            Err(PublishError::Busy) => "delivery lags, so the message was not accepted",
            Err(PublishError::Away) => "the journal is away, so the message was not accepted",
            Err(PublishError::DiskFull) => "the disk is full, so the message was not accepted",
            Err(PublishError::OverLimit) => {
                "the data directory is beyond its limit, so the message was not accepted"
            }
            Err(PublishError::OverQuota) => {
                "a limit of storage in NATS is reached, so the message was not accepted"
            }
            Err(PublishError::TooLarge) => "the message is larger than the journal accepts",
            Err(PublishError::Refused) => "the journal refuses the message",
            Err(PublishError::Unknown) => "it is not known whether the message is published",
            Err(PublishError::NoOffset) => "the channel has no id left for another message",
            Err(
                PublishError::StateFull
                | PublishError::AllStatesFull
                | PublishError::StatesOverShare
                | PublishError::NoState
                | PublishError::NoKey,
            ) => "the channel's state does not take the message",
        };
        self.count(Counter::RefusedBusy);
        self.close_for_now(id, CloseReason::Overload, what, true);
    }

    /// Answers the close frames of clients, behind the messages that were published before them.
    /// Call it once the notifications of that time have been taken.
    pub(crate) fn answer_close_frames(&mut self) {
        for pending in std::mem::take(&mut self.closes) {
            // Others have gone without waiting for the answer.
            if let Some(id) = self.connections().find(pending.token) {
                self.turn(|sessions| sessions.answer_close_frame(id, pending));
            }
        }
    }

    fn answer_close_frame(&mut self, id: ConnectionId, pending: PendingClose) {
        self.flush_at_last(id);
        if self[id].has(Flags::DELIVERY_DEFERRED) {
            return self.closes.push(pending);
        }
        match pending.code {
            Some(code) => {
                let mut out = Vec::new();
                write_close(&mut out, code, "");
                self.close_after(id, &out, CloseReason::Peer);
            }
            None => self.close_after(id, &[0x88, 0], CloseReason::Peer),
        }
    }
}
