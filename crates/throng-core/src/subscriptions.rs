//! Subscriptions, cursors and sweeps of one worker.
//!
//! A **subscription** joins a connection to a channel and holds a cursor: the offset of the last
//! message that was written to that connection. A channel's subscriptions form a ring; a **sweep**
//! goes around it and offers each subscription what it lacks. The messages still to be offered are
//! in the channel's **replay buffer**; a channel that everyone has caught up with has none.
//!
//! The table does no I/O: [`SubscriptionTable::next_batch`] names subscriptions that are behind,
//! the worker writes what [`SubscriptionTable::waiting`] returns, and says with
//! [`SubscriptionTable::advance`] how far it came, or with [`SubscriptionTable::block`] that the
//! connection takes no more for now. A blocked subscription is left out of sweeps; its worker
//! offers the rest when the socket is writable, and calls [`SubscriptionTable::resume`] when done.
//! Likewise it offers a new subscription its backlog at once, then calls
//! [`SubscriptionTable::trim`].
//!
//! # Invariants
//!
//! * A sweep ends only when every subscription of the channel has been visited since the last
//!   append: `left` counts visits down, is set to the ring's length by an append, and grows with
//!   each subscription that joins meanwhile. One that leaves hands the sweep's position to its
//!   successor.
//! * The replay buffer drops only what everyone who is not blocked has been offered (`swept`).
//! * What all replay buffers hold for the blocked alone, that is what everyone else has been
//!   offered, stays within [`BLOCKED_BYTES_MAX`] or what
//!   [`SubscriptionTable::set_blocked_bytes_max`] says. Beyond it the oldest of it is dropped, and
//!   those who lack it have a gap.
//! * Offsets in cursors are cut to 32 bits, as no cursor is ever [`REACH`] twice away from its
//!   channel's head: each time the head passes a multiple of it, those left behind are pulled up,
//!   and told of the gap.

mod channel;
mod circular_list;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::ages::Ages;
use crate::message::{InFlight, Message};
use crate::rules::{LagPolicy, Rules};
use crate::slab::Slab;
use crate::{ChannelId, LocalId};
use channel::LocalChannel;

/// A subscription within a [`SubscriptionTable`]. Reused once it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SubscriptionId(NonZeroU32);

impl SubscriptionId {
    fn from_index(index: u32) -> SubscriptionId {
        SubscriptionId(NonZeroU32::MIN.saturating_add(index))
    }

    fn index(self) -> u32 {
        self.0.get() - 1
    }
}

impl LocalId {
    fn from_index(index: u32) -> LocalId {
        LocalId(NonZeroU32::MIN.saturating_add(index))
    }

    fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// Room for this many sweeps is kept once all are done.
const PASSES_KEPT: usize = 1024;

/// Mirrors may hold this many bytes for blocked subscribers. All workers together had better not
/// exceed it; see [`SubscriptionTable::set_blocked_bytes_max`].
pub const BLOCKED_BYTES_MAX: usize = 256 << 20;

/// Marks a blocked subscription in the connection's number.
const BLOCKED: u32 = 1 << 31;

/// Marks one that has not been written all of its backlog.
const CATCHING_UP: u32 = 1 << 30;

/// The rest is the connection's number.
const NUMBER: u32 = CATCHING_UP - 1;

const REACH_BITS: u32 = 30;
/// A replay buffer spans less than this, in offsets, and a subscription has a gap if its cursor is
/// further behind.
const REACH: u64 = 1 << REACH_BITS;

#[derive(Debug)]
struct Subscription {
    /// The connection's index in the worker, [`BLOCKED`] and [`CATCHING_UP`].
    connection: u32,
    local: LocalId,
    /// Low half of the offset of the last message written.
    cursor: u32,
    before: SubscriptionId,
    next: SubscriptionId,
    /// The connection's next subscription.
    sibling: Option<SubscriptionId>,
}

const _: () = assert!(Slab::<Subscription>::ENTRY_BYTES == 24, "the budget of a subscription");

/// What a subscription lacks.
#[derive(Debug)]
pub enum Waiting<'a> {
    /// Nothing.
    Nothing,
    /// These messages, oldest first, at least one.
    Messages(std::collections::vec_deque::Iter<'a, Arc<Message>>),
    /// The messages after its cursor are gone; what is still there comes after `resume_at`.
    Gap {
        /// How many are gone, as far as offsets tell.
        missed: u64,
        /// The offset of the newest message that is gone.
        resume_at: u64,
        /// What the channel's rule says about it.
        policy: LagPolicy,
    },
}

/// A subscription of a channel, for one who goes through all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Whose it is.
    pub connection: u32,
    /// The one after it, unless it is the last.
    pub next: Option<SubscriptionId>,
    /// Whether all of them follow from here.
    pub is_first: bool,
    /// How many there are.
    pub count: u32,
}

