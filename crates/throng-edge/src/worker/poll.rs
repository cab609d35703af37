//! Answers long-polls: cursors that are moved once.
//!
//! Whoever waits for one channel at the same place of it, and has asked alike, gets the same bytes.
//! In a slice of a fan-out they are put together once and written together
//! ([`Worker::answer_together`]); every other poll is answered for itself.

use std::sync::Arc;

use throng_core::{ConnectionName, Message, Position, SubscriptionId, Waiting};
use throng_wire::response::{self, PollBody, SubscriptionHeaders};
use throng_wire::{Date, RetryAfter};

use super::Worker;
use super::fan_out::Batch;
use crate::close_reason::CloseReason;
use crate::connection::{Flags, Poll, State};
use crate::framing::Framing;
use crate::net::{Net, Parcel};

/// Bytes in one answer, roughly: what is left comes with the next request.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Bytes of shared answers that are held at once, roughly: with more, each is answered for itself.
const SHARED_BYTES_MAX: usize = 4 << 20;

/// An answer being put together.
#[derive(Default)]
struct Answer {
    body: Vec<u8>,
    content_type: Option<String>,
    messages: u64,
    has_gap: bool,
}

impl Answer {
    fn add(&mut self, message: &Message, is_envelope: bool) {
        if self.messages > 0 {
            self.body.push(b'\n');
        }
        self.messages += 1;
        let content_type = if is_envelope {
            message.write_envelope(&mut self.body);
            "application/x-ndjson"
        } else {
            self.body.extend_from_slice(message.body.bytes());
            message.content_type()
        };
        match &mut self.content_type {
            Some(known) if known != content_type => *known = throng_core::message::TEXT.into(),
            Some(_) => {}
            none => *none = Some(content_type.into()),
        }
    }

    /// Adds messages, oldest first, that are not to be left out for `name`, as many as one answer
    /// holds. Returns the offset of the last one that it went past.
    fn add_all<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a Arc<Message>>,
        name: ConnectionName,
        is_envelope: bool,
    ) -> Option<u64> {
        let mut last = None;
        for message in messages {
            if self.body.len() > ANSWER_BYTES_MAX {
                break;
            }
            last = Some(message.id.offset);
            if message.excluded != Some(name) {
                self.add(message, is_envelope);
            }
        }
        last
    }

    /// The answer as it goes over the wire, to whoever is at `position` after it.
    fn encode(
        &self,
        position: &Position,
        poll: Option<&Poll>,
        is_kept: bool,
        retry_after: Option<RetryAfter>,
        date: Date,
    ) -> Vec<u8> {
        let recovered = poll.and_then(|poll| poll.is_recovered);
        let headers = SubscriptionHeaders {
            id: &position.to_string(),
            recovered: if self.has_gap { Some(false) } else { recovered },
            connection: None,
            allow_origin: poll.and_then(|poll| poll.origin.as_deref()),
            date: Some(date),
        };
        let body = self.content_type.as_deref().map(|content_type| PollBody {
            content_type: Some(content_type),
            length: self.body.len(),
        });
        let mut out = Vec::with_capacity(self.body.len() + 256);
        response::poll(&mut out, body, is_kept, retry_after, &headers);
        out.extend_from_slice(&self.body);
        out
    }
}

/// What an answer depends on, among kept connections that wait for one channel only.
#[derive(Debug, PartialEq, Eq)]
struct Terms {
    cursor: u64,
    framing: Framing,
    poll: Option<Box<Poll>>,
}

/// An answer to all who have the same terms.
#[derive(Debug)]
pub(super) struct Shared {
    terms: Terms,
    bytes: Vec<u8>,
    messages: u64,
}

impl<N: Net> Worker<N> {
    /// Answers with what has come, if something has.
    pub(super) fn answer_poll(&mut self, index: u32) {
        let answer = self.collect(index);
        if answer.messages > 0 || answer.has_gap {
            self.write_poll(index, answer, None);
        }
    }

    /// Answers although nothing has come. `retry_after` sends the client away for that long.
    pub(super) fn answer_poll_empty(&mut self, index: u32, retry_after: Option<RetryAfter>) {
        let answer = self.collect(index);
        self.write_poll(index, answer, retry_after);
    }

    /// Answers a poll that begins with what the logs had for each of its subscriptions, if that is
    /// anything, or if the answer `is_due` although nothing has come. The replay buffers would not
    /// do: what is newer than they are is still in the queue, for seconds if the worker is behind.
    pub(super) fn answer_from(&mut self, index: u32, backlogs: &[Vec<Arc<Message>>], is_due: bool) {
        let mut answer = Answer::default();
        let name = self.name_of(index);
        let is_envelope = self.connections.get(index).is_some_and(|it| it.framing.is_envelope());
        for (subscription, backlog) in self.subscriptions_in_order(index).into_iter().zip(backlogs)
        {
            let advanced_to = answer.add_all(backlog.iter(), name, is_envelope);
            if let Some(offset) = advanced_to {
                self.subscriptions.advance(subscription, offset);
            }
        }
        if answer.messages > 0 || is_due {
            self.write_poll(index, answer, None);
        }
    }

