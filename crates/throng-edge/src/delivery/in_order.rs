//! Takes messages of several channels in the order of their stamps, for connections that have one
//! position in all of them.
//!
//! # Invariants
//!
//! * A connection that follows kept channels, and is shown positions, gets messages in the order of
//!   their stamps, and none that is not settled. So the stamp of the last one is its position.
//! * What it lacks beyond that stays in replay buffers: its subscriptions are blocked until it is
//!   settled.
//! * All subscriptions of such a connection are marked, and only they are.
//! * A channel whose log is in another order than positions has no part in the position: its
//!   messages go before all others that are lacking, and move none.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use throng_core::{
    ChannelId, ChannelName, Followed, HistoryQuery, Message, MessageId, Stamp, StartAt,
    SubscriptionId, SubscriptionTable, Waiting, Watermark,
};

use super::Delivery;
use super::subscriptions::name_of;
use crate::connection::{ConnectionId, Flags};
use crate::net::Net;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TakenInOrder {
    /// The connection has all messages up to this one.
    pub(super) up_to: Stamp,
    /// True if it lacks more that is settled.
    pub(super) is_cut: bool,
}

/// The page of the inbox that has the message of this id, which tells where a client that has
/// followed the inbox alone starts in the kept channels.
pub(crate) fn page_before_next(id: MessageId) -> (HistoryQuery, usize) {
    let next = MessageId { offset: id.offset.saturating_add(1), ..id };
    (HistoryQuery::Before(next), 1)
}

impl<N: Net> Delivery<N> {
    /// True if a subscription's connection gets messages in the order of their stamps. Others do
    /// not learn their position.
    pub(crate) fn is_in_order(&self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        self.subscriptions.is_kept(subscription) && self[id].encoding().shows_position()
    }

    /// The place of a subscription's message in the order of positions; 0 if its log is in another
    /// order.
    pub(super) fn stamp_of(&self, subscription: SubscriptionId, message: &Message) -> Stamp {
        let has_positions = self.engine.has_positions_in(self.subscriptions.journal(subscription));
        if has_positions { message.stamp } else { Stamp(0) }
    }

    /// Moves the cursors of the connection over settled messages, in order, and calls `take` with
    /// each that the connection gets, the number of its channel and the connection's position after
    /// it, until that returns false. No subscription has a gap.
    pub(super) fn take_in_order(
        &mut self,
        id: ConnectionId,
        mut take: impl FnMut(&Arc<Message>, ChannelId, Stamp) -> bool,
    ) -> TakenInOrder {
        let settled = self.watermark.stamp;
        let all = TakenInOrder { up_to: settled, is_cut: false };
        let now_ms = self.clock().unix_ms();
        let reader = self.connections().reader_of(id, &self[id]);
        let lacking: Vec<_> = self.subscriptions(id).collect();
        let next_of = |delivery: &Delivery<N>, index: usize| {
            let Waiting::Messages(mut messages) = delivery.subscriptions.waiting(lacking[index])
            else {
                return None;
            };
            let message = messages.next()?;
            Some(Reverse((delivery.stamp_of(lacking[index], message), index)))
        };
        let mut heap: BinaryHeap<_> =
            (0..lacking.len()).filter_map(|index| next_of(self, index)).collect();
        let stamps = heap.iter().map(|Reverse((stamp, _))| *stamp);
        let first = stamps.filter(|stamp| *stamp > Stamp(0)).min();
        let before = first.map_or(settled, |first| settled.min(Stamp(first.0 - 1)));
        while let Some(Reverse((stamp, index))) = heap.pop() {
            if stamp > settled {
                break;
            }
            let position = stamp.max(before);
            let subscription = lacking[index];
            let Waiting::Messages(mut messages) = self.subscriptions.waiting(subscription) else {
                debug_assert!(false, "it has been seen to lack messages");
                continue;
            };
            let Some(message) = messages.next().cloned() else { continue };
            // Before it is written, as all that is composed.
            let held = self.subscriptions.pass(subscription, message.id.offset, 0);
            self.hold_receipts(id, held);
            let number = self.subscriptions.number(subscription);
            let goes_on = !message.is_for(reader, now_ms) || take(&message, number, position);
            heap.extend(next_of(self, index));
            if !goes_on {
                let is_cut = heap.peek().is_some_and(|Reverse((next, _))| *next <= settled);
                return TakenInOrder { up_to: if is_cut { position } else { settled }, is_cut };
            }
        }
        all
    }

    /// Blocks the subscriptions of the connection that lack something, so that their replay buffers
    /// keep it, and unblocks the others. Returns whether there are such.
    pub(super) fn block_lacking(&mut self, id: ConnectionId) -> bool {
        let mut lacks_some = false;
        self.each_subscription(id, |subscriptions, subscription| {
            if matches!(subscriptions.waiting(subscription), Waiting::Nothing) {
                subscriptions.unblock(subscription);
            } else {
                subscriptions.block(subscription);
                lacks_some = true;
            }
        });
        lacks_some
    }

    /// The server keeps a subscription for which the client has not asked.
    pub(crate) fn leave_unasked(&mut self, subscription: SubscriptionId) {
        self.subscriptions.set_unasked(subscription);
    }

    /// Marks all subscriptions of a connection.
    pub(crate) fn mark_kept(&mut self, id: ConnectionId) {
        if !std::mem::replace(&mut self.has_kept, true) {
            // The worker's position is from its start, maybe of another epoch. The settled one is
            // known when the queue is taken the next time.
            self.watermark = Watermark { stamp: Stamp(0), ..self.engine.watermark() };
        }
        self.each_subscription(id, SubscriptionTable::set_kept);
    }

