//! Begins one more subscription of a connection with commands, and says why it does not.

use std::slice;
use std::sync::Arc;

use throng_core::{
    ChannelName, Followed, Kind, MessageId, PresenceState, RefusedForMemory, StartAt,
    SubscriptionId, SubscriptionTerms, Watermark,
};
use throng_dialect::Saying;
use throng_dialect::saying::Start;
use throng_wire::subscribe::Replay;
use throng_wire::{ErrorCode, ErrorResponse, MemberClaim, Target};

use super::ask::Stop;
use super::call::{Call, LOOK_COST_BYTES};
use super::fetch::Starts;
use crate::connection::{Answers, ConnectionId};
use crate::counters::Counter;
use crate::delivery::{Survey, name_of};
use crate::net::Net;
use crate::sessions::Sessions;

/// A subscription's own terms.
pub(super) struct Own<'a> {
    /// True if it follows the presence of the channel, too.
    pub(super) has_presence: bool,
    /// What the client says of itself to the other members.
    pub(super) claim: Option<&'a MemberClaim>,
    pub(super) terms: SubscriptionTerms,
}

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
    /// Subscribes to a channel. `begin` is the id after which it starts, or which earlier messages
    /// it starts with.
    pub(super) fn subscribe_command(
        &mut self,
        call: Call<'_>,
        target: &Target,
        Own { has_presence, claim, mut terms }: Own<'_>,
        begin: (Option<&str>, Option<Replay>),
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        let id = call.id;
        let count = 1 + usize::from(has_presence);
        let name = name_of(target);
        if self.relief.refuses(RefusedForMemory::Subscription) {
            return Err(ErrorResponse::short_of_memory().into());
        }
        let Survey { asked, has_user, found, .. } =
            self.survey(id, slice::from_ref(&Some(name.clone())));
        self.budget().charge(asked * LOOK_COST_BYTES);
        let max_channels = self.max_channels(id);
        if asked + count > max_channels {
            return Err(ErrorResponse::too_many_channels(max_channels).into());
        }
        if let Some(own) = found[0] {
            let start = self.start_again(id, &name, own)?;
            let start = start.ok_or_else(|| already_subscribed(&name))?;
            self.confirm(call, target, start, false);
            return Ok(());
        }
        if name.kind() == Kind::User && has_user {
            return Err(one_user().into());
        }
        self.check_channel_limits(slice::from_ref(&name))?;
        let beginning = self.beginning(id, &name, claim, begin)?;
        self.await_bookmark(id, &name, &beginning, &mut answers.fetched)?;
        let start = self.likely_start(&name, &beginning);
        if name.kind() == Kind::User {
            self.await_kept(id, name.name())?;
        }
        let is_of_kept = name.kind() == Kind::User && self.has_kept_of(id, name.name());
        let wanted = Starts {
            names: slice::from_ref(&name),
            starts: &[start],
            kept_of: (is_of_kept && self.engine.fetches()).then(|| name.clone()),
            unread_of: None,
        };
        self.fetch_existing(id, &wanted, &mut answers.fetched)?;
        // After all that may refuse or wait, so that each subscription is counted once, and nobody
        // is told of a member that does not come.
        self.check_room(id, &name, claim)?;
        self.limit_subscriptions(id, count)?;
        let told = answers.shown(0);
        let member = self.join_member(id, &name, (claim, told));
        terms.member =
            member.inspect_err(|_| self.connections().end_subscriptions(id, count as u32))?;
        let (start, goes_on) = self.settle_start(&name, &beginning);
        terms.resumable = beginning.resumable();
        // After the client itself has joined.
        let page = has_presence.then(|| self.first_members(id, &name)).flatten();
        let joining = Joining {
            name: &name,
            start,
            wants_state: begin.1 == Some(Replay::State),
            resumes: goes_on || begin.0.is_some(),
            position: answers.fetched.position,
            terms,
            has_presence,
            known: page.as_ref().map(|page| page.head),
        };
        let Joined { followed, subscription, watching, presence, has_kept } =
            self.join(id, joining);
        // The client learns of the subscription before its first message comes.
        let members = page.map(|page| page.members);
        let start = Start { members, ..Start::of(&followed) };
        self.notify_if_missed(id, &name, begin.1, start.head.is_some());
        self.confirm(call, target, start, has_kept);
        if let Some(state) = presence {
            self.tell_presence(id, &state);
        }
        for joined in [subscription, watching].into_iter().flatten() {
            self.begin_messages(id, joined, has_kept);
        }
        self.limit(id, answers.until_ms);
        Ok(())
    }

    /// Confirms a subscription, with which the client may follow what the server keeps for it.
    fn confirm(&mut self, call: Call<'_>, target: &Target, start: Start, has_kept: bool) {
        self.answer(call, &Saying::Subscribed(target, start));
        self.flush_replies(call.id);
        if has_kept {
            self.tell_unconfirmed_numbers(call.id);
        }
    }

    /// Writes a subscription that has just begun what it begins with, unless that has to wait.
    fn begin_messages(&mut self, id: ConnectionId, joined: SubscriptionId, has_kept: bool) {
        if !self.await_user(id, joined) {
            self.catch_up(id, joined);
        }
        if has_kept {
            self.trim_replay_buffers(id);
        } else {
            self.trim_replay_buffer(joined);
        }
    }

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
