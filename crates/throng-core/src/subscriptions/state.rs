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
use super::{SubscriptionTable, Waiting};
use crate::id::{LocalId, MessageId};
use crate::message::Message;

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
        if self.terms.is_empty() { None } else { self.terms(id)?.state_end }
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
            let lacking = Lacking {
                messages: buffer.after(cursor.max(buffer.floor())),
                state_end: Some(end),
            };
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
        if let Some(terms) = self.terms.get_mut(&id.index()) {
            terms.state_end = None;
        }
        if self.terms(id).is_some_and(super::Terms::is_empty) {
            self.terms.remove(&id.index());
        }
        let (Some(cursor), Some(local)) = (self.cursor(id), self.local(id)) else { return };
        self.move_cursor(id, cursor.max(end));
        self.go_on_at_end(id, local);
    }
}
