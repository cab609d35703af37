//! Subscriptions to channels that have ended: each is over once its cursor has come to the end.
//!
//! The table notes those that are, and the worker ends them. A channel may be opened again while
//! some subscriptions have not come to its end: then they go on, and nothing tells them of it.

use super::SubscriptionTable;
use super::cursor::full_cursor;
use super::subscription::SubscriptionId;
use crate::engine::Followed;
use crate::id::{LocalId, MessageId};
use crate::message::Message;

impl SubscriptionTable {
    /// The newest message of a channel is about to be appended, which may be its end.
    pub(super) fn note_end(&mut self, local: LocalId, message: &Message) {
        if message.is_end() {
            self.ends.insert(local, message.id.offset);
        }
    }

    /// A subscription has begun, with the channel as the engine knows it.
    pub(super) fn begin_at_end(&mut self, id: SubscriptionId, local: LocalId, followed: &Followed) {
        if !followed.is_ended {
            self.forget_end(local);
            return;
        }
        self.ends.insert(local, followed.head.offset);
        self.go_on_at_end(id, local);
    }

    /// A subscription begins, or goes on after it was frozen: it may be over.
    pub(super) fn go_on_at_end(&mut self, id: SubscriptionId, local: LocalId) {
        let Some(&end) = self.ends.get(&local) else { return };
        if self.cursor(id).is_some_and(|cursor| cursor >= end) {
            self.over.push(id);
        }
    }

    pub(super) fn forget_end(&mut self, local: LocalId) {
        if !self.ends.is_empty() {
            self.ends.remove(&local);
        }
    }

    /// Notes a subscription that comes to the end of its channel while its cursor moves to
    /// `offset`.
    pub(super) fn note_over(&mut self, id: SubscriptionId, local: LocalId, offset: u64) {
        // Mostly no channel has ended.
        if self.ends.is_empty() {
            return;
        }
        let Some(&end) = self.ends.get(&local) else { return };
        let head = self.channels[local.index()].head;
        let from = full_cursor(head, self.subscriptions[id.index()].cursor);
        if from < end && end <= offset {
            self.over.push(id);
        }
    }

    /// True if any channel has ended. Cheap.
    pub fn have_any_ended(&self) -> bool {
        !self.ends.is_empty()
    }

    /// True if the channel of a subscription has ended.
    pub fn follows_ended(&self, id: SubscriptionId) -> bool {
        self.have_any_ended() && self.local(id).is_some_and(|local| self.ends.contains_key(&local))
    }

    /// The subscriptions that are over since the last call. Some may have ended meanwhile, and
    /// others have their ids: see [`SubscriptionTable::end`].
    pub fn take_over(&mut self) -> Vec<SubscriptionId> {
        std::mem::take(&mut self.over)
    }

    /// The id of the last message of a channel, for a subscription that is over; `None` if it is
    /// not.
    pub fn end(&self, id: SubscriptionId) -> Option<MessageId> {
        if self.ends.is_empty() {
            return None;
        }
        let end = *self.ends.get(&self.local(id)?)?;
        // Messages behind it are notices, which say nothing to one that leaves.
        let is_over = self.cursor(id)? >= end && self.state_end(id).is_none();
        is_over.then(|| self.position(id)).flatten()
    }
}
