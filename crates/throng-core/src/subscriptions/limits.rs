//! Limits of replay buffers: the backlogs of new subscriptions, the lag limit of each channel, and
//! the limit of all channels together.

use std::sync::Arc;

use super::SubscriptionTable;
use super::conflate::LATEST_KEPT;
use super::cursor::oldest_floor;
use super::subscription::SubscriptionId;
use crate::id::{LocalId, MessageId};
use crate::message::{Content, Message};
use crate::rules::LagPolicy;

impl SubscriptionTable {
    /// Adds the part of a backlog, oldest first, that is older than the replay buffer. Returns the
    /// cursor for it. Messages newer than the channel's head come as notifications, with all that
    /// lies between.
    ///
    /// A backlog that `is_sparse` may lack messages that later ones have superseded.
    pub(super) fn merge(
        &mut self,
        local: LocalId,
        cursor: u64,
        (backlog, is_sparse): (&[Arc<Message>], bool),
    ) -> u64 {
        let channel = &mut self.channels[local.index()];
        let head = channel.head;
        let floor = channel.buffer.as_ref().map_or(head, |buffer| buffer.floor());
        // A cursor of 32 bits does not reach further back; a subscription from there has a gap.
        let lowest = oldest_floor(head);
        let to = backlog.partition_point(|message| message.id.offset <= floor);
        // The floor stands between two messages if `bring_into_reach` has moved the head there.
        // Nothing goes below it then: a buffer ends with the message at the head.
        let has_some = channel.buffer.as_ref().is_some_and(|buffer| !buffer.messages().is_empty());
        // The message at the head lacks if a newer one, which is on its way, has superseded it.
        let ends_early = is_sparse && !has_some && to > 0 && backlog[to - 1].id.offset < floor;
        if ends_early {
            let last = &backlog[to - 1];
            let (id, previous) = (MessageId { offset: floor, ..last.id }, last.id.offset);
            let placeholder = Arc::new(Content { id, previous, ..last.without_body() });
            let placeholder = Arc::new(Message::from(placeholder));
            self.buffer_bytes += channel.buffer_mut().push_front(placeholder, previous);
        }
        let floor = channel.buffer.as_ref().map_or(head, |buffer| buffer.floor());
        let joins =
            to > 0 && (backlog[to - 1].id.offset == floor || is_sparse && (has_some || ends_early));
        let oldest = if joins { floor.min(lowest) } else { floor };
        let from = backlog.partition_point(|message| message.id.offset <= oldest);
        // Whether the backlog has all messages from the cursor to `oldest`.
        let is_whole = if is_sparse {
            from == 0 && (joins || to == 0)
        } else {
            backlog.get(from).is_some_and(|message| message.previous <= cursor)
        };
        if from < to {
            if is_sparse {
                self.note_lost(local, cursor.max(oldest));
            }
            let buffer = self.channels[local.index()].buffer_mut();
            for message in backlog[from..to].iter().rev() {
                let floor = message.previous.max(oldest);
                self.buffer_bytes += buffer.push_front(own(message), floor);
            }
            if is_sparse {
                buffer.note_sparse(backlog[to - 1].id.offset);
                buffer.lower_floor(cursor.max(oldest));
            }
        }
        if is_sparse {
            self.complete(local, &backlog[to..]);
        }
        // Just below the oldest floor it has a gap for good.
        cursor.max(if is_whole { oldest } else { oldest.min(lowest).saturating_sub(1) })
    }

    /// Adds the messages of a backlog that a replay buffer lacks between its floor and the
    /// channel's head, or has a placeholder of: tombstones, if what it has came with the states of
    /// other subscriptions.
    fn complete(&mut self, local: LocalId, backlog: &[Arc<Message>]) {
        let channel = &mut self.channels[local.index()];
        let Some(buffer) = channel.buffer.as_mut().filter(|buffer| buffer.is_sparse()) else {
            return;
        };
        for message in backlog.iter().filter(|message| message.id.offset <= channel.head) {
            let (bytes, pending_bytes) = buffer.insert(message);
            self.buffer_bytes += bytes;
            self.pending_bytes += pending_bytes;
        }
    }

    /// Drops what no subscription of the channel can lack. Call it after a new subscription was
    /// written its backlog. The table itself calls it wherever else it may apply.
    pub(super) fn trim(&mut self, local: LocalId) {
        let channel = &self.channels[local.index()];
        // Nothing is kept.
        let Some(buffer) = &channel.buffer else { return };
        let is_held = buffer.held > 0 || buffer.held_back_from.is_some();
        if buffer.pass.is_queued || channel.blocked > 0 || is_held {
            // A backlog may be in it that no subscription lacks any more.
            self.trim_to_lag(local);
        } else {
            self.drop_buffer(local);
        }
    }

    /// Drops what no subscription of the same channel as this one can lack.
    pub fn trim_channel_of(&mut self, id: SubscriptionId) {
        if let Some(local) = self.local(id) {
            self.trim(local);
        }
    }

