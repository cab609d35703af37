//! A channel that this worker follows, and its mirror of the log.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{REACH, REACH_BITS, Roster, SubscriptionId, Waiting, full_cursor};
use crate::message::Message;
use crate::rules::{BehindPolicy, RuleId};
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
    pub(super) stalled: u32,
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
            stalled: 0,
            catching_up: 0,
            rule,
            is_user,
        }
    }
}

/// What a channel has while somebody lacks something.
///
/// Invariant: the mirror holds the log from `floor` (exclusive) to the channel's head (inclusive)
/// without a hole.
#[derive(Debug, Default)]
pub(super) struct Active {
    pub(super) mirror: VecDeque<Arc<Message>>,
    pub(super) bytes: usize,
    /// The offset of the newest message that is older than the mirror.
    pub(super) floor: u64,
    /// The sweep's next visit.
    pub(super) position: Option<SubscriptionId>,
    /// Visits until everyone has been visited since the last append.
    pub(super) left: u32,
    /// The channel's head when the sweep last visited the ring's first subscription.
    pub(super) lap_head: u64,
    /// Everyone has been offered the messages up to here.
    pub(super) swept: u64,
    /// Bytes of the messages after `swept`.
    pub(super) unswept_bytes: usize,
    pub(super) is_sweeping: bool,
    /// Whether the roster knows that messages are held here.
    pub(super) is_known_to_hold: bool,
    /// Messages up to here have been rid of the encodings of their fan-out.
    bare: u64,
    /// Messages up to here have landed, or were never in flight: once offered again, they do not
    /// land a second time.
    landed: u64,
}

impl Active {
    fn new(head: u64) -> Active {
        Active { floor: head, lap_head: head, swept: head, landed: head, ..Active::default() }
    }

    /// The messages up to `offset` have landed. When the engine had accepted those that this was
    /// the last worker for is added to `landings`.
    pub(super) fn land(&mut self, offset: u64, landings: &mut Vec<u64>) {
        if offset <= self.landed {
            return;
        }
        let news = self.mirror.range(self.index_after(self.landed)..);
        let news = news.take_while(|message| message.id.offset <= offset);
        landings.extend(news.filter_map(|message| message.flight()?.land()));
        self.landed = offset;
    }

    /// Everyone has been offered the messages up to `offset`. Returns their bytes, as far as they
    /// were not counted before.
    pub(super) fn offered(&mut self, offset: u64, landings: &mut Vec<u64>) -> usize {
        self.land(offset, landings);
        if offset <= self.swept {
            return 0;
        }
        let news = self.mirror.range(self.index_after(self.swept)..);
        let news = news.take_while(|message| message.id.offset <= offset);
        let bytes = news.map(|message| message.weight_bytes()).sum();
        self.swept = offset;
        self.unswept_bytes -= bytes;
        bytes
    }

    /// Not everyone has been offered what comes after `offset`, after all. Returns its bytes, as
    /// far as they count as offered.
    fn offer_again(&mut self, offset: u64) -> usize {
        let offset = offset.max(self.floor);
        self.lap_head = self.lap_head.min(offset);
        if offset >= self.swept {
            return 0;
        }
        self.bare = self.bare.min(offset);
        let again = self.mirror.range(self.index_after(offset)..);
        let again = again.take_while(|message| message.id.offset <= self.swept);
        let bytes = again.map(|message| message.weight_bytes()).sum();
        self.swept = offset;
        self.unswept_bytes += bytes;
        self.is_known_to_hold &= self.held_bytes() > 0;
        bytes
    }

    /// Drops every message: the log goes on after `floor`.
    fn restart_after(&mut self, floor: u64) {
        self.mirror.clear();
        self.floor = floor;
        self.swept = self.swept.max(floor);
        (self.bytes, self.unswept_bytes, self.is_known_to_hold) = (0, 0, false);
    }

    /// Drops the oldest message. Returns its bytes.
    fn pop_front(&mut self) -> usize {
        let Some(first) = self.mirror.pop_front() else { return 0 };
        let bytes = first.weight_bytes();
        self.bytes -= bytes;
        self.floor = first.id.offset;
        self.is_known_to_hold &= self.held_bytes() > 0;
        bytes
    }

