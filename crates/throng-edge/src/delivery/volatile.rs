//! Writes volatile messages to those that keep up: whoever is behind does not get them, and that is
//! counted.
//!
//! Their rest after a partial write belongs to the connection, as the rest of an answer does: no
//! log and no replay buffer has it.

use std::sync::Arc;

use throng_core::{ChannelId, LocalId, Message, SubscriptionId, Waiting};
use throng_dialect::dialect::Shown;

use super::Delivery;
use super::acks::shown_of;
use crate::connection::{ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::net::Net;

impl<N: Net> Delivery<N> {
    /// Acts on a volatile message of a channel.
    pub(super) fn notified_of_volatile(
        &mut self,
        local: LocalId,
        channel: ChannelId,
        message: &Arc<Message>,
    ) {
        // No offset tells a late one, whose channel's ids are another channel's now.
        if !self.engine.is_named(channel, &message.channel) {
            return self.subscriptions.pass_over(message, None);
        }
        if let Err(dropped) = self.subscriptions.append_volatile(local, channel, message) {
            let counter = if dropped.is_over_share {
                Counter::VolatileDroppedShare
            } else {
                Counter::VolatileDroppedBusy
            };
            self.metrics().add(counter, dropped.deliveries);
        }
    }

    /// Finds the next visits of the slice, and the volatile message that they are for; `None` if
    /// there are none.
    pub(crate) fn next_volatile_visits(&mut self) -> Option<Arc<Message>> {
        self.subscriptions.next_volatile(&mut self.batch.left, &mut self.batch.visits)
    }

    /// Makes the visits that were found, which are of different connections. The slice has no more
    /// once its bytes are spent.
    pub(crate) fn visit_with_volatile(&mut self, message: &Arc<Message>) {
        let mut batch = std::mem::take(&mut self.batch);
        let visits = std::mem::take(&mut batch.visits);
        // All visits are of one channel.
        let first = visits.first().map(|(first, _)| shown_of(&self.subscriptions, *first));
        let shown = first.unwrap_or(Shown::of(ChannelId(0)));
        let mut together = std::mem::take(&mut batch.together);
        together.extend(visits.iter().filter(|(one, id)| self.takes_volatile(*id, *one, message)));
        (batch.visits, batch.together) = (visits, together);
        batch.visits.clear();
        let (together, transfers) = (&mut batch.together, &mut batch.transfers);
        let Delivery { sockets, compression, .. } = self;
        sockets.write_each(
            together,
            |&(_, id)| id,
            transfers,
            |_, connection, costs| {
                let own = connection.encoding();
                if own.is_compressed() {
                    costs.compressed(compression.prepare(message, own));
                }
                own.encode(message, shown, connection.has(Flags::CHUNKED))
            },
        );
        for ((_, id), transfer) in together.drain(..).zip(transfers.drain(..)) {
            let connection = &self[id];
            let (own, is_chunked) = (connection.encoding(), connection.has(Flags::CHUNKED));
            let bytes = own.encode(message, shown, is_chunked);
            self.sent_messages(id, bytes, 1, transfer);
            if own.joins() {
                self.note_frame(id);
            }
        }
        if self.budget().is_slice_spent() {
            batch.left = 0;
        }
        debug_assert!(batch.is_empty(), "a slice leaves nothing behind");
        self.batch = batch;
    }

    /// True if a volatile message can be written to a subscriber now, who has all earlier ones. A
    /// long-poll is answered with it, one that is behind is counted.
    fn takes_volatile(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        message: &Message,
    ) -> bool {
        let connection = &self[id];
        let is_for = message.is_for(self.connections().reader_of(id, connection), 0);
        // A poll waits for messages.
        let is_for =
            is_for && (connection.state() != State::LongPolling || message.unread().is_none());
        if !is_for || !connection.is_parked() {
            return false;
        }
        let polls = connection.state() == State::LongPolling && !connection.has(Flags::BLOCKED);
        let takes = if polls {
            self.answer_with_volatile(id, subscription, message)
        } else {
            self.brings_up_to_date(id, subscription)
        };
        // A write may have found that its peer has gone.
        if !takes && !self[id].is_ending() {
            self.count(Counter::VolatileDroppedBehind);
        }
        takes && !polls
    }

    /// Writes a subscriber what it lacks. Returns whether that was all, as far as it is settled,
    /// and the socket takes more.
    fn brings_up_to_date(&mut self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        // Its client does not know yet what it follows.
        if self.connections().holds_messages(id) {
            return false;
        }
        let is_in_order = self.is_in_order(id, subscription);
        let lacks = |delivery: &Delivery<N>| {
            !matches!(delivery.subscriptions.waiting(subscription), Waiting::Nothing)
        };
        // What a pace, the client itself or the wait for its user holds back comes first, and not
        // before its time.
        let is_held = self.subscriptions.is_held_back(subscription)
            || self.awaits_acks(id, subscription)
            || self.awaits_user(subscription) && lacks(self);
        if !is_in_order && is_held {
            return false;
        }
        if self[id].takes_messages() && lacks(self) {
            if is_in_order {
                self.flush_in_order(id);
            } else if self[id].has(Flags::DELIVERY_DEFERRED) || self[id].encoding().joins() {
                // What is held back goes out at once, so that the order is kept.
                self.catch_up(id, subscription);
            } else {
                self.deliver(id, subscription);
            }
        }
        self[id].takes_messages() && (is_in_order || !lacks(self))
    }

    /// Drops the volatile messages that are under way, because another process goes on.
    pub(crate) fn drop_volatile(&mut self) {
        let dropped = self.subscriptions.drop_volatile();
        self.metrics().add(Counter::VolatileDroppedUpgrade, dropped);
    }
}
