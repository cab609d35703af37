//! The ring of a channel's subscriptions, and the sweep that goes around it.

use super::{LocalId, Roster, SubscriptionId};

impl Roster {
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
        if active.position == Some(id) {
            active.position = rest;
            if !was_first && rest == channel.first {
                active.end_lap();
            }
        }
    }

    /// One step of the channel's sweep: the subscription to visit, or `None` when the sweep is over
    /// or the channel gone.
    pub(super) fn step(&mut self, local: LocalId) -> Option<SubscriptionId> {
        let next_of = |roster: &Roster, id| roster.subscription(id).map(|it| it.next);
        let (first, head) = self.channels.get(local.index()).map(|it| (it.first, it.head))?;
        let active = self.channels.get(local.index())?.active.as_ref()?;
        if active.left == 0 {
            self.finish(local);
            return None;
        }
        let at = active.position.or(first)?;
        let next = next_of(self, at);
        let active = self.channels.get_mut(local.index())?.active.as_mut()?;
        if Some(at) == first {
            active.lap_head = head;
        }
        active.left -= 1;
        active.position = next;
        if next == first {
            let offered = active.end_lap();
            self.unswept_bytes -= offered;
            self.trim(local);
        }
        Some(at)
    }

    /// The sweep has come around: everyone has been offered everything.
    fn finish(&mut self, local: LocalId) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let head = channel.head;
        if let Some(active) = &mut channel.active {
            active.is_sweeping = false;
            let offered = active.offered(head);
            self.unswept_bytes -= offered;
        }
        self.trim(local);
        self.settle(local);
    }
}
