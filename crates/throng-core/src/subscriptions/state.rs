//! Subscriptions that begin with the state of their channel: the newest message of each key.
//!
//! The messages come out of the replay buffer like any backlog. Up to the end of the state, which
//! is the channel's head when the subscription began, the subscription passes over messages without
//! keys, and over what the log of members says of its list. Then it is told that it has the state.
//! The buffer may have messages for others that later ones have superseded: the subscription gets
//! those, too, and tombstones with them.

use std::collections::vec_deque;
use std::sync::Arc;

use super::channel::LocalChannel;
use super::cursor::full_cursor;
use super::subscription::{CATCHING_UP, SubscriptionId};
use super::terms::{LOST, LOST_OF_STATE};
use super::{SubscriptionTable, Waiting};
use crate::id::{LocalId, MessageId};
use crate::message::Message;
use crate::rules::LagPolicy;

/// The messages that a subscription lacks, oldest first.
#[derive(Debug, Clone)]
pub struct Lacking<'a> {
    messages: vec_deque::Iter<'a, Arc<Message>>,
    /// The end of the state that it begins with.
    state_end: Option<u64>,
}

impl<'a> Lacking<'a> {
    pub(super) fn all(messages: vec_deque::Iter<'a, Arc<Message>>) -> Lacking<'a> {
        Lacking { messages, state_end: None }
    }
}

impl<'a> Iterator for Lacking<'a> {
    type Item = &'a Arc<Message>;

    #[inline]
    fn next(&mut self) -> Option<&'a Arc<Message>> {
        let Some(end) = self.state_end else { return self.messages.next() };
        let is_before_end = |message: &&Arc<Message>| message.id.offset <= end;
        let is_value = |message: &&Arc<Message>| {
            message.key().is_some() && message.is_list_partial().is_none()
        };
        self.messages.by_ref().take_while(is_before_end).find(is_value)
    }
}

impl SubscriptionTable {
    /// Begins a subscription with the state of its channel, which ends at `end`, the head when it
    /// began.
    pub fn begin_state(&mut self, id: SubscriptionId, end: MessageId) {
        let Some(local) = self.local(id) else { return };
        if self.subscriptions[id.index()].connection.set(CATCHING_UP) {
            self.channels[local.index()].catching_up += 1;
        }
        self.terms.entry(id.index()).or_default().state_end = Some(end.offset);
    }

    /// Notes which messages a subscription passes over because later ones have superseded them,
    /// while its cursor moves to `offset`. One that catches up lacks them anyway.
    pub(super) fn note_superseded(&mut self, id: SubscriptionId, local: LocalId, offset: u64) {
        let channel = &self.channels[local.index()];
        let Some(buffer) = channel.buffer.as_ref().filter(|buffer| buffer.is_sparse()) else {
            return;
        };
        let subscription = &self.subscriptions[id.index()];
        if subscription.connection.has(CATCHING_UP) {
            return;
        }
        let from = full_cursor(channel.head, subscription.cursor).max(buffer.floor());
        let are_consecutive = self.epochs.are_offsets_consecutive(channel.epoch);
        let count = buffer.superseded_between((from, offset.max(from)), are_consecutive);
        if count != Some(0) {
            self.superseded.push((id, count));
        }
    }

    /// The subscriptions that have passed over superseded messages since the last call, and how
    /// many messages if that is known.
    pub fn take_superseded(&mut self) -> Vec<(SubscriptionId, Option<u64>)> {
        std::mem::take(&mut self.superseded)
    }

    /// True if a subscription begins with the state of its channel, and has not got all of it.
    pub fn awaits_state(&self, id: SubscriptionId) -> bool {
        self.state_end(id).is_some()
    }

    /// The end of the state that a subscription begins with, until it has it.
    pub(super) fn state_end(&self, id: SubscriptionId) -> Option<u64> {
        // Mostly no subscription has any terms.
        if self.terms.is_empty() {
            return None;
        }
        self.terms(id)?.state_end.filter(|end| *end < LOST_OF_STATE)
    }

    /// The policy for a subscription of which something was dropped that it lacks, whatever the
    /// replay buffer has now.
    pub(super) fn has_lost(&self, id: SubscriptionId) -> Option<LagPolicy> {
        if self.terms.is_empty() {
            return None;
        }
        match self.terms(id)?.state_end? {
            LOST => Some(self.rules.get(self.channels[self.local(id)?.index()].rule).lag_policy),
            LOST_OF_STATE => Some(LagPolicy::Close),
            _ => None,
        }
    }

