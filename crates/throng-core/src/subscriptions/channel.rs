//! A channel that this worker follows, and its replay buffer of the log.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{REACH, REACH_BITS, SubscriptionId, SubscriptionTable, Waiting, full_cursor};
use crate::message::Message;
use crate::rules::{LagPolicy, RuleId};
use crate::slab::Slab;
use crate::{ChannelId, LocalId};

#[derive(Debug)]
pub(super) struct LocalChannel {
    /// The newest message's offset, as far as this worker has heard.
    pub(super) head: u64,
    /// Nothing while everyone has everything.
    pub(super) active: Option<Box<Active>>,
    pub(super) channel: ChannelId,
    pub(super) first: Option<SubscriptionId>,
    /// Subscriptions in the ring.
    pub(super) count: u32,
    /// Those whose connection takes no more for now.
    pub(super) blocked: u32,
    /// Those that have not been written all of their backlog.
    pub(super) catching_up: u32,
    pub(super) rule: RuleId,
    pub(super) is_user: bool,
}

const _: () = assert!(Slab::<LocalChannel>::ENTRY_BYTES <= 40);

impl LocalChannel {
    pub(super) fn new(channel: ChannelId, rule: RuleId, is_user: bool, head: u64) -> LocalChannel {
        LocalChannel {
            head,
            active: None,
            channel,
            first: None,
            count: 0,
            blocked: 0,
            catching_up: 0,
            rule,
            is_user,
        }
    }
}

/// What a channel has while somebody lacks something.
///
/// Invariant: the replay buffer holds the log from `floor` (exclusive) to the channel's head
/// (inclusive) without a hole.
#[derive(Debug, Default)]
pub(super) struct Active {
    pub(super) buffer: VecDeque<Arc<Message>>,
    pub(super) bytes: usize,
    /// The offset of the newest message that is older than the replay buffer.
    pub(super) floor: u64,
    /// The sweep's next visit.
    pub(super) position: Option<SubscriptionId>,
    /// Visits until everyone has been visited since the last append.
    pub(super) left: u32,
    /// The channel's head when the sweep last visited the ring's first subscription.
    pub(super) wrap_head: u64,
    /// Everyone has been offered the messages up to here.
    pub(super) offered: u64,
    /// Bytes of the messages after `swept`.
    pub(super) pending_bytes: usize,
    pub(super) is_fanning_out: bool,
    /// Whether the table knows that messages are held here.
    pub(super) is_known_to_hold: bool,
    /// Messages up to here have been rid of the encodings of their fan-out.
    unencoded_to: u64,
    /// Messages up to here have completed, or were never in in_flight: once offered again, they do
    /// not land a second time.
    completed: u64,
}

impl Active {
    fn new(head: u64) -> Active {
        Active { floor: head, wrap_head: head, offered: head, completed: head, ..Active::default() }
    }

    /// The messages up to `offset` have completed. When the engine had accepted those that this was
    /// the last worker for is added to `completions`.
    pub(super) fn complete(&mut self, offset: u64, completions: &mut Vec<u64>) {
        if offset <= self.completed {
            return;
        }
        let news = self.buffer.range(self.index_after(self.completed)..);
        let news = news.take_while(|message| message.id.offset <= offset);
        completions.extend(news.filter_map(|message| message.in_flight()?.complete()));
        self.completed = offset;
    }

    /// Everyone has been offered the messages up to `offset`. Returns their bytes, as far as they
    /// were not counted before.
    pub(super) fn offered(&mut self, offset: u64, completions: &mut Vec<u64>) -> usize {
        self.complete(offset, completions);
        if offset <= self.offered {
            return 0;
        }
        let news = self.buffer.range(self.index_after(self.offered)..);
        let news = news.take_while(|message| message.id.offset <= offset);
        let bytes = news.map(|message| message.weight_bytes()).sum();
        self.offered = offset;
        self.pending_bytes -= bytes;
        bytes
    }