/// What [`SubscriptionTable::leave`] left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// The channel that has one subscription less.
    pub channel: ChannelId,
    /// The connection's next subscription.
    pub sibling: Option<SubscriptionId>,
}

/// One worker's subscriptions.
#[derive(Debug)]
pub struct SubscriptionTable {
    rules: Arc<Rules>,
    channels: Slab<LocalChannel>,
    subscriptions: Slab<Subscription>,
    /// Channels with a sweep under way, taking turns. One whose sweep was stopped may still be
    /// here.
    passes: VecDeque<LocalId>,
    /// Bytes of messages in replay buffers.
    buffer_bytes: usize,
    /// Bytes of those that some sweep has not offered to everyone yet.
    pending_bytes: usize,
    /// Channels whose replay buffers hold messages for the blocked.
    held: Ages,
    blocked_bytes_max: usize,
    dropped: u64,
    completions: Vec<u64>,
}

impl SubscriptionTable {
    /// No subscriptions.
    pub fn new(rules: Arc<Rules>) -> SubscriptionTable {
        SubscriptionTable {
            rules,
            channels: Slab::default(),
            subscriptions: Slab::default(),
            passes: VecDeque::new(),
            buffer_bytes: 0,
            pending_bytes: 0,
            held: Ages::default(),
            blocked_bytes_max: BLOCKED_BYTES_MAX,
            dropped: 0,
            completions: Vec::new(),
        }
    }

    /// Mirrors may hold this many bytes for blocked subscribers: a worker's share.
    pub fn set_blocked_bytes_max(&mut self, bytes_max: usize) {
        self.blocked_bytes_max = bytes_max;
    }

    /// Where the next channel that is new here will be kept.
    pub fn next_local(&self) -> LocalId {
        LocalId::from_index(self.channels.next_index())
    }

    /// Subscribes `connection` to a channel as the engine answered, from `cursor` on, with the
    /// backlog after it. `sibling` is the connection's subscription before this one. No sweep
    /// offers the backlog: do that at once, [stall](SubscriptionTable::block) it if it cannot be
    /// written whole, and call [`SubscriptionTable::trim`].
    pub fn join(
        &mut self,
        connection: u32,
        followed: &crate::Followed,
        is_user: bool,
        sibling: Option<SubscriptionId>,
    ) -> SubscriptionId {
        debug_assert!(connection <= NUMBER);
        let local = followed.local;
        if local == self.next_local() && self.channels.get(local.index()).is_none() {
            let head = followed.head.offset;
            self.channels.insert(LocalChannel::new(followed.channel, followed.rule, is_user, head));
        }
        let cursor = self.merge(local, followed.cursor.offset, &followed.backlog);
        let index = self.subscriptions.next_index();
        let id = SubscriptionId::from_index(index);
        let mut mark = 0;
        if let Some(channel) = self.channels.get_mut(local.index())
            && cursor < channel.head
        {
            channel.catching_up += 1;
            mark = CATCHING_UP;
        }
        self.subscriptions.insert(Subscription {
            connection: connection | mark,
            local,
            cursor: cursor as u32,
            before: id,
            next: id,
            sibling,
        });
        self.link(local, id);
        id
    }

    /// Ends a subscription. Tell the engine.
    pub fn leave(&mut self, id: SubscriptionId) -> Option<Left> {
        self.unmark(id, BLOCKED);
        self.unmark(id, CATCHING_UP);
        let local = self.subscription(id)?.local;
        self.unlink(local, id);
        let gone = self.subscriptions.remove(id.index())?;
        let channel = self.channels.get(local.index())?;
        let left = Left { channel: channel.channel, sibling: gone.sibling };
        if channel.count == 0 {
            self.stop(local);
            self.channels.remove(local.index());
        } else {
            self.trim(local);
        }
        Some(left)
    }

