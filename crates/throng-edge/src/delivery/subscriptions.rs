//! A connection's subscriptions: begins them, ends them, and finds what they are about.
//!
//! # Invariants
//!
//! * A connection links to its own subscriptions only: to the newest one, and each to the one
//!   before.
//! * A subscription counts for its client from before it begins until it ends here.
//! * The engine knows as many followers of a channel in this worker as the table has subscriptions
//!   of it.

use std::sync::Arc;

use throng_core::{
    ChannelId, ChannelName, ConnectionName, Follow, Followed, FoundLag, Kind, Lag, MessageId,
    Position, PresenceState, StartAt, SubscriptionId, SubscriptionTable, SubscriptionTerms,
    Waiting, clock,
};
use throng_wire::Target;

use super::Delivery;
use crate::connection::{ConnectionId, Flags, State};
use crate::counters::Parked;
use crate::net::Net;
use crate::sockets::TICKS_PER_S;

/// The subscriptions of a connection, looked at once.
#[derive(Debug)]
pub(crate) struct Survey {
    /// The number of those for which the client has asked.
    pub(crate) asked: usize,
    /// True if one of them is of a user's inbox.
    pub(crate) has_user: bool,
    /// The subscription to each of the channels that were looked for.
    pub(crate) found: Vec<Option<SubscriptionId>>,
}