    /// Not everyone has been offered what comes after `offset`, after all. Returns its bytes, as
    /// far as they count as offered.
    fn offer_again(&mut self, offset: u64) -> usize {
        let offset = offset.max(self.floor);
        self.wrap_head = self.wrap_head.min(offset);
        if offset >= self.offered {
            return 0;
        }
        self.unencoded_to = self.unencoded_to.min(offset);
        let again = self.buffer.range(self.index_after(offset)..);
        let again = again.take_while(|message| message.id.offset <= self.offered);
        let bytes = again.map(|message| message.weight_bytes()).sum();
        self.offered = offset;
        self.pending_bytes += bytes;
        self.is_known_to_hold &= self.blocked_bytes() > 0;
        bytes
    }

    /// Drops every message: the log goes on after `floor`.
    fn restart_after(&mut self, floor: u64) {
        self.buffer.clear();
        self.floor = floor;
        self.offered = self.offered.max(floor);
        (self.bytes, self.pending_bytes, self.is_known_to_hold) = (0, 0, false);
    }

    /// Drops the oldest message. Returns its bytes.
    fn pop_front(&mut self) -> usize {
        let Some(first) = self.buffer.pop_front() else { return 0 };
        let bytes = first.weight_bytes();
        self.bytes -= bytes;
        self.floor = first.id.offset;
        self.is_known_to_hold &= self.blocked_bytes() > 0;
        bytes
    }

    /// Bytes of what everyone has been offered. It is still here for those who were blocked then.
    pub(super) fn blocked_bytes(&self) -> usize {
        self.bytes - self.pending_bytes
    }

    /// When the oldest message was published that everyone has been offered.
    pub(super) fn oldest_held_ms(&self) -> Option<u64> {
        let first = self.buffer.front().filter(|first| first.id.offset <= self.offered)?;
        Some(first.time_ms)
    }

    /// Rids what everyone has been offered of its encodings: the fan-out is over, and those who
    /// were blocked then are few.
    fn drop_encodings(&mut self) {
        if self.unencoded_to >= self.offered {
            return;
        }
        let (from, to) = (self.index_after(self.unencoded_to), self.index_after(self.offered));
        for message in self.buffer.range_mut(from..to) {
            if message.is_encoded() {
                *message = Arc::new(message.unencoded());
            }
        }
        self.unencoded_to = self.offered;
    }

    /// Rids of its encodings what comes after `from` up to `to`, and what was encoded behind it,
    /// as far as everyone has been offered it.
    fn drop_encodings_again(&mut self, from: u64, to: u64) {
        let first = self.index_after(from);
        for message in self.buffer.range_mut(first..) {
            let offset = message.id.offset;
            if offset > self.offered || (offset > to && !message.is_encoded()) {
                break;
            }
            if message.is_encoded() {
                *message = Arc::new(message.unencoded());
            }
        }
    }

    /// The index of the first message after `cursor`.
    fn index_after(&self, cursor: u64) -> usize {
        let (Some(first), Some(last)) = (self.buffer.front(), self.buffer.back()) else { return 0 };
        // Most lack the newest message only.
        if last.previous <= cursor {
            return self.buffer.len() - usize::from(last.id.offset > cursor);
        }
        if cursor < first.id.offset {
            return 0;
        }
        let guess = (cursor - first.id.offset) as usize;
        // Offsets mostly count up by one; where they skip, search.
        match self.buffer.get(guess) {
            Some(message) if message.id.offset == cursor => guess + 1,
            _ => self.buffer.partition_point(|it| it.id.offset <= cursor),
        }
    }

    /// What somebody lacks whose cursor is behind the channel's head.
    pub(super) fn waiting(&self, cursor: u64, policy: LagPolicy) -> Waiting<'_> {
        if cursor < self.floor {
            return Waiting::Gap { missed: self.floor - cursor, resume_at: self.floor, policy };
        }
        Waiting::Messages(self.buffer.range(self.index_after(cursor)..))
    }
}

/// A message of a backlog for a replay buffer of this worker's: not one that others hold, too, as
/// they would leave their encodings to whoever holds it longest.
fn own(message: &Arc<Message>) -> Arc<Message> {
    let is_own = Arc::strong_count(message) == 1 && !message.is_encoded();
    if is_own { Arc::clone(message) } else { Arc::new(message.unencoded()) }
}

/// The least floor that a replay buffer may be given while `head` is the channel's head. It never
/// falls: a cursor below it has a gap for good.
fn oldest_floor(head: u64) -> u64 {
    head.saturating_sub(REACH - 1)
}

