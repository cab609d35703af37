//! Clients as members of the channels that they follow.
//!
//! Before a subscription to a channel with members begins, its client is counted as a member: a
//! list that is full refuses it. What ends the subscription ends that, too.

use throng_access::Action;
use throng_core::{ChannelName, PublishError, SubscriptionId};
use throng_wire::subscribe::Request;
use throng_wire::v1::ShownMember;
use throng_wire::{ErrorCode, ErrorResponse, MemberClaim};

use super::client::Client;
use crate::connection::{Answers, ConnectionId};
use crate::net::Net;
use crate::sessions::Sessions;

/// How long a member stays that leaves too often.
const RETURN_MS: u64 = 3_000;

/// What is known of a client without its own words.
#[derive(Debug, Default)]
pub(super) struct Known {
    user: Option<Box<str>>,
    /// A JSON object, as [`member_info`](throng_wire::member::member_info) has it.
    info: Option<Box<str>>,
}

impl<N: Net> Sessions<N> {
    /// The members that a request makes its client, in the order of its channels: the keys in their
    /// lists. Empty if there are none.
    ///
    /// # Errors
    ///
    /// A list is full, or delivery lags. The client is a member of none.
    pub(super) fn begin_members(
        &self,
        id: ConnectionId,
        request: &Request,
        client: &Client,
        (names, answers): (&[ChannelName], &Answers),
    ) -> Result<Vec<Option<Box<str>>>, ErrorResponse> {
        if !self.cursors().rules().have_any_members() {
            return Ok(Vec::new());
        }
        let known = self.known_by_request(request, client);
        let mut members = Vec::with_capacity(names.len());
        for (place, name) in (0..).zip(names) {
            match self.begin_member(id, name, &known, (None, answers.shown(place))) {
                Ok(member) => members.push(member),
                Err(error) => {
                    self.end_members(names, &members);
                    return Err(error);
                }
            }
        }
        Ok(members)
    }

    /// Takes back what [`Sessions::begin_members`] has done, for a subscription that does not
    /// begin.
    pub(super) fn end_members(&self, names: &[ChannelName], members: &[Option<Box<str>>]) {
        for (name, member) in names.iter().zip(members) {
            if let Some(key) = member {
                self.engine.memory().end_member(self.clock().unix_ms(), name, key, 0);
            }
        }
    }

    /// Makes the client a member of a channel, if the channel has any and the client can be one.
    /// Returns its key in the list. `claim` is its own word, `told` the application's about this
    /// subscription.
    pub(super) fn begin_member(
        &self,
        id: ConnectionId,
        name: &ChannelName,
        known: &Known,
        (claim, told): (Option<&MemberClaim>, Option<&str>),
    ) -> Result<Option<Box<str>>, ErrorResponse> {
        let Some(rule) = self.cursors().rules().members(name) else {
            return match claim {
                Some(_) => Err(no_members(name)),
                None => Ok(None),
            };
        };
        let connection = rule.are_connections.then(|| self.connections().name(id).to_string());
        let (connection, user) = (connection.as_deref(), known.user_by(claim));
        let Some(key) = connection.or(user) else {
            return match claim {
                Some(_) => Err(nobody()),
                None => Ok(None),
            };
        };
        let own = claim.and_then(|claim| claim.info.as_deref());
        let info = own.or(told).or(known.info.as_deref());
        let shown = ShownMember { connection, user, info };
        let begun = self.engine.memory().begin_member(self.clock().unix_ms(), name, shown);
        begun.map_err(refused)?;
        Ok(Some(key.into()))
    }

    /// What is known of the client of a connection that stands.
    pub(super) fn known(&self, id: ConnectionId, name: &ChannelName) -> Known {
        if !self.cursors().rules().have_any_members() {
            return Known::default();
        }
        let session = self.connections().session(id);
        let info = session.and_then(|session| self.connections().side().info_of(session));
        Known { user: self.acting_user(id, name), info: info.map(Box::from) }
    }

    /// The user whom a connection that stands acts for in a channel.
    pub(super) fn acting_user(&self, id: ConnectionId, name: &ChannelName) -> Option<Box<str>> {
        let client = self.client(id, Action::Subscribe(name));
        let session = self.connections().session(id);
        // A key may act for every user. Others are who they have shown to be.
        let has_key = session.is_some_and(|session| session.key_tag().is_some());
        let of_inbox = || self.user_of(id).filter(|_| has_key).map(|inbox| inbox.name().into());
        client.credentials().user().map(Box::from).or_else(of_inbox)
    }

