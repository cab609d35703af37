//! Publishes in an open loop: a publishing connection is a client that writes requests, or frames,
//! on a schedule, and times the responses.
//!
//! # Invariants
//!
//! * The messages of a stream use one connection, in the order of their sequences.
//! * [`StreamCounters::published`] is called before the first byte of a message is sent, and
//!   [`StreamCounters::refused`] for each message that was sent and not accepted, or not answered.
//! * Every message that was due is counted once, as published or as a failure.
//!
//! [`StreamCounters::published`]: crate::streams::StreamCounters::published
//! [`StreamCounters::refused`]: crate::streams::StreamCounters::refused

use std::sync::Arc;

use super::client::ClientState;
use super::handshake::UNSENT_BYTES_MAX;
use super::outbox::{InFlight, MessageQueue, Publisher, WAITING_MAX};
use super::thread::ClientThread;
use crate::failure::Failure;
use crate::marker::{Mark, now_ns};
use crate::protocol::{Response, refusal};
use crate::publish::schedule::{Schedule, ScheduledMessage};

/// How often a thread looks for unanswered messages while there may be any.
const WATCH_NS: u64 = 20_000_000;

/// How far a thread looks ahead for its next message.
const AHEAD_NS: u64 = 1_000_000_000;

impl ClientThread {
    /// Publishes these messages, with payloads of `size` bytes. The rest of an earlier schedule is
    /// dropped.
    pub(crate) fn publish(&mut self, schedule: Schedule, size: usize) {
        let outbox = &mut self.outbox;
        (outbox.schedule, outbox.next, outbox.size) = (Some(schedule), 0, size);
    }

    /// Ends the schedule. Messages that are due are still sent, even if the thread is late.
    pub(crate) fn end_publishing(&mut self) {
        self.publish_due();
        self.outbox.schedule = None;
    }

    /// Gives up all messages that are not published.
    pub(crate) fn abandon(&mut self) {
        self.outbox.schedule = None;
        for position in 0..self.outbox.queues.len() {
            let queue = &mut self.outbox.queues[position];
            self.counts.publishes.fail(&Failure::Unsent, queue.waiting.len());
            queue.waiting.clear();
            if !queue.in_flight.is_empty() {
                self.fail(position, Failure::Unanswered);
            }
        }
    }

    /// True if every message is sent and answered, or given up.
    pub(crate) fn has_published(&self) -> bool {
        let is_empty =
            |queue: &MessageQueue| queue.waiting.is_empty() && queue.in_flight.is_empty();
        self.outbox.schedule.is_none() && self.outbox.queues.iter().all(is_empty)
    }

    /// True if a connect or handshake is in progress, or will be.
    pub(crate) fn is_opening(&self) -> bool {
        self.opening.in_flight > 0 || self.opening.cursor < self.opening.goal
    }

    /// Sends the messages that are due, and gives up those that are not answered in time. Returns
    /// when the next is due.
    pub(super) fn publish_due(&mut self) -> u64 {
        let shared = Arc::clone(&self.shared);
        let Some(publisher) = &shared.publisher else { return u64::MAX };
        let now = now_ns();
        let mut next_ns = u64::MAX;
        while let Some(schedule) = &self.outbox.schedule {
            let Some(message) = schedule.slot(self.outbox.next) else {
                self.outbox.schedule = None;
                break;
            };
            let position = publisher.position(message.stream, self.index, shared.threads);
            let ahead_ns = if position.is_some() { 0 } else { AHEAD_NS };
            let due_ns = message.intended_ns.saturating_sub(ahead_ns);
            if due_ns > now {
                next_ns = due_ns;
                break;
            }
            self.outbox.next += 1;
            if let Some(position) = position {
                self.enqueue(position, message);
            }
        }
        for position in std::mem::take(&mut self.outbox.touched) {
            self.pump(position);
        }
        next_ns.min(self.watch(now))
    }

    fn enqueue(&mut self, position: usize, message: ScheduledMessage) {
        let publishes = &mut self.counts.publishes;
        publishes.due += 1;
        let waiting = &mut self.outbox.queues[position].waiting;
        if waiting.len() < WAITING_MAX {
            waiting.push_back(message);
        } else {
            publishes.fail(&Failure::Behind, 1);
        }
        self.outbox.touched.push(position);
        // A server may close an idle connection.
        if matches!(self.clients[position].state, ClientState::New | ClientState::Closed) {
            self.set_state(position, ClientState::Waiting);
            self.reopen(position);
        }
    }

    /// Fails the connections whose oldest message was not answered in time. Returns when the next
    /// may be.
    fn watch(&mut self, now: u64) -> u64 {
        if self.outbox.queues.iter().all(|queue| queue.in_flight.is_empty()) {
            return u64::MAX;
        }
        if now < self.outbox.watch_at_ns {
            return self.outbox.watch_at_ns;
        }
        for position in 0..self.outbox.queues.len() {
            let oldest = self.outbox.queues[position].in_flight.front();
            let timeout_ns = self.shared.handshake_timeout_ns;
            if oldest.is_some_and(|oldest| now.saturating_sub(oldest.sent_ns) >= timeout_ns) {
                self.fail(position, Failure::Unanswered);
            }
        }
        self.outbox.watch_at_ns = now + WATCH_NS;
        self.outbox.watch_at_ns
    }

