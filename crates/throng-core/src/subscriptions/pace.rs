//! Pace: the least time between two deliveries of a channel, or of a subscription.
//!
//! There is one clock for each channel and pace, and only while it runs. What comes after silence
//! goes out at once, and starts the clock. What comes while it runs is held: by the rule's pace no
//! pass offers it, and a subscription with a slower pace of its own is blocked at its visit. When
//! the clock is due, all of that goes out together and the clock starts again; if nothing was held,
//! it stops.
//!
//! # Invariants
//!
//! * Held messages stay in the channel's replay buffer: none of them counts as offered to all.
//! * What is held never reaches a lag limit: at half of it the clock is due early.
//! * A subscription with a pace of its own goes out only when its channel does.

use super::SubscriptionTable;
use super::clocks::OF_RULE;
use super::subscription::SubscriptionId;
use crate::id::LocalId;

impl SubscriptionTable {
    /// The time until a clock is due, in milliseconds; `None` while none runs.
    pub fn until_due_ms(&self) -> Option<u64> {
        self.clocks.due.first().map(|(due_ms, ..)| due_ms.saturating_sub(self.now_ms))
    }

    /// Lets out what is held by clocks that are due.
    pub fn fire_clocks(&mut self) {
        while let Some(&(due_ms, index, pace)) = self.clocks.due.first() {
            if due_ms > self.now_ms {
                return;
            }
            self.fire(LocalId::from_index(index), pace);
        }
    }

    /// Lets out what the clock holds that is due next, before its time: too much is held. Returns
    /// whether there was one.
    pub fn fire_early(&mut self) -> bool {
        let next = self.clocks.due.first().copied();
        if let Some((_, index, pace)) = next {
            self.fire(LocalId::from_index(index), pace);
        }
        next.is_some()
    }

    /// True if a subscription gets what comes at a pace; false if it has ended.
    pub fn is_paced(&self, id: SubscriptionId) -> bool {
        self.local(id).is_some_and(|local| {
            let rule = self.rules.get(self.channels[local.index()].rule);
            rule.pace_ms > 0 || (self.clocks.has_own(local) && self.own_pace(id).is_some())
        })
    }

    /// True if all that a subscription lacks is held by the pace of its channel: a pass comes to it
    /// when the clock is due.
    pub fn is_held_back(&self, id: SubscriptionId) -> bool {
        let (Some(local), Some(cursor)) = (self.local(id), self.cursor(id)) else { return false };
        let held_back_from =
            self.channels[local.index()].buffer.as_ref().and_then(|it| it.held_back_from);
        held_back_from.is_some_and(|from| cursor >= from)
    }

    /// Blocks a subscription that lacks something until the clock of its own pace is due. Returns
    /// false if it may have that now.
    pub fn wait_for_pace(&mut self, id: SubscriptionId) -> bool {
        let Some(local) = self.local(id).filter(|&local| self.clocks.has_own(local)) else {
            return false;
        };
        let (Some(pace), Some(cursor)) = (self.own_pace(id), self.cursor(id)) else { return false };
        let head = self.channels[local.index()].head;
        if cursor >= head {
            return false;
        }
        let Some(clock) = self.clocks.running.get_mut(&(local.index(), pace)) else {
            self.clocks.start(local, pace, self.now_ms + u64::from(pace), head);
            return false;
        };
        if cursor < clock.head {
            return false;
        }
        clock.waiting.insert(id);
        self.block(id);
        true
    }

    fn own_pace(&self, id: SubscriptionId) -> Option<u32> {
        self.terms(id)?.pace_ms
    }

    /// Takes a message of `bytes` into account that has been appended to a channel whose head was
    /// at `before`. Returns whether it is held.
    pub(super) fn hold_back(&mut self, local: LocalId, before: u64, bytes: usize) -> bool {
        let channel = &self.channels[local.index()];
        let (rule, head) = (self.rules.get(channel.rule), channel.head);
        let pace_ms = rule.pace_ms;
        if pace_ms == 0 && self.clocks.running.is_empty() {
            return false;
        }
        let (max_messages, max_bytes) = (rule.max_lag_messages / 2, rule.max_lag_bytes / 2);
        // Of these, blocked subscriptions skip all but the newest.
        let is_latest = self.is_latest(local);
        let mut early = Vec::new();
        let of_channel = (local.index(), OF_RULE)..=(local.index(), u32::MAX);
        for (&(_, pace), clock) in self.clocks.running.range_mut(of_channel) {
            (clock.messages, clock.bytes) = (clock.messages + 1, clock.bytes + bytes);
            let is_much = clock.messages > max_messages || clock.bytes > max_bytes;
            if is_much && (pace == OF_RULE || !is_latest) {
                early.push(pace);
            }
        }
        let is_held = pace_ms > 0 && self.clocks.of_rule(local).is_some();
        if is_held {
            let buffer = self.channels[local.index()].buffer_mut();
            let from = *buffer.held_back_from.get_or_insert(before);
            buffer.pass.wrap_head = buffer.pass.wrap_head.min(from);
        } else if pace_ms > 0 {
            self.clocks.start(local, OF_RULE, self.now_ms + u64::from(pace_ms), head);
        }
        // Subscriptions with a pace of their own go out only when the channel does.
        if is_held && early.first().is_some_and(|&pace| pace != OF_RULE) {
            self.fire(local, OF_RULE);
        }
        early.into_iter().for_each(|pace| self.fire(local, pace));
        is_held
    }

    /// Ends the time of a clock, which starts again if it has held something.
    fn fire(&mut self, local: LocalId, pace: u32) {
        let Some(mut clock) = self.clocks.stop(local, pace) else { return };
        let Some(channel) = self.channels.get(local.index()) else { return };
        let (head, rule_pace) = (channel.head, self.rules.get(channel.rule).pace_ms);
        if pace == OF_RULE {
            if self.let_out(local) {
                self.clocks.start(local, OF_RULE, self.now_ms + u64::from(rule_pace), head);
            }
            return;
        }
        let is_held = channel.buffer.as_ref().is_some_and(|buffer| buffer.held_back_from.is_some());
        if let Some(of_rule) = self.clocks.of_rule(local).filter(|_| is_held) {
            clock.due_ms = of_rule.due_ms;
            return self.clocks.insert(local, pace, clock);
        }
        if !clock.waiting.is_empty() {
            self.clocks.start(local, pace, self.now_ms + u64::from(pace), head);
        }
        for id in clock.waiting {
            // It may have ended, and another one have its id.
            if self.local(id) == Some(local) {
                self.unblock(id);
            }
        }
    }

    /// Makes a pass offer what the channel's pace has held. Returns whether there was anything.
    fn let_out(&mut self, local: LocalId) -> bool {
        let channel = &mut self.channels[local.index()];
        let count = channel.count;
        let Some(buffer) = &mut channel.buffer else { return false };
        if buffer.held_back_from.take().is_none() {
            return false;
        }
        buffer.pass.visits_left = count;
        self.queue_pass(local);
        true
    }
}