    /// A backlog without what is superseded is about to lower the floor of a replay buffer. It does
    /// not have all that subscriptions below the present floor lack, so their gap stays.
    pub(super) fn note_lost(&mut self, local: LocalId, floor: u64) {
        let channel = &self.channels[local.index()];
        let Some(buffer) = channel.buffer.as_ref().filter(|buffer| buffer.floor() > floor) else {
            return;
        };
        let mut next = channel.first;
        for _ in 0..channel.count {
            let Some(id) = next else { unreachable!("the list is circular") };
            let subscription = &self.subscriptions[id.index()];
            let cursor = full_cursor(channel.head, subscription.cursor);
            next = Some(subscription.next);
            if self.awaits_state(id) {
                if cursor < buffer.keyed_floor() {
                    self.terms.entry(id.index()).or_default().state_end = Some(LOST_OF_STATE);
                }
            } else if cursor < buffer.floor() {
                // One that has lost some of its state stays so.
                self.terms.entry(id.index()).or_default().state_end.get_or_insert(LOST);
            }
        }
    }

    /// The gap of a subscription is told.
    pub(super) fn end_lost(&mut self, id: SubscriptionId) {
        if self.has_lost(id).is_some() {
            self.forget_state_end(id);
        }
    }

    fn forget_state_end(&mut self, id: SubscriptionId) {
        if let Some(terms) = self.terms.get_mut(&id.index()) {
            terms.state_end = None;
        }
        if self.terms(id).is_some_and(super::Terms::is_empty) {
            self.terms.remove(&id.index());
        }
    }

