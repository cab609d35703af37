//! Terms of a subscription: the data that its member shows, an end and a pace of its own.
//!
//! Few subscriptions have any. Theirs are beside the table, so that no other one is larger.

use super::{SubscriptionId, SubscriptionTable};
use crate::id::LocalId;

/// Terms of a subscription beside its channel and cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// Data about the client for the other members, in the form of its dialect.
    pub member: Option<Box<str>>,
    /// The tick at which the subscription ends by itself.
    pub expires: Option<u32>,
    /// The least time between two deliveries, in milliseconds, if it is more than the rule's.
    pub pace_ms: Option<u32>,
    /// The offset at which the state ends that the subscription begins with, until it has all of
    /// it.
    pub state_end: Option<u64>,
}

impl Terms {
    /// The largest size of the member data. A connection has them once for each of its channels,
    /// for as long as it follows them.
    pub const MEMBER_BYTES_MAX: usize = 1 << 10;

    /// The size of the member data.
    pub fn member_bytes(&self) -> usize {
        self.member.as_ref().map_or(0, |member| member.len())
    }

    /// True if there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.member.is_none()
            && self.expires.is_none()
            && self.pace_ms.is_none()
            && self.state_end.is_none()
    }
}

impl SubscriptionTable {
    /// The terms of a subscription; `None` without any.
    pub fn terms(&self, id: SubscriptionId) -> Option<&Terms> {
        self.terms.get(&id.index())
    }

    /// The size of the member data of a subscription.
    pub fn member_bytes(&self, id: SubscriptionId) -> usize {
        self.terms(id).map_or(0, Terms::member_bytes)
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
    }
}
