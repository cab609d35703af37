//! The messages that a subscription lacks.

use super::SubscriptionTable;
use super::channel::LocalChannel;
use super::cursor::full_cursor;
use super::state::Lacking;
use super::subscription::{CATCHING_UP, SubscriptionId};
use crate::id::MessageId;
use crate::rules::LagPolicy;

/// The messages that a subscription lacks.
#[derive(Debug)]
pub enum Waiting<'a> {
    /// It has all messages.
    Nothing,
    /// At least one message, oldest first.
    Messages(Lacking<'a>),
    /// It has the state of the channel, as it was at this message.
    StateEnd(MessageId),
    /// The messages after its cursor are no longer here.
    Gap {
        /// The number of messages that it will not get; `None` if the channel's offsets skip
        /// numbers, so that they do not tell.
        missed: Option<u64>,
        /// The messages after this id are still available. It is the id of the newest message that
        /// is gone, or, after a leap of offsets, an id beyond it that no message has.
        resume_at: MessageId,
        policy: LagPolicy,
    },
}

impl SubscriptionTable {
    /// The messages that a subscription lacks; none if it has ended.
    pub fn waiting(&self, id: SubscriptionId) -> Waiting<'_> {
        let Some(subscription) = self.live(id) else { return Waiting::Nothing };
        let channel = &self.channels[subscription.local.index()];
        let cursor = full_cursor(channel.head, subscription.cursor);
        if let Some(policy) = self.has_lost(id) {
            return Waiting::Gap { missed: None, resume_at: self.id_in(channel, cursor), policy };
        }
        if subscription.connection.has(CATCHING_UP)
            && let Some(end) = self.state_end(id)
        {
            return self.waiting_for_state(channel, cursor, end);
        }
        if cursor >= channel.head {
            return Waiting::Nothing;
        }
        let floor = match &channel.buffer {
            Some(buffer) if cursor >= buffer.floor() => {
                return Waiting::Messages(Lacking::all(buffer.after(cursor)));
            }
            Some(buffer) => buffer.floor(),
            // Nothing is kept, so what it lacks was dropped.
            None => channel.head,
        };
        let policy = self.rules.get(channel.rule).lag_policy;
        self.gap(channel, (cursor, floor), policy)
    }

    fn id_in(&self, channel: &LocalChannel, offset: u64) -> MessageId {
        MessageId { epoch: self.epochs.get(channel.epoch), offset }
    }

    /// The messages after a cursor up to `floor` are gone.
    pub(super) fn gap(
        &self,
        channel: &LocalChannel,
        (cursor, floor): (u64, u64),
        policy: LagPolicy,
    ) -> Waiting<'static> {
        let is_counted = self.epochs.are_offsets_consecutive(channel.epoch);
        Waiting::Gap {
            missed: is_counted.then_some(floor - cursor),
            resume_at: self.id_in(channel, floor),
            policy,
        }
    }
}
