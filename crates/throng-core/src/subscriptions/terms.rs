//! Terms of a subscription: the data that its member shows, and an end of its own.
//!
//! Few subscriptions have any. Theirs are beside the table, so that no other one is larger.

use super::{SubscriptionId, SubscriptionTable};

/// Terms of a subscription beside its channel and cursor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    /// Data about the client for the other members, in the form of its dialect.
    pub member: Option<Box<str>>,
    /// The tick at which the subscription ends by itself.
    pub expires: Option<u32>,
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
        self.member.is_none() && self.expires.is_none()
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
    pub fn set_terms(&mut self, id: SubscriptionId, terms: Terms) {
        debug_assert!(self.live(id).is_some(), "the subscription has ended");
        if !terms.is_empty() {
            self.terms.insert(id.index(), terms);
        }
    }

    /// The subscription has ended.
    pub(super) fn take_terms(&mut self, id: SubscriptionId) -> Option<Terms> {
        // Mostly no subscription has any.
        if self.terms.is_empty() { None } else { self.terms.remove(&id.index()) }
    }
}