impl<N: Net> Delivery<N> {
    /// Loads what [`Delivery::follow`] needs of these channels, all at the same time. They are at
    /// most [`AHEAD`](throng_core::AHEAD).
    pub(crate) fn look_ahead(&self, names: &[ChannelName]) {
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
    pub(crate) fn follow(
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
        let is_bounded = |one| self.subscriptions.max_staleness_ms(one) > 0;
        // Mostly the one before has had it done.
        if is_bounded(joined) && !newest.is_some_and(is_bounded) {
            self.bound_unread(id);
        }
        if is_user {
            self.mark_presence(id);
        }
        followed
    }

    /// Sets the terms of a subscription of the connection that has just begun.
    pub(crate) fn set_terms(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        terms: SubscriptionTerms,
    ) {
        if let Some(expires) = terms.expires {
            self.connections_mut().limit_subscription(id, expires);
        }
        self.subscriptions.set_terms(subscription, terms);
    }

    /// Sets the least time between two deliveries, in milliseconds, of all subscriptions of a
    /// connection, which have just begun; `None` for no time of their own.
    pub(crate) fn set_pace(&mut self, id: ConnectionId, pace_ms: Option<u32>) {
        if pace_ms.is_none() {
            return;
        }
        self.each_subscription(id, |subscriptions, subscription| {
            let terms = SubscriptionTerms { pace_ms, ..SubscriptionTerms::default() };
            subscriptions.set_terms(subscription, terms);
        });
    }

    /// The subscriptions of the connection whose own time is over. The next one whose time will be
    /// is noted.
    pub(crate) fn take_expired(&mut self, id: ConnectionId) -> Vec<SubscriptionId> {
        let tick = self.clock().tick();
        let expires = |it: &SubscriptionId| self.subscriptions.terms(*it)?.expires;
        let all = self.subscriptions_in_order(id).into_iter();
        let (expired, others): (Vec<_>, Vec<_>) = all
            .filter(|it| expires(it).is_some())
            .partition(|it| expires(it).is_some_and(|expires| expires <= tick));
        let next = others.iter().filter_map(expires).min();
        self.connections_mut().set_subscription_limit(id, next);
        expired
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

    /// Ends some subscriptions of the connection, which are sorted for that.
    pub(crate) fn unfollow(&mut self, id: ConnectionId, ended: &mut [SubscriptionId]) {
        ended.sort_unstable();
        let newest = &mut self.sockets[id].newest_subscription;
        *newest = self.subscriptions.unchain(*newest, ended);
        let members = self.members_of(ended.iter().copied());
        let mut has_user = false;
        let mut channels = std::mem::take(&mut self.channels);
        channels.clear();
        for &subscription in &*ended {
            let channel = self.subscriptions.channel(subscription);
            has_user |= channel.is_some_and(|(_, is_user)| is_user);
            let left = self.subscriptions.leave(subscription);
            debug_assert!(left.is_some(), "a connection links to its own subscriptions only");
            channels.extend(left.map(|left| left.channel));
        }
        let worker = self.metrics().worker();
        self.engine.unfollow_all(self.clock().unix_ms(), &channels, worker);
        self.channels = channels;
        if has_user {
            self.mark_presence(id);
        }
        self.end_members(id, members);
        self.connections().end_subscriptions(id, ended.len() as u32);
    }

    /// The subscriptions that have come to the end of their channels since the last call.
    pub(crate) fn take_over(&mut self) -> Vec<SubscriptionId> {
        self.subscriptions.take_over()
    }

    /// True if all channels of the connection have ended, and it has all of their messages.
    pub(crate) fn has_ended(&self, id: ConnectionId) -> bool {
        let has_ended = |own| self.subscriptions.end(own).is_some();
        self.subscriptions.have_any_ended()
            && self.subscriptions(id).any(has_ended)
            && self
                .subscriptions(id)
                .all(|own| has_ended(own) || self.subscriptions.is_of_presence(own))
    }

    /// Keeps what a subscription lacks until its connection is flushed.
    pub(crate) fn block(&mut self, subscription: SubscriptionId) {
        self.subscriptions.block(subscription);
    }

    /// Ends all subscriptions of the connection.
    pub(crate) fn unfollow_all(&mut self, id: ConnectionId) {
        let members = self.members_of(self.subscriptions(id));
        let newest = self[id].newest_subscription.take();
        let mut channels = std::mem::take(&mut self.channels);
        channels.clear();
        self.subscriptions.leave_all(newest, |channel| channels.push(channel));
        let worker = self.metrics().worker();
        self.engine.unfollow_all(self.clock().unix_ms(), &channels, worker);
        let left = u32::try_from(channels.len()).unwrap_or(u32::MAX);
        self.channels = channels;
        self.end_members(id, members);
        self.connections().end_subscriptions(id, left);
    }

    /// The connection's newest subscription; `None` without subscriptions.
    pub(crate) fn newest_subscription(&self, id: ConnectionId) -> Option<SubscriptionId> {
        self[id].newest_subscription
    }

    /// The connection's subscriptions, the newest first.
    pub(crate) fn subscriptions(&self, id: ConnectionId) -> impl Iterator<Item = SubscriptionId> {
        let sibling = |&subscription: &SubscriptionId| self.subscriptions.sibling(subscription);
        std::iter::successors(self.newest_subscription(id), sibling)
    }

    /// The connection's subscriptions in the order in which the request named their channels.
    pub(crate) fn subscriptions_in_order(&self, id: ConnectionId) -> Vec<SubscriptionId> {
        let mut all: Vec<_> = self.subscriptions(id).collect();
        all.reverse();
        all
    }

    /// Looks at all subscriptions of the connection once, for those to the channels of some names.
    pub(crate) fn survey(&self, id: ConnectionId, names: &[Option<ChannelName>]) -> Survey {
        let channel_of = |name: &Option<ChannelName>| self.channel_here(name.as_ref()?);
        let channels: Vec<_> = names.iter().map(channel_of).collect();
        let mut wanted: Vec<_> = channels.iter().copied().flatten().collect();
        wanted.sort_unstable();
        let (mut asked, mut has_user, mut found) = (0, false, Vec::new());
        for subscription in self.subscriptions(id) {
            let Some((channel, is_user)) = self.subscriptions.channel(subscription) else { break };
            let is_asked = !self.subscriptions.is_unasked(subscription)
                && !self.subscriptions.is_internal(subscription);
            asked += usize::from(is_asked);
            has_user |= is_user;
            if wanted.binary_search(&channel).is_ok() {
                found.push((channel, subscription));
            }
        }
        found.sort_unstable();
        let own = |channel: Option<ChannelId>| {
            let place = found.binary_search_by_key(&channel?, |&(channel, _)| channel).ok()?;
            Some(found[place].1)
        };
        Survey { asked, has_user, found: channels.into_iter().map(own).collect() }
    }

    /// The subscriptions of the connection to the presence events of some channels, as far as it
    /// has any.
    pub(crate) fn survey_events(
        &self,
        id: ConnectionId,
        names: &[Option<ChannelName>],
    ) -> Vec<Option<SubscriptionId>> {
        let log_of = |name: &Option<ChannelName>| self.presence_log_of(name.as_ref()?);
        let logs: Vec<_> = names.iter().map(log_of).collect();
        // Few servers have any.
        if logs.iter().all(Option::is_none) {
            vec![None; logs.len()]
        } else {
            self.survey(id, &logs).found
        }
    }

    /// The user to whom a connection belongs; `None` without a user.
    pub(crate) fn user_of(&self, id: ConnectionId) -> Option<ChannelName> {
        self.subscriptions(id).find_map(|subscription| {
            match self.subscriptions.channel(subscription)? {
                (channel, true) => self.engine.name(channel),
                _ => None,
            }
        })
    }

    /// The channel or user of a subscription; `None` if the subscription has ended.
    pub(crate) fn target_of(&self, subscription: SubscriptionId) -> Option<Target> {
        let (channel, _) = self.subscriptions.channel(subscription)?;
        let name = self.engine.name(channel)?;
        Some(Target { kind: name.kind(), name: name.name().to_owned() })
    }

    /// The connection's cursors in all of its channels, in the order of the request. Presence
    /// events have none: they are not resumed.
    pub(crate) fn position(&self, id: ConnectionId) -> Position {
        let subscriptions = self.subscriptions_in_order(id).into_iter();
        let subscriptions = subscriptions.filter(|&id| !self.subscriptions.is_of_presence(id));
        Position(subscriptions.filter_map(|id| self.subscriptions.position(id)).collect())
    }

    /// Settles the receipts of the connection's subscriptions, which end because it lags.
    pub(crate) fn give_up_receipts(&mut self, id: ConnectionId) {
        self.each_subscription(id, SubscriptionTable::give_up);
    }

    /// Drops from the replay buffers of the connection's channels what no subscriber lacks any
    /// more.
    pub(crate) fn trim_replay_buffers(&mut self, id: ConnectionId) {
        self.each_subscription(id, SubscriptionTable::trim_channel_of);
    }

    /// The same with the channel of one subscription.
    pub(crate) fn trim_replay_buffer(&mut self, id: SubscriptionId) {
        self.subscriptions.trim_channel_of(id);
    }

    /// Ends the connection's subscription to a channel, and to its members or presence events.
    pub(crate) fn unfollow_channel(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        name: &ChannelName,
    ) {
        self.unfollow(id, &mut [subscription]);
        let log = self.presence_log_of(name);
        if let Some(events) = log.and_then(|log| self.own_subscription(id, &log)) {
            self.unfollow(id, &mut [events]);
        }
    }

    /// The log of a channel's members or of its presence events, if it has any.
    fn presence_log_of(&self, name: &ChannelName) -> Option<ChannelName> {
        if name.kind() != Kind::Channel {
            return None;
        }
        let rules = self.subscriptions.rules();
        if rules.members(name).is_some() {
            return Some(ChannelName::members(name.name()));
        }
        rules.have_presence_events(name).then(|| ChannelName::presence_events(name.name()))
    }

    /// Follows the members or the presence events of a channel: members from the change on that is
    /// `known`. Returns what is known of presence; otherwise an event comes, or the list of
    /// members.
    pub(crate) fn follow_presence_of(
        &mut self,
        id: ConnectionId,
        channel: &ChannelName,
        known: Option<MessageId>,
    ) -> Option<Arc<PresenceState>> {
        if self.subscriptions.rules().members(channel).is_some() {
            self.follow_members(id, channel, known, false);
            return None;
        }
        let log = ChannelName::presence_events(channel.name());
        self.follow(id, &log, StartAt::Live);
        self.engine.presence_cache().watched.watch(channel)
    }

    /// The channel that plain frames are published to; `None` if it is not clear which one.
    pub(crate) fn own_channel(&self, id: ConnectionId) -> Option<ChannelName> {
        let mut own = self.subscriptions_in_order(id).into_iter();
        let channel = own.next().and_then(|first| self.subscriptions.channel(first));
        // With `?user=`, the connection also follows an inbox, and with `?presence=` who is in the
        // channel: that is still clear.
        let is_beside = |other| {
            self.subscriptions.channel(other).is_some_and(|(_, is_user)| is_user)
                || self.subscriptions.is_of_presence(other)
        };
        let is_clear = !self[id].has(Flags::MULTIPLE) || own.all(is_beside);
        let name = channel.and_then(|(channel, _)| self.engine.name(channel));
        name.filter(|name| is_clear || name.kind() == Kind::User)
    }

    /// True if a client can be asked now: it is parked, and has all messages. Viewers of the status
    /// watch the drain to its end, and the canary leaves by itself.
    pub(crate) fn may_be_asked_to_leave(&self, id: ConnectionId) -> bool {
        // The place has no connection.
        let Some(connection) = self.connections().get(id) else { return false };
        match connection.state() {
            State::Head | State::Waiting | State::Closing | State::Condemned => return false,
            _ if connection.has(Flags::CANARY) => return false,
            // It is answered with what waits for it.
            State::LongPolling => return true,
            State::Streaming => {}
        }
        let is_busy = connection.has(Flags::BLOCKED) || connection.has(Flags::DELIVERY_DEFERRED);
        if is_busy || connection.has(Flags::VIEWER) {
            return false;
        }
        let has_all =
            |subscription| matches!(self.subscriptions.waiting(subscription), Waiting::Nothing);
        self.subscriptions(id).all(has_all)
    }

    /// The subscription of a channel that an excluded connection of this worker has, for a receipt.
    pub(crate) fn follower(
        &self,
        connection: ConnectionName,
        channel: ChannelId,
    ) -> Option<SubscriptionId> {
        let id = self.connections().find_name(connection)?;
        self.subscriptions(id).find(|&subscription| {
            let followed = self.cursors().channel(subscription);
            followed.is_some_and(|(followed, _)| followed == channel)
        })
    }

    /// The connection's subscription to a channel, if it has one.
    pub(crate) fn subscription_to(
        &self,
        id: ConnectionId,
        channel: ChannelId,
    ) -> Option<SubscriptionId> {
        let followed = |one| self.subscriptions.channel(one).map(|(followed, _)| followed);
        self.subscriptions(id).find(|&one| followed(one) == Some(channel))
    }

    /// The lag of a connection in all of its channels, and the number of channels.
    pub(crate) fn lag(&self, id: ConnectionId) -> (Lag, usize) {
        self.subscriptions(id).fold((Lag::default(), 0), |(sum, count), subscription| {
            let lag = self.subscriptions.lag(subscription);
            let (messages, bytes) = (sum.messages + lag.messages, sum.bytes + lag.bytes);
            (Lag { messages, bytes }, count + 1)
        })
    }

    /// How far a connection is behind; `None` if it is not.
    pub(crate) fn found_lag(&self, id: ConnectionId) -> Option<FoundLag> {
        let since = self.connections().behind_since(id).filter(|_| self.is_listed_behind(id))?;
        let (lag, subscriptions) = self.lag(id);
        let left = self.left(id);
        let ticks = self.clock().tick().saturating_sub(since);
        let since_ms = u64::from(ticks) * 1000 / u64::from(TICKS_PER_S);
        let user = self.connections().user_name(&self[id]);
        let inbox = self.user_of(id);
        let names = self.subscriptions(id).take(FoundLag::CHANNELS_MAX);
        let channels = names.filter_map(|subscription| {
            let (channel, _) = self.subscriptions.channel(subscription)?;
            self.engine.name(channel)
        });
        Some(FoundLag {
            since_ms: clock::wall_ms(self.clock().unix_ms().saturating_sub(since_ms)),
            messages: lag.messages,
            bytes: lag.bytes + left.here as u64,
            kernel_bytes: left.in_kernel as u64,
            user: user.or(inbox.as_ref().map(|inbox| inbox.name())).map(Into::into),
            channels: channels.collect(),
            subscriptions,
        })
    }

    /// True if a connection that is behind belongs to a subscriber. The canary has no reader but
    /// the server.
    pub(crate) fn is_listed_behind(&self, id: ConnectionId) -> bool {
        let parked = self[id].parked();
        parked.is_some_and(|parked| parked != Parked::Canary)
    }

    /// Does something to each of the connection's subscriptions, the newest first.
    pub(crate) fn each_subscription(
        &mut self,
        id: ConnectionId,
        mut act: impl FnMut(&mut SubscriptionTable, SubscriptionId),
    ) {
        let mut next = self.newest_subscription(id);
        while let Some(subscription) = next {
            act(&mut self.subscriptions, subscription);
            next = self.subscriptions.sibling(subscription);
        }
    }
}

/// The engine's name of the channel or user that a request names.
pub(crate) fn name_of(target: &Target) -> ChannelName {
    ChannelName::new(target.kind, &target.name)
}
