//! Writes a subscriber what it lacks: everything between its cursor and the head in one call.

use std::io::IoSlice;
use std::sync::Arc;

use throng_core::{
    ConnectionName, Counter, LagPolicy, Message, MessageId, SubscriptionId, Waiting,
};
use throng_wire::{chunk, v1};

use crate::close_reason::CloseReason;
use crate::connection::{ConnectionId, Flags, Partial, State};
use crate::encoding::Encoding;
use crate::net::{Net, Transfer};
use crate::worker::Worker;

/// Messages in one write. The kernel takes 1024; far fewer already make the call's own cost small.
const MESSAGES_PER_WRITE: usize = 64;

/// Bytes in one write, roughly.
const BYTES_PER_WRITE: usize = 256 << 10;

/// The result of a write to a subscriber.
#[derive(Debug, Default)]
pub(in crate::worker) struct Outcome {
    /// The offset up to which the cursor moves; `None` if it stays.
    pub(in crate::worker) advanced_to: Option<u64>,
    pub(in crate::worker) deliveries: u64,
    pub(in crate::worker) sent_bytes: u64,
    pub(in crate::worker) partial: Option<Partial>,
    pub(in crate::worker) is_blocked: bool,
    pub(in crate::worker) is_gone: bool,
}

impl<N: Net> Worker<N> {
    /// Writes all of a connection's subscriptions what they lack, as far as the socket takes it.
    pub(in crate::worker) fn flush_subscriptions(&mut self, id: ConnectionId) {
        let mut next =
            self.connections.get(id).and_then(|connection| connection.newest_subscription);
        while let Some(subscription) = next {
            // Once it takes no more this blocks the rest, so that their replay buffers keep what
            // they lack.
            self.catch_up(id, subscription);
            let Some(connection) = self.connections.get(id) else { return };
            if connection.state != State::Streaming {
                return;
            }
            if !connection.has(Flags::BLOCKED) && !connection.has(Flags::DELIVERY_DEFERRED) {
                self.subscriptions.unblock(subscription);
            }
            next = self.subscriptions.sibling(subscription);
        }
    }