    /// True if a client that waits is still to be opened: for a publisher, if it has messages.
    pub(super) fn has_reason_to_open(&self, position: usize) -> bool {
        self.outbox.queues.get(position).is_none_or(|queue| !queue.waiting.is_empty())
    }

    /// True if a publisher by HTTP waits for no response, so that the server may close.
    pub(super) fn is_idle_publisher(&self, position: usize) -> bool {
        let queue = self.outbox.queues.get(position);
        self.clients[position].state == ClientState::Active
            && queue.is_some_and(|queue| queue.in_flight.is_empty())
    }

    /// Sends as many messages as the connection takes.
    pub(super) fn pump(&mut self, position: usize) {
        while self.outbox.queues.len() > position
            && self.clients[position].state == ClientState::Active
        {
            let mut batch = std::mem::take(&mut self.scratch);
            batch.clear();
            self.write_messages(position, &mut batch);
            let sent = if batch.is_empty() { Ok(()) } else { self.send(position, &batch) };
            let is_last = batch.is_empty() || self.clients[position].unsent() > 0;
            self.scratch = batch;
            match sent {
                Ok(()) => self.settle(position),
                Err(failure) => self.fail(position, failure),
            }
            if is_last {
                return;
            }
        }
    }

    /// Assigns sequences to messages that wait, and appends them to `batch`, as far as they may be
    /// in flight.
    fn write_messages(&mut self, position: usize, batch: &mut Vec<u8>) {
        let Some(publisher) = &self.shared.publisher else { return };
        let queue = &mut self.outbox.queues[position];
        let unsent = self.clients[position].unsent();
        while queue.in_flight.len() < publisher.in_flight_max
            && unsent + batch.len() < UNSENT_BYTES_MAX
        {
            let Some(message) = queue.waiting.pop_front() else { break };
            let ScheduledMessage { intended_ns, stream } = message;
            // No other connection publishes to this stream.
            let sequence = self.shared.counters.last_published(stream) + 1;
            self.shared.counters.published(stream, sequence);
            let mark = Mark { run: self.shared.share.run, stream, sequence, intended_ns };
            publisher.write(&mark, self.outbox.size, batch);
            let sent_ns = now_ns();
            self.counts.publishes.send(intended_ns, sent_ns);
            let end = queue.bytes + batch.len();
            queue.in_flight.push_back(InFlight { stream, sequence, sent_ns, end });
        }
        queue.bytes += batch.len();
    }

    /// Counts frames that the kernel has accepted as published: they get no response.
    fn settle(&mut self, position: usize) {
        let is_http = self.shared.publisher.as_ref().is_none_or(Publisher::is_http);
        if is_http || !self.network.is_flushed(position) {
            return;
        }
        let queue = &mut self.outbox.queues[position];
        // Pongs among the unsent bytes only delay it.
        let accepted = queue.bytes.saturating_sub(self.clients[position].unsent());
        while queue.in_flight.pop_front_if(|message| message.end <= accepted).is_some() {
            self.counts.publishes.published += 1;
        }
    }

    /// Handles the response to the oldest message in flight.
    pub(super) fn publish_response(
        &mut self,
        position: usize,
        response: &Response<'_>,
        now: u64,
    ) -> Result<(), Failure> {
        let Some(message) = self.outbox.queues[position].in_flight.pop_front() else {
            return Err(Failure::Protocol("an unexpected response"));
        };
        let publishes = &mut self.counts.publishes;
        publishes.answer.record(now.saturating_sub(message.sent_ns));
        let refused = self.shared.publisher.as_ref().and_then(|by| by.refused.as_ref());
        let refusal = refused.and_then(|text| refusal::containing(&response.body, text));
        let is_rejected = !(200..300).contains(&response.status);
        match refusal.or_else(|| is_rejected.then(|| response.refusal())) {
            Some(refusal) => {
                self.shared.counters.refused(message.stream, message.sequence);
                publishes.fail(&refusal, 1);
            }
            None => publishes.published += 1,
        }
        if response.keeps_alive { Ok(()) } else { Err(Failure::Reconnect) }
    }

    /// The connection ends. The fate of unanswered messages is unknown. Unsent ones wait for the
    /// next connection, unless this one could not be opened in the first place.
    pub(super) fn lose_messages(&mut self, position: usize, failure: &Failure) {
        let Some(queue) = self.outbox.queues.get_mut(position) else { return };
        let publishes = &mut self.counts.publishes;
        if self.clients[position].state != ClientState::Active {
            publishes.fail(failure, queue.waiting.len());
            queue.waiting.clear();
        }
        publishes.unsure += queue.in_flight.len() as u64;
        publishes.fail(failure, queue.in_flight.len());
        for message in queue.in_flight.drain(..) {
            self.shared.counters.refused(message.stream, message.sequence);
        }
        queue.bytes = 0;
    }
}
