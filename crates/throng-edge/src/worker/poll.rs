//! Answers a long-poll: a cursor that is moved once.

use throng_core::{Counter, Message, SubscriptionId, Waiting};
use throng_wire::response::{self, PollBody, Start};

use super::Worker;
use crate::connection::{Flags, State};
use crate::net::Net;

/// Bytes in one answer, roughly: what is left comes with the next request.
const ANSWER_BYTES_MAX: usize = 1 << 20;

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
}

impl<N: Net> Worker<N> {
    /// Answers with what has come, if something has.
    pub(super) fn answer_poll(&mut self, index: u32) {
        let answer = self.collect(index);
        if answer.messages > 0 || answer.has_gap {
            self.write_poll(index, answer, None);
        }
    }

    /// Answers although nothing has come. `retry_after_s` sends the client away for so long.
    pub(super) fn answer_poll_empty(&mut self, index: u32, retry_after_s: Option<u32>) {
        let answer = self.collect(index);
        self.write_poll(index, answer, retry_after_s);
    }

    /// Takes what the connection's subscriptions lack and moves their cursors over it.
    fn collect(&mut self, index: u32) -> Answer {
        let mut answer = Answer::default();
        let name = self.name_of(index);
        let is_envelope = self.connections.get(index).is_some_and(|it| it.framing.is_envelope());
        for subscription in self.subscriptions_in_order(index) {
            let mut advanced_to = None;
            match self.roster.waiting(subscription) {
                Waiting::Nothing => {}
                Waiting::Gap { resume_at, .. } => {
                    advanced_to = Some(resume_at);
                    answer.has_gap = true;
                }
                Waiting::Messages(messages) => {
                    for message in messages {
                        if answer.body.len() > ANSWER_BYTES_MAX {
                            break;
                        }
                        advanced_to = Some(message.id.offset);
                        if message.except != Some(name) {
                            answer.add(message, is_envelope);
                        }
                    }
                }
            }
            if let Some(offset) = advanced_to {
                self.roster.advance(subscription, offset);
            }
        }
        answer
    }

    fn write_poll(&mut self, index: u32, answer: Answer, retry_after_s: Option<u32>) {
        let position = self.position(index).to_string();
        self.leave_all(index);
        self.unpark(index);
        let Some(connection) = self.connections.get_mut(index) else { return };
        let poll = connection.io.as_mut().and_then(|io| io.poll.take());
        let is_kept = connection.has(Flags::KEEP_ALIVE) && retry_after_s.is_none();
        connection.state = State::Head;
        connection.due = self.now.tick.saturating_add(Self::ticks(self.settings.idle_timeout));
        connection.flags.set(Flags::SERVED, true);
        let recovered = poll.as_ref().and_then(|poll| poll.is_recovered);
        let start = Start {
            id: &position,
            recovered: if answer.has_gap { Some(false) } else { recovered },
            connection: None,
            allow_origin: poll.as_ref().and_then(|poll| poll.origin.as_deref()),
        };
        let body = answer.content_type.as_deref().map(|content_type| PollBody {
            content_type: Some(content_type),
            length: answer.body.len(),
        });
        let mut out = Vec::with_capacity(answer.body.len() + 256);
        response::poll(&mut out, body, is_kept, retry_after_s, &start);
        out.extend_from_slice(&answer.body);
        self.counters.add(Counter::Deliveries, answer.messages);
        if !is_kept {
            self.last_words(index, &out, Counter::Closed);
            return;
        }
        self.send(index, &out);
        // A request that came while this one waited.
        self.input(index, &mut []);
    }

    /// The connection's subscriptions, the newest first.
    pub(super) fn subscriptions(&self, index: u32) -> impl Iterator<Item = SubscriptionId> {
        let first = self.connections.get(index).and_then(|it| it.first);
        std::iter::successors(first, |&subscription| self.roster.sibling(subscription))
    }

    /// The connection's subscriptions in the order in which the request named them.
    pub(super) fn subscriptions_in_order(&self, index: u32) -> Vec<SubscriptionId> {
        let mut all: Vec<_> = self.subscriptions(index).collect();
        all.reverse();
        all
    }
}
