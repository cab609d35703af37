//! A connection's subscriptions: begins them, ends them, and finds what they are about.
//!
//! # Invariants
//!
//! * A connection links to its own subscriptions only: to the newest one, and each to the one
//!   before.
//! * A subscription counts for its client from before it begins until it ends here.
//! * The engine knows as many followers of a channel in this worker as the table has subscriptions
//!   of it.

use throng_access::limit::ClientKeys;
use throng_core::{
    ChannelId, ChannelName, ConnectionName, Follow, Followed, Kind, Position, StartAt,
    SubscriptionId, WantedTags,
};
use throng_wire::Target;

use super::Worker;
use crate::connection::ConnectionId;
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Loads what [`Worker::follow`] needs of these channels, all at the same time. They are at
    /// most [`AHEAD`](throng_core::AHEAD).
    pub(super) fn look_ahead(&self, names: &[ChannelName]) {
        // One alone would be waited for twice.
        if names.len() < 2 {
            return;
        }
        let mut channels = Vec::with_capacity(names.len());
        let worker = self.metrics().worker();
        self.engine.look_ahead(names, worker, &mut |local| channels.push(local));
        self.subscriptions.look_ahead(&channels);
    }

    /// Subscribes the connection to one more channel, which counts already. Returns the engine's
    /// answer.
    pub(super) fn follow(
        &mut self,
        id: ConnectionId,
        name: &ChannelName,
        start: StartAt,
    ) -> Followed {
        let worker = self.metrics().worker();
        let local_if_new = self.subscriptions.next_local();
        let follow = Follow { channel: name, worker, local_if_new, start };
        let followed = self.engine.follow(self.clock().unix_ms(), follow);
        let is_user = name.kind() == Kind::User;
        let newest = self[id].newest_subscription;
        let joined = self.subscriptions.join(id, &followed, is_user, newest);
        self.subscriptions.note_joined(joined, &followed, self.queue.has_receipts());
        self[id].newest_subscription = Some(joined);
        if is_user {
            self.mark_presence(id);
        }
        followed
    }

    /// Notes for presence events that the user of a connection has changed.
    fn mark_presence(&self, id: ConnectionId) {
        if !self.subscriptions.rules().have_any_presence_events() {
            return;
        }
        let own = self.subscriptions(id).filter_map(|subscription| {
            let has_events = self.subscriptions.has_presence_events(subscription);
            self.subscriptions.channel(subscription).filter(|_| has_events)
        });
        let mut channels: Vec<_> = own.map(|(channel, _)| channel).collect();
        let watched = &self.engine.presence_cache().watched;
        self.engine.names(&mut channels, &mut |name| watched.mark(name.key()));
    }

    /// Whom the limits of this connection are about: its address, and the user or server key of
    /// its session.
    pub(super) fn limited_client(&self, id: ConnectionId) -> ClientKeys {
        let clients = &self.access.clients;
        let address = clients.limiter.address(self.connections().address(id));
        let session = self.connections().session(id);
        address.and(session.map_or_else(ClientKeys::default, |found| clients.of_session(found)))
    }

    /// Ends one subscription of the connection.
    pub(super) fn unfollow(&mut self, id: ConnectionId, subscription: SubscriptionId) {
        let newest = &mut self.sockets[id].newest_subscription;
        *newest = self.subscriptions.unchain(*newest, subscription);
        let is_user = self.subscriptions.channel(subscription).is_some_and(|(_, is_user)| is_user);
        let left = self.subscriptions.leave(subscription);
        debug_assert!(left.is_some(), "a connection links to its own subscriptions only");
        if let Some(left) = left {
            self.engine.unfollow(self.clock().unix_ms(), left.channel, self.metrics().worker());
        }
        if is_user {
            self.mark_presence(id);
        }
        self.access.clients.limiter.unsubscribe(self.limited_client(id), 1);
    }

    /// Ends all subscriptions of the connection.
    pub(super) fn unfollow_all(&mut self, id: ConnectionId) {
        let newest = self[id].newest_subscription.take();
        let mut channels = std::mem::take(&mut self.channels);
        channels.clear();
        self.subscriptions.leave_all(newest, |channel| channels.push(channel));
        let worker = self.metrics().worker();
        self.engine.unfollow_all(self.clock().unix_ms(), &channels, worker);
        let left = u32::try_from(channels.len()).unwrap_or(u32::MAX);
        self.channels = channels;
        self.access.clients.limiter.unsubscribe(self.limited_client(id), left);
    }

    /// The connection's newest subscription; `None` without subscriptions.
    pub(super) fn newest_subscription(&self, id: ConnectionId) -> Option<SubscriptionId> {
        self[id].newest_subscription
    }

    /// The connection's subscriptions, the newest first.
    pub(super) fn subscriptions(&self, id: ConnectionId) -> impl Iterator<Item = SubscriptionId> {
        let sibling = |&subscription: &SubscriptionId| self.subscriptions.sibling(subscription);
        std::iter::successors(self.newest_subscription(id), sibling)
    }

    /// The connection's subscriptions in the order in which the request named their channels.
    pub(super) fn subscriptions_in_order(&self, id: ConnectionId) -> Vec<SubscriptionId> {
        let mut all: Vec<_> = self.subscriptions(id).collect();
        all.reverse();
        all
    }

    /// The connection's subscription to a channel, if it has one.
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

    /// The user to whom a connection belongs; `None` without a user.
    pub(super) fn user_of(&self, id: ConnectionId) -> Option<ChannelName> {
        self.subscriptions(id).find_map(|subscription| {
            match self.subscriptions.channel(subscription)? {
                (channel, true) => self.engine.name(channel),
                _ => None,
            }
        })
    }

    /// The channel or user of a subscription; `None` if the subscription has ended.
    pub(super) fn target_of(&self, subscription: SubscriptionId) -> Option<Target> {
        let (channel, _) = self.subscriptions.channel(subscription)?;
        let name = self.engine.name(channel)?;
        Some(Target { kind: name.kind(), name: name.name().to_owned() })
    }

    /// True if a connection of this worker follows a channel and its session has the wanted tags;
    /// false if the connection is gone.
    pub(super) fn follows(
        &self,
        connection: ConnectionName,
        wanted: WantedTags,
        channel: ChannelId,
    ) -> bool {
        let is_of = |subscription| {
            let followed = self.subscriptions.channel(subscription);
            followed.is_some_and(|(followed, _)| followed == channel)
        };
        let has_tags = |id| match self.connections().session(id) {
            Some(session) => session.may_match(&wanted),
            None => wanted == WantedTags::ALL,
        };
        let id = self.connections().find_name(connection).filter(|&id| has_tags(id));
        id.is_some_and(|id| self.subscriptions(id).any(is_of))
    }

    /// The subscription of a channel that an excluded connection of this worker has, for a receipt.
    /// None on a server with keys: who may publish must not learn so whom others follow.
    pub(super) fn follower(
        &self,
        connection: ConnectionName,
        channel: ChannelId,
    ) -> Option<SubscriptionId> {
        let id = self.connections().find_name(connection)?;
        if self.access.has_keys() {
            return None;
        }
        self.subscriptions(id).find(|&subscription| {
            let followed = self.subscriptions.channel(subscription);
            followed.is_some_and(|(followed, _)| followed == channel)
        })
    }

    /// The connection's cursors in all of its channels, in the order of the request. Presence
    /// events have none: they are not resumed.
    pub(super) fn position(&self, id: ConnectionId) -> Position {
        let subscriptions = self.subscriptions_in_order(id).into_iter();
        let subscriptions =
            subscriptions.filter(|&id| !self.subscriptions.is_of_presence_events(id));
        Position(subscriptions.filter_map(|id| self.subscriptions.position(id)).collect())
    }

    /// Settles the receipts of the connection's subscriptions, which end because it lags.
    pub(super) fn give_up_receipts(&mut self, id: ConnectionId) {
        let mut next = self.newest_subscription(id);
        while let Some(subscription) = next {
            self.subscriptions.give_up(subscription);
            next = self.subscriptions.sibling(subscription);
        }
    }

    /// Drops from the replay buffers of the connection's channels what no subscriber lacks any
    /// more.
    pub(super) fn trim_replay_buffers(&mut self, id: ConnectionId) {
        let mut next = self.newest_subscription(id);
        while let Some(subscription) = next {
            self.subscriptions.trim_channel_of(subscription);
            next = self.subscriptions.sibling(subscription);
        }
    }
}

/// The engine's name of the channel or user that a request names.
pub(super) fn name_of(target: &Target) -> ChannelName {
    ChannelName::new(target.kind, &target.name)
}
