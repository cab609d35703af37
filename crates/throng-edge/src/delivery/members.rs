//! The members of channels: which subscriptions are of members, and those who follow them.
//!
//! A subscription to the members of a channel begins with the state of their log, as
//! [`delivery::state`](super::state) has it, and goes on with what changes.

use std::sync::Arc;

use throng_core::{ChannelName, Message, MessageId, PresenceState, StartAt, SubscriptionId};
use throng_dialect::Saying;
use throng_dialect::saying::notice_json;
use throng_wire::v1::{self, ShownMember};

use super::Delivery;
use crate::connection::{ConnectionId, Flags, State};
use crate::net::Net;

/// The members of which subscriptions end: their channels and keys.
pub(crate) type Members = Vec<(ChannelName, Box<str>)>;

/// For how long the member of a long-poll stays at least: until the next poll, which mostly comes
/// at once. Without that each poll would be told of as one who joins and leaves.
const POLL_GRACE_MS: u64 = 10_000;

impl<N: Net> Delivery<N> {
    /// The members that some subscriptions are of.
    pub(crate) fn members_of(
        &self,
        subscriptions: impl Iterator<Item = SubscriptionId>,
    ) -> Members {
        if !self.subscriptions.have_members() {
            return Vec::new();
        }
        let member = |subscription| {
            let key = self.subscriptions.terms(subscription)?.member.clone()?;
            let (channel, _) = self.subscriptions.channel(subscription)?;
            Some((self.engine.name(channel)?, key))
        };
        subscriptions.filter_map(member).collect()
    }

    /// Subscriptions of these members have ended, of a connection.
    pub(super) fn end_members(&self, id: ConnectionId, members: Members) {
        if members.is_empty() {
            return;
        }
        let (now_ms, connection) = (self.clock().unix_ms(), &self[id]);
        let is_poll = connection.state() == State::LongPolling;
        for (channel, key) in members {
            // A connection that is a member itself may come back only if it stays.
            let comes_back =
                is_poll && (connection.has(Flags::KEEP_ALIVE) || !self.is_connection(id, &key));
            let least_grace_ms = if comes_back { POLL_GRACE_MS } else { 0 };
            self.engine.memory().end_member(now_ms, &channel, &key, least_grace_ms);
        }
    }

    /// The member of a subscription that is about to end leaves later than it would, unless it
    /// comes back.
    pub(crate) fn end_member_late(&mut self, subscription: SubscriptionId, grace_ms: u64) {
        let members = self.members_of(std::iter::once(subscription));
        self.subscriptions.take_member(subscription);
        let now_ms = self.clock().unix_ms();
        for (channel, key) in members {
            self.engine.memory().end_member(now_ms, &channel, &key, grace_ms);
        }
    }

    /// True if a member is the connection, and not its user.
    fn is_connection(&self, id: ConnectionId, key: &str) -> bool {
        *self.connections().name(id).to_string() == *key
    }

    /// The connection and its subscriptions are about to be frozen.
    pub(super) fn rest_members(&self, id: ConnectionId) {
        let now_ms = self.clock().unix_ms();
        for (channel, key) in self.members_of(self.subscriptions(id)) {
            self.engine.memory().rest_member(now_ms, &channel, &key);
        }
    }

    /// The connection and its subscriptions, which were frozen, go on.
    pub(super) fn resume_members(&self, id: ConnectionId) {
        let now_ms = self.clock().unix_ms();
        for (channel, key) in self.members_of(self.subscriptions(id)) {
            // As far as the subscription tells, if the list does not have it any more.
            let is_connection = self.is_connection(id, &key);
            let shown = ShownMember {
                connection: Some(&*key).filter(|_| is_connection),
                user: Some(&*key).filter(|_| !is_connection),
                info: None,
            };
            self.engine.memory().resume_member(now_ms, &channel, shown);
        }
    }

    /// Follows the members of a channel: from their list on, or from the change with the id that is
    /// `known`. If there is nothing left of that, the list comes. A long-poll gets at once what is
    /// there: as notices, which are returned.
    pub(crate) fn follow_members(
        &mut self,
        id: ConnectionId,
        channel: &ChannelName,
        known: Option<MessageId>,
        is_poll: bool,
    ) -> Vec<Arc<PresenceState>> {
        let log = ChannelName::members(channel.name());
        self.engine.memory().follow_members(self.clock().unix_ms(), channel);
        let followed = self.follow(id, &log, known.map_or(StartAt::State, StartAt::After));
        let Some(own) = self.newest_subscription(id) else { return Vec::new() };
        let is_list = followed.is_recovered != Some(true);
        if !is_poll {
            if is_list {
                self.begin_state(own, followed.head);
            }
            return Vec::new();
        }
        let notice = |json: &[u8]| {
            let json = String::from_utf8_lossy(json).into();
            Arc::new(PresenceState { time_ms: 0, json })
        };
        let is_told = |message: &&Arc<Message>| {
            message.key().is_some() && !(is_list && message.is_list_partial().is_some())
        };
        let told = followed.backlog.iter().filter(is_told);
        let mut notices: Vec<_> = told.map(|message| notice(&notice_json(message))).collect();
        self.subscriptions.advance(own, followed.head.offset);
        if is_list {
            let (count, is_partial) = self.members_listed(channel);
            let mut json = Vec::new();
            let head = followed.head.to_string();
            v1::members(&mut json, channel.name(), &head, count, is_partial);
            notices.push(notice(&json));
        }
        notices
    }

    /// The subscriptions of a connection, which have just begun, are of these members.
    pub(crate) fn note_members(&mut self, id: ConnectionId, members: Vec<Option<Box<str>>>) {
        if members.is_empty() {
            return;
        }
        for (own, member) in self.subscriptions_in_order(id).into_iter().zip(members) {
            self.note_member(own, member);
        }
    }

    /// A subscription that has just begun is of a member.
    pub(crate) fn note_member(&mut self, subscription: SubscriptionId, member: Option<Box<str>>) {
        if let Some(key) = member {
            self.subscriptions.set_member(subscription, key);
        }
    }

    /// Tells the connection that it has the list of a channel's members, as of `end`.
    pub(super) fn end_member_list(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        end: MessageId,
    ) {
        let Some(target) = self.target_of(subscription) else { return };
        let channel = ChannelName::channel(&target.name);
        let (count, is_partial) = self.members_listed(&channel);
        let end = end.to_string();
        self.say(id, &Saying::Members { channel: &target.name, id: &end, count, is_partial });
    }

    /// How many members a channel has, and whether other nodes may have more.
    fn members_listed(&self, channel: &ChannelName) -> (u64, bool) {
        self.engine.memory().members_listed(self.clock().unix_ms(), channel)
    }
}
