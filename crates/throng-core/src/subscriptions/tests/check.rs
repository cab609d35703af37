//! The invariants of a table, checked after each step of a test.

use super::super::*;
use crate::subscriptions::cursor::REACH;

impl SubscriptionTable {
    /// Panics if an invariant does not hold.
    pub(super) fn check_invariants(&self) {
        let mut subscriptions = 0;
        let (mut buffer_bytes, mut pending_bytes) = (0, 0);
        for (index, channel) in self.channels.iter() {
            let local = LocalId::from_index(index);
            let list = self.check_list(local, channel);
            subscriptions += list.len();
            pending_bytes += self.check_buffer(local, channel);
            buffer_bytes += channel.buffer.as_ref().map_or(0, |buffer| buffer.bytes());
            self.check_pass(channel, &list);
        }
        assert_eq!(subscriptions, self.subscriptions.len());
        assert_eq!(self.channels.len(), self.epochs.channels());
        assert_eq!((buffer_bytes, pending_bytes), (self.buffer_bytes, self.pending_bytes));
        assert!(self.blocked_bytes() <= self.max_blocked_bytes);
        self.check_volatile();
    }

    fn check_list(&self, local: LocalId, channel: &LocalChannel) -> Vec<SubscriptionId> {
        let first = channel.first.expect("a channel without subscriptions is not kept");
        let mut list = vec![first];
        loop {
            let at = *list.last().unwrap();
            let subscription = &self.subscriptions[at.index()];
            assert_eq!(subscription.local, local);
            assert_eq!(self.subscriptions[subscription.next.index()].before, at);
            if subscription.next == first {
                break;
            }
            list.push(subscription.next);
            assert!(list.len() <= channel.count as usize, "the list is longer than its count");
        }
        assert_eq!(list.len(), channel.count as usize);
        let blocked = list.iter().filter(|&&id| self.is_blocked(id)).count();
        assert_eq!(blocked, channel.blocked as usize);
        let is_held = |id: &&SubscriptionId| self.held_connection(**id).is_some();
        let held = channel.buffer.as_ref().map_or(0, |buffer| buffer.held);
        assert_eq!(list.iter().filter(is_held).count(), held as usize);
        let is_catching_up =
            |id: SubscriptionId| self.subscriptions[id.index()].connection.has(CATCHING_UP);
        let catching_up = list.iter().filter(|&&id| is_catching_up(id)).count();
        assert_eq!(catching_up, channel.catching_up as usize);
        list
    }

    /// Returns the bytes that are pending.
    fn check_buffer(&self, local: LocalId, channel: &LocalChannel) -> usize {
        let Some(buffer) = &channel.buffer else { return 0 };
        let pass = &buffer.pass;
        let mut before = buffer.floor();
        for (nth, message) in buffer.messages().iter().enumerate() {
            // The floor may stand between two messages whose offsets are far apart.
            assert!(message.previous == before || (nth == 0 && message.previous < before));
            assert!(message.id.offset > before);
            before = message.id.offset;
        }
        assert_eq!(before, channel.head, "the replay buffer ends at the head");
        // Frozen state relies on it.
        assert!(channel.head - buffer.floor() < 2 * REACH);
        let weight = |message: &Arc<Message>| message.weight_bytes();
        assert_eq!(buffer.bytes(), buffer.messages().iter().map(weight).sum::<usize>());
        let blanks = buffer.messages().iter().filter(|message| message.is_blank()).count();
        assert_eq!(buffer.entries().blanks, blanks as u64);
        let is_pending = |message: &&Arc<Message>| message.id.offset > buffer.offered();
        let pending = buffer.messages().iter().filter(is_pending);
        assert_eq!(buffer.pending_bytes(), pending.map(weight).sum::<usize>());
        assert!(buffer.offered() <= channel.head && pass.wrap_head <= channel.head);
        assert!(pass.visits_left <= channel.count);
        assert!(pass.visits_left == 0 || pass.is_queued);
        assert!(!pass.is_queued || self.passes.contains(&local));
        assert_eq!(buffer.oldest_blocked_ms().is_some(), buffer.blocked_bytes() > 0);
        assert!(!buffer.is_listed || self.holders.has(local.index()));
        if channel.blocked > 0 && !pass.is_queued && buffer.blocked_bytes() > 0 {
            assert!(buffer.is_listed, "a buffer that is not listed is never evicted from");
        }
        buffer.pending_bytes()
    }

    /// A subscription that lacks something is blocked, or the pass will visit it.
    fn check_pass(&self, channel: &LocalChannel, list: &[SubscriptionId]) {
        let (next, left) = match &channel.buffer {
            Some(buffer) => (buffer.pass.next.unwrap_or(list[0]), buffer.pass.visits_left as usize),
            None => (list[0], 0),
        };
        let at = list.iter().position(|&id| id == next).expect("the next visit is in the list");
        for (nth, &id) in list.iter().enumerate() {
            let will_be_visited = (nth + list.len() - at) % list.len() < left;
            let has_all = matches!(self.waiting(id), Waiting::Nothing);
            let is_held = self.held_connection(id).is_some() || self.is_held_back(id);
            let waits = self.is_blocked(id) || is_held;
            assert!(has_all || will_be_visited || waits, "the pass forgot {id:?}");
        }
    }
}
