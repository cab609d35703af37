//! Channels of a frozen worker that have another journal now.

use std::collections::HashSet;

use throng_core::subscriptions::FrozenSubscription;
use throng_core::{ConnectionName, LocalId};

/// The channels, and the connections that follow them.
#[derive(Debug, Default)]
pub(super) struct Moved {
    channels: HashSet<LocalId>,
    connections: Vec<ConnectionName>,
}

impl Moved {
    pub(super) fn insert(&mut self, channel: LocalId) {
        self.channels.insert(channel);
    }

    /// Notes a connection if it follows one of the channels.
    pub(super) fn note(&mut self, connection: ConnectionName, frozen: &[FrozenSubscription]) {
        if frozen.iter().any(|frozen| self.channels.contains(&frozen.local())) {
            self.connections.push(connection);
        }
    }

    /// The connections that were noted.
    pub(super) fn into_connections(self) -> Vec<ConnectionName> {
        self.connections
    }
}
