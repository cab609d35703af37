//! Fan-out: an append queues a pass for its channel, and passes take turns.

use std::sync::Arc;

use super::cursor::{REACH, REACH_BITS, full_cursor, oldest_floor};
use super::subscription::{BLOCKED, CATCHING_UP, HELD, SubscriptionId};
use super::{SubscriptionTable, Waiting};
use crate::attributes::Erasure;
use crate::id::{ConnectionId, LocalId};
use crate::message::Message;
use crate::receipt::Fate;

/// Capacity for this many passes stays allocated once all are done.
const PASSES_KEPT: usize = 1024;

impl SubscriptionTable {
    /// True if a pass is under way, also one with a volatile message.
    pub fn is_fanning_out(&self) -> bool {
        !self.passes.is_empty() || self.has_volatile()
    }

    /// Continues the pass whose turn it is. Appends subscriptions that lack something and are not
    /// blocked to `batch`, with their connections. All are of one channel and of different
    /// connections, and have to be served before the next call.
    ///
    /// `visits` limits the steps and is counted down; the turn of a pass ends when it is used up.
    /// Nothing is appended if no pass is under way, or `visits` is 0.
    pub fn next_batch(
        &mut self,
        visits: &mut u32,
        batch: &mut Vec<(SubscriptionId, ConnectionId)>,
    ) {
        while let Some(&local) = self.passes.front() {
            // A step that wraps around takes the batch for served, so it has to be served before.
            if !batch.is_empty() && (*visits == 0 || !self.is_before_wrap(local)) {
                return;
            }
            if *visits == 0 {
                // The next call serves another channel, so that a large one does not hold up small
                // ones.
                self.passes.rotate_left(1);
                return;
            }
            *visits -= 1;
            // The pass has ended.
            let Some(visit) = self.step(local) else {
                self.passes.pop_front();
                continue;
            };
            let takes_more = visit.is_behind && !visit.connection.has(BLOCKED | HELD);
            let may_go = |table: &mut SubscriptionTable| {
                !table.clocks.has_own(local) || !table.wait_for_pace(visit.id)
            };
            if takes_more && may_go(self) {
                batch.push((visit.id, visit.connection.id()));
            }
        }
        if self.passes.capacity() > PASSES_KEPT {
            self.passes = Default::default();
        }
    }

    /// True if passes skip the subscription because its connection takes no more for now.
    #[cfg(test)]
    pub(super) fn is_blocked(&self, id: SubscriptionId) -> bool {
        self.live(id).is_some_and(|subscription| subscription.connection.has(BLOCKED))
    }

    /// Records that the subscription's connection takes no more for now. Passes skip it until
    /// [`SubscriptionTable::unblock`].
    pub fn block(&mut self, id: SubscriptionId) {
        self.mark(id, BLOCKED);
    }

    /// As [`SubscriptionTable::block`], because the client reads too slowly: on a channel that has
    /// the newest message alone for such, it gets no more of the history that it asked for. A state
    /// it gets in full.
    pub fn block_slow(&mut self, id: SubscriptionId) {
        self.block(id);
        let is_latest = self.local(id).is_some_and(|local| self.is_latest(local));
        if is_latest && !self.awaits_state(id) {
            self.unmark(id, CATCHING_UP);
        }
    }

    /// Records that a blocked subscription was written all that it lacked, or that its connection
    /// takes more again: then a pass offers it the rest.
    pub fn unblock(&mut self, id: SubscriptionId) {
        if !self.unmark(id, BLOCKED) {
            return;
        }
        if matches!(self.waiting(id), Waiting::Nothing) {
            self.trim_channel_of(id);
        } else if !self.is_held_back(id) {
            self.offer_rest(id);
        }
    }

    /// Holds back a subscription that a pass has visited, until [`SubscriptionTable::release`]: for
    /// a moment, since what the channel's subscriptions lack stays pending until then.
    pub fn hold(&mut self, id: SubscriptionId) {
        let Some(local) = self.local(id) else { return };
        if self.subscriptions[id.index()].connection.set(HELD) {
            self.channels[local.index()].buffer_mut().held += 1;
        }
    }

    /// Ends the hold of a subscription that has been written what it lacks, or is blocked. A pass
    /// offers it what it lacks otherwise.
    pub fn release(&mut self, id: SubscriptionId) {
        let Some(connection) = self.live(id).map(|subscription| subscription.connection) else {
            return;
        };
        if !connection.has(HELD) {
            return;
        }
        let lacks_some = !matches!(self.waiting(id), Waiting::Nothing);
        if lacks_some && !connection.has(BLOCKED) && !self.is_held_back(id) {
            self.offer_rest(id);
        }
        if let Some(local) = self.local(id)
            && self.end_hold(local, id)
        {
            self.trim(local);
        }
    }

    /// Ends the hold of a subscription, if it is held. Returns whether that was the last one of the
    /// channel, and its pass is over: then all were offered everything.
    pub(super) fn end_hold(&mut self, local: LocalId, id: SubscriptionId) -> bool {
        if !self.subscriptions[id.index()].connection.clear(HELD) {
            return false;
        }
        let channel = &mut self.channels[local.index()];
        let head = channel.head;
        debug_assert!(channel.buffer.is_some(), "a buffer stays while a subscription is held");
        let Some(buffer) = &mut channel.buffer else { return false };
        buffer.held -= 1;
        let is_last = buffer.held == 0 && !buffer.pass.is_queued;
        if is_last {
            let to = buffer.held_back_from.unwrap_or(head);
            self.pending_bytes -= buffer.mark_offered(to, &mut self.completions);
        }
        is_last
    }

