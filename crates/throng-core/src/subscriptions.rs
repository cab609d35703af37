//! The subscriptions of one worker: their cursors, and the fan-out to them.
//!
//! A **subscription** joins a connection to a channel and holds a cursor: the offset of the last
//! message that was written to that connection. A channel's subscriptions form a circular list; a
//! **fan-out pass** goes around it and offers each subscription what it lacks. The messages still
//! to be offered are in the channel's **replay buffer**; a channel has none while all of its
//! subscriptions have all messages.
//!
//! The table does no I/O. [`SubscriptionTable::next_batch`] names subscriptions that lack messages.
//! The worker writes what [`SubscriptionTable::waiting`] returns, and reports with
//! [`SubscriptionTable::advance`] how far it came, or with [`SubscriptionTable::block`] that the
//! connection takes no more for now. Passes skip a blocked subscription; the worker offers it the
//! rest when the socket is writable, and calls [`SubscriptionTable::unblock`] when done. A visited
//! subscription may also be [held](SubscriptionTable::hold): then it is served a moment later.
//!
//! Writing may close a connection, and so end its subscriptions. Therefore no method minds a
//! subscription that has ended: it lacks nothing, and there is nothing to record.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `channel` | what is kept for each followed channel |
//! | `circular_list` | the list of a channel's subscriptions, and the steps of a pass |
//! | `cursor` | cursors of 32 bits |
//! | `end` | subscriptions to channels that have ended |
//! | `epochs` | the epochs of the followed channels |
//! | `fan_out` | appends, and passes that take turns |
//! | `freeze` | the table as bytes, and back |
//! | `kept` | what the server keeps for users |
//! | `lag`, `limits` | how far subscriptions are behind; what replay buffers may hold |
//! | `pace`, `clocks`, `conflate` | what is held back, to go out together, or the newest of it |
//! | `replay_buffer` | the messages that some subscription lacks |
//! | `resumable`, `awaiting` | subscriptions from which the next one of their user goes on |
//! | `runs`, `pieces` | what many catch up with, in pieces of bytes |
//! | `shared_encodings` | encodings of what many catch up with, which stay for a moment |
//! | `state` | subscriptions that begin with the newest message of each key |
//! | `subscription` | one subscription, in 24 bytes |
//! | `volatile`, `volatile_passes` | messages that move no cursor, and their passes |
//! | `waiting` | the messages that a subscription lacks |
//! | `watches`, `receipts` | the messages that are watched for receipts, and what became of them |
//!
//! # Invariants
//!
//! * A pass ends only when every subscription of the channel has been visited since the last
//!   append: `visits_left` counts visits down, is set to the list's length by an append, and grows
//!   with each subscription that joins meanwhile. A subscription that leaves hands the pass's
//!   position to its successor.
//! * A volatile message is offered once to each subscription that was there when its pass began,
//!   unless the subscription ends before.
//! * A replay buffer drops only messages that all subscriptions that are not blocked were offered.
//!   While one of them is held, none counts as offered that was not before.
//! * What all replay buffers hold for blocked subscriptions only stays within
//!   [`BLOCKED_BYTES_MAX`], or the limit of [`SubscriptionTable::set_max_blocked_bytes`]. Beyond it
//!   the oldest messages are dropped, and subscriptions that lack them have a gap.
//! * No cursor is 2^31 behind its channel's head or 2^30 ahead of it, so that 32 bits tell it: see
//!   `cursor`.

mod awaiting;
mod channel;
mod circular_list;
mod clocks;
mod conflate;
mod cursor;
mod end;
mod epochs;
mod fan_out;
mod freeze;
mod kept;
mod lag;
mod limits;
mod pace;
mod pieces;
mod receipts;
mod replay_buffer;
mod resumable;
mod runs;
mod shared_encodings;
mod state;
mod subscription;
mod terms;
#[cfg(test)]
mod tests;
mod volatile;
mod volatile_passes;
mod waiting;
mod watches;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::ages::Ages;
use crate::engine::Followed;
use crate::id::{ChannelId, ConnectionId, LocalId, MessageId};
use crate::message::{InFlight, Message};
use crate::prefetch::AHEAD;
use crate::receipt::{Fate, ReceiptPart};
use crate::rules::Rules;
use crate::slab::Slab;
use awaiting::Awaiting;
use channel::LocalChannel;
use clocks::Clocks;
pub(crate) use cursor::REACH as CURSOR_REACH;
use cursor::{full_cursor, oldest_floor};
use epochs::Epochs;
pub use freeze::{FrozenSubscription, OpenChannel};
pub use lag::Lag;
pub use resumable::{Confirmed, Resumable};
pub use runs::Piece;
use shared_encodings::SharedEncodings;
pub use state::Lacking;
pub use subscription::SubscriptionId;
use subscription::{BLOCKED, CATCHING_UP, HELD, MarkedConnection, Subscription};
pub use terms::Terms;
use volatile_passes::VolatilePasses;
pub use waiting::Waiting;
pub use watches::WatchId;
use watches::Watches;

