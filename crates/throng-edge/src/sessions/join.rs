//! Begins one more subscription of a connection with commands, and says why it does not.

use std::sync::Arc;

use throng_core::{
    ChannelName, Followed, Kind, MessageId, PresenceState, StartAt, SubscriptionId,
    SubscriptionTerms, Watermark,
};
use throng_wire::subscribe::Replay;
use throng_wire::{ErrorCode, ErrorResponse, Target};

use crate::connection::ConnectionId;
use crate::counters::Counter;
use crate::net::Net;
use crate::sessions::Sessions;

/// A subscription that nothing stands against.
pub(super) struct Joining<'a> {
    pub(super) name: &'a ChannelName,
    pub(super) start: StartAt,
    /// True if the client wants the state of the channel, unless it recovers.
    pub(super) wants_state: bool,
    /// True if the client gave the start, so that it has to know whether anything is missing.
    pub(super) resumes: bool,
    /// Where it starts in the channels that the server keeps for its user, if that was fetched.
    pub(super) position: Option<Watermark>,
    pub(super) terms: SubscriptionTerms,
    /// True if it follows the presence events of the channel, too.
    pub(super) has_presence: bool,
    /// The change of its members that the client knows.
    pub(super) known: Option<MessageId>,
}

/// A subscription that has begun.
pub(super) struct Joined {
    pub(super) followed: Followed,
    pub(super) subscription: Option<SubscriptionId>,
    /// The one to the channel's members or presence events, if that is asked for.
    pub(super) watching: Option<SubscriptionId>,
    /// Who is in the channel, if that is asked for and known.
    pub(super) presence: Option<Arc<PresenceState>>,
    /// True if the connection follows what the server keeps for its user, too.
    pub(super) has_kept: bool,
}

impl<N: Net> Sessions<N> {
    /// Follows one more channel, which counts already and whose start is fetched, and with the
    /// user's inbox what the server keeps for the user.
    pub(super) fn join(&mut self, id: ConnectionId, joining: Joining<'_>) -> Joined {
        let Joining { name, start, wants_state, resumes, position, terms, .. } = joining;
        let Joining { has_presence, known, .. } = joining;
        let is_marked = self.is_marked(id);
        let is_of_kept = name.kind() == Kind::User && self.has_kept_of(id, name.name());
        let position = || position.unwrap_or_else(|| self.kept_position(name, start));
        let kept = is_of_kept.then(position);
        let kept_start = kept.map(|position| self.start_of_kept(start, position));
        let start = kept.map_or(start, |position| self.start_in_kept(name, start, position));
        let mut followed = self.follow(id, name, start);
        let subscription = self.newest_subscription(id);
        if let Some(joined) = subscription {
            self.set_terms(id, joined, terms);
            if wants_state && followed.is_recovered != Some(true) {
                self.begin_state(joined, followed.head);
            }
        }
        let presence = has_presence.then(|| self.follow_presence_of(id, name, known)).flatten();
        let watching = self.newest_subscription(id).filter(|_| has_presence);
        followed.is_recovered = followed.is_recovered.filter(|_| resumes);
        if let Some(kept_start) = kept_start {
            let are_recovered = self.follow_kept(id, name.name(), kept_start).is_recovered;
            followed.is_recovered = followed.is_recovered.map(|own| own && are_recovered);
        } else if is_marked {
            self.subscriptions_changed(id);
        }
        if followed.is_recovered == Some(false) {
            self.count(Counter::Gaps);
        }
        Joined { followed, subscription, watching, presence, has_kept: is_of_kept }
    }
}

/// Where a subscription starts: after an id, or with earlier messages.
pub(super) fn start_at(
    since: Option<&str>,
    replay: Option<Replay>,
) -> Result<StartAt, ErrorResponse> {
    since.map_or_else(|| Ok(StartAt::of_replay(replay)), StartAt::of_position)
}

pub(super) fn already_subscribed(name: &ChannelName) -> ErrorResponse {
    let message = format!("this connection follows {} already", name.name());
    ErrorResponse::new(ErrorCode::AlreadySubscribed, message)
}

pub(super) fn not_subscribed(target: &Target) -> ErrorResponse {
    let message = format!("this connection does not follow {}", target.name);
    ErrorResponse::new(ErrorCode::NotSubscribed, message)
}

/// The error of a client that leaves what the server keeps for it.
pub(super) fn still_kept() -> ErrorResponse {
    let message = "the server keeps this subscription for the user; the application ends it";
    ErrorResponse::new(ErrorCode::Forbidden, message)
}

/// The error of a second user on one connection.
pub(super) fn one_user() -> ErrorResponse {
    ErrorResponse::new(ErrorCode::BadRequest, "a connection belongs to at most one user")
}
