//! How far subscriptions are behind, and for how long they may be.

use std::time::Duration;

use super::subscription::SubscriptionId;
use super::{Lacking, SubscriptionTable, Waiting};
use crate::rules::{JournalId, Rules};

/// Messages that a subscription lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lag {
    /// The number of messages, with those that are no longer here, as far as that is known.
    pub messages: u64,
    /// The size of those that are here, as lag limits count it.
    pub bytes: u64,
}

impl SubscriptionTable {
    /// The lag of a subscription; zero if it has ended. Passes the messages that it lacks.
    pub fn lag(&self, id: SubscriptionId) -> Lag {
        let of = |waiting| -> Lag {
            let Waiting::Messages(messages) = waiting else { return Lag::default() };
            let add = |lag: Lag, bytes| Lag {
                messages: lag.messages + 1,
                bytes: lag.bytes + bytes as u64,
            };
            messages.map(|message| message.weight_bytes()).fold(Lag::default(), add)
        };
        let Waiting::Gap { missed, .. } = self.waiting(id) else { return of(self.waiting(id)) };
        // After the gap come all that are here.
        let buffer = self.local(id).and_then(|local| self.channels[local.index()].buffer.as_ref());
        let here = buffer.map_or(Lag::default(), |buffer| {
            of(Waiting::Messages(Lacking::all(buffer.after(buffer.floor()))))
        });
        Lag { messages: here.messages + missed.unwrap_or(0), ..here }
    }

    /// True if a subscription lacks half of what it may.
    pub(super) fn lacks_half(&self, id: SubscriptionId) -> bool {
        let (Some(local), Some(cursor)) = (self.local(id), self.cursor(id)) else { return false };
        let channel = &self.channels[local.index()];
        let rule = self.rules.get(channel.rule);
        let bytes_max = rule.max_lag_bytes / 2;
        // Offsets may skip numbers: then the wait ends earlier.
        channel.head.saturating_sub(cursor) >= rule.max_lag_messages as u64 / 2
            || (channel.buffer.as_ref().is_some_and(|buffer| buffer.bytes() >= bytes_max)
                && self.lag(id).bytes >= bytes_max as u64)
    }

    /// For how long the connection of a subscription may be behind, by the rule of the channel;
    /// `None` for as long as it keeps to the lag limits.
    pub fn slow_timeout(&self, id: SubscriptionId) -> Option<Duration> {
        let channel = &self.channels[self.local(id)?.index()];
        self.rules.get(channel.rule).slow_timeout
    }

    /// The age beyond which a subscription should get nothing, by the rule of the channel, in
    /// milliseconds; 0 for none, or if it has ended.
    pub fn max_staleness_ms(&self, id: SubscriptionId) -> u32 {
        let channel = self.local(id).map(|local| &self.channels[local.index()]);
        channel.map_or(0, |channel| self.rules.get(channel.rule).max_staleness_ms)
    }

    /// The journal that keeps the log of a subscription's channel.
    pub fn journal(&self, id: SubscriptionId) -> Option<JournalId> {
        self.rules.get(self.channels[self.local(id)?.index()].rule).journal
    }

    /// The rules of the channels.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// True if the channel of a subscription has presence events; false if it has ended.
    pub fn has_presence_events(&self, id: SubscriptionId) -> bool {
        self.local(id)
            .is_some_and(|local| self.rules.get(self.channels[local.index()].rule).presence_events)
    }

    /// True if a subscription is to the presence events of a channel; false if it has ended.
    pub fn is_of_presence_events(&self, id: SubscriptionId) -> bool {
        self.local(id)
            .is_some_and(|local| self.rules.are_presence_events(self.channels[local.index()].rule))
    }

    /// True if a subscription is to the members of a channel; false if it has ended.
    pub fn is_of_members(&self, id: SubscriptionId) -> bool {
        self.local(id)
            .is_some_and(|local| self.rules.are_members(self.channels[local.index()].rule))
    }

    /// True if a subscription is to an internal log, such as whether a user is online, and not to
    /// the presence of a channel; false if it has ended.
    pub fn is_internal(&self, id: SubscriptionId) -> bool {
        self.local(id)
            .is_some_and(|local| self.rules.are_internal(self.channels[local.index()].rule))
    }

    /// True if a subscription is to the presence events or the members of a channel; false if it
    /// has ended.
    pub fn is_of_presence(&self, id: SubscriptionId) -> bool {
        self.is_of_presence_events(id) || self.is_of_members(id)
    }
}