impl SubscriptionTable {
    /// Appends a message to the channel's replay buffer and makes sure that a sweep offers it to
    /// everyone.
    pub(super) fn push_back(&mut self, local: LocalId, message: &Arc<Message>) {
        let bytes = message.weight_bytes();
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let offset = message.id.offset;
        let is_far = channel.head >> REACH_BITS != offset >> REACH_BITS;
        let known = channel.head;
        let active = channel.active.get_or_insert_with(|| Box::new(Active::new(known)));
        if message.previous > known {
            // A hole that the engine could not fill: whoever stands before it is told.
            self.buffer_bytes -= active.bytes;
            self.pending_bytes -= active.pending_bytes;
            active.restart_after(message.previous);
        }
        if is_far {
            self.pull_up(local, message);
        }
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(active) = &mut channel.active else { return };
        channel.head = offset;
        active.buffer.push_back(Arc::clone(message));
        active.bytes += bytes;
        active.pending_bytes += bytes;
        active.left = channel.count;
        self.buffer_bytes += bytes;
        self.pending_bytes += bytes;
        if !active.is_fanning_out {
            active.is_fanning_out = true;
            self.passes.push_back(local);
        }
    }

    /// Before the channel's head moves to `news`, far away: brings replay buffer and cursors within
    /// [`REACH`] of it, so that 32 bits of a cursor still tell it. Rare enough to visit everyone.
    fn pull_up(&mut self, local: LocalId, news: &Message) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(active) = &mut channel.active else { return };
        let (known, head) = (channel.head, news.id.offset);
        let oldest = oldest_floor(head);
        if active.floor < oldest {
            // All of it, although the newer part could stay: such a replay buffer spans hours at
            // least.
            self.buffer_bytes -= active.bytes;
            self.pending_bytes -= active.pending_bytes;
            active.restart_after(head - 1);
        }
        let mut at = channel.first;
        for _ in 0..channel.count {
            let Some(subscription) = at.and_then(|id| self.subscription_mut(id)) else { return };
            let cursor = full_cursor(known, subscription.cursor);
            if cursor < oldest {
                // Whoever lacks more than the news has a gap, also after a backlog has lowered the
                // floor: so it stands below every floor to come.
                let lacks_only_news = news.previous <= cursor;
                subscription.cursor = (if lacks_only_news { head - 1 } else { oldest - 1 }) as u32;
            }
            at = Some(subscription.next);
        }
    }

    /// Takes a backlog, oldest first, into the replay buffer, as far as it is older than the replay
    /// buffer, and returns the cursor for it. What is newer than the channel's head is on its way
    /// by notifications, and with it whatever lies between.
    pub(super) fn merge(&mut self, local: LocalId, cursor: u64, backlog: &[Arc<Message>]) -> u64 {
        let Some(channel) = self.channels.get_mut(local.index()) else { return cursor };
        let head = channel.head;
        let floor = channel.active.as_ref().map_or(head, |active| active.floor);
        // Further back 32 bits of a cursor do not reach; whoever stands there has a gap.
        let oldest = floor.min(oldest_floor(head));
        let near = backlog.partition_point(|message| message.id.offset <= oldest);
        let is_whole = backlog.get(near).is_some_and(|message| message.previous <= cursor);
        let to = backlog.partition_point(|message| message.id.offset <= floor);
        if let Some(older) = backlog.get(near..to).filter(|older| !older.is_empty()) {
            let active = channel.active.get_or_insert_with(|| Box::new(Active::new(head)));
            for message in older.iter().rev() {
                active.bytes += message.weight_bytes();
                self.buffer_bytes += message.weight_bytes();
                active.floor = message.previous.max(oldest);
                active.buffer.push_front(own(message));
            }
        }
        cursor.max(if is_whole { oldest } else { oldest.saturating_sub(1) })
    }

    /// Keeps the replay buffer within what a blocked subscriber may be behind, or, while one is
    /// catching up, within what it can have asked for; nobody else needs what everyone has been
    /// offered.
    pub(super) fn trim_to_lag(&mut self, local: LocalId) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(active) = &mut channel.active else { return };
        let rule = self.rules.get(channel.rule);
        let kept = rule.retention;
        let (messages_max, bytes_max) = match (channel.blocked, channel.catching_up) {
            (0, _) => (0, 0),
            (_, 0) => (rule.max_lag_messages, rule.max_lag_bytes),
            _ => (
                rule.max_lag_messages.max(kept.messages_max),
                rule.max_lag_bytes.max(kept.bytes_max),
            ),
        };
        while active.buffer.len() > messages_max || active.bytes > bytes_max {
            match active.buffer.front() {
                Some(first) if first.id.offset <= active.offered => {
                    self.buffer_bytes -= active.pop_front();
                }
                _ => break,
            }
        }
        active.drop_encodings();
        self.hold(local);
    }

    /// Keeps what all replay buffers hold for the blocked within its limit, whereof the channel's
    /// replay buffer may hold more now: the oldest messages go first, and with them those who have
    /// been blocked longest. (A backlog may have put older ones before those that are known of;
    /// they go with them.)
    pub(super) fn hold(&mut self, local: LocalId) {
        let SubscriptionTable { channels, held, .. } = self;
        let oldest_of = |index| channels.get(index)?.active.as_ref()?.oldest_held_ms();
        let oldest_ms = oldest_of(local.index());
        if let Some(channel) = channels.get(local.index())
            && let (Some(active), Some(oldest_ms)) = (&channel.active, oldest_ms)
            && !active.is_known_to_hold
        {
            held.add(oldest_ms, local.index(), oldest_of);
            if let Some(active) = self.active_mut(local.index()) {
                active.is_known_to_hold = true;
            }
        }
        while self.blocked_bytes() > self.blocked_bytes_max {
            let SubscriptionTable { channels, held, .. } = self;
            let oldest_of = |index| channels.get(index)?.active.as_ref()?.oldest_held_ms();
            let oldest = held.oldest(oldest_of);
            let Some(active) = oldest.and_then(|index| self.active_mut(index)) else { return };
            self.buffer_bytes -= active.pop_front();
            self.dropped += 1;
        }
    }

    fn active_mut(&mut self, index: u32) -> Option<&mut Active> {
        self.channels.get_mut(index)?.active.as_deref_mut()
    }

    /// The subscription stood at `from` and was just written what came next, or some of it. Of what
    /// all others have been offered the encodings go at once: a replay buffer counts messages
    /// without them, and may keep what it holds for long.
    pub fn drop_encodings(&mut self, id: SubscriptionId, from: u64) {
        let (Some(to), Some(local)) = (self.cursor(id), self.subscription(id).map(|it| it.local))
        else {
            return;
        };
        let Some(active) = self.active_mut(local.index()) else { return };
        if from < active.offered {
            active.drop_encodings_again(from, to);
        }
    }

    /// Drops the replay buffer if nobody lacks anything, or what of it nobody can lack. Called
    /// after a new subscription was written its backlog; the table itself calls it wherever else it
    /// may apply.
    pub fn trim(&mut self, local: LocalId) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(active) = &channel.active else { return };
        if active.is_fanning_out || channel.blocked > 0 {
            // Perhaps with a backlog that nobody lacks by now.
            self.trim_to_lag(local);
        } else {
            self.stop(local);
        }
    }

    /// Sees to it that a sweep offers `id` what comes after `cursor`, although sweeps have passed
    /// it.
    pub(super) fn revisit(&mut self, local: LocalId, id: SubscriptionId, cursor: u64) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let head = channel.head;
        let active = channel.active.get_or_insert_with(|| Box::new(Active::new(head)));
        self.pending_bytes += active.offer_again(cursor);
        if active.left == 0 {
            (active.position, active.left) = (Some(id), 1);
        } else {
            active.left = channel.count;
        }
        if !active.is_fanning_out {
            active.is_fanning_out = true;
            self.passes.push_back(local);
        }
    }

    /// Ends the channel's sweep without finishing it; its turn, when it comes, finds nothing to do.
    pub(super) fn stop(&mut self, local: LocalId) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(mut active) = channel.active.take() else { return };
        // Whoever had not been offered the rest has gone.
        active.complete(channel.head, &mut self.completions);
        self.buffer_bytes -= active.bytes;
        self.pending_bytes -= active.pending_bytes;
    }
}