    /// Takes what the connection's subscriptions lack and moves their cursors over it.
    fn collect(&mut self, index: u32) -> Answer {
        let mut answer = Answer::default();
        let name = self.name_of(index);
        let is_envelope = self.connections.get(index).is_some_and(|it| it.framing.is_envelope());
        for subscription in self.subscriptions_in_order(index) {
            let mut advanced_to = None;
            match self.subscriptions.waiting(subscription) {
                Waiting::Nothing => {}
                Waiting::Gap { resume_at, .. } => {
                    advanced_to = Some(resume_at.offset);
                    answer.has_gap = true;
                }
                Waiting::Messages(messages) => {
                    advanced_to = answer.add_all(messages, name, is_envelope);
                }
            }
            if let Some(offset) = advanced_to {
                self.subscriptions.advance(subscription, offset);
            }
        }
        answer
    }

    fn write_poll(&mut self, index: u32, answer: Answer, retry_after: Option<RetryAfter>) {
        let (position, date) = (self.position(index), self.date.get());
        let Some(connection) = self.connections.get_mut(index) else { return };
        let poll = connection.io.as_mut().and_then(|io| io.poll.take());
        let is_kept = connection.has(Flags::KEEP_ALIVE) && retry_after.is_none();
        let out = answer.encode(&position, poll.as_deref(), is_kept, retry_after, date);
        self.end_poll(index);
        if !is_kept {
            if retry_after.is_none() {
                self.poller_left = Some(self.now.tick);
            }
            self.last_messages(index, &out, answer.messages, CloseReason::Complete);
            return;
        }
        self.send_messages(index, &out, answer.messages);
        // A request that came while this one waited.
        self.input(index, &mut []);
    }

    /// The long-poll has its answer: from now on the connection awaits the next request.
    fn end_poll(&mut self, index: u32) {
        self.leave_all(index);
        self.unpark(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.state = State::Head;
        connection.due = self.now.tick.saturating_add(Self::ticks(self.settings.idle_timeout));
        connection.flags.set(Flags::SERVED, true);
    }

    /// Answers those of the batch that can share an answer, and takes them out of it.
    pub(super) fn answer_together(&mut self, batch: &mut Batch) {
        let Batch { visits, polls, answers, transfers, .. } = batch;
        visits.retain(|&(subscription, index)| {
            let shared = self.shared_answer(index, subscription, answers);
            polls.extend(shared.map(|nth| (index, nth)));
            shared.is_none()
        });
        if polls.is_empty() {
            return;
        }
        let Worker { connections, net, .. } = self;
        // `shared_answer` has found each of these connections, so that none is left out.
        let parcels = polls.iter().filter_map(|&(index, nth)| {
            let socket = &connections.get(index)?.socket;
            Some(Parcel { socket, bytes: &answers[nth].bytes })
        });
        let parcels: Vec<_> = parcels.collect();
        net.write_each(&parcels, transfers);
        for ((index, nth), transfer) in polls.drain(..).zip(transfers.drain(..)) {
            let Shared { bytes, messages, .. } = &answers[nth];
            self.end_poll(index);
            self.sent_messages(index, bytes, *messages, transfer);
            self.shed(index);
        }
        answers.clear();
    }

    /// Which of the `answers` is the connection's, made if it is the first with its terms; `None`
    /// if it has to have one of its own.
    fn shared_answer(
        &mut self,
        index: u32,
        subscription: SubscriptionId,
        answers: &mut Vec<Shared>,
    ) -> Option<usize> {
        if answers.iter().map(|shared| shared.bytes.len()).sum::<usize>() > SHARED_BYTES_MAX {
            return None;
        }
        let connection = self.connections.get(index)?;
        let is_pipelined = connection.io.as_ref().is_some_and(|io| !io.inbound.is_empty());
        let is_plain = connection.state == State::Polling
            && connection.has(Flags::KEEP_ALIVE)
            && !connection.has(Flags::BLOCKED)
            && !is_pipelined
            && connection.first == Some(subscription)
            && self.subscriptions.sibling(subscription).is_none();
        let Waiting::Messages(mut messages) = self.subscriptions.waiting(subscription) else {
            return None;
        };
        let name = self.name_of(index);
        if !is_plain || messages.any(|message| message.excluded == Some(name)) {
            return None;
        }
        let cursor = self.subscriptions.cursor(subscription)?;
        let connection = self.connections.get_mut(index)?;
        let poll = connection.io.as_mut().and_then(|io| io.poll.take());
        let terms = Terms { cursor, framing: connection.framing, poll };
        let known = answers.iter().position(|shared| shared.terms == terms);
        Some(known.unwrap_or_else(|| {
            let answer = self.collect(index);
            let (position, date) = (self.position(index), self.date.get());
            let bytes = answer.encode(&position, terms.poll.as_deref(), true, None, date);
            answers.push(Shared { terms, bytes, messages: answer.messages });
            answers.len() - 1
        }))
    }

    /// The connection's subscriptions, the newest first.
    pub(super) fn subscriptions(&self, index: u32) -> impl Iterator<Item = SubscriptionId> {
        let first = self.connections.get(index).and_then(|it| it.first);
        std::iter::successors(first, |&subscription| self.subscriptions.sibling(subscription))
    }

    /// The connection's subscriptions in the order in which the request named them.
    pub(super) fn subscriptions_in_order(&self, index: u32) -> Vec<SubscriptionId> {
        let mut all: Vec<_> = self.subscriptions(index).collect();
        all.reverse();
        all
    }
}