    /// Bytes of what everyone has been offered. It is still here for those who were stalled then.
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes - self.unswept_bytes
    }

    /// When the oldest message was published that everyone has been offered.
    pub(super) fn oldest_held_ms(&self) -> Option<u64> {
        let first = self.mirror.front().filter(|first| first.id.offset <= self.swept)?;
        Some(first.time_ms)
    }

    /// Rids what everyone has been offered of its encodings: the fan-out is over, and those who
    /// were stalled then are few.
    fn bare(&mut self) {
        if self.bare >= self.swept {
            return;
        }
        let (from, to) = (self.index_after(self.bare), self.index_after(self.swept));
        for message in self.mirror.range_mut(from..to) {
            if message.is_encoded() {
                *message = Arc::new(message.unencoded());
            }
        }
        self.bare = self.swept;
    }

    /// Rids of its encodings what comes after `from` up to `to`, and what was encoded behind it,
    /// as far as everyone has been offered it.
    fn bare_again(&mut self, from: u64, to: u64) {
        let first = self.index_after(from);
        for message in self.mirror.range_mut(first..) {
            let offset = message.id.offset;
            if offset > self.swept || (offset > to && !message.is_encoded()) {
                break;
            }
            if message.is_encoded() {
                *message = Arc::new(message.unencoded());
            }
        }
    }

    /// The index of the first message after `cursor`.
    fn index_after(&self, cursor: u64) -> usize {
        let (Some(first), Some(last)) = (self.mirror.front(), self.mirror.back()) else { return 0 };
        // Most lack the newest message only.
        if last.previous <= cursor {
            return self.mirror.len() - usize::from(last.id.offset > cursor);
        }
        if cursor < first.id.offset {
            return 0;
        }
        let guess = (cursor - first.id.offset) as usize;
        // Offsets mostly count up by one; where they skip, search.
        match self.mirror.get(guess) {
            Some(message) if message.id.offset == cursor => guess + 1,
            _ => self.mirror.partition_point(|it| it.id.offset <= cursor),
        }
    }

    /// What somebody lacks whose cursor is behind the channel's head.
    pub(super) fn waiting(&self, cursor: u64, policy: BehindPolicy) -> Waiting<'_> {
        if cursor < self.floor {
            return Waiting::Gap { missed: self.floor - cursor, resume_at: self.floor, policy };
        }
        Waiting::Messages(self.mirror.range(self.index_after(cursor)..))
    }
}

/// A message of a backlog for a mirror of this worker's: not one that others hold, too, as they
/// would leave their encodings to whoever holds it longest.
fn own(message: &Arc<Message>) -> Arc<Message> {
    let is_own = Arc::strong_count(message) == 1 && !message.is_encoded();
    if is_own { Arc::clone(message) } else { Arc::new(message.unencoded()) }
}

/// The least floor that a mirror may be given while `head` is the channel's head. It never falls:
/// a cursor below it has a gap for good.
fn oldest_floor(head: u64) -> u64 {
    head.saturating_sub(REACH - 1)
}

impl Roster {
    /// Appends a message to the channel's mirror and makes sure that a sweep offers it to everyone.
    pub(super) fn push_back(&mut self, local: LocalId, message: &Arc<Message>) {
        let bytes = message.weight_bytes();
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let offset = message.id.offset;
        let is_far = channel.head >> REACH_BITS != offset >> REACH_BITS;
        let known = channel.head;
        let active = channel.active.get_or_insert_with(|| Box::new(Active::new(known)));
        if message.previous > known {
            // A hole that the engine could not fill: whoever stands before it is told.
            self.mirror_bytes -= active.bytes;
            self.unswept_bytes -= active.unswept_bytes;
            active.restart_after(message.previous);
        }
        if is_far {
            self.pull_up(local, message);
        }
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(active) = &mut channel.active else { return };
        channel.head = offset;
        active.mirror.push_back(Arc::clone(message));
        active.bytes += bytes;
        active.unswept_bytes += bytes;
        active.left = channel.count;
        self.mirror_bytes += bytes;
        self.unswept_bytes += bytes;
        if !active.is_sweeping {
            active.is_sweeping = true;
            self.sweeping.push_back(local);
        }
    }

