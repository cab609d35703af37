//! Watched messages, for receipts, that left their subscriptions' cursors behind before their last
//! byte was written.
//!
//! A connection keeps the rest of one partly written message, or answers and composed events that
//! wait in its [`Outbound`](crate::connection). Below it, the rest of a TLS record waits, which may
//! contain the ends of many messages. All outlive the subscription. So a watched message is listed
//! here, by connection, until the socket has taken it whole or the connection is gone.

use std::collections::HashMap;

use throng_core::{Fate, SubscriptionTable, WatchId};

use crate::connection::ConnectionId;

/// The list. Empty unless receipts are under way.
#[derive(Debug, Default)]
pub(in crate::worker) struct UnwrittenReceipts(HashMap<ConnectionId, Vec<WatchId>>);

impl UnwrittenReceipts {
    /// Lists watched messages that the connection is about to be written, or of which it keeps the
    /// rest.
    pub(in crate::worker) fn hold(&mut self, id: ConnectionId, watches: Vec<WatchId>) {
        if !watches.is_empty() {
            self.0.entry(id).or_default().extend(watches);
        }
    }

    /// The socket has taken the rest of the connection's partly written message, or all of its
    /// answers. No connection has watched messages in both.
    pub(in crate::worker) fn wrote_all(
        &mut self,
        id: ConnectionId,
        subscriptions: &mut SubscriptionTable,
    ) {
        self.settle(id, subscriptions, Fate::Written);
    }

    /// The rest of the connection's output will not be written.
    pub(in crate::worker) fn settle(
        &mut self,
        id: ConnectionId,
        subscriptions: &mut SubscriptionTable,
        fate: Fate,
    ) {
        // No receipt is under way.
        if self.0.is_empty() {
            return;
        }
        for watch in self.0.remove(&id).into_iter().flatten() {
            subscriptions.settle(watch, fate);
        }
    }

    /// Panics if a connection is listed that is gone. For tests.
    pub(in crate::worker) fn check_invariants(&self, is_blocked: impl Fn(ConnectionId) -> bool) {
        assert!(self.0.keys().all(|&id| is_blocked(id)), "it waits for no socket");
    }
}
