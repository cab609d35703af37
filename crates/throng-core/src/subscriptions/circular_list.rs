//! The ring of a channel's subscriptions, and the sweep that goes around it.

use super::{LocalId, SubscriptionId, SubscriptionTable, distance};

/// Whom a sweep has come to.
pub(super) struct Visit {
    pub(super) id: SubscriptionId,
    /// Its connection's index, and its marks.
    pub(super) connection: u32,
    pub(super) is_behind: bool,
}

impl SubscriptionTable {
    /// Appends a subscription at the end of the channel's ring.
    pub(super) fn link(&mut self, local: LocalId, id: SubscriptionId) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        channel.count += 1;
        if let Some(active) = &mut channel.active
            && active.left > 0
        {
            active.left += 1;
        }
        let Some(first) = channel.first else {
            channel.first = Some(id);
            return;
        };
        let Some(last) = self.subscription(first).map(|it| it.before) else { return };
        if let Some(it) = self.subscription_mut(id) {
            (it.before, it.next) = (last, first);
        }
        if let Some(it) = self.subscription_mut(last) {
            it.next = id;
        }
        if let Some(it) = self.subscription_mut(first) {
            it.before = id;
        }
    }

    /// Takes a subscription out of its channel's ring.
    pub(super) fn unlink(&mut self, local: LocalId, id: SubscriptionId) {
        let Some((before, next)) = self.subscription(id).map(|it| (it.before, it.next)) else {
            return;
        };
        if let Some(it) = self.subscription_mut(before) {
            it.next = next;
        }
        if let Some(it) = self.subscription_mut(next) {
            it.before = before;
        }
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        channel.count -= 1;
        let rest = (next != id).then_some(next);
        let was_first = channel.first == Some(id);
        if was_first {
            channel.first = rest;
        }
        let Some(active) = &mut channel.active else { return };
        active.left = active.left.min(channel.count);
        if was_first && active.position == rest {
            // The first is gone after its visit: its successor is first now, and the lap begins
            // anew.
            active.wrap_head = active.offered;
        }
        if active.position == Some(id) {
            active.position = rest;
        }
    }

    /// Whether the next step is neither the end of the sweep nor of a lap: those take for granted
    /// that whoever was visited before has been served.
    pub(super) fn is_before_wrap(&self, local: LocalId) -> bool {
        let Some(channel) = self.channels.get(local.index()) else { return false };
        channel.active.as_deref().is_some_and(|active| {
            active.left > 0 && active.position.is_some_and(|next| channel.first != Some(next))
        })
    }

    /// One step of the channel's sweep: the subscription to visit, or `None` when the sweep is over
    /// or the channel gone. Whoever was named before has been served by now.
    pub(super) fn step(&mut self, local: LocalId) -> Option<Visit> {
        let channel = self.channels.get_mut(local.index())?;
        let active = channel.active.as_deref_mut()?;
        if active.left == 0 {
            self.finish(local);
            return None;
        }
        let id = active.position.or(channel.first)?;
        let subscription = self.subscriptions.get(id.index())?;
        active.left -= 1;
        active.position = Some(subscription.next);
        let visit = Visit {
            id,
            connection: subscription.connection,
            is_behind: distance(channel.head, subscription.cursor) > 0,
        };
        if channel.first == Some(id) {
            self.pending_bytes -= active.offered(active.wrap_head, &mut self.completions);
            active.wrap_head = channel.head;
            self.trim_to_lag(local);
        }
        Some(visit)
    }

    /// The sweep has come around: everyone has been offered everything.
    fn finish(&mut self, local: LocalId) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let head = channel.head;
        if let Some(active) = &mut channel.active {
            active.is_fanning_out = false;
            self.pending_bytes -= active.offered(head, &mut self.completions);
        }
        self.trim(local);
    }
}
