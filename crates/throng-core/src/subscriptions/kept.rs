//! Subscriptions that the server keeps for users.

use super::SubscriptionTable;
use super::subscription::{KEPT, SubscriptionId, UNASKED};

impl SubscriptionTable {
    /// Marks a subscription whose connection follows what the server keeps for its user.
    pub fn set_kept(&mut self, id: SubscriptionId) {
        // It has ended if a write found the peer gone.
        if self.live(id).is_some() {
            self.subscriptions[id.index()].connection.set(KEPT);
        }
    }

    /// True if its connection follows what the server keeps for its user; false if it has ended.
    pub fn is_kept(&self, id: SubscriptionId) -> bool {
        self.live(id).is_some_and(|subscription| subscription.connection.has(KEPT))
    }

    /// Marks a subscription that the server keeps for its connection's user, and that the client
    /// has not asked for itself.
    pub fn set_unasked(&mut self, id: SubscriptionId) {
        if self.live(id).is_some() {
            self.subscriptions[id.index()].connection.set(UNASKED);
        }
    }

    /// True if the server keeps it for its connection's user, and the client has not asked for it;
    /// false if it has ended.
    pub fn is_unasked(&self, id: SubscriptionId) -> bool {
        self.live(id).is_some_and(|subscription| subscription.connection.has(UNASKED))
    }
}
