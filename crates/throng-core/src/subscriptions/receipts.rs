//! Receipts: which subscriptions a watched message counts for, and what became of it for each.

use super::SubscriptionTable;
use super::channel::LocalChannel;
use super::cursor::full_cursor;
use super::subscription::SubscriptionId;
use super::watches::{WatchId, Watched};
use crate::engine::Followed;
use crate::id::{ChannelId, LocalId};
use crate::message::Content;
use crate::receipt::{Fate, ReceiptPart};

impl SubscriptionTable {
    /// Watches a message that comes next for the channel, for a receipt. `excluded` is the
    /// subscription that does not get it. Call it before [`SubscriptionTable::append`].
    pub fn watch(
        &mut self,
        local: LocalId,
        channel: ChannelId,
        message: &Content,
        excluded: Option<SubscriptionId>,
        mut part: ReceiptPart,
    ) {
        let (offset, expires_ms) = (message.id.offset, message.expires_ms);
        if self.watches.is_blind() || !part.is_open() {
            return;
        }
        // One of another log is late, and is of the channel that had the place before.
        let is_of_log = |known: &&LocalChannel| {
            known.channel == channel && self.epochs.get(known.epoch) == message.id.epoch
        };
        let Some(known) = self.channels.get(local.index()).filter(is_of_log) else {
            // Those that were there when it was published have ended.
            part.settle(Fate::Closed, part.left());
            return;
        };
        let (head, count) = (known.head, known.count);
        let present = count.saturating_sub(self.watches.late(local, offset));
        // Those that were there when it was published, and have ended before it came here.
        part.settle(Fate::Closed, part.left().saturating_sub(present));
        if head >= offset {
            // A leap of offsets has overtaken it, and moved cursors over it.
            let passed = self.members_past(local, offset).into_iter();
            let counted = passed.filter(|&id| !self.watches.is_late(id, offset)).count();
            part.settle(Fate::Skipped, counted as u32);
        }
        let is_counted = |&id: &SubscriptionId| {
            self.local(id) == Some(local)
                && !self.watches.is_late(id, offset)
                && self.is_before(id, offset)
        };
        let excluded = excluded.filter(is_counted);
        if excluded.is_some() {
            part.settle(Fate::Excluded, 1);
        }
        // Dropped, a part reports as well.
        if part.left() > 0 {
            part.report();
            self.watches.add(Watched { local, offset, expires_ms }, excluded, part);
        }
    }

    /// Notes that a subscription has just begun. `are_waiting` says whether watched messages wait
    /// in the worker's queue, for which it is too late then.
    pub fn note_joined(&mut self, id: SubscriptionId, followed: &Followed, are_waiting: bool) {
        let are_waiting = are_waiting || self.watches.are_taken();
        if !are_waiting && self.watches.is_idle() {
            return;
        }
        let newest = self.watches.newest_offset(followed.local);
        if are_waiting || newest.is_some_and(|offset| self.is_before(id, offset)) {
            self.watches.note_joined(id, followed.local, followed.head.offset);
        }
    }

    /// The worker has taken all notifications, and acts on them until
    /// [`SubscriptionTable::end_notifications`]. `are_watched` says whether watched messages are
    /// among them.
    pub fn begin_notifications(&mut self, are_watched: bool) {
        self.watches.begin_notifications(are_watched);
    }

    /// The worker has acted on all notifications.
    pub fn end_notifications(&mut self) {
        if self.watches.is_empty() {
            return self.watches.end_notifications(|_, _| false);
        }
        let mut watches = std::mem::take(&mut self.watches);
        watches.end_notifications(|id, offset| self.is_before(id, offset));
        self.watches = watches;
    }

    /// True if a subscription's cursor is before `offset`; false if it has ended.
    fn is_before(&self, id: SubscriptionId, offset: u64) -> bool {
        self.cursor(id).is_some_and(|cursor| cursor < offset)
    }

