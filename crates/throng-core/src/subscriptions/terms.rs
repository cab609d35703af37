//! Terms of a subscription: the member that it is of, an end and a pace of its own, whose next one
//! goes on from it.
//!
//! Few subscriptions have any. Theirs are beside the table, so that no other one is larger.

use super::{Resumable, SubscriptionId, SubscriptionTable};
use crate::id::LocalId;

/// In place of the end of a state: the subscription has a gap, since what it lacks was dropped, and
/// a backlog without what is superseded has not brought all of that back.
pub(super) const LOST: u64 = u64::MAX;

/// The same of a subscription that had not got all of its state.
pub(super) const LOST_OF_STATE: u64 = u64::MAX - 1;

/// Terms of a subscription beside its channel and cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// The key by which its client is a member of the channel.
    pub member: Option<Box<str>>,
    /// The tick at which the subscription ends by itself.
    pub expires: Option<u32>,
    /// The least time between two deliveries, in milliseconds, if it is more than the rule's.
    pub pace_ms: Option<u32>,
    /// The offset at which the state ends that the subscription begins with, until it has all of
    /// it; or [`LOST`], or
    /// [`LOST_OF_STATE`].
    pub state_end: Option<u64>,
    /// The user whose next subscription goes on from this one, if its connection dies. Boxed: few
    /// have it.
    pub resumable: Option<Box<Resumable>>,
}

impl Terms {
    /// True if there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.member.is_none()
            && self.expires.is_none()
            && self.pace_ms.is_none()
            && self.state_end.is_none()
            && self.resumable.is_none()
    }
}

impl SubscriptionTable {
    /// The terms of a subscription; `None` without any.
    pub fn terms(&self, id: SubscriptionId) -> Option<&Terms> {
        self.terms.get(&id.index())
    }

    /// True if some subscription may be of a member: mostly none is.
    pub fn have_members(&self) -> bool {
        !self.terms.is_empty()
    }

    /// A subscription that has just begun is of the member with this key.
    pub fn set_member(&mut self, id: SubscriptionId, key: Box<str>) {
        debug_assert!(self.live(id).is_some(), "the subscription has ended");
        self.terms.entry(id.index()).or_default().member = Some(key);
    }

    /// The member of a subscription, which ends it elsewhere: the end of the subscription does not.
    pub fn take_member(&mut self, id: SubscriptionId) -> Option<Box<str>> {
        self.terms.get_mut(&id.index())?.member.take()
    }

    /// Sets the terms of a subscription that has none.
    pub fn set_terms(&mut self, id: SubscriptionId, mut terms: Terms) {
        debug_assert!(self.live(id).is_some(), "the subscription has ended");
        let Some(local) = self.local(id) else { return };
        let of_rule = self.rules.get(self.channels[local.index()].rule).pace_ms;
        terms.pace_ms = terms.pace_ms.filter(|&pace_ms| pace_ms > of_rule);
        if terms.pace_ms.is_some() {
            self.clocks.add_own(local);
        }
        if let Some(resumable) = &mut terms.resumable {
            // One that was frozen goes on with what it knows, unless the rule is another one.
            let begin = self.begin_confirmed(id);
            resumable.confirmed = begin.map(|begin| resumable.confirmed.unwrap_or(begin));
        }
        if !terms.is_empty() {
            self.terms.insert(id.index(), terms);
        }
    }

    /// The subscription of this channel has ended.
    pub(super) fn take_terms(&mut self, local: LocalId, id: SubscriptionId) {
        // Mostly no subscription has any.
        let taken = if self.terms.is_empty() { None } else { self.terms.remove(&id.index()) };
        if taken.is_some_and(|terms| terms.pace_ms.is_some()) {
            self.clocks.remove_own(local);
        }
        self.awaiting.remove(local, id);
    }
}
