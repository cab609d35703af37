//! Takes messages of several channels in the order of their stamps, for connections that have one
//! position in all of them.
//!
//! # Invariants
//!
//! * A connection that follows kept channels, and is shown positions, gets messages in the order of
//!   their stamps, and none that is not settled. So the stamp of the last one is its position.
//! * What it lacks beyond that stays in replay buffers: its subscriptions are blocked until it is
//!   settled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use throng_core::{Message, Stamp, SubscriptionId, Waiting};

use crate::connection::ConnectionId;
use crate::delivery::Delivery;
use crate::net::Net;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TakenInOrder {
    /// The connection has all messages up to this one.
    pub(super) up_to: Stamp,
    /// True if it lacks more that is settled.
    pub(super) is_cut: bool,
}

impl<N: Net> Delivery<N> {
    /// True if a subscription's connection gets messages in the order of their stamps. Others do
    /// not learn their position.
    pub(crate) fn is_in_order(&self, id: ConnectionId, subscription: SubscriptionId) -> bool {
        self.subscriptions.is_kept(subscription) && self[id].encoding().shows_position()
    }

    /// Moves the cursors of the connection over settled messages, in order, and calls `take` with
    /// each that the connection gets, until that returns false. No subscription has a gap.
    pub(super) fn take_in_order(
        &mut self,
        id: ConnectionId,
        mut take: impl FnMut(&Arc<Message>) -> bool,
    ) -> TakenInOrder {
        let settled = self.watermark.stamp;
        let all = TakenInOrder { up_to: settled, is_cut: false };
        let (name, now_ms) = (self.connections().name(id), self.clock().unix_ms());
        let lacking: Vec<_> = self.subscriptions(id).collect();
        let next_of = |delivery: &Delivery<N>, index: usize| {
            let Waiting::Messages(mut messages) = delivery.subscriptions.waiting(lacking[index])
            else {
                return None;
            };
            messages.next().map(|message| Reverse((message.stamp, index)))
        };
        let mut heap: BinaryHeap<_> =
            (0..lacking.len()).filter_map(|index| next_of(self, index)).collect();
        while let Some(Reverse((stamp, index))) = heap.pop() {
            if stamp > settled {
                break;
            }
            let subscription = lacking[index];
            let Waiting::Messages(mut messages) = self.subscriptions.waiting(subscription) else {
                debug_assert!(false, "it has been seen to lack messages");
                continue;
            };
            let Some(message) = messages.next().cloned() else { continue };
            // Before it is written, as all that is composed.
            let held = self.subscriptions.pass(subscription, message.id.offset, 0);
            self.hold_receipts(id, held);
            let goes_on = !message.is_for(name, now_ms) || take(&message);
            heap.extend(next_of(self, index));
            if !goes_on {
                let is_cut = heap.peek().is_some_and(|Reverse((next, _))| *next <= settled);
                return TakenInOrder { up_to: if is_cut { stamp } else { settled }, is_cut };
            }
        }
        all
    }

    /// Blocks the subscriptions of the connection that lack something, so that their replay buffers
    /// keep it, and unblocks the others. Returns whether there are such.
    pub(super) fn block_lacking(&mut self, id: ConnectionId) -> bool {
        let mut lacks_some = false;
        let mut next = self.newest_subscription(id);
        while let Some(subscription) = next {
            if matches!(self.subscriptions.waiting(subscription), Waiting::Nothing) {
                self.subscriptions.unblock(subscription);
            } else {
                self.subscriptions.block(subscription);
                lacks_some = true;
            }
            next = self.subscriptions.sibling(subscription);
        }
        lacks_some
    }
}
