//! Answers long-polls.
//!
//! Long-polls that wait for one channel from the same cursor, with equal requests, get the same
//! bytes. In a slice of a fan-out these are composed once and written together
//! ([`Delivery::answer_together`]); every other poll gets an answer of its own.

use std::sync::Arc;

use throng_core::{
    LagPolicy, Message, MessageId, PresenceState, SubscriptionId, Waiting, Watermark,
};
use throng_dialect::CloseReason;
use throng_dialect::poll::Answer;
use throng_wire::{RetryAfter, v1};

use super::answer::{SharedAnswer, Terms, headers};
use super::batch::Batch;
use crate::connection::{ConnectionId, Flags, State};
use crate::delivery::Delivery;
use crate::net::Net;

/// The size of all shared answers of a slice, in bytes, roughly. Beyond it, polls get answers of
/// their own.
const SHARED_BYTES_MAX: usize = 4 << 20;

impl<N: Net> Delivery<N> {
    /// Answers with the messages that have come, if there are any, or if the answer `is_due` even
    /// without. It begins with who is in the channels, if the client has to be told.
    pub(crate) fn answer_long_poll(
        &mut self,
        id: ConnectionId,
        is_due: bool,
        presence: &[Arc<PresenceState>],
    ) {
        let mut answer = Answer::default();
        presence.iter().for_each(|state| answer.add_notice(state.json.as_bytes()));
        let told = self.ends_to_tell(id).len();
        self.collect(id, &mut answer);
        let has_news = answer.messages > 0 || answer.has_gap;
        if has_news || is_due || self.ends_to_tell(id).len() > told {
            self.write_long_poll(id, answer, None);
        }
    }

    /// Answers with the messages that have come, and the time to come back.
    pub(super) fn send_poll_away(&mut self, id: ConnectionId, retry_after: RetryAfter) {
        let mut answer = Answer::default();
        self.collect(id, &mut answer);
        self.write_long_poll(id, answer, Some(retry_after));
    }

    /// Answers a new poll with the backlog of each of its subscriptions, if there is any, or if the
    /// answer `is_due` even without messages. It begins with who is in the channels, if the client
    /// has to be told. The replay buffers do not have all of the backlog: newer messages are still
    /// in the worker's queue, for seconds if the worker is behind. Of a backlog that `is_state` the
    /// client gets the values of keys alone.
    pub(crate) fn answer_from(
        &mut self,
        id: ConnectionId,
        backlogs: &[Vec<Arc<Message>>],
        is_due: bool,
        is_state: bool,
        presence: &[Arc<PresenceState>],
    ) {
        let mut answer = Answer::default();
        let connection = &self[id];
        presence.iter().for_each(|state| answer.add_notice(state.json.as_bytes()));
        let now_ms = self.clock().unix_ms();
        let reader = self.connections().reader_of(id, connection);
        let is_for =
            |message: &Message| message.is_for(reader, now_ms) && (!is_state || message.sets_key());
        let is_envelope = connection.encoding().is_envelope();
        let told = self.ends_to_tell(id).len();
        for (subscription, backlog) in self.subscriptions_in_order(id).into_iter().zip(backlogs) {
            let advanced_to = answer.add_all(backlog.iter(), is_for, is_envelope);
            // Before the answer is written: its id is the position after these messages.
            if let Some(offset) = advanced_to {
                self.subscriptions.advance(subscription, offset);
            }
        }
        if answer.messages > 0 || is_due || self.ends_to_tell(id).len() > told {
            self.write_long_poll(id, answer, None);
        }
    }

    /// Answers with a volatile message, behind those that have come. The client's position after it
    /// is as if it had not. Returns false if the client lacks more than one answer holds, and does
    /// not get it.
    pub(super) fn answer_with_volatile(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        message: &Message,
    ) -> bool {
        let mut answer = Answer::default();
        self.collect(id, &mut answer);
        let has_all = self.is_in_order(id, subscription)
            || matches!(self.subscriptions.waiting(subscription), Waiting::Nothing);
        if has_all {
            answer.add_one(message, self[id].encoding().is_envelope());
        }
        if answer.messages > 0 || answer.has_gap {
            self.write_long_poll(id, answer, None);
        }
        has_all
    }

