//! What must hold between any two calls.

use super::super::*;

impl SubscriptionTable {
    /// Panics if an invariant does not hold.
    pub(super) fn check_invariants(&self) {
        let mut subscriptions = 0;
        let (mut buffer_bytes, mut pending_bytes) = (0, 0);
        for (index, channel) in self.channels.iter() {
            let local = LocalId::from_index(index);
            let ring = self.check_ring(local, channel);
            subscriptions += ring.len();
            pending_bytes += self.check_active(local, channel);
            buffer_bytes += channel.active.as_ref().map_or(0, |active| active.bytes);
            self.check_window(channel, &ring);
        }
        assert_eq!(subscriptions, self.subscriptions.len());
        assert_eq!((buffer_bytes, pending_bytes), (self.buffer_bytes, self.pending_bytes));
        assert!(self.blocked_bytes() <= self.blocked_bytes_max);
    }

    fn check_ring(&self, local: LocalId, channel: &LocalChannel) -> Vec<SubscriptionId> {
        let first = channel.first.expect("a channel without subscriptions is not kept");
        let mut ring = vec![first];
        loop {
            let at = *ring.last().unwrap();
            let subscription = self.subscription(at).expect("the ring holds subscriptions");
            assert_eq!(subscription.local, local);
            let next = self.subscription(subscription.next).expect("the ring holds subscriptions");
            assert_eq!(next.before, at);
            if subscription.next == first {
                break;
            }
            ring.push(subscription.next);
            assert!(ring.len() <= channel.count as usize, "the ring is longer than its count");
        }
        assert_eq!(ring.len(), channel.count as usize);
        let blocked = ring.iter().filter(|&&id| self.is_blocked(id)).count();
        assert_eq!(blocked, channel.blocked as usize);
        let is_catching_up = |id| self.subscription(id).unwrap().connection & CATCHING_UP != 0;
        let catching_up = ring.iter().filter(|&&id| is_catching_up(id)).count();
        assert_eq!(catching_up, channel.catching_up as usize);
        ring
    }

    /// Returns the bytes not offered to everyone.
    fn check_active(&self, local: LocalId, channel: &LocalChannel) -> usize {
        let Some(active) = &channel.active else { return 0 };
        let mut before = active.floor;
        for (nth, message) in active.buffer.iter().enumerate() {
            // The floor may stand between two messages whose offsets are far apart.
            assert!(message.previous == before || (nth == 0 && message.previous < before));
            assert!(message.id.offset > before);
            before = message.id.offset;
        }
        assert_eq!(before, channel.head, "the buffer ends at the head");
        assert!(channel.head - active.floor < 2 * REACH);
        let weight = |message: &Arc<Message>| message.weight_bytes();
        assert_eq!(active.bytes, active.buffer.iter().map(weight).sum::<usize>());
        let pending = active.buffer.iter().filter(|message| message.id.offset > active.offered);
        assert_eq!(active.pending_bytes, pending.map(weight).sum::<usize>());
        assert!(active.offered <= channel.head && active.wrap_head <= channel.head);
        assert!(active.left <= channel.count);
        assert!(active.left == 0 || active.is_fanning_out);
        assert!(!active.is_fanning_out || self.passes.contains(&local));
        assert_eq!(active.oldest_held_ms().is_some(), active.blocked_bytes() > 0);
        assert!(!active.is_known_to_hold || self.held.has(local.index()));
        if channel.blocked > 0 && !active.is_fanning_out && active.blocked_bytes() > 0 {
            assert!(active.is_known_to_hold, "what nobody knows of is never dropped");
        }
        active.pending_bytes
    }

    /// Whoever is behind is blocked, or the sweep will visit it.
    fn check_window(&self, channel: &LocalChannel, ring: &[SubscriptionId]) {
        let (position, left) = match &channel.active {
            Some(active) => (active.position.unwrap_or(ring[0]), active.left as usize),
            None => (ring[0], 0),
        };
        let at = ring.iter().position(|&id| id == position).expect("the position is in the ring");
        for (nth, &id) in ring.iter().enumerate() {
            let is_to_visit = (nth + ring.len() - at) % ring.len() < left;
            let is_satisfied = matches!(self.waiting(id), Waiting::Nothing);
            assert!(is_satisfied || is_to_visit || self.is_blocked(id), "forgotten by the sweep");
        }
    }
}
