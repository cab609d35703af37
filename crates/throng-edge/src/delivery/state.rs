//! Subscriptions that begin with the state of their channel, and those that pass over superseded
//! values because they are slow.

use throng_core::{MessageId, SubscriptionId};
use throng_dialect::Saying;

use super::Delivery;
use crate::connection::{ConnectionId, State};
use crate::counters::Counter;
use crate::net::Net;

impl<N: Net> Delivery<N> {
    /// Begins a subscription with the state of its channel, whose head is `head`.
    pub(crate) fn begin_state(&mut self, subscription: SubscriptionId, head: MessageId) {
        self.subscriptions.begin_state(subscription, head);
    }

    /// Tells the connection that it has the state of a channel, as it was at `end`.
    pub(super) fn end_state(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        end: MessageId,
    ) {
        self.subscriptions.end_state(subscription);
        if self.subscriptions.is_of_members(subscription) {
            return self.end_member_list(id, subscription, end);
        }
        let target = self.target_of(subscription);
        debug_assert!(target.is_some(), "a channel with subscribers has a name");
        let Some(target) = target else { return };
        self.say(id, &Saying::State { target: &target, id: &end.to_string() });
    }

    /// Counts the superseded messages that the connection's subscriptions have passed over, and
    /// tells the client how many these are; a number that is not known counts as one. From now on
    /// little waits in the kernel for a client that is so slow: there nothing newer can take its
    /// place.
    pub(super) fn tell_superseded(&mut self, id: ConnectionId) {
        let passed = self.subscriptions.take_superseded();
        if passed.is_empty() {
            return;
        }
        self.bound_unsent(id);
        for (subscription, count) in passed {
            self.metrics().add(Counter::MessagesConflated, count.unwrap_or(1));
            // The newest of each is all that there is to know of members.
            let is_told = !self.subscriptions.is_of_members(subscription);
            if is_told && self[id].state() == State::Streaming {
                self.tell_conflated(id, subscription, count);
            }
        }
    }
}