    /// Takes the messages that the connection's subscriptions lack, and moves the cursors over
    /// them.
    fn collect(&mut self, id: ConnectionId, answer: &mut Answer) {
        if self.newest_subscription(id).is_some_and(|newest| self.is_in_order(id, newest)) {
            return self.collect_in_order(id, answer);
        }
        for subscription in self.subscriptions_in_order(id) {
            match self.subscriptions.waiting(subscription) {
                Waiting::Nothing => {}
                // It gets the newest one, as a poll that resumes does.
                Waiting::Gap { policy: LagPolicy::Latest, .. } => {
                    self.pass_older(id, subscription, |_| true);
                    self.collect_from(id, subscription, answer);
                }
                // The answer reports the gap; the messages after it come with the next poll.
                Waiting::Gap { resume_at, .. } => {
                    self.subscriptions.skip(subscription, resume_at.offset);
                    answer.has_gap |= !self.subscriptions.is_of_presence_events(subscription);
                }
                Waiting::StateEnd(_) => self.subscriptions.end_state(subscription),
                Waiting::Messages(_) => self.collect_from(id, subscription, answer),
            }
        }
        self.tell_superseded(id);
    }

    /// Takes the messages that a subscription lacks, and moves its cursor over them.
    fn collect_from(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        answer: &mut Answer,
    ) {
        let connection = &self[id];
        let now_ms = self.clock().unix_ms();
        let reader = self.connections().reader_of(id, connection);
        let is_for = |message: &Message| message.is_for(reader, now_ms);
        let is_envelope = connection.encoding().is_envelope();
        let Waiting::Messages(messages) = self.subscriptions.waiting(subscription) else { return };
        if let Some(offset) = answer.add_all(messages, is_for, is_envelope) {
            // Written with the answer, which may take long.
            let held = self.subscriptions.pass(subscription, offset, 0);
            self.hold_receipts(id, held);
        }
    }

    /// Takes the settled messages that the connection lacks, in order.
    fn collect_in_order(&mut self, id: ConnectionId, answer: &mut Answer) {
        let is_envelope = self[id].encoding().is_envelope();
        for subscription in self.subscriptions_in_order(id) {
            if let Waiting::Gap { resume_at, policy, .. } = self.subscriptions.waiting(subscription)
            {
                if policy == LagPolicy::Latest {
                    self.pass_older(id, subscription, |_| true);
                    continue;
                }
                self.subscriptions.skip(subscription, resume_at.offset);
                answer.has_gap |= !self.subscriptions.is_of_presence_events(subscription);
            }
        }
        let taken = self.take_in_order(id, |message, _, _| answer.add_one(message, is_envelope));
        answer.up_to = Some(Watermark { stamp: taken.up_to, ..self.watermark });
    }

    /// The id of an answer: the client's position after it.
    fn position_after(&self, id: ConnectionId, answer: &Answer) -> String {
        let Some(up_to) = answer.up_to else { return self.position(id).to_string() };
        let poll = self[id].io.as_ref().and_then(|io| io.long_poll.as_ref());
        // This worker's settled position may be behind the one at which the poll began.
        let begin = poll.and_then(|poll| poll.begin).filter(|begin| begin.epoch == up_to.epoch);
        let stamp = begin.map_or(up_to.stamp, |begin| begin.stamp.max(up_to.stamp));
        Watermark { stamp, ..up_to }.to_string()
    }

    /// The channels whose end an answer with envelopes tells, each with its last id: not all, which
    /// its head says. A poll that begins behind an end is not answered because of it, so that a
    /// client that asks again does not ask without a pause.
    fn ends_to_tell(&self, id: ConnectionId) -> Vec<(SubscriptionId, MessageId)> {
        if !self.subscriptions.have_any_ended()
            || !self[id].encoding().is_envelope()
            || self.has_ended(id)
        {
            return Vec::new();
        }
        let all = self.subscriptions_in_order(id).into_iter();
        all.filter_map(|own| Some((own, self.subscriptions.end(own)?))).collect()
    }

    fn write_long_poll(
        &mut self,
        id: ConnectionId,
        mut answer: Answer,
        retry_after: Option<RetryAfter>,
    ) {
        // Read first: `end_long_poll` ends the subscriptions that the position is made of.
        let (position, date) = (self.position_after(id, &answer), self.clock().date());
        let has_ended = self.has_ended(id);
        for (subscription, end) in self.ends_to_tell(id) {
            let Some(target) = self.target_of(subscription) else { continue };
            let mut json = Vec::new();
            v1::ended(&mut json, &target, &end.to_string());
            answer.add_notice(&json);
        }
        let connection = &mut self[id];
        let poll = connection.io.as_mut().and_then(|io| io.long_poll.take());
        // A client that is sent away for a while must not ask again on the same connection.
        let is_kept = connection.has(Flags::KEEP_ALIVE) && retry_after.is_none();
        let is_canary = connection.has(Flags::CANARY);
        let headers = headers(&position, poll.as_deref(), has_ended, date);
        let out = answer.encode(&headers, is_kept, retry_after);
        self.end_long_poll(id);
        if !is_kept {
            if retry_after.is_none() && !is_canary {
                self.note_poll_end();
            }
            self.close_after_messages(id, &out, answer.messages, CloseReason::Complete);
            return;
        }
        self.send_messages(id, &out, answer.messages);
        if self[id].io.as_ref().is_some_and(|io| !io.inbound.is_empty()) {
            // A request came while this one waited. Handling it here would be a call upwards.
            self.defer_read(id);
        } else {
            self.connections_mut().trim_buffers(id);
        }
    }