    /// Takes a subscription out of its connection's chain, in which `first` comes first. Returns
    /// the new first one.
    pub fn unchain(
        &mut self,
        first: Option<SubscriptionId>,
        id: SubscriptionId,
    ) -> Option<SubscriptionId> {
        let after = self.subscription(id)?.sibling;
        if first == Some(id) {
            return after;
        }
        let mut at = first;
        while let Some(sibling) = at {
            let subscription = self.subscription_mut(sibling)?;
            at = subscription.sibling;
            if at == Some(id) {
                subscription.sibling = after;
                break;
            }
        }
        first
    }

    /// The log of a channel has grown. Ignored if the channel is not followed here (any more), or
    /// if the message is known from a backlog.
    pub fn append(&mut self, local: LocalId, channel: ChannelId, message: &Arc<Message>) {
        let is_news =
            |known: &LocalChannel| known.channel == channel && message.id.offset > known.head;
        if self.channels.get(local.index()).is_some_and(is_news) {
            self.push_back(local, message);
        } else {
            // Whoever it was posted for has gone, or has it.
            self.completions.extend(message.in_flight().and_then(InFlight::complete));
        }
    }

    /// When the engine had accepted the messages that have completed since the last call: those
    /// that every worker has now offered to all of its subscribers that are not blocked, this one
    /// last.
    pub fn completions(&mut self) -> std::vec::Drain<'_, u64> {
        self.completions.drain(..)
    }

    /// Whether some sweep is under way.
    pub fn is_fanning_out(&self) -> bool {
        !self.passes.is_empty()
    }

    /// Bytes of messages that some sweep has not offered to everyone yet.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Bytes of messages that everyone has been offered, kept for those who were blocked.
    pub fn blocked_bytes(&self) -> usize {
        self.buffer_bytes - self.pending_bytes
    }

    /// Messages that replay buffers held and dropped because all together held too much.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Goes on with the sweep whose turn it is, and appends subscriptions that are behind and not
    /// blocked to `batch`, with their connections' indices. All are of one channel and of different
    /// connections, and have to be served before the next call. `visits` bounds the steps and is
    /// counted down; a turn ends when it is used up. Nothing is appended when there is nothing left
    /// to do, or no visit.
    pub fn next_batch(&mut self, visits: &mut u32, batch: &mut Vec<(SubscriptionId, u32)>) {
        while let Some(&local) = self.passes.front() {
            if !batch.is_empty() && (*visits == 0 || !self.is_before_wrap(local)) {
                return;
            }
            if *visits == 0 {
                self.passes.rotate_left(1);
                return;
            }
            *visits -= 1;
            let Some(visit) = self.step(local) else {
                self.passes.pop_front();
                continue;
            };
            if visit.is_behind && visit.connection & BLOCKED == 0 {
                batch.push((visit.id, visit.connection & NUMBER));
            }
        }
        if self.passes.capacity() > PASSES_KEPT {
            self.passes = VecDeque::new();
        }
    }

    /// What a subscription lacks.
    pub fn waiting(&self, id: SubscriptionId) -> Waiting<'_> {
        let Some(subscription) = self.subscription(id) else { return Waiting::Nothing };
        let Some(channel) = self.channels.get(subscription.local.index()) else {
            return Waiting::Nothing;
        };
        let cursor = full_cursor(channel.head, subscription.cursor);
        if cursor >= channel.head {
            return Waiting::Nothing;
        }
        let policy = self.rules.get(channel.rule).lag_policy;
        match &channel.active {
            Some(active) => active.waiting(cursor, policy),
            None => Waiting::Gap { missed: channel.head - cursor, resume_at: channel.head, policy },
        }
    }

    /// The messages up to `offset` have been written to the subscription, or it skips them.
    pub fn advance(&mut self, id: SubscriptionId, offset: u64) {
        let Some(subscription) = self.subscription_mut(id) else { return };
        debug_assert!(distance(offset, subscription.cursor) >= 0, "cursors only move forward");
        subscription.cursor = offset as u32;
        let (local, connection) = (subscription.local, subscription.connection);
        if connection & CATCHING_UP != 0
            && self.channels.get(local.index()).is_some_and(|channel| offset >= channel.head)
        {
            self.unmark(id, CATCHING_UP);
        }
    }

    /// The subscription's connection takes no more for now: sweeps leave it out until
    /// [`SubscriptionTable::resume`].
    pub fn block(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.subscription_mut(id) else { return };
        if subscription.connection & BLOCKED != 0 {
            return;
        }
        subscription.connection |= BLOCKED;
        let local = subscription.local;
        if let Some(channel) = self.channels.get_mut(local.index()) {
            channel.blocked += 1;
        }
    }

    /// A blocked subscription has been written all that it lacked, or its connection takes more
    /// again: then a sweep offers it the rest.
    pub fn unblock(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.subscription(id) else { return };
        let local = subscription.local;
        if subscription.connection & BLOCKED == 0 {
            return;
        }
        self.unmark(id, BLOCKED);
        match self.cursor(id) {
            Some(cursor) if !matches!(self.waiting(id), Waiting::Nothing) => {
                self.revisit(local, id, cursor);
            }
            _ => self.trim(local),
        }
    }

    /// A sweep has visited the subscription, which still lacks something and takes more: some sweep
    /// comes back to it.
    pub fn offer_rest(&mut self, id: SubscriptionId) {
        if let (Some(local), Some(cursor)) =
            (self.subscription(id).map(|it| it.local), self.cursor(id))
        {
            self.revisit(local, id, cursor);
        }
    }

    /// Whether sweeps leave the subscription out.
    pub fn is_blocked(&self, id: SubscriptionId) -> bool {
        self.subscription(id).is_some_and(|it| it.connection & BLOCKED != 0)
    }

    /// The connection's next subscription.
    pub fn sibling(&self, id: SubscriptionId) -> Option<SubscriptionId> {
        self.subscription(id)?.sibling
    }

    /// The channel of a subscription, and whether it is a user's inbox.
    pub fn channel(&self, id: SubscriptionId) -> Option<(ChannelId, bool)> {
        let channel = self.channels.get(self.subscription(id)?.local.index())?;
        Some((channel.channel, channel.is_user))
    }

    /// Drops the replay buffer of the subscription's channel if nobody lacks anything.
    pub fn trim_channel_of(&mut self, id: SubscriptionId) {
        if let Some(local) = self.subscription(id).map(|it| it.local) {
            self.trim(local);
        }
    }

    /// The offset of the last message written to a subscription.
    pub fn cursor(&self, id: SubscriptionId) -> Option<u64> {
        let subscription = self.subscription(id)?;
        let head = self.channels.get(subscription.local.index())?.head;
        Some(full_cursor(head, subscription.cursor))
    }

    /// The channel's subscription `at`. It begins with the first one without `at`, or if that has
    /// gone meanwhile; whoever joins is last, and may have the number of one that has gone. `None`
    /// if the channel is not followed here (any more).
    pub fn member(
        &self,
        local: LocalId,
        channel: ChannelId,
        at: Option<SubscriptionId>,
    ) -> Option<Member> {
        let known = self.channels.get(local.index()).filter(|known| known.channel == channel)?;
        let first = known.first?;
        let is_here =
            |at: &SubscriptionId| self.subscription(*at).is_some_and(|it| it.local == local);
        let id = at.filter(is_here).unwrap_or(first);
        let member = self.subscription(id)?;
        Some(Member {
            connection: member.connection & NUMBER,
            next: Some(member.next).filter(|&next| next != first),
            is_first: id == first,
            count: known.count,
        })
    }

    /// Subscriptions in all.
    pub fn len(&self) -> usize {
        self.subscriptions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    fn subscription(&self, id: SubscriptionId) -> Option<&Subscription> {
        self.subscriptions.get(id.index())
    }

    fn subscription_mut(&mut self, id: SubscriptionId) -> Option<&mut Subscription> {
        self.subscriptions.get_mut(id.index())
    }

    /// Takes a mark away, if it is there.
    fn unmark(&mut self, id: SubscriptionId, mark: u32) {
        let Some(subscription) = self.subscription_mut(id) else { return };
        if subscription.connection & mark == 0 {
            return;
        }
        subscription.connection &= !mark;
        let local = subscription.local;
        if let Some(channel) = self.channels.get_mut(local.index()) {
            let count = match mark {
                BLOCKED => &mut channel.blocked,
                _ => &mut channel.catching_up,
            };
            *count -= 1;
        }
    }
}

/// How far `cursor`, the low half of an offset, is behind `offset`; negative if it is ahead.
fn distance(offset: u64, cursor: u32) -> i32 {
    (offset as u32).wrapping_sub(cursor).cast_signed()
}

/// The offset whose low half is `cursor`, in a channel whose newest message is `head`.
fn full_cursor(head: u64, cursor: u32) -> u64 {
    head.wrapping_add_signed(-i64::from(distance(head, cursor)))
}