    /// Ends the subscriptions that the server keeps.
    pub(crate) fn unfollow_kept(&mut self, id: ConnectionId) {
        // Newest first: each is then near the head of the connection's list.
        let all: Vec<_> = self.subscriptions(id).collect();
        for subscription in all {
            let is_unasked = self.subscriptions.is_unasked(subscription);
            if let Some(target) = self.target_of(subscription).filter(|_| is_unasked) {
                self.unfollow_channel(id, subscription, &name_of(&target));
            }
        }
    }

    /// The connection's subscriptions but those that the server keeps for its user, which are
    /// granted with the user's inbox; oldest first.
    pub(crate) fn subscriptions_to_grant(&self, id: ConnectionId) -> Vec<SubscriptionId> {
        let is_asked = |&one: &SubscriptionId| !self.subscriptions.is_unasked(one);
        let mut all: Vec<_> = self.subscriptions(id).filter(is_asked).collect();
        all.reverse();
        all
    }

    /// True if the connection follows what the server keeps for its user.
    pub(crate) fn is_marked(&self, id: ConnectionId) -> bool {
        self.newest_subscription(id).is_some_and(|newest| self.subscriptions.is_kept(newest))
    }

    /// Writes a subscription that ends what was published before. Returns whether some of that can
    /// only be written later. A client that reads too slowly is not waited for.
    pub(crate) fn lacks_what_came_before(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
    ) -> bool {
        self.catch_up_now(id, subscription);
        let connection = &self[id];
        let is_deferred =
            connection.has(Flags::DELIVERY_DEFERRED) && !connection.has(Flags::BLOCKED);
        // A node that is cut off may not learn for minutes that its messages are settled.
        let is_soon = self.engine.is_settling() || self.budget().is_slice_spent();
        let lacks_some = !matches!(self.subscriptions.waiting(subscription), Waiting::Nothing);
        is_deferred && is_soon && lacks_some
    }

    pub(crate) fn subscriptions_changed(&mut self, id: ConnectionId) {
        let Some(newest) = self.newest_subscription(id) else { return };
        let second = self.subscriptions.sibling(newest);
        // Mostly all others are marked.
        if second.is_some_and(|second| self.subscriptions.is_kept(second)) {
            self.subscriptions.set_kept(newest);
        } else {
            self.mark_kept(id);
        }
    }

    /// The connection's subscription of a channel, if it has one.
    pub(crate) fn own_subscription(
        &self,
        id: ConnectionId,
        name: &ChannelName,
    ) -> Option<SubscriptionId> {
        self.subscription_to(id, self.channel_here(name)?)
    }

    /// The id of a channel, if this worker follows it.
    pub(crate) fn channel_here(&self, name: &ChannelName) -> Option<ChannelId> {
        let followers = self.engine.audience(name).workers;
        let own = followers.into_iter().find(|(worker, ..)| *worker == self.metrics().worker());
        own.map(|(_, _, channel)| channel)
    }

    /// Where a connection starts in the kept channels, if it starts there in its inbox. Call it
    /// before any channel is followed.
    pub(crate) fn kept_position(&self, inbox: &ChannelName, start: StartAt) -> Watermark {
        let now = self.engine.watermark();
        match start {
            StartAt::Since(position) => position,
            StartAt::Live | StartAt::Last(_) | StartAt::From(_) | StartAt::State => now,
            // The client has followed the inbox alone, up to this message.
            StartAt::After(id) => {
                let (page, limit) = page_before_next(id);
                let history = self.engine.history(self.clock().unix_ms(), inbox, page, limit);
                let found = history.messages.last().filter(|message| message.id == id);
                // Otherwise it is a position that was never given out.
                let stamp = found.map_or(Stamp(u64::MAX), |message| message.stamp);
                Watermark { stamp, ..now }
            }
        }
    }

    /// Where a connection starts in a channel, or in its inbox, if it starts at `start` there and
    /// has a position.
    pub(crate) fn start_in_kept(
        &self,
        channel: &ChannelName,
        start: StartAt,
        position: Watermark,
    ) -> StartAt {
        match start {
            // Others may have published more than is settled here: it would get that as new.
            StartAt::Live if self.engine.shares_positions() => start,
            StartAt::Live if self.engine.has_positions(channel) => StartAt::Since(position),
            start => start,
        }
    }

    /// Where a connection that starts at `start` in its inbox starts in kept channels.
    pub(crate) fn start_of_kept(&self, start: StartAt, position: Watermark) -> StartAt {
        match start {
            StartAt::Live | StartAt::Last(_) | StartAt::From(_) | StartAt::State
                if self.engine.shares_positions() =>
            {
                StartAt::Live
            }
            _ => StartAt::Since(position),
        }
    }

    /// The last place in the order of positions before all that these subscriptions begin with.
    pub(crate) fn stamp_before(&self, followed: &[Followed]) -> Option<Stamp> {
        let rules = self.engine.rules();
        let has_positions =
            |one: &&Followed| self.engine.has_positions_in(rules.get(one.rule).journal);
        let first = followed.iter().filter(has_positions).filter_map(|one| one.backlog.first());
        first.map(|message| Stamp(message.stamp.0.saturating_sub(1))).min()
    }

    /// The position of a connection that begins at `position`, and has not got what comes after
    /// `stamp`. One that was never given out, or before a restart, goes on from here.
    pub(crate) fn position_from(&self, position: Watermark, stamp: Stamp) -> Watermark {
        let newest = self.engine.watermark();
        // Another server may have given out one that is beyond what is settled here.
        let is_of_others = self.engine.shares_positions()
            && position.epoch == newest.epoch
            && position.stamp != Stamp(u64::MAX);
        let most = if is_of_others { position.stamp.max(newest.stamp) } else { newest.stamp };
        Watermark { stamp: stamp.min(most), ..newest }
    }
}