    /// Settles the watched messages that a cursor moves over.
    pub(super) fn settle_passed(&mut self, id: SubscriptionId, to: u64, fate: Fate) {
        if self.watches.is_idle() {
            return;
        }
        let (Some(local), Some(from)) = (self.local(id), self.cursor(id)) else { return };
        let mut passed = self.watches.between(local, id, from, to);
        if fate == Fate::Written {
            // Expired messages were passed over, not written.
            let is_expired = |&mut (_, watch): &mut _| self.watches.is_expired(watch, self.now_ms);
            let expired = passed.extract_if(.., is_expired).collect();
            self.watches.settle_all(expired, Fate::Expired);
            // Nor are those that later ones have superseded.
            let buffer = self.channels[local.index()].buffer.as_ref();
            let is_gone = |&mut (offset, _): &mut _| buffer.is_some_and(|it| !it.has(offset));
            let gone = passed.extract_if(.., is_gone).collect();
            self.watches.settle_all(gone, Fate::Skipped);
        }
        self.watches.settle_all(passed, fate);
    }

    /// As [`SubscriptionTable::advance`], for messages of which only those up to `written_to` are
    /// written in full. Returns the watches of the others:
    /// [settle](SubscriptionTable::settle) them once that is known.
    pub fn pass(&mut self, id: SubscriptionId, offset: u64, written_to: u64) -> Vec<WatchId> {
        let mut held = Vec::new();
        if !self.watches.is_idle() {
            self.settle_passed(id, written_to, Fate::Written);
            if let (Some(local), Some(from)) = (self.local(id), self.cursor(id)) {
                let passed = self.watches.between(local, id, from.max(written_to), offset);
                for (_, watch) in passed {
                    if self.watches.is_expired(watch, self.now_ms) {
                        self.watches.settle(watch, Fate::Expired);
                    } else {
                        held.push(watch);
                    }
                }
            }
        }
        self.move_cursor(id, offset);
        held
    }

    /// Moves a cursor over messages that the subscription does not get.
    pub fn skip(&mut self, id: SubscriptionId, offset: u64) {
        self.settle_passed(id, offset, Fate::Skipped);
        self.end_lost(id);
        self.move_cursor(id, offset);
    }

    /// Settles what a subscription lacks of watched messages, because its connection is about to be
    /// closed for lagging.
    pub fn give_up(&mut self, id: SubscriptionId) {
        if self.watches.is_idle() {
            return;
        }
        if let Some(head) = self.local(id).map(|local| self.channels[local.index()].head)
            && self.is_before(id, head)
        {
            self.settle_passed(id, head, Fate::Lagging);
            self.move_cursor(id, head);
        }
    }

    /// Settles a watched message for a subscription that it was held for.
    pub fn settle(&mut self, watch: WatchId, fate: Fate) {
        self.watches.settle(watch, fate);
    }

    /// Settles a subscription that ends.
    pub(super) fn settle_ended(&mut self, id: SubscriptionId) {
        if !self.watches.is_empty() {
            self.settle_passed(id, u64::MAX, Fate::Closed);
            self.watches.forget_joined(id);
        }
    }

    /// Adds to the receipts what was settled since the last call.
    pub fn report_receipts(&mut self) {
        self.watches.report();
    }

    /// Stops watching for receipts that have ended. Call it once in a while.
    pub fn end_receipts(&mut self) {
        self.watches.remove_ended();
    }

    /// The subscriptions of a channel whose cursors are at `offset` or after it.
    fn members_past(&self, local: LocalId, offset: u64) -> Vec<SubscriptionId> {
        let channel = &self.channels[local.index()];
        let (mut past, mut next) = (Vec::new(), channel.first);
        for _ in 0..channel.count {
            let Some(id) = next else { break };
            let subscription = &self.subscriptions[id.index()];
            if full_cursor(channel.head, subscription.cursor) >= offset {
                past.push(id);
            }
            next = Some(subscription.next);
        }
        past
    }
}