    /// Makes a pass come back to a subscription that it has visited, and that still lacks something
    /// and takes more.
    pub fn offer_rest(&mut self, id: SubscriptionId) {
        debug_assert!(self.live(id).is_some(), "its connection takes messages");
        let (Some(local), Some(cursor)) = (self.local(id), self.cursor(id)) else { return };
        let channel = &mut self.channels[local.index()];
        let count = channel.count;
        let buffer = channel.buffer_mut();
        self.pending_bytes += buffer.offer_again(cursor);
        if buffer.pass.visits_left == 0 {
            (buffer.pass.next, buffer.pass.visits_left) = (Some(id), 1);
        } else {
            buffer.pass.visits_left = count;
        }
        self.queue_pass(local);
    }

    /// Appends a message to the channel's replay buffer and makes a pass offer it to all.
    pub(super) fn push_back(&mut self, local: LocalId, message: &Arc<Message>) {
        let channel = &mut self.channels[local.index()];
        let known = channel.head;
        // A new buffer starts at the head, and so before the head moves.
        channel.buffer_mut();
        if message.previous > known {
            // A hole that the engine could not fill. Each cursor before it has a gap.
            self.raise_floor(local, message.previous);
        }
        // Before the head moves, from which the cursors' other halves follow.
        if known >> REACH_BITS != message.id.offset >> REACH_BITS {
            self.pull_up(local, message);
        }
        let channel = &mut self.channels[local.index()];
        channel.head = message.id.offset;
        let bytes = channel.buffer_mut().push_back(message);
        self.buffer_bytes += bytes;
        self.pending_bytes += bytes;
        self.note_end(local, message);
        if let Some(erasure) = message.erases() {
            let erasure = Erasure { last: erasure.last.min(message.previous), ..erasure };
            let (bytes, pending_bytes) = self.channels[local.index()].buffer_mut().erase(erasure);
            self.buffer_bytes -= bytes;
            self.pending_bytes -= pending_bytes;
        }
        if self.hold_back(local, known, bytes) {
            return;
        }
        let channel = &mut self.channels[local.index()];
        let count = channel.count;
        channel.buffer_mut().pass.visits_left = count;
        self.queue_pass(local);
    }

    /// Brings replay buffer and cursors within [`REACH`] of the offset of
    /// `message`, which is about to become the channel's head. Visits all subscriptions, but only
    /// once in 2^30 offsets.
    fn pull_up(&mut self, local: LocalId, message: &Message) {
        let head = message.id.offset;
        let oldest = oldest_floor(head);
        let floor = self.channels[local.index()].buffer_mut().floor();
        if floor < oldest {
            self.raise_floor(local, oldest);
        }
        // A cursor below the floor has a gap, which this message does not close.
        self.pull_cursors_up(local, head, |cursor| floor.max(message.previous) <= cursor);
    }

    /// Moves the cursors that 32 bits do not tell once the channel's head is `head`. `lacks_one`
    /// says whether a subscription with this cursor lacks only the message with this offset, which
    /// it then gets. Any other has a gap.
    fn pull_cursors_up(&mut self, local: LocalId, head: u64, lacks_one: impl Fn(u64) -> bool) {
        let oldest = oldest_floor(head);
        let channel = &self.channels[local.index()];
        let (known, mut next) = (channel.head, channel.first);
        for _ in 0..channel.count {
            let Some(id) = next else { unreachable!("the list is circular") };
            let cursor = full_cursor(known, self.subscriptions[id.index()].cursor);
            if cursor < oldest {
                // A backlog may lower the floor later, so a cursor with a gap goes below every
                // floor to come.
                let pulled_up = if lacks_one(cursor) { head - 1 } else { oldest - 1 };
                self.settle_passed(id, pulled_up, Fate::Skipped);
                self.subscriptions[id.index()].cursor = pulled_up as u32;
            }
            next = Some(self.subscriptions[id.index()].next);
        }
    }

    /// Makes room for a cursor at `offset`. If that is [`REACH`] ahead of the channel's head, 32
    /// bits would not tell it from one behind the head; so the head moves as near as it has to. The
    /// notifications up to there are on their way, and are ignored when they come; those after it
    /// are not. A pass offers each subscription that is left behind its gap.
    pub(super) fn bring_into_reach(&mut self, local: LocalId, offset: u64) {
        let channel = &self.channels[local.index()];
        if offset.saturating_sub(channel.head) < REACH {
            return;
        }
        let head = offset - (REACH - 1);
        self.raise_floor(local, head);
        self.pull_cursors_up(local, head, |_| false);
        let channel = &mut self.channels[local.index()];
        channel.head = head;
        let count = channel.count;
        channel.buffer_mut().pass.visits_left = count;
        self.queue_pass(local);
    }

    /// Drops the messages of the channel's replay buffer up to `floor`.
    fn raise_floor(&mut self, local: LocalId, floor: u64) {
        let buffer = self.channels[local.index()].buffer_mut();
        let (bytes, pending_bytes) = buffer.raise_floor(floor);
        self.buffer_bytes -= bytes;
        self.pending_bytes -= pending_bytes;
    }

    pub(super) fn queue_pass(&mut self, local: LocalId) {
        let pass = &mut self.channels[local.index()].buffer_mut().pass;
        if !pass.is_queued {
            pass.is_queued = true;
            self.passes.push_back(local);
        }
    }

    /// Drops the channel's replay buffer and stops its pass. The channel's place in the queue of
    /// passes stays; when its turn comes there is nothing to do.
    pub(super) fn drop_buffer(&mut self, local: LocalId) {
        let channel = &mut self.channels[local.index()];
        let Some(mut buffer) = channel.buffer.take() else { return };
        // Nothing is left to offer: a subscription that lacked something has ended.
        buffer.complete(channel.head, &mut self.completions);
        self.buffer_bytes -= buffer.bytes();
        self.pending_bytes -= buffer.pending_bytes();
    }
}
