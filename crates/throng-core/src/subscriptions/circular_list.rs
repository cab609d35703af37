//! The circular list of a channel's subscriptions, and the steps of a fan-out pass around it.

use super::SubscriptionTable;
use super::cursor::distance;
use super::subscription::{CATCHING_UP, MarkedConnection, SubscriptionId};
use crate::id::LocalId;

/// One step of a fan-out pass.
pub(super) struct Visit {
    /// The subscription that the pass has come to.
    pub(super) id: SubscriptionId,
    pub(super) connection: MarkedConnection,
    /// True if it lacks something: its cursor is behind the channel's head.
    pub(super) is_behind: bool,
}

impl SubscriptionTable {
    /// Appends a subscription to the end of the channel's list.
    pub(super) fn link(&mut self, local: LocalId, id: SubscriptionId) {
        let channel = &mut self.channels[local.index()];
        channel.count += 1;
        if let Some(buffer) = &mut channel.buffer
            && buffer.pass.visits_left > 0
        {
            // It is last, so the pass comes to it as well.
            buffer.pass.visits_left += 1;
        }
        // It is alone, and linked to itself.
        let Some(first) = channel.first else {
            channel.first = Some(id);
            return;
        };
        let last = self.subscriptions[first.index()].before;
        let new = &mut self.subscriptions[id.index()];
        (new.before, new.next) = (last, first);
        self.subscriptions[last.index()].next = id;
        self.subscriptions[first.index()].before = id;
    }

    /// Takes a subscription out of its channel's list. A pass that stands at it goes on with its
    /// successor.
    pub(super) fn unlink(&mut self, local: LocalId, id: SubscriptionId) {
        let gone = &self.subscriptions[id.index()];
        let (before, next) = (gone.before, gone.next);
        self.volatile.pass_on(local, id, (before, next));
        self.subscriptions[before.index()].next = next;
        self.subscriptions[next.index()].before = before;
        let channel = &mut self.channels[local.index()];
        channel.count -= 1;
        let successor = (next != id).then_some(next);
        let was_first = channel.first == Some(id);
        if was_first {
            channel.first = successor;
        }
        // No pass is under way.
        let Some(buffer) = &mut channel.buffer else { return };
        let offered = buffer.offered();
        let pass = &mut buffer.pass;
        pass.visits_left = pass.visits_left.min(channel.count);
        if was_first && pass.next == successor {
            // The pass has just visited the subscription that leaves. Its successor is the first
            // now, so the round starts anew.
            pass.wrap_head = offered;
        }
        if pass.next == Some(id) {
            pass.next = successor;
        }
    }

    /// True if the next step neither ends the pass nor wraps around. Both take for granted that the
    /// subscriptions visited before have been served.
    pub(super) fn is_before_wrap(&self, local: LocalId) -> bool {
        // A channel whose pass was stopped may still be in the queue of passes.
        let Some(channel) = self.channels.get(local.index()) else { return false };
        channel.buffer.as_deref().is_some_and(|buffer| {
            let pass = &buffer.pass;
            pass.visits_left > 0 && pass.next.is_some_and(|next| channel.first != Some(next))
        })
    }

    /// Makes one step of the channel's pass. Returns `None` when the pass is over, or was stopped.
    /// The subscriptions of earlier steps must have been served if the step ends the pass or wraps
    /// around.
    pub(super) fn step(&mut self, local: LocalId) -> Option<Visit> {
        // A channel whose pass was stopped may still be in the queue of passes.
        let channel = self.channels.get_mut(local.index())?;
        let buffer = channel.buffer.as_deref_mut()?;
        if buffer.pass.visits_left == 0 {
            self.finish(local);
            return None;
        }
        let id = buffer.pass.next.or(channel.first)?;
        let subscription = &self.subscriptions[id.index()];
        buffer.pass.visits_left -= 1;
        buffer.pass.next = Some(subscription.next);
        let visit = Visit {
            id,
            connection: subscription.connection,
            is_behind: distance(channel.head, subscription.cursor) > 0
                // Or it is to be told that it has the state.
                || subscription.connection.has(CATCHING_UP),
        };
        if channel.first == Some(id) {
            // The pass has come round: all were offered what was the head at its last visit here.
            // Of what is held back, a pass may have offered some to some.
            let head = buffer.held_back_from.unwrap_or(channel.head);
            let wrap_head = std::mem::replace(&mut buffer.pass.wrap_head, head);
            if buffer.held == 0 {
                self.pending_bytes -= buffer.mark_offered(wrap_head, &mut self.completions);
            }
            self.trim_to_lag(local);
        }
        Some(visit)
    }

    /// Ends a pass that has offered everything to every subscription.
    fn finish(&mut self, local: LocalId) {
        let channel = &mut self.channels[local.index()];
        if let Some(buffer) = &mut channel.buffer {
            buffer.pass.is_queued = false;
            let to = buffer.held_back_from.unwrap_or(channel.head);
            if buffer.held == 0 {
                self.pending_bytes -= buffer.mark_offered(to, &mut self.completions);
            }
        }
        self.trim(local);
    }
}
