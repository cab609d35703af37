//! Writes a subscriber what it lacks: everything between its cursor and the head in one call.

use std::io::IoSlice;
use std::sync::Arc;

use throng_core::{
    ConnectionName, Counter, LagPolicy, Message, MessageId, SubscriptionId, Waiting,
};
use throng_wire::sse;
use throng_wire::{Target, chunk, v1};

use super::Worker;
use crate::close_reason::CloseReason;
use crate::connection::{Flags, Partial, State};
use crate::framing::Framing;
use crate::net::{Net, Transfer};

/// Messages in one write. The kernel takes 1024; far fewer already make the call's own cost small.
const MESSAGES_PER_WRITE: usize = 64;

/// Bytes in one write, roughly.
const BYTES_PER_WRITE: usize = 256 << 10;

/// What a write to a subscriber came to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The cursor's new place.
    pub(super) advanced_to: Option<u64>,
    pub(super) deliveries: u64,
    pub(super) sent_bytes: u64,
    pub(super) partial: Option<Partial>,
    pub(super) is_blocked: bool,
    pub(super) is_gone: bool,
}

impl<N: Net> Worker<N> {
    /// Writes all of a connection's subscriptions what they lack, as far as the socket takes it.
    pub(super) fn flush_subscriptions(&mut self, index: u32) {
        let mut next = self.connections.get(index).and_then(|it| it.first);
        while let Some(subscription) = next {
            // Once it takes no more this blocks the rest, so that their replay buffers keep what
            // they lack.
            self.catch_up(index, subscription);
            let Some(connection) = self.connections.get(index) else { return };
            if connection.state != State::Parked {
                return;
            }
            if !connection.has(Flags::BLOCKED) && !connection.has(Flags::POSTPONED) {
                self.subscriptions.unblock(subscription);
            }
            next = self.subscriptions.sibling(subscription);
        }
    }

    /// Writes a subscription that a sweep visits what it lacks, as far as the socket and the slice
    /// take it, in one write at least. Returns whether it lacks more: a sweep comes back to it, as
    /// the replay buffer of one that takes all it is given must not drop anything.
    pub(super) fn deliver(&mut self, index: u32, subscription: SubscriptionId) -> bool {
        while self.deliver_some(index, subscription) {
            if self.slice_bytes == 0 && self.takes_more(index) {
                let lacks_more =
                    !matches!(self.subscriptions.waiting(subscription), Waiting::Nothing);
                if lacks_more {
                    self.count(Counter::Postponed);
                    self.subscriptions.offer_rest(subscription);
                }
                return lacks_more;
            }
        }
        false
    }

    fn takes_more(&self, index: u32) -> bool {
        let connection = self.connections.get(index);
        connection.is_some_and(|it| it.state == State::Parked && !it.has(Flags::BLOCKED))
    }

    /// Writes a subscription what it lacks, as far as the socket and the slice take it; with what
    /// is left then the connection is postponed.
    pub(super) fn catch_up(&mut self, index: u32, subscription: SubscriptionId) {
        while !matches!(self.subscriptions.waiting(subscription), Waiting::Nothing) {
            if self.slice_bytes == 0 && self.takes_more(index) {
                // As long as it waits for its turn its replay buffer keeps what it lacks.
                self.subscriptions.block(subscription);
                return self.postpone(index);
            }
            if !self.deliver_some(index, subscription) {
                return;
            }
        }
    }

