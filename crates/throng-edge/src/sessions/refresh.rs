//! The command of `throng.v1` that shows a newer token.

use std::iter;

use throng_access::Action;
use throng_core::{ChannelName, Kind, SubscriptionId};
use throng_dialect::Saying;
use throng_wire::credential::Token;
use throng_wire::v1::RawValue;
use throng_wire::{ErrorCode, ErrorResponse};

use super::ask::Stop;
use super::client::Client;
use crate::connection::{Answers, ConnectionId};
use crate::counters::Counter;
use crate::delivery::name_of;
use crate::net::Net;
use crate::sessions::Sessions;

impl<N: Net> Sessions<N> {
    /// Takes a newer token for the connection's, whose user stays the same. Subscriptions that it
    /// does not cover end, and the client is told.
    ///
    /// # Errors
    ///
    /// The connection keeps its token if the new one is refused, or is of another user.
    pub(crate) fn refresh(
        &mut self,
        id: ConnectionId,
        token: &Token,
        answers: &mut Answers,
        reference: Option<&RawValue>,
    ) -> Result<(), Stop> {
        if !self.access.has_keys() {
            let message = "this server has no keys, so it checks no tokens";
            return Err(ErrorResponse::new(ErrorCode::BadRequest, message).into());
        }
        let client = self.identify_newer(id, token, answers)?;
        self.replace_session(id, &client);
        let user = client.credentials().user().map(str::to_owned);
        let session = self.connections().session(id);
        let left_s = session.map_or(0, |session| session.remaining_s(self.clock().wall_s()));
        // Precedes the notices of the subscriptions that end.
        self.reply(id, &Saying::Authenticated(user.as_deref(), left_s), reference);
        self.end_uncovered(id, &client);
        Ok(())
    }

    /// Begins the session of the newer token, and ends the one before. What counts for the one
    /// counts for the other, which may be a user's in place of a server key's.
    fn replace_session(&mut self, id: ConnectionId, client: &Client) {
        let before = self.connections().limited_client(id);
        self.access.clients.limiter.resume_connection(self.limited_by(client));
        self.begin_session(id, client);
        let after = self.connections().limited_client(id);
        if before != after {
            let limiter = &self.access.clients.limiter;
            let count = self.subscriptions(id).count() as u32;
            limiter.unsubscribe(before, count);
            limiter.resume_subscriptions(after, count);
        }
    }

    /// Ends the subscriptions that the client may not have any more.
    fn end_uncovered(&mut self, id: ConnectionId, client: &Client) {
        for subscription in self.subscriptions_to_grant(id) {
            if !self[id].is_parked() {
                return;
            }
            if let Some(error) = self.denial(client, subscription) {
                self.end_denied(id, subscription, &error);
            }
        }
    }

    /// Ends a subscription that a client of `throng.v1` may not have any more, and tells it, unless
    /// the server keeps it for its user. With the inbox end those that the server keeps.
    pub(crate) fn end_denied(
        &mut self,
        id: ConnectionId,
        subscription: SubscriptionId,
        error: &ErrorResponse,
    ) {
        let Some(target) = self.target_of(subscription) else { return };
        if self.leave_to_server(id, subscription, &target) {
            return;
        }
        self.count(Counter::SubscriptionsRevoked);
        if self.cursors().is_of_presence_events(subscription) {
            return self.end_denied_presence(id, subscription, &target.name, error);
        }
        if target.kind == Kind::User {
            self.unfollow_kept(id);
        }
        self.unfollow_channel(id, subscription, &name_of(&target));
        self.say(id, &Saying::Revoked(&target, error));
    }

    /// Why the client may not have a subscription any more; `None` if it may.
    pub(crate) fn denial(
        &self,
        client: &Client,
        subscription: SubscriptionId,
    ) -> Option<ErrorResponse> {
        let (channel, _) = self.cursors().channel(subscription)?;
        let name = self.engine.name(channel)?;
        let of_presence = name.is_presence_events().then(|| ChannelName::channel(name.name()));
        let action = of_presence.as_ref().map_or(Action::Subscribe(&name), Action::ReadPresence);
        self.ask_again(client, iter::once(action)).err()
    }
}
