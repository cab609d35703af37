//! One slice of the fan-outs under way: which subscriptions it visits, and what it writes together.
//!
//! Most of a fan-out is one message to connections that take all of it, or one answer to
//! long-polls. These writes are handed to the [`Net`] together, which may need fewer system calls
//! for them. A subscription that lacks several messages, or needs bytes of its own, is written to
//! separately.

use std::sync::Arc;

use throng_core::{Message, SubscriptionId, Waiting};

use super::acks::shown_of;
use super::batch::Batch;
use crate::connection::{ConnectionId, Flags};
use crate::delivery::Delivery;
use crate::net::Net;
use crate::sockets::Outcome;

/// Fewer visits than this are written one by one: sharing a call would save little.
const TOGETHER_MIN: usize = 4;

impl<N: Net> Delivery<N> {
    /// Begins a slice of the fan-outs under way.
    pub(crate) fn begin_fan_out(&mut self) {
        self.batch.left = self.budget().begin_fan_out();
    }

    /// Finds the next visits of the slice. Returns whether there are any.
    pub(crate) fn next_visits(&mut self) -> bool {
        self.subscriptions.next_batch(&mut self.batch.left, &mut self.batch.visits);
        !self.batch.visits.is_empty()
    }

    /// Makes the visits that were found, which are of different connections. The slice has no more
    /// once its bytes are spent.
    pub(crate) fn visit(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        if batch.visits.len() >= TOGETHER_MIN {
            self.deliver_together(&mut batch);
            self.answer_together(&mut batch);
        }
        let mut visits = std::mem::take(&mut batch.visits);
        for (subscription, id) in visits.drain(..) {
            if self.deliver(id, subscription) {
                batch.left = 0;
            }
        }
        batch.visits = visits;
        debug_assert!(batch.is_empty(), "a slice leaves nothing behind");
        self.batch = batch;
    }

    /// Ends the slice.
    pub(crate) fn end_fan_out(&mut self) {
        self.budget().end_fan_out();
    }

    /// Writes to the visits of the batch that lack just one message, the same for all, and removes
    /// them from the batch.
    fn deliver_together(&mut self, batch: &mut Batch) {
        let Batch { visits, together, encoded, transfers, .. } = batch;
        let find = |&(subscription, id)| self.lacks_one(id, subscription);
        // Each visit needs bytes of its own.
        let Some(message) = visits.iter().find_map(find).cloned() else { return };
        // A message is one `Arc` in its replay buffer, so that its address identifies it.
        visits.retain(|&(subscription, id)| {
            let lacked = self.lacks_one(id, subscription);
            let is_shared = lacked.is_some_and(|lacked| Arc::ptr_eq(lacked, &message));
            if is_shared {
                together.push((subscription, id));
            }
            !is_shared
        });
        let Delivery { sockets, subscriptions, compression, .. } = self;
        // All visits are of one channel.
        let Some(&(first, _)) = together.first() else { return };
        let shown = shown_of(subscriptions, first);
        let id_of = |&(_, id): &(SubscriptionId, ConnectionId)| id;
        sockets.write_each(together, id_of, transfers, |_, connection, costs| {
            let (own, is_chunked) = (connection.encoding(), connection.has(Flags::CHUNKED));
            if own.is_compressed() {
                costs.compressed(compression.prepare(&message, own));
            }
            let bytes = own.encode(&message, shown, is_chunked);
            // The choice of `encode`: only `prepare` compresses.
            encoded.push((own.of(&message), bytes.len()));
            bytes
        });
        let written = together.drain(..).zip(encoded.drain(..)).zip(transfers.drain(..));
        for (((subscription, id), (encoding, length)), transfer) in written {
            let outcome = Outcome::of_message(&message, encoding, length, transfer);
            let (is_blocked, is_begun) = (outcome.is_blocked, outcome.advanced_to.is_some());
            self.conclude(id, subscription, outcome);
            if encoding.joins() {
                self.note_frame(id);
                self.note_asked(id, usize::from(shown.asks && is_begun));
            }
            if is_blocked {
                self.subscriptions.block(subscription);
            }
        }
    }

    /// The message that the subscription lacks, if it lacks just one and gets the shared encoding.
    fn lacks_one(&self, id: ConnectionId, subscription: SubscriptionId) -> Option<&Arc<Message>> {
        let connection = &self[id];
        let encoding = connection.encoding();
        let is_composed = connection.has(Flags::MULTIPLE) && encoding.has_own_ids();
        if is_composed || (encoding.joins() && !self.is_written_alone(id, subscription)) {
            return None;
        }
        self.lacks_just_one(id, subscription)
    }

    /// The message that the subscription lacks, if it lacks just one, which its connection gets
    /// now.
    pub(super) fn lacks_just_one(
        &self,
        id: ConnectionId,
        subscription: SubscriptionId,
    ) -> Option<&Arc<Message>> {
        let connection = &self[id];
        let may_write = connection.takes_messages() && !self.is_in_order(id, subscription);
        // Behind the last message of a state comes its notice, and what has come since.
        let awaits_more = self.subscriptions.awaits_state(subscription);
        if !may_write || awaits_more || self.awaits_acks(id, subscription) {
            return None;
        }
        let Waiting::Messages(mut messages) = self.subscriptions.waiting(subscription) else {
            return None;
        };
        let message = messages.next().filter(|_| messages.next().is_none())?;
        let reader = self.connections().reader_of(id, connection);
        message.is_for(reader, self.clock().unix_ms()).then_some(message)
    }

    /// Records the latency of the messages whose fan-out ended with this slice. Reads the clock
    /// once: if each message has one subscriber, many end in one slice.
    pub(crate) fn record_completions(&mut self) {
        let mut completions = self.subscriptions.completions();
        // No fan-out has ended.
        let Some(first_us) = completions.next() else { return };
        let now_us = throng_core::clock::now_us();
        for accepted_us in std::iter::once(first_us).chain(completions) {
            self.sockets.metrics().record_latency(now_us.saturating_sub(accepted_us));
        }
    }
}
