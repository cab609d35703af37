//! Watched messages, for receipts, that left their subscriptions' cursors behind before their last
//! byte was written.
//!
//! A connection keeps the rest of one partly written message, or answers and composed events that
//! wait in its [`Outbound`](crate::connection). Below it, the rest of a TLS record waits, which may
//! contain the ends of many messages. All outlive the subscription. So a watched message is listed
//! here, by connection, until the socket has taken it whole or the connection is gone.

use std::collections::HashMap;

use throng_core::{Fate, WatchId};

use crate::connection::ConnectionId;

/// The list. Empty unless receipts are under way.
#[derive(Debug, Default)]
pub(crate) struct UnwrittenReceipts {
    unwritten: HashMap<ConnectionId, Vec<WatchId>>,
    /// Receipts whose fate is known. The floor above takes them at the end of the turn.
    settled: Vec<(WatchId, Fate)>,
}

impl UnwrittenReceipts {
    /// Lists watched messages that the connection is about to be written, or of which it keeps the
    /// rest.
    pub(crate) fn hold(&mut self, id: ConnectionId, watches: Vec<WatchId>) {
        if !watches.is_empty() {
            self.unwritten.entry(id).or_default().extend(watches);
        }
    }

    /// The socket has taken the rest of the connection's partly written message, or all of its
    /// answers. No connection has watched messages in both.
    pub(crate) fn wrote_all(&mut self, id: ConnectionId) {
        self.settle(id, Fate::Written);
    }

    /// The rest of the connection's output will not be written.
    pub(crate) fn settle(&mut self, id: ConnectionId, fate: Fate) {
        // No receipt is under way.
        if self.unwritten.is_empty() {
            return;
        }
        let watches = self.unwritten.remove(&id).into_iter().flatten();
        self.settled.extend(watches.map(|watch| (watch, fate)));
    }

    /// The next one whose fate is known.
    pub(crate) fn next_settled(&mut self) -> Option<(WatchId, Fate)> {
        self.settled.pop()
    }

    /// Panics if a connection is listed that is gone. For tests.
    pub(crate) fn check_invariants(&self, is_blocked: impl Fn(ConnectionId) -> bool) {
        assert!(self.unwritten.keys().all(|&id| is_blocked(id)), "it waits for no socket");
    }
}