    /// Before the channel's head moves to `news`, far away: brings mirror and cursors within
    /// [`REACH`] of it, so that 32 bits of a cursor still tell it. Rare enough to visit everyone.
    fn pull_up(&mut self, local: LocalId, news: &Message) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(active) = &mut channel.active else { return };
        let (known, head) = (channel.head, news.id.offset);
        let oldest = oldest_floor(head);
        if active.floor < oldest {
            // All of it, although the newer part could stay: such a mirror spans hours at least.
            self.mirror_bytes -= active.bytes;
            self.unswept_bytes -= active.unswept_bytes;
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

    /// Takes a backlog, oldest first, into the mirror, as far as it is older than the mirror, and
    /// returns the cursor for it. What is newer than the channel's head is on its way by mail, and
    /// with it whatever lies between.
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
                self.mirror_bytes += message.weight_bytes();
                active.floor = message.previous.max(oldest);
                active.mirror.push_front(own(message));
            }
        }
        cursor.max(if is_whole { oldest } else { oldest.saturating_sub(1) })
    }

    /// Keeps the mirror within what a stalled subscriber may be behind, or, while one is catching
    /// up, within what it can have asked for; nobody else needs what everyone has been offered.
    pub(super) fn trim(&mut self, local: LocalId) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(active) = &mut channel.active else { return };
        let rule = self.rules.get(channel.rule);
        let kept = rule.retention;
        let (messages_max, bytes_max) = match (channel.stalled, channel.catching_up) {
            (0, _) => (0, 0),
            (_, 0) => (rule.behind_messages_max, rule.behind_bytes_max),
            _ => (
                rule.behind_messages_max.max(kept.messages_max),
                rule.behind_bytes_max.max(kept.bytes_max),
            ),
        };
        while active.mirror.len() > messages_max || active.bytes > bytes_max {
            match active.mirror.front() {
                Some(first) if first.id.offset <= active.swept => {
                    self.mirror_bytes -= active.pop_front();
                }
                _ => break,
            }
        }
        active.bare();
        self.hold(local);
    }

    /// Keeps what all mirrors hold for the stalled within its limit, whereof the channel's mirror
    /// may hold more now: the oldest messages go first, and with them those who have been stalled
    /// longest. (A backlog may have put older ones before those that are known of; they go with
    /// them.)
    pub(super) fn hold(&mut self, local: LocalId) {
        let Roster { channels, held, .. } = self;
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
        while self.held_bytes() > self.held_bytes_max {
            let Roster { channels, held, .. } = self;
            let oldest_of = |index| channels.get(index)?.active.as_ref()?.oldest_held_ms();
            let oldest = held.oldest(oldest_of);
            let Some(active) = oldest.and_then(|index| self.active_mut(index)) else { return };
            self.mirror_bytes -= active.pop_front();
            self.dropped += 1;
        }
    }

    fn active_mut(&mut self, index: u32) -> Option<&mut Active> {
        self.channels.get_mut(index)?.active.as_deref_mut()
    }

    /// The subscription stood at `from` and was just written what came next, or some of it. Of what
    /// all others have been offered the encodings go at once: a mirror counts messages without
    /// them, and may keep what it holds for long.
    pub fn release_encodings(&mut self, id: SubscriptionId, from: u64) {
        let (Some(to), Some(local)) = (self.cursor(id), self.subscription(id).map(|it| it.local))
        else {
            return;
        };
        let Some(active) = self.active_mut(local.index()) else { return };
        if from < active.swept {
            active.bare_again(from, to);
        }
    }

    /// Drops the mirror if nobody lacks anything, or what of it nobody can lack. Called after a new
    /// subscription was written its backlog; the roster itself calls it wherever else it may apply.
    pub fn settle(&mut self, local: LocalId) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(active) = &channel.active else { return };
        if active.is_sweeping || channel.stalled > 0 {
            // Perhaps with a backlog that nobody lacks by now.
            self.trim(local);
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
        self.unswept_bytes += active.offer_again(cursor);
        if active.left == 0 {
            (active.position, active.left) = (Some(id), 1);
        } else {
            active.left = channel.count;
        }
        if !active.is_sweeping {
            active.is_sweeping = true;
            self.sweeping.push_back(local);
        }
    }

    /// Ends the channel's sweep without finishing it; its turn, when it comes, finds nothing to do.
    pub(super) fn stop(&mut self, local: LocalId) {
        let Some(channel) = self.channels.get_mut(local.index()) else { return };
        let Some(mut active) = channel.active.take() else { return };
        // Whoever had not been offered the rest has gone.
        active.land(channel.head, &mut self.landings);
        self.mirror_bytes -= active.bytes;
        self.unswept_bytes -= active.unswept_bytes;
    }
}