    /// Writes a subscription some of what it lacks. Returns whether to go on.
    fn deliver_some(&mut self, index: u32, subscription: SubscriptionId) -> bool {
        let Some(connection) = self.connections.get(index) else { return false };
        if connection.has(Flags::BLOCKED) {
            self.subscriptions.block(subscription);
            return false;
        }
        match connection.state {
            State::Parked => {}
            State::Polling => {
                self.answer_poll(index);
                return false;
            }
            State::Head | State::Closing => return false,
        }
        let is_composed = connection.has(Flags::MULTIPLE)
            && matches!(connection.framing, Framing::Sse | Framing::SseEnvelope);
        match self.subscriptions.waiting(subscription) {
            Waiting::Nothing => return false,
            Waiting::Gap { missed, resume_at, policy } => {
                self.gap(index, subscription, missed, resume_at, policy);
            }
            Waiting::Messages(mut messages) if is_composed => {
                let Some(message) = messages.next().cloned() else { return false };
                self.deliver_composed(index, subscription, &message);
            }
            Waiting::Messages(_) => self.deliver_shared(index, subscription),
        }
        true
    }

    /// Writes encodings that all subscribers share.
    fn deliver_shared(&mut self, index: u32, subscription: SubscriptionId) {
        let name = self.name_of(index);
        let Worker { subscriptions, connections, net, .. } = self;
        let Some(connection) = connections.get(index) else { return };
        let Waiting::Messages(messages) = subscriptions.waiting(subscription) else { return };
        let is_chunked = connection.has(Flags::CHUNKED);
        let encode = |message| Framing::encode(connection.framing, message, is_chunked);
        let outcome = write(net, &connection.socket, messages, name, encode);
        let from = self.subscriptions.cursor(subscription).unwrap_or_default();
        self.conclude(index, subscription, outcome);
        self.subscriptions.drop_encodings(subscription, from);
    }

    /// Takes note of what a write came to.
    pub(super) fn conclude(&mut self, index: u32, subscription: SubscriptionId, outcome: Outcome) {
        if let Some(offset) = outcome.advanced_to {
            self.subscriptions.advance(subscription, offset);
        }
        let mut counter = Counter::Deliveries;
        if let Some(connection) = self.connections.get_mut(index) {
            counter = connection.delivery_counter();
            let is_written = outcome.sent_bytes > 0 || connection.has(Flags::WRITTEN);
            connection.flags.set(Flags::WRITTEN, is_written);
        }
        self.counters.add(counter, outcome.deliveries);
        self.counters.add(Counter::SentBytes, outcome.sent_bytes);
        self.slice_bytes = self.slice_bytes.saturating_sub(outcome.sent_bytes as usize);
        if outcome.is_gone {
            self.forget(index, CloseReason::Peer);
        } else if outcome.is_blocked {
            if let Some(connection) = self.connections.get_mut(index)
                && outcome.partial.is_some()
            {
                connection.io_mut().partial = outcome.partial;
            }
            self.block(index);
        }
    }

    /// Writes one event with an id of this connection's own: its position in all of its channels.
    fn deliver_composed(
        &mut self,
        index: u32,
        subscription: SubscriptionId,
        message: &Arc<Message>,
    ) {
        self.subscriptions.advance(subscription, message.id.offset);
        if message.excluded == Some(self.name_of(index)) {
            return;
        }
        let Some(connection) = self.connections.get(index) else { return };
        let shared = connection.framing.encode(message, false);
        let own_id = shared.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut event = format!("id: {}\n", self.position(index)).into_bytes();
        event.extend_from_slice(&shared[own_id..]);
        if connection.has(Flags::CHUNKED) {
            let mut framed = Vec::with_capacity(event.len() + 16);
            chunk::write_chunk(&mut framed, &event);
            event = framed;
        }
        self.send_messages(index, &event, 1);
    }

    /// The subscriber has fallen behind what is kept for it.
    fn gap(
        &mut self,
        index: u32,
        subscription: SubscriptionId,
        missed: Option<u64>,
        resume_at: MessageId,
        policy: LagPolicy,
    ) {
        match policy {
            LagPolicy::Close => {
                self.end_behind(index);
            }
            LagPolicy::Skip => {
                self.subscriptions.advance(subscription, resume_at.offset);
                self.count(Counter::Gaps);
                self.counters.add(Counter::MissedMessages, missed.unwrap_or(0));
                let Some(target) = self.target_of(subscription) else { return };
                let id = resume_at.to_string();
                self.notify(index, "gap", |out| v1::gap(out, &target, missed, &id));
            }
        }
    }