    fn known_by_request(&self, request: &Request, client: &Client) -> Known {
        let user = client.credentials().user();
        let is_key = matches!(client, Client::Known(throng_access::Client::Key(_)));
        let user = user.or_else(|| request.user().filter(|_| is_key));
        let info = match client {
            Client::Known(throng_access::Client::Token(identity)) => identity.info(),
            _ => None,
        };
        Known { user: user.map(Box::from), info: info.map(Box::from) }
    }

    /// Shows something else of a client in a channel of which it is a member.
    pub(super) fn update_member(
        &self,
        id: ConnectionId,
        name: &ChannelName,
        info: &str,
    ) -> Result<(), ErrorResponse> {
        self.cursors().rules().members(name).ok_or_else(|| no_members(name))?;
        let own = self.own_subscription(id, name);
        let terms = own.and_then(|own| self.cursors().terms(own));
        let Some(key) = terms.and_then(|terms| terms.member.as_deref()) else {
            let message = format!("this connection is no member of {}", name.name());
            return Err(ErrorResponse::new(ErrorCode::NotSubscribed, message));
        };
        let (known, now_ms) = (self.known(id, name), self.clock().unix_ms());
        let member = (key, known.user.as_deref());
        let updated = self.engine.memory().update_member(now_ms, name, member, info);
        updated.map(drop).map_err(refused)
    }

    /// As [`Sessions::begin_member`], for a client that subscribes on a connection that it has. One
    /// that has left channels more often than it may publish waits.
    pub(super) fn join_member(
        &self,
        id: ConnectionId,
        name: &ChannelName,
        said: (Option<&MemberClaim>, Option<&str>),
    ) -> Result<Option<Box<str>>, ErrorResponse> {
        if self.cursors().rules().members(name).is_some() {
            let client = self.connections().limited_client(id);
            self.access.clients.limiter.check_told(client, self.clock().unix_ms())?;
        }
        self.begin_member(id, name, &self.known(id, name), said)
    }

    /// Where clients publish so many events a second, a member that leaves more often than that
    /// does so later: if it comes back meanwhile, nobody is told of either.
    pub(super) fn pace_departure(&mut self, id: ConnectionId, ended: SubscriptionId) {
        let most = self[id].encoding().dialect().client_events_per_s();
        let is_member = !self.members_of(std::iter::once(ended)).is_empty();
        let Some(most) = most.filter(|_| is_member) else { return };
        let second = self.clock().wall_s();
        if !self.client_events.count(id, second, most) {
            self.end_member_late(ended, RETURN_MS);
        }
    }

    /// Counts what others are told because the client ends these subscriptions: if the member
    /// leaves at once, two events, since it may join again at once.
    pub(super) fn charge_departures(&self, id: ConnectionId, ended: &[SubscriptionId]) {
        let (mut events, mut bytes) = (0, 0);
        for (name, key) in self.members_of(ended.iter().copied()) {
            if self.cursors().rules().members(&name).is_some_and(|rule| rule.grace_ms == 0) {
                events += 2;
                bytes += 2 * key.len();
            }
        }
        if events > 0 {
            let client = self.connections().limited_client(id);
            let now_ms = self.clock().unix_ms();
            self.access.clients.limiter.charge_told(client, events, bytes, now_ms);
        }
    }
}

impl Known {
    /// The user that a client is. Its own word counts only if its application has signed that.
    fn user_by<'a>(&'a self, claim: Option<&'a MemberClaim>) -> Option<&'a str> {
        claim.and_then(|claim| claim.user.as_deref()).or(self.user.as_deref())
    }
}

fn no_members(name: &ChannelName) -> ErrorResponse {
    let message = format!(
        "the channel {} has no list of members in which to show `info`: leave that out, or set \
         `members` for the channel",
        name.name()
    );
    ErrorResponse::new(ErrorCode::BadRequest, message)
}

fn nobody() -> ErrorResponse {
    let message = "members of this channel are users, and this connection belongs to none: connect \
                   with a token of a user, or leave `info` out";
    ErrorResponse::new(ErrorCode::BadRequest, message)
}

/// The error of a member that the list of its channel does not take.
fn refused(error: PublishError) -> ErrorResponse {
    if error.is_of_full_state() {
        let message = "the list of the channel's members is full; try again later";
        return ErrorResponse::new(ErrorCode::NotStored, message);
    }
    error.into()
}
