//! Finds a connection's subscriptions and what they are about.

use throng_core::{ChannelId, ChannelName, ConnectionName, Position, SubscriptionId};
use throng_wire::Target;

use super::Worker;
use crate::connection::ConnectionId;
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// The connection's subscriptions, the newest first.
    pub(super) fn subscriptions(&self, id: ConnectionId) -> impl Iterator<Item = SubscriptionId> {
        let first = self.connections.get(id).and_then(|connection| connection.newest_subscription);
        std::iter::successors(first, |&subscription| self.subscriptions.sibling(subscription))
    }

    /// The connection's subscriptions in the order in which the request named them.
    pub(super) fn subscriptions_in_order(&self, id: ConnectionId) -> Vec<SubscriptionId> {
        let mut all: Vec<_> = self.subscriptions(id).collect();
        all.reverse();
        all
    }

    pub(super) fn find_subscription(
        &self,
        id: ConnectionId,
        name: &ChannelName,
    ) -> Option<SubscriptionId> {
        self.subscriptions(id).find(|&subscription| {
            let channel = self.subscriptions.channel(subscription);
            channel.and_then(|(channel, _)| self.engine.name(channel)).as_ref() == Some(name)
        })
    }

    /// The user to whom a connection belongs.
    pub(super) fn user_of(&self, id: ConnectionId) -> Option<ChannelName> {
        self.subscriptions(id).find_map(|subscription| {
            match self.subscriptions.channel(subscription)? {
                (channel, true) => self.engine.name(channel),
                _ => None,
            }
        })
    }

    /// The channel or user of a subscription, by name.
    pub(super) fn target_of(&self, subscription: SubscriptionId) -> Option<Target> {
        let (channel, _) = self.subscriptions.channel(subscription)?;
        let name = self.engine.name(channel)?;
        Some(Target { kind: name.kind(), name: name.name().to_owned() })
    }

    pub(super) fn follows(&self, connection: ConnectionName, channel: ChannelId) -> bool {
        let is_of = |subscription| {
            let followed = self.subscriptions.channel(subscription);
            followed.is_some_and(|(followed, _)| followed == channel)
        };
        let id = self.connections.find_name(connection);
        id.is_some_and(|id| self.subscriptions(id).any(is_of))
    }

    /// Where the connection stands in all of its channels.
    pub(super) fn position(&self, id: ConnectionId) -> Position {
        let subscriptions = self.subscriptions_in_order(id).into_iter();
        Position(subscriptions.filter_map(|id| self.subscriptions.position(id)).collect())
    }

    /// Drops what the replay buffers of the connection's channels keep for no subscriber any more.
    pub(super) fn trim_replay_buffers(&mut self, id: ConnectionId) {
        let mut next =
            self.connections.get(id).and_then(|connection| connection.newest_subscription);
        while let Some(subscription) = next {
            self.subscriptions.trim_channel_of(subscription);
            next = self.subscriptions.sibling(subscription);
        }
    }
}