    /// Ends a long-poll: the connection awaits its next request.
    fn end_long_poll(&mut self, id: ConnectionId) {
        self.unfollow_all(id);
        let due = self.clock().deadline(self.settings.idle_timeout);
        self.connections_mut().await_request(id, due);
        self.forget_client(id);
    }

    /// Answers the polls of the batch that can share an answer, and removes them from the batch.
    pub(crate) fn answer_together(&mut self, batch: &mut Batch) {
        let Batch { visits, polls, answers, transfers, .. } = batch;
        visits.retain(|&(subscription, id)| {
            let shared = self.shared_answer(id, subscription, answers);
            polls.extend(shared.map(|number| (id, number)));
            shared.is_none()
        });
        if polls.is_empty() {
            return;
        }
        // First: a client that has its answer may ask again at once, at another worker, and must
        // find a free place of its address and user.
        polls.iter().for_each(|&(id, _)| self.end_long_poll(id));
        self.write_each(
            polls,
            |&(id, _)| id,
            transfers,
            |&(_, number), _, _| &answers[number].bytes,
        );
        for ((id, number), transfer) in polls.drain(..).zip(transfers.drain(..)) {
            let SharedAnswer { bytes, messages, .. } = &answers[number];
            self.sent_messages(id, bytes, *messages, transfer);
            self.connections_mut().trim_buffers(id);
        }
        answers.clear();
    }

    /// The index of the connection's answer in `answers`, which is added if no other connection has
    /// the same terms; `None` if it needs an answer of its own.
    fn shared_answer(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        answers: &mut Vec<SharedAnswer>,
    ) -> Option<usize> {
        // Bounds the memory of a batch in which all answers differ.
        if answers.iter().map(|shared| shared.bytes.len()).sum::<usize>() > SHARED_BYTES_MAX {
            return None;
        }
        let connection = &self[id];
        let is_pipelined = connection.io.as_ref().is_some_and(|io| !io.inbound.is_empty());
        // Whatever `Terms` does not tell apart, or leaves work to do after the answer, goes alone.
        let is_plain = connection.state() == State::LongPolling
            && connection.has(Flags::KEEP_ALIVE)
            && !connection.has(Flags::BLOCKED)
            && !is_pipelined
            && connection.newest_subscription == Some(subscription)
            && self.subscriptions.sibling(subscription).is_none()
            && !self.subscriptions.is_kept(subscription)
            && !self.subscriptions.follows_ended(subscription);
        let Waiting::Messages(mut messages) = self.subscriptions.waiting(subscription) else {
            return None;
        };
        let now_ms = self.clock().unix_ms();
        let reader = self.connections().reader_of(id, connection);
        // The answer to the sender of a message may have to leave it out, and every answer one that
        // has expired.
        if !is_plain || messages.any(|message| !message.is_for(reader, now_ms)) {
            return None;
        }
        let cursor = self.subscriptions.cursor(subscription)?;
        let connection = &mut self[id];
        // Nothing below may decline: what the answer needs has left the connection.
        let poll = connection.io.as_mut().and_then(|io| io.long_poll.take());
        let terms = Terms { cursor, encoding: connection.encoding(), poll };
        if let Some(known) = answers.iter().position(|shared| shared.terms == terms) {
            let held = self.subscriptions.pass(subscription, answers[known].to, 0);
            self.hold_receipts(id, held);
            return Some(known);
        }
        let mut answer = Answer::default();
        self.collect(id, &mut answer);
        let (position, date) = (self.position(id).to_string(), self.clock().date());
        let headers = headers(&position, terms.poll.as_deref(), false, date);
        let bytes = answer.encode(&headers, true, None);
        let to = self.subscriptions.cursor(subscription).unwrap_or(terms.cursor);
        answers.push(SharedAnswer { terms, bytes, messages: answer.messages, to });
        Some(answers.len() - 1)
    }
}