/// Bytes of messages that all replay buffers together may hold for blocked subscriptions only,
/// unless [`SubscriptionTable::set_max_blocked_bytes`] says otherwise.
pub const BLOCKED_BYTES_MAX: usize = 256 << 20;

/// A subscription of a channel, as [`SubscriptionTable::find_member`] finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The subscription, to go on from there.
    pub id: SubscriptionId,
    /// The connection that is subscribed.
    pub connection: ConnectionId,
    /// The next subscription of the channel; `None` after the last.
    pub next: Option<SubscriptionId>,
}

/// The rest of a subscription that [`SubscriptionTable::leave`] has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftSubscription {
    /// The channel, which has one subscription less.
    pub channel: ChannelId,
    /// The connection's next subscription.
    pub sibling: Option<SubscriptionId>,
}

/// The subscriptions of one worker, by channel.
#[derive(Debug)]
pub struct SubscriptionTable {
    /// The lag limits of each channel.
    rules: Arc<Rules>,
    channels: Slab<LocalChannel>,
    epochs: Epochs,
    subscriptions: Slab<Subscription>,
    /// The terms of the few subscriptions that have any, by place in the table.
    terms: HashMap<u32, Terms>,
    awaiting: Awaiting,
    clocks: Clocks,
    /// Channels with a pass under way, in the order of their turns. A channel whose pass was
    /// stopped stays until its turn comes.
    passes: VecDeque<LocalId>,
    volatile: VolatilePasses,
    /// Bytes of the messages in all replay buffers.
    buffer_bytes: usize,
    /// Bytes of those that a pass has yet to offer to some subscription.
    pending_bytes: usize,
    /// Channels whose replay buffers hold messages for blocked subscriptions only, by age.
    holders: Ages,
    /// The limit of what `holders` hold together.
    max_blocked_bytes: usize,
    /// Messages dropped because of that limit, for the metrics.
    dropped: u64,
    /// When the engine accepted the messages that became complete, until the worker collects it.
    completions: Vec<u64>,
    /// The messages whose publishers want to know what becomes of them.
    watches: Watches,
    /// The time, by which it tells for a receipt whether a message had expired.
    now_ms: u64,
    /// The subscriptions that have passed over superseded messages, and how many if that is known,
    /// until the worker tells them.
    superseded: Vec<(SubscriptionId, Option<u64>)>,
    shared_encodings: SharedEncodings,
    /// The offsets of the ends of channels that have ended.
    ends: HashMap<LocalId, u64>,
    /// The subscriptions that have come to the end of their channel, until the worker ends them.
    over: Vec<SubscriptionId>,
}

impl SubscriptionTable {
    /// A table without subscriptions. `rules` are those that [`Followed::rule`] refers to.
    pub fn new(rules: Arc<Rules>) -> SubscriptionTable {
        SubscriptionTable {
            rules,
            channels: Slab::default(),
            epochs: Epochs::default(),
            subscriptions: Slab::default(),
            terms: HashMap::new(),
            awaiting: Awaiting::default(),
            clocks: Clocks::default(),
            passes: VecDeque::new(),
            volatile: VolatilePasses::default(),
            buffer_bytes: 0,
            pending_bytes: 0,
            holders: Ages::default(),
            max_blocked_bytes: BLOCKED_BYTES_MAX,
            dropped: 0,
            completions: Vec::new(),
            watches: Watches::default(),
            now_ms: 0,
            superseded: Vec::new(),
            shared_encodings: SharedEncodings::default(),
            ends: HashMap::new(),
            over: Vec::new(),
        }
    }

