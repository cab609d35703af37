//! Channels of a shard whose logs a journal keeps: followers and heads.

use std::sync::Arc;

use super::append::post;
use super::{Hashed, Shard, Wake};
use crate::engine::{Follow, Followed};
use crate::id::MessageId;
use crate::memory::elsewhere::Backlog;
use crate::memory::shared::Shared;
use crate::message::Content;
use crate::receipt::Receipt;

impl Shard {
    /// True if the queues of the channel's followers have room.
    pub(in crate::memory) fn has_room(&self, shared: &Shared, name: Hashed<'_>) -> bool {
        let Some(slot) = self.find(name) else { return true };
        let mut followers = self.channels[slot].followers.as_slice().iter();
        followers.all(|follower| shared.queue(follower.worker).has_room())
    }

    /// Posts a message of a journal to the followers of its channel. Returns how many subscriptions
    /// these are, and whom to wake.
    pub(in crate::memory) fn deliver(
        &mut self,
        shared: &Shared,
        hash: u64,
        content: &Arc<Content>,
        receipt: Option<&Arc<Receipt>>,
    ) -> (u64, Wake) {
        let slot = self.find(Hashed { name: &content.channel, hash });
        let subscribers = slot.map_or(0, |slot| self.channels[slot].followers.subscribers());
        if let Some(receipt) = receipt {
            receipt.begin(subscribers);
        }
        let Some(slot) = slot else { return (0, Wake::new()) };
        let id = self.id(slot);
        let channel = &mut self.channels[slot];
        channel.head = channel.head.max(content.id.offset);
        if content.is_end() {
            self.ended.insert(slot);
        } else if !self.ended.is_empty() && !content.is_notice() {
            self.ended.remove(&slot);
        }
        let (_, wake) = post(shared, id, channel.followers.as_slice(), content, receipt);
        (subscribers, wake)
    }

    /// The offset of the newest message, if the channel is followed and has not ended.
    pub(in crate::memory) fn followed_head(&self, name: Hashed<'_>) -> Option<u64> {
        let slot = self.find(name)?;
        let channel = &self.channels[slot];
        (!self.ended.contains(&slot) && !channel.followers.is_empty()).then_some(channel.head)
    }

    /// Adds a subscription of a channel whose log is elsewhere. `read` is called under the lock.
    pub(in crate::memory) fn follow_elsewhere(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        hash: u64,
        follow: &Follow<'_>,
        read: impl FnOnce() -> Backlog,
    ) -> Followed {
        let name = Hashed { name: follow.channel, hash };
        let is_new = !self.has(name);
        let slot = self.find_or_create(shared, name);
        if is_new {
            // The heads of forgotten channels say nothing about this one: its journal knows its
            // head.
            self.channels[slot].head = 0;
        }
        let id = self.id(slot);
        let backlog = read();
        let Backlog { head, cursor, are_offsets_consecutive, .. } = backlog;
        let local = self.add_follower(shared, now_ms, slot, follow);
        let channel = &mut self.channels[slot];
        channel.head = channel.head.max(head.offset);
        let followed = Followed {
            channel: id,
            local,
            rule: channel.rule,
            head,
            cursor: MessageId { offset: cursor, ..head },
            is_recovered: backlog.is_recovered,
            is_sparse: backlog.is_sparse,
            is_ended: backlog.is_ended,
            are_offsets_consecutive,
            backlog: backlog.messages,
        };
        shared.keep_latest(follow.start, followed)
    }
}