    /// Writes a JSON notice in the way of the connection's transport: a text frame, a named event,
    /// or a line.
    pub(super) fn notify(&mut self, index: u32, event: &str, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(connection) = self.connections.get(index) else { return };
        let mut json = Vec::new();
        write(&mut json);
        let mut out = Vec::with_capacity(json.len() + 16);
        frame_notice(&mut out, connection.framing, connection.has(Flags::CHUNKED), event, &json);
        self.send(index, &out);
    }

    /// The channel or user of a subscription, by name.
    pub(super) fn target_of(&self, subscription: SubscriptionId) -> Option<Target> {
        let (channel, _) = self.subscriptions.channel(subscription)?;
        let name = self.engine.name(channel)?;
        Some(Target { kind: name.kind(), name: name.name().to_owned() })
    }
}

/// Frames a JSON notice: a text frame, a named event, or a line.
pub(super) fn frame_notice(
    out: &mut Vec<u8>,
    framing: Framing,
    is_chunked: bool,
    event: &str,
    json: &[u8],
) {
    use throng_wire::websocket::{Opcode, write_frame};
    let mut inner = Vec::with_capacity(json.len() + 32);
    match framing {
        Framing::WebSocket | Framing::WebSocketEnvelope => {
            return write_frame(out, Opcode::Text, json);
        }
        Framing::Sse | Framing::SseEnvelope => {
            sse::write_event(&mut inner, None, Some(event), json)
        }
        Framing::Line | Framing::LineEnvelope => {
            inner.extend_from_slice(json);
            inner.push(b'\n');
        }
    }
    if is_chunked {
        chunk::write_chunk(out, &inner);
    } else {
        out.extend_from_slice(&inner);
    }
}

/// Writes messages in one call, without those that are not for `name`.
fn write<'a, N: Net>(
    net: &mut N,
    socket: &N::Socket,
    messages: impl Iterator<Item = &'a Arc<Message>>,
    name: ConnectionName,
    encode: impl Fn(&'a Message) -> &'a [u8],
) -> Outcome {
    let mut slices = [IoSlice::new(&[]); MESSAGES_PER_WRITE];
    let mut chosen: [Option<&Arc<Message>>; MESSAGES_PER_WRITE] = [None; MESSAGES_PER_WRITE];
    let (mut count, mut bytes) = (0, 0);
    let mut outcome = Outcome::default();
    for message in messages {
        if message.excluded != Some(name) {
            if count == MESSAGES_PER_WRITE || bytes >= BYTES_PER_WRITE {
                break;
            }
            let encoded = encode(message);
            slices[count] = IoSlice::new(encoded);
            chosen[count] = Some(message);
            bytes += encoded.len();
            count += 1;
        }
        outcome.advanced_to = Some(message.id.offset);
    }
    if count == 0 {
        return outcome;
    }
    let written = match net.write(socket, &slices[..count]) {
        Transfer::Bytes(written) => written,
        Transfer::Blocked => 0,
        Transfer::End | Transfer::Gone => {
            outcome.is_gone = true;
            return outcome;
        }
    };
    outcome.sent_bytes = written as u64;
    if written == bytes {
        outcome.deliveries = count as u64;
        return outcome;
    }
    outcome.is_blocked = true;
    outcome.advanced_to = None;
    let mut left = written;
    for (slice, message) in slices[..count].iter().zip(chosen.iter().flatten()) {
        if left < slice.len() {
            if left > 0 {
                // The rest of it belongs to this connection now: the cursor is past it.
                outcome.advanced_to = Some(message.id.offset);
                outcome.partial = Some(Partial { message: Arc::clone(message), from: left as u32 });
            }
            break;
        }
        left -= slice.len();
        outcome.advanced_to = Some(message.id.offset);
        outcome.deliveries += 1;
    }
    outcome
}