    /// Sets the time: that by which the worker leaves out messages that have expired.
    pub fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.drop_shared_encodings();
    }

    /// Limits the bytes of messages that replay buffers hold for blocked subscriptions only. A
    /// worker gets its share of the server's limit.
    pub fn set_max_blocked_bytes(&mut self, max_bytes: usize) {
        self.max_blocked_bytes = max_bytes;
    }

    /// The id that the next channel will have that is not followed yet.
    pub fn next_local(&self) -> LocalId {
        LocalId::from_index(self.channels.next_index())
    }

    /// Begins to load what [`SubscriptionTable::join`] needs of these channels, all at the same
    /// time.
    pub fn look_ahead(&self, channels: &[LocalId]) {
        for local in channels {
            self.channels.prefetch(local.index());
        }
        let first = |local: &LocalId| self.channels.get(local.index())?.first;
        for first in channels.iter().filter_map(first) {
            self.subscriptions.prefetch(first.index());
        }
        for first in channels.iter().filter_map(first).filter_map(|first| self.live(first)) {
            self.subscriptions.prefetch(first.before.index());
        }
    }

    /// Subscribes `connection` as the engine answered: to the messages after the cursor, with the
    /// backlog between it and the head. `sibling` is the connection's previous subscription.
    ///
    /// No pass offers the backlog. Write it at once, [block](SubscriptionTable::block) the
    /// subscription if the connection does not take all of it, and call
    /// [`SubscriptionTable::trim_channel_of`].
    pub fn join(
        &mut self,
        connection: ConnectionId,
        followed: &Followed,
        is_user: bool,
        sibling: Option<SubscriptionId>,
    ) -> SubscriptionId {
        let local = followed.local;
        if self.channels.get(local.index()).is_none() {
            debug_assert!(local == self.next_local(), "the engine has another id for the channel");
            let epoch = self.epochs.add(followed.head.epoch, followed.are_offsets_consecutive);
            self.channels.insert(LocalChannel::new(followed, epoch, is_user));
        }
        // The cursor may be ahead of this head: the notifications up to it still wait in the queue.
        self.bring_into_reach(local, followed.cursor.offset);
        let backlog = (&*followed.backlog, followed.is_sparse);
        let cursor = self.merge(local, followed.cursor.offset, backlog);
        let is_whole = followed.is_recovered.is_none() || !self.is_latest(local);
        let channel = &mut self.channels[local.index()];
        debug_assert_eq!(full_cursor(channel.head, cursor as u32), cursor, "out of reach");
        let is_catching_up = is_whole && cursor < channel.head;
        channel.catching_up += u32::from(is_catching_up);
        let id = SubscriptionId::from_index(self.subscriptions.next_index());
        let marks = if is_catching_up { CATCHING_UP } else { 0 };
        self.subscriptions.insert(Subscription {
            connection: MarkedConnection::new(connection, marks),
            local,
            cursor: cursor as u32,
            before: id,
            next: id,
            sibling,
        });
        self.link(local, id);
        self.begin_at_end(id, local, followed);
        id
    }

    /// Ends a subscription. The caller tells the engine. `None` if it has ended before.
    pub fn leave(&mut self, id: SubscriptionId) -> Option<LeftSubscription> {
        let local = self.local(id)?;
        self.settle_ended(id);
        // The channel counts marked subscriptions.
        self.unmark(id, BLOCKED);
        self.unmark(id, CATCHING_UP);
        self.unlink(local, id);
        self.end_hold(local, id);
        self.take_terms(local, id);
        let gone = self.subscriptions.remove(id.index())?;
        let channel = &self.channels[local.index()];
        let (epoch, count) = (channel.epoch, channel.count);
        let left = LeftSubscription { channel: channel.channel, sibling: gone.sibling };
        if count == 0 {
            self.drop_buffer(local);
            self.end_volatile(local);
            self.watches.forget_channel(local);
            self.clocks.forget(local);
            self.forget_end(local);
            self.channels.remove(local.index());
            self.epochs.remove(epoch);
        } else {
            // It may have been the last blocked one, for which the messages were kept.
            self.trim(local);
        }
        Some(left)
    }

    /// Ends a connection's subscriptions, which begin with `first`, and passes their channels. The
    /// caller tells the engine.
    pub fn leave_all(&mut self, first: Option<SubscriptionId>, mut each: impl FnMut(ChannelId)) {
        let mut next = first;
        let mut ahead = [None; AHEAD];
        while next.is_some() {
            for place in &mut ahead {
                *place = next;
                next = next.and_then(|id| self.prefetch(id));
            }
            for id in ahead.into_iter().flatten() {
                self.leave(id).inspect(|left| each(left.channel));
            }
        }
    }

    /// Begins to load what has to do with a subscription. Returns the connection's next one.
    fn prefetch(&self, id: SubscriptionId) -> Option<SubscriptionId> {
        let subscription = self.live(id)?;
        self.channels.prefetch(subscription.local.index());
        for neighbour in [subscription.before, subscription.next] {
            self.subscriptions.prefetch(neighbour.index());
        }
        subscription.sibling
    }

    /// Takes subscriptions out of their connection's chain of siblings, which starts with `first`.
    /// `ended` are sorted. Returns the new first one.
    pub fn unchain(
        &mut self,
        first: Option<SubscriptionId>,
        ended: &[SubscriptionId],
    ) -> Option<SubscriptionId> {
        let has_ended = |id: &SubscriptionId| ended.binary_search(id).is_ok();
        let (mut left, mut new_first, mut last) = (ended.len(), None, None);
        let mut next = first;
        while let Some(at) = next {
            next = self.sibling(at);
            if left > 0 && has_ended(&at) {
                left -= 1;
                continue;
            }
            match last {
                None => new_first = Some(at),
                Some(last) => self.set_sibling(last, Some(at)),
            }
            last = Some(at);
            if left == 0 {
                return new_first;
            }
        }
        if let Some(last) = last {
            self.set_sibling(last, None);
        }
        new_first
    }

    fn set_sibling(&mut self, id: SubscriptionId, sibling: Option<SubscriptionId>) {
        if self.live(id).is_some() {
            self.subscriptions[id.index()].sibling = sibling;
        }
    }

    /// Takes a message of a followed channel for its subscriptions. A late notification for a
    /// channel that is not followed any more, and a message that a backlog contained, are ignored.
    pub fn append(&mut self, local: LocalId, channel: ChannelId, message: &Arc<Message>) {
        let is_new = |known: &LocalChannel| {
            known.channel == channel
                && message.id.offset > known.head
                && message.id.epoch == self.epochs.get(known.epoch)
        };
        if self.channels.get(local.index()).is_some_and(is_new) {
            self.push_back(local, message);
            self.note_overdue(local);
        } else {
            self.pass_over(message, None);
        }
    }

    /// Takes a message, with its part of a receipt, for which no subscription here is waiting.
    pub fn pass_over(&mut self, message: &Message, part: Option<ReceiptPart>) {
        if let Some(mut part) = part {
            // Those that were there when it was published have ended.
            part.settle(Fate::Closed, part.left());
        }
        self.completions.extend(message.in_flight().and_then(InFlight::complete));
    }

    /// True if the channel's offsets belong to a log that is elsewhere. A late notification for an
    /// earlier channel at the same place may then seem to be for this one.
    pub fn has_log_elsewhere(&self, local: LocalId) -> bool {
        let known = self.channels.get(local.index());
        known.is_some_and(|known| self.rules.get(known.rule).journal.is_some())
    }

    /// When the engine accepted the messages that became complete since the last call, in
    /// microseconds of [`clock::now_us`](crate::clock::now_us). A message is complete once every
    /// worker has offered it to all subscriptions that are not blocked; the last worker reports it.
    pub fn completions(&mut self) -> std::vec::Drain<'_, u64> {
        self.completions.drain(..)
    }

    /// Bytes of messages that a pass has yet to offer to some subscription.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Bytes of messages that are kept for blocked subscriptions only.
    fn blocked_bytes(&self) -> usize {
        self.buffer_bytes - self.pending_bytes
    }

    /// The messages dropped so far to keep to [`SubscriptionTable::set_max_blocked_bytes`].
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Records that the messages up to `offset` were written to the subscription.
    pub fn advance(&mut self, id: SubscriptionId, offset: u64) {
        self.settle_passed(id, offset, Fate::Written);
        self.move_cursor(id, offset);
    }

    fn move_cursor(&mut self, id: SubscriptionId, offset: u64) {
        debug_assert!(self.live(id).is_some(), "messages are written to live subscriptions");
        let Some(local) = self.local(id) else { return };
        debug_assert!(self.cursor(id).is_some_and(|cursor| cursor <= offset), "it moves back");
        self.note_superseded(id, local, offset);
        // A backlog may be ahead of the head, while its notifications are on their way.
        self.bring_into_reach(local, offset);
        self.note_over(id, local, offset);
        self.subscriptions[id.index()].cursor = offset as u32;
        if offset >= self.channels[local.index()].head && self.state_end(id).is_none() {
            self.unmark(id, CATCHING_UP);
        }
    }

    /// The connection of a subscription; `None` if it has ended.
    pub fn connection(&self, id: SubscriptionId) -> Option<ConnectionId> {
        self.live(id).map(|subscription| subscription.connection.id())
    }

    /// The connection of a subscription that is held; `None` if it is not, or has ended.
    pub fn held_connection(&self, id: SubscriptionId) -> Option<ConnectionId> {
        let connection = self.live(id)?.connection;
        connection.has(HELD).then(|| connection.id())
    }

    /// The connection's next subscription; `None` after the last, or if this one has ended.
    pub fn sibling(&self, id: SubscriptionId) -> Option<SubscriptionId> {
        self.live(id)?.sibling
    }

    /// The channel of a subscription, and whether it is a user's inbox; `None` if it has ended.
    pub fn channel(&self, id: SubscriptionId) -> Option<(ChannelId, bool)> {
        let channel = &self.channels[self.local(id)?.index()];
        Some((channel.channel, channel.is_user))
    }

    /// The engine's id of a subscription's channel, which clients know as its number; 0 if the
    /// subscription has ended, which gets no message any more.
    pub fn number(&self, id: SubscriptionId) -> ChannelId {
        let local = self.local(id);
        local.map_or(ChannelId(0), |local| self.channels[local.index()].channel)
    }

    /// The offset of the last message written to a subscription; `None` if it has ended.
    pub fn cursor(&self, id: SubscriptionId) -> Option<u64> {
        let subscription = self.live(id)?;
        let head = self.channels[subscription.local.index()].head;
        Some(full_cursor(head, subscription.cursor))
    }

    /// The id of the last message written to a subscription; `None` if it has ended.
    pub fn position(&self, id: SubscriptionId) -> Option<MessageId> {
        let channel = &self.channels[self.local(id)?.index()];
        let cursor = self.cursor(id)?;
        let floor = channel.buffer.as_ref().map_or(channel.head, |buffer| buffer.floor());
        // A cursor that was pulled up is after messages that were not written, and has a gap. A
        // client that resumes from offset 0 instead gets them, or learns of the gap.
        let may_be_pulled_up = cursor < floor && cursor < oldest_floor(channel.head);
        let offset = if may_be_pulled_up { 0 } else { cursor };
        Some(MessageId { epoch: self.epochs.get(channel.epoch), offset })
    }

    /// The first of the channel's subscriptions whose connection `is_wanted`: from `at` to the last
    /// one, and then from the first one. A subscription that joins is last, and may have the id of
    /// one that has ended; so after either has happened the search may pass over some, but it finds
    /// nothing only if no connection is wanted, or the channel is not followed here any more.
    pub fn find_member(
        &self,
        local: LocalId,
        channel: ChannelId,
        at: Option<SubscriptionId>,
        is_wanted: impl Fn(ConnectionId) -> bool,
    ) -> Option<Member> {
        let known = self.channels.get(local.index()).filter(|known| known.channel == channel)?;
        let first = known.first?;
        let next = |id: SubscriptionId| {
            Some(self.subscriptions[id.index()].next).filter(|&next| next != first)
        };
        let find_from = |id| {
            let connection_of = |id: SubscriptionId| self.subscriptions[id.index()].connection.id();
            let mut members = std::iter::successors(Some(id), |&id| next(id));
            let id = members.find(|&id| is_wanted(connection_of(id)))?;
            Some(Member { id, connection: connection_of(id), next: next(id) })
        };
        let at = at.filter(|&at| self.local(at) == Some(local) && at != first);
        at.and_then(find_from).or_else(|| find_from(first))
    }

    /// The number of subscriptions.
    pub fn len(&self) -> usize {
        self.subscriptions.len()
    }

    /// True if there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    /// The subscription; `None` if it has ended.
    fn live(&self, id: SubscriptionId) -> Option<&Subscription> {
        self.subscriptions.get(id.index())
    }

    /// The channel of a subscription; `None` if it has ended.
    fn local(&self, id: SubscriptionId) -> Option<LocalId> {
        Some(self.live(id)?.local)
    }

    /// Sets a mark of a subscription, and counts it for its channel.
    fn mark(&mut self, id: SubscriptionId, mark: u32) {
        // The subscription has ended if its connection could not be watched.
        let Some(local) = self.local(id) else { return };
        if self.subscriptions[id.index()].connection.set(mark) {
            *self.marked(local, mark) += 1;
        }
    }

    /// Clears a mark of a subscription. Returns whether it was set; false if it has ended.
    fn unmark(&mut self, id: SubscriptionId, mark: u32) -> bool {
        let Some(local) = self.local(id) else { return false };
        let was_set = self.subscriptions[id.index()].connection.clear(mark);
        if was_set {
            *self.marked(local, mark) -= 1;
        }
        was_set
    }

    /// The number of the channel's subscriptions that have a mark.
    fn marked(&mut self, local: LocalId, mark: u32) -> &mut u32 {
        let channel = &mut self.channels[local.index()];
        if mark == BLOCKED { &mut channel.blocked } else { &mut channel.catching_up }
    }
}
