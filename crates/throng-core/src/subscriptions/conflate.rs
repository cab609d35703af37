//! Conflation: on a channel whose policy is [`LagPolicy::Latest`], a subscription that could not be
//! written to gets the newest message alone, and passes over those before it.

use super::subscription::{CATCHING_UP, SubscriptionId};
use super::{SubscriptionTable, Waiting};
use crate::id::LocalId;
use crate::message::Message;
use crate::rules::LagPolicy;

/// Messages that a replay buffer keeps for blocked subscriptions of such a channel. Of these, a
/// subscription gets the newest that is for it: the newest of all may be its own client's.
pub(super) const LATEST_KEPT: usize = 4;

impl SubscriptionTable {
    /// True if the subscription gets the newest message alone when it lacks several; false if it
    /// has ended. One that has not been blocked since it began gets the history that it asked for.
    pub fn is_conflated(&self, id: SubscriptionId) -> bool {
        self.live(id).is_some_and(|subscription| {
            self.is_latest(subscription.local) && !subscription.connection.has(CATCHING_UP)
        })
    }

    pub(super) fn is_latest(&self, local: LocalId) -> bool {
        self.rules.get(self.channels[local.index()].rule).lag_policy == LagPolicy::Latest
    }

    /// Moves a cursor over the messages before the newest one that `is_wanted`. Returns how many
    /// wanted ones these are; `None` if there are some whose number is not known, because the
    /// channel's offsets skip numbers and do not tell how many the replay buffer has dropped.
    pub fn conflate(
        &mut self,
        id: SubscriptionId,
        is_wanted: impl Fn(&Message) -> bool,
    ) -> Option<u64> {
        let (dropped, floor) = match self.waiting(id) {
            Waiting::Nothing | Waiting::StateEnd(_) => return Some(0),
            Waiting::Messages(_) => (Some(0), None),
            Waiting::Gap { missed, resume_at, .. } => (missed, Some(resume_at.offset)),
        };
        self.end_lost(id);
        let (Some(local), Some(cursor)) = (self.local(id), self.cursor(id)) else { return Some(0) };
        let from = floor.unwrap_or(cursor);
        let (mut to, mut passed) = (from, 0);
        if let Some(buffer) = &self.channels[local.index()].buffer {
            let newest = buffer.after(from).rev().find(|message| is_wanted(message));
            for message in buffer.after(from) {
                if newest.is_none_or(|newest| newest.id == message.id) {
                    break;
                }
                to = message.id.offset;
                passed += u64::from(is_wanted(message));
            }
        }
        if to > cursor {
            self.skip(id, to);
        }
        dropped.map(|dropped| dropped + passed)
    }
}