    /// Keeps the replay buffer within the channel's lag limit, or, while a blocked subscription is
    /// catching up, within what it can have asked for. Without blocked subscriptions nothing is
    /// kept of what all were offered.
    pub(super) fn trim_to_lag(&mut self, local: LocalId) {
        let channel = &mut self.channels[local.index()];
        // Nothing is kept.
        let Some(buffer) = &mut channel.buffer else { return };
        let rule = self.rules.get(channel.rule);
        let (retention, state) = (rule.retention, rule.state);
        if channel.blocked > 0 {
            self.buffer_bytes -= buffer.drop_superseded();
        }
        let (max_messages, max_bytes) = match (channel.blocked, channel.catching_up) {
            // Messages that all were offered are written to all.
            (0, _) => (0, 0),
            (_, 0) if rule.lag_policy == LagPolicy::Latest => (LATEST_KEPT, rule.max_lag_bytes),
            (_, 0) if buffer.has_keys() => (
                rule.max_lag_messages.max(2 * state.max_keys),
                rule.max_lag_bytes.max(2 * state.max_bytes),
            ),
            (_, 0) => (rule.max_lag_messages, rule.max_lag_bytes),
            _ if buffer.has_keys() => (
                rule.max_lag_messages.max(retention.max_messages + 2 * state.max_keys),
                rule.max_lag_bytes.max(retention.max_bytes + 2 * state.max_bytes),
            ),
            _ => (
                rule.max_lag_messages.max(retention.max_messages),
                rule.max_lag_bytes.max(retention.max_bytes),
            ),
        };
        // The newest stays, however large it is.
        let least = usize::from(channel.blocked > 0 && rule.lag_policy == LagPolicy::Latest);
        while buffer.messages().len() > least
            && (buffer.entries().exceeds(max_messages) || buffer.bytes() > max_bytes)
        {
            let oldest = buffer.messages().front().map(|oldest| oldest.id.offset);
            if oldest.is_none_or(|oldest| oldest > buffer.offered()) {
                break;
            }
            self.buffer_bytes -= buffer.pop_front();
        }
        if !self.shares_encodings(local)
            && let Some(buffer) = &mut self.channels[local.index()].buffer
        {
            buffer.drop_encodings();
        }
        self.evict(local);
    }

    /// Keeps the bytes that all replay buffers hold for blocked subscriptions within their limit;
    /// the channel's buffer may hold more than before. Drops the oldest messages first, and so hits
    /// the subscriptions that have been blocked longest. A backlog may have put older messages into
    /// a buffer that is listed already; they are dropped with it.
    fn evict(&mut self, local: LocalId) {
        let SubscriptionTable { channels, holders, .. } = self;
        let oldest_of = |index| channels.get(index)?.buffer.as_ref()?.oldest_blocked_ms();
        let is_listed = |index| channels.get(index)?.buffer.as_ref().map(|buffer| buffer.is_listed);
        if let Some(oldest_ms) = oldest_of(local.index())
            && is_listed(local.index()) == Some(false)
        {
            holders.add(oldest_ms, local.index(), oldest_of);
            channels[local.index()].buffer_mut().is_listed = true;
        }
        self.evict_oldest(usize::MAX);
    }

    /// Drops the oldest messages that are kept for blocked subscriptions only, at most `count` of
    /// them, while all together exceed their limit. Returns whether they are within it.
    pub fn evict_oldest(&mut self, count: usize) -> bool {
        for _ in 0..count {
            if self.blocked_bytes() <= self.max_blocked_bytes {
                return true;
            }
            let SubscriptionTable { channels, holders, .. } = self;
            let oldest_of = |index| channels.get(index)?.buffer.as_ref()?.oldest_blocked_ms();
            // None: the rest are backlogs of new subscriptions, which the next trim lists.
            let Some(index) = holders.oldest(oldest_of) else { return true };
            self.buffer_bytes -= channels[index].buffer_mut().pop_front();
            self.dropped += 1;
        }
        self.blocked_bytes() <= self.max_blocked_bytes
    }

    /// True if the encodings of a channel stay for now.
    pub(super) fn shares_encodings(&mut self, local: LocalId) -> bool {
        let channel = &self.channels[local.index()];
        let bytes = channel.buffer.as_ref().map_or(0, |buffer| buffer.bytes());
        self.shared_encodings.has(self.now_ms, local, (channel.catching_up, bytes))
    }

    /// Drops the encodings that have stayed for long enough.
    pub(super) fn drop_shared_encodings(&mut self) {
        for local in self.shared_encodings.take_over(self.now_ms) {
            // The channel may be gone, or another one in its place.
            let channel = self.channels.get_mut(local.index());
            if let Some(buffer) = channel.and_then(|channel| channel.buffer.as_mut()) {
                buffer.drop_encodings_between(0, buffer.offered());
                buffer.runs.clear();
            }
        }
    }

    /// Drops the encodings of what was just written to the subscription, whose cursor was `from`
    /// before, as far as all others were offered it: a buffer does not count encodings, and may
    /// keep its messages for long.
    pub fn drop_encodings(&mut self, id: SubscriptionId, from: u64) {
        // The subscription has ended if the write found the peer gone.
        let (Some(local), Some(to)) = (self.local(id), self.cursor(id)) else { return };
        if self.shares_encodings(local) {
            return;
        }
        if let Some(buffer) = &mut self.channels[local.index()].buffer
            && from < buffer.offered()
        {
            buffer.drop_encodings_between(from, to);
        }
    }
}

/// The message for a replay buffer of this worker. A message that others hold as well is copied,
/// since its encodings would stay for as long as the last of them holds it.
fn own(message: &Arc<Message>) -> Arc<Message> {
    let is_own = Arc::strong_count(message) == 1 && !message.is_encoded();
    if is_own { Arc::clone(message) } else { Arc::new(message.unencoded()) }
}
