//! Connections that follow the presence events of their channels: a second subscription beside the
//! channel's, which ends with it.
//!
//! A subscription to presence events begins with the state that is known. Whatever is published
//! after that comes as a message.

use std::sync::Arc;

use throng_access::Action;
use throng_core::{ChannelName, Kind, MessageId, PresenceState, SubscriptionId};
use throng_dialect::Saying;
use throng_wire::subscribe::{KnownPresence, Request, Transport};
use throng_wire::{ErrorCode, ErrorResponse};

use crate::connection::ConnectionId;
use crate::delivery::{name_of, write_saying};
use crate::net::Net;
use crate::sessions::Sessions;

/// The channels whose presence events a request asks for.
fn channels_of(request: &Request) -> impl Iterator<Item = ChannelName> {
    request.presence.iter().map(|wanted| name_of(&request.targets[wanted.target]))
}

/// The actions of a request on its channels, for the access policy. `names` has all of them, in
/// the order of its targets.
pub(crate) fn actions<'a>(
    request: &'a Request,
    names: &'a [ChannelName],
) -> impl Iterator<Item = Action<'a>> {
    let watched = request.presence.iter().map(|wanted| &names[wanted.target]);
    names.iter().map(Action::Subscribe).chain(watched.map(Action::ReadPresence))
}

/// How many subscriptions a request begins.
pub(crate) fn subscriptions_of(request: &Request) -> usize {
    request.targets.len() + channels_of(request).count()
}

impl<N: Net> Sessions<N> {
    /// Fails unless the channels of a request have the presence events that it asks for.
    pub(crate) fn check_presence_events(&self, request: &Request) -> Result<(), ErrorResponse> {
        for wanted in &request.presence {
            self.check_has_presence_events(&name_of(&request.targets[wanted.target]))?;
            if let Some(KnownPresence::Id(id)) = &wanted.known {
                id.parse::<MessageId>()?;
            }
        }
        Ok(())
    }

    /// Fails unless a channel has presence events.
    pub(crate) fn check_has_presence_events(
        &self,
        name: &ChannelName,
    ) -> Result<(), ErrorResponse> {
        if name.kind() != Kind::Channel {
            let message = "presence events are of channels; an inbox has none";
            return Err(ErrorResponse::new(ErrorCode::BadRequest, message));
        }
        let rules = self.cursors().rules();
        if !rules.have_presence_events(name) && rules.members(name).is_none() {
            let message = format!(
                "the channel {} has no presence events; the settings `presence-events` and \
                 `members` give it some",
                name.name()
            );
            return Err(ErrorResponse::new(ErrorCode::BadRequest, message));
        }
        Ok(())
    }

    /// Follows the presence events that a request asks for. Returns the states that its client does
    /// not know. The connection follows the channels already.
    pub(crate) fn follow_presence_events(
        &mut self,
        id: ConnectionId,
        request: &Request,
    ) -> Vec<Arc<PresenceState>> {
        let mut states = Vec::new();
        for (wanted, name) in request.presence.iter().zip(channels_of(request)) {
            if self.cursors().rules().members(&name).is_some() {
                let known = match &wanted.known {
                    Some(KnownPresence::Id(id)) => id.parse().ok(),
                    _ => None,
                };
                let is_poll = matches!(request.transport, Transport::LongPoll { .. });
                states.extend(self.follow_members(id, &name, known, is_poll));
                continue;
            }
            let is_known =
                |state: &PresenceState| wanted.known == Some(KnownPresence::Time(state.time_ms));
            let state = self.follow_presence_of(id, &name, None);
            states.extend(state.filter(|state| !is_known(state)));
        }
        states
    }

    /// Appends who is in the channels.
    pub(crate) fn greet_with_presence(
        &self,
        id: ConnectionId,
        out: &mut Vec<u8>,
        presence: &[Arc<PresenceState>],
    ) {
        for state in presence {
            let saying = Saying::Presence(state.json.as_bytes());
            write_saying(&self[id], &saying, None, out);
        }
    }

    /// Tells a connection what is known of who is in a channel.
    pub(crate) fn tell_presence(&mut self, id: ConnectionId, state: &PresenceState) {
        self.say(id, &Saying::Presence(state.json.as_bytes()));
    }

    /// Ends a subscription to presence events that a client of `throng.v1` may not have any more,
    /// and tells it.
    pub(crate) fn end_denied_presence(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        channel: &str,
        error: &ErrorResponse,
    ) {
        self.unfollow(id, &mut [subscription]);
        let message = format!("the presence events of {channel} have ended: {}", error.message);
        let error = ErrorResponse::new(error.code, message);
        self.say(id, &Saying::Error(&error));
    }
}