    pub(super) fn waiting_for_state<'a>(
        &self,
        channel: &'a LocalChannel,
        cursor: u64,
        end: u64,
    ) -> Waiting<'a> {
        if let Some(buffer) = &channel.buffer
            && cursor < end
        {
            if cursor < buffer.keyed_floor() {
                // Values are gone that nothing else will tell: it has to begin again.
                return self.gap(channel, (cursor, buffer.keyed_floor()), LagPolicy::Close);
            }
            let from = cursor.max(buffer.floor());
            let lacking = Lacking { messages: buffer.after(from), state_end: Some(end) };
            if lacking.clone().next().is_some() {
                return Waiting::Messages(lacking);
            }
        }
        // The rest of it is on its way.
        if channel.head < end {
            return Waiting::Nothing;
        }
        Waiting::StateEnd(MessageId { epoch: self.epochs.get(channel.epoch), offset: end })
    }

    /// Records that the subscription was told that it has the state. It goes on with the messages
    /// after it.
    pub fn end_state(&mut self, id: SubscriptionId) {
        let Some(end) = self.state_end(id) else { return };
        self.forget_state_end(id);
        let (Some(cursor), Some(local)) = (self.cursor(id), self.local(id)) else { return };
        self.move_cursor(id, cursor.max(end));
        self.go_on_at_end(id, local);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::model;
    use super::*;
    use crate::attributes::{Attributes, Extras};
    use crate::id::{ChannelId, ConnectionId};
    use crate::rules::{Rule, Rules};

    /// A message that sets a key of its own, but for a third of all.
    fn message(offset: u64) -> Arc<Message> {
        let message = model::message(offset, offset - 1);
        if offset.is_multiple_of(3) {
            return message;
        }
        let mut content = Arc::into_inner(message).expect("nobody has it").content();
        let own = Arc::get_mut(&mut content).expect("nobody has it");
        let key = [b'a' + offset as u8];
        own.extras = Extras::new(None, Attributes::of(&[(4, &key)]).ok());
        Arc::new(Message::from(content))
    }

    /// A table with a subscription that begins with the state of a channel, and is slow.
    fn table(lag_policy: LagPolicy) -> (SubscriptionTable, SubscriptionId) {
        let rules = Rules::new(Vec::new(), Rule { lag_policy, ..Rule::default() });
        let mut table = SubscriptionTable::new(Arc::new(rules));
        let mut followed = model::followed(ChannelId(0), table.next_local(), 9);
        followed.cursor.offset = 0;
        followed.is_sparse = true;
        followed.backlog = (1..=9).map(message).collect();
        let id = table.join(ConnectionId::new(0), &followed, false, None);
        table.begin_state(id, followed.head);
        table.block_slow(id);
        table.trim_channel_of(id);
        (table, id)
    }

    fn lacked(table: &SubscriptionTable, id: SubscriptionId) -> Vec<u64> {
        let Waiting::Messages(messages) = table.waiting(id) else { return Vec::new() };
        messages.map(|message| message.id.offset).collect()
    }

    #[test]
    fn a_state_of_which_values_were_dropped_does_not_end() {
        let (mut table, id) = table(LagPolicy::Skip);
        table.advance(id, 2);
        assert_eq!(lacked(&table, id), [4, 5, 7, 8]);
        table.set_max_blocked_bytes(1);
        table.evict_oldest(3);
        assert_eq!(lacked(&table, id), [4, 5, 7, 8], "it has what was dropped");
        table.evict_oldest(1);
        let Waiting::Gap { policy, .. } = table.waiting(id) else { panic!("a value is gone") };
        assert_eq!(policy, LagPolicy::Close, "it has to begin again");
    }

    #[test]
    fn a_state_of_another_one_brings_back_nothing_else() {
        let rule = Rule { lag_policy: LagPolicy::Skip, max_lag_messages: 4, ..Rule::default() };
        let mut table = SubscriptionTable::new(Arc::new(Rules::new(Vec::new(), rule)));
        let (channel, local) = (ChannelId(0), table.next_local());
        let slow =
            table.join(ConnectionId::new(0), &model::followed(channel, local, 0), false, None);
        table.block_slow(slow);
        for offset in 1..=20 {
            table.append(local, channel, &model::message(offset, offset - 1));
            table.next_batch(&mut 9, &mut Vec::new());
        }
        assert!(matches!(table.waiting(slow), Waiting::Gap { .. }), "few are kept");
        // Another one begins with a value that is older, and what the log keeps otherwise.
        let mut followed = model::followed(channel, local, 20);
        (followed.cursor.offset, followed.is_sparse) = (0, true);
        followed.backlog = [1, 16, 17, 18, 19, 20].map(|at| model::message(at, at - 1)).into();
        let other = table.join(ConnectionId::new(1), &followed, false, None);
        assert_eq!(lacked(&table, other), [1, 16, 17, 18, 19, 20]);
        let Waiting::Gap { resume_at, policy, .. } = table.waiting(slow) else {
            panic!("what is between did not come back")
        };
        assert_eq!((resume_at.offset, policy), (0, LagPolicy::Skip));
        table.skip(slow, resume_at.offset);
        assert_eq!(lacked(&table, slow), [1, 16, 17, 18, 19, 20]);
    }

    #[test]
    fn one_that_resumes_gets_tombstones_that_the_state_of_another_one_lacks() {
        let mut table = SubscriptionTable::new(Arc::new(Rules::default()));
        let local = table.next_local();
        let mut followed = model::followed(ChannelId(0), local, 9);
        (followed.cursor.offset, followed.is_sparse) = (0, true);
        // A state has no tombstone, which 5 may be.
        followed.backlog = [1, 2, 4, 7, 8, 9].map(message).into();
        let other = table.join(ConnectionId::new(0), &followed, false, None);
        table.begin_state(other, followed.head);
        table.block_slow(other);
        (followed.cursor.offset, followed.is_sparse) = (2, true);
        followed.is_recovered = Some(true);
        followed.backlog = (3..=9).map(message).collect();
        let id = table.join(ConnectionId::new(1), &followed, false, None);
        assert_eq!(lacked(&table, id), [3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn a_tombstone_at_the_head_of_the_worker_is_no_placeholder_for_one_that_resumes() {
        let mut table = SubscriptionTable::new(Arc::new(Rules::default()));
        let local = table.next_local();
        // What comes after 5 is on its way.
        table.join(ConnectionId::new(0), &model::followed(ChannelId(0), local, 5), false, None);
        let mut followed = model::followed(ChannelId(0), local, 9);
        (followed.cursor.offset, followed.is_sparse) = (0, true);
        followed.backlog = [1, 2, 4, 7, 8, 9].map(message).into();
        let other = table.join(ConnectionId::new(1), &followed, false, None);
        table.begin_state(other, followed.head);
        table.block_slow(other);
        followed.cursor.offset = 2;
        followed.is_recovered = Some(true);
        followed.backlog = (3..=9).map(message).collect();
        let id = table.join(ConnectionId::new(2), &followed, false, None);
        let Waiting::Messages(messages) = table.waiting(id) else { panic!("it lacks some") };
        let offsets = messages.filter(|it| !it.is_without_body()).map(|it| it.id.offset);
        assert_eq!(offsets.collect::<Vec<_>>(), [3, 4, 5]);
    }

    #[test]
    fn a_slow_reader_gets_the_whole_state_before_the_newest_message_alone() {
        let (mut table, id) = table(LagPolicy::Latest);
        assert_eq!(lacked(&table, id), [1, 2, 4, 5, 7, 8]);
        table.advance(id, 8);
        let Waiting::StateEnd(end) = table.waiting(id) else { panic!("it has the state") };
        table.end_state(id);
        assert_eq!(end.offset, 9);
        assert!(table.is_conflated(id));
    }
}