    /// Writes a subscription that a sweep visits what it lacks, as far as the socket and the slice
    /// take it, in one write at least. Returns whether it lacks more: a sweep comes back to it, as
    /// the replay buffer of one that takes all it is given must not drop anything.
    pub(in crate::worker) fn deliver(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
    ) -> bool {
        while self.deliver_some(id, subscription) {
            if self.budget.is_slice_spent() && self.takes_more(id) {
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

    fn takes_more(&self, id: ConnectionId) -> bool {
        let connection = self.connections.get(id);
        connection.is_some_and(|connection| {
            connection.state == State::Streaming && !connection.has(Flags::BLOCKED)
        })
    }

    /// Writes a subscription what it lacks, as far as the socket and the slice take it; with what
    /// is left then the connection is postponed.
    pub(in crate::worker) fn catch_up(&mut self, id: ConnectionId, subscription: SubscriptionId) {
        while !matches!(self.subscriptions.waiting(subscription), Waiting::Nothing) {
            if self.budget.is_slice_spent() && self.takes_more(id) {
                // As long as it waits for its turn its replay buffer keeps what it lacks.
                self.subscriptions.block(subscription);
                return self.defer_delivery(id);
            }
            if !self.deliver_some(id, subscription) {
                return;
            }
        }
    }

    /// Writes a subscription some of what it lacks. Returns whether to go on.
    fn deliver_some(&mut self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        let Some(connection) = self.connections.get(id) else { return false };
        if connection.has(Flags::BLOCKED) {
            self.subscriptions.block(subscription);
            return false;
        }
        match connection.state {
            State::Streaming => {}
            State::LongPolling => {
                self.answer_long_poll(id);
                return false;
            }
            State::Head | State::Closing => return false,
        }
        let is_composed = connection.has(Flags::MULTIPLE)
            && matches!(connection.encoding, Encoding::Sse | Encoding::SseEnvelope);
        match self.subscriptions.waiting(subscription) {
            Waiting::Nothing => return false,
            Waiting::Gap { missed, resume_at, policy } => {
                self.gap(id, subscription, missed, resume_at, policy);
            }
            Waiting::Messages(mut messages) if is_composed => {
                let Some(message) = messages.next().cloned() else { return false };
                self.deliver_composed(id, subscription, &message);
            }
            Waiting::Messages(_) => self.deliver_shared(id, subscription),
        }
        true
    }

    /// Writes encodings that all subscribers share.
    fn deliver_shared(&mut self, id: ConnectionId, subscription: SubscriptionId) {
        let Worker { subscriptions, connections, net, .. } = self;
        let Some(connection) = connections.expect_live(id) else { return };
        let name = connections.name_of(id, connection);
        let Waiting::Messages(messages) = subscriptions.waiting(subscription) else { return };
        let is_chunked = connection.has(Flags::CHUNKED);
        let encode = |message| Encoding::encode(connection.encoding, message, is_chunked);
        let outcome = write(net, &connection.socket, messages, name, encode);
        let from = self.subscriptions.cursor(subscription).unwrap_or_default();
        self.conclude(id, subscription, outcome);
        self.subscriptions.drop_encodings(subscription, from);
    }

    /// Moves the cursor over what was written, counts it, and keeps the rest of a partly written
    /// message.
    pub(in crate::worker) fn conclude(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        outcome: Outcome,
    ) {
        if let Some(offset) = outcome.advanced_to {
            self.subscriptions.advance(subscription, offset);
        }
        let Some(connection) = self.connections.expect_live_mut(id) else { return };
        let is_written = outcome.sent_bytes > 0 || connection.has(Flags::WRITTEN);
        connection.flags.set(Flags::WRITTEN, is_written);
        if outcome.partial.is_some() {
            connection.io_mut().partial = outcome.partial;
        }
        self.counters.add(connection.delivery_counter(), outcome.deliveries);
        self.counters.add(Counter::SentBytes, outcome.sent_bytes);
        self.budget.charge_slice(outcome.sent_bytes as usize);
        if outcome.is_gone {
            self.release(id, CloseReason::Peer);
        } else if outcome.is_blocked {
            self.block(id);
        }
    }

    /// Writes one event with an id of this connection's own: its position in all of its channels.
    fn deliver_composed(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        message: &Arc<Message>,
    ) {
        self.subscriptions.advance(subscription, message.id.offset);
        let Some(connection) = self.connections.expect_live(id) else { return };
        if message.excluded == Some(self.connections.name_of(id, connection)) {
            return;
        }
        let shared = connection.encoding.encode(message, false);
        let own_id = shared.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut event = format!("id: {}\n", self.position(id)).into_bytes();
        event.extend_from_slice(&shared[own_id..]);
        if connection.has(Flags::CHUNKED) {
            let mut framed = Vec::with_capacity(event.len() + 16);
            chunk::write_chunk(&mut framed, &event);
            event = framed;
        }
        self.send_messages(id, &event, 1);
    }

    /// The subscriber has fallen behind what is kept for it.
    fn gap(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        missed: Option<u64>,
        resume_at: MessageId,
        policy: LagPolicy,
    ) {
        match policy {
            LagPolicy::Close => {
                self.close_lagging(id);
            }
            LagPolicy::Skip => {
                self.subscriptions.advance(subscription, resume_at.offset);
                self.count(Counter::Gaps);
                self.counters.add(Counter::MissedMessages, missed.unwrap_or(0));
                let Some(target) = self.target_of(subscription) else { return };
                let message_id = resume_at.to_string();
                self.notify(id, "gap", |out| v1::gap(out, &target, missed, &message_id));
            }
        }
    }

    /// Closes a blocked connection that has fallen behind, instead of waiting for its socket.
    pub(in crate::worker) fn check_blocked(&mut self, id: ConnectionId) {
        let has_gap = |subscription| {
            let waiting = self.subscriptions.waiting(subscription);
            matches!(waiting, Waiting::Gap { policy: LagPolicy::Close, .. })
        };
        if self.subscriptions(id).any(has_gap) {
            self.close_lagging(id);
        }
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
