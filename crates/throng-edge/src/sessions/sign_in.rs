//! Identifies clients whose connections stand: they show a newer token, or who they are at all.
//!
//! Whoever connects without a credential may have to show one within a deadline, or may do so at
//! any time, by the rules of [`LateIdentity`](throng_dialect::LateIdentity). From then on the
//! connection is the user's: it has a session, by which scans find it, its limits are the user's,
//! and the application is told. Until then a client with a deadline may do nothing else.
//!
//! # Invariants
//!
//! * A connection changes its user once: from nobody to somebody.
//! * A client that is refused stays what it was, with what it follows.
//! * A deadline passes while an answer about the client is awaited, and nothing new is asked behind
//!   it: so a client is nobody for the deadline and one wait at most.

use std::iter;

use throng_access::Action;
use throng_access::limit::Refusal;
use throng_core::{ChannelName, Kind, SubscriptionId};
use throng_dialect::Saying;
use throng_wire::credential::Token;
use throng_wire::v1::{Command, RawValue};
use throng_wire::{ErrorCode, ErrorResponse};

use super::ask::Stop;
use super::client::Client;
use crate::connection::{Answers, ConnectionId, Ending};
use crate::counters::Counter;
use crate::delivery::name_of;
use crate::net::Net;
use crate::sessions::Sessions;

impl<N: Net> Sessions<N> {
    /// Gives the client of a connection that has just been parked the time to show who it is.
    pub(crate) fn await_identity(&mut self, id: ConnectionId) {
        let own = self[id].encoding().dialect().late_identity();
        let within = own.or(self.settings.late_identity).within.unwrap_or_default();
        let until = self.clock().deadline(within);
        self.connections_mut().await_identity(id, Some(until));
    }

    /// True if the client has had its time to show who it is, and has not.
    pub(crate) fn is_identity_late(&self, id: ConnectionId) -> bool {
        self.connections().identify_by(id).is_some_and(|until| until <= self.clock().tick())
    }

    /// Fails for a client that has to show who it is before it does anything else.
    pub(crate) fn check_identified(
        &self,
        id: ConnectionId,
        command: &Command,
    ) -> Result<(), ErrorResponse> {
        // An acknowledgement gives nothing, and takes nothing that has not been sent.
        let may_come_first =
            matches!(command, Command::Auth { .. } | Command::Ack { .. } | Command::Ping);
        if may_come_first || self.connections().identify_by(id).is_none() {
            return Ok(());
        }
        let message = "show who you are before you do anything else";
        Err(ErrorResponse::new(ErrorCode::Unauthorized, message))
    }

    /// Takes a token for the connection's, by the command that shows it. Subscriptions that it does
    /// not cover end, and the client is told.
    ///
    /// # Errors
    ///
    /// The connection keeps its token if the new one is refused, or is of another user.
    pub(crate) fn auth_command(
        &mut self,
        id: ConnectionId,
        token: &Token,
        answers: &mut Answers,
        reference: Option<&RawValue>,
    ) -> Result<(), Stop> {
        let client = self.sign_in(id, token, answers)?;
        let user = client.credentials().user().map(str::to_owned);
        let session = self.connections().session(id);
        let left_s = session.map_or(0, |session| session.remaining_s(self.clock().wall_s()));
        // Precedes the notices of the subscriptions that end.
        self.reply(id, &Saying::Authenticated(user.as_deref(), left_s), reference);
        self.end_uncovered(id, &client);
        Ok(())
    }

    /// Identifies the client of a connection that stands, by a token that it shows, and gives the
    /// connection its session.
    ///
    /// # Errors
    ///
    /// The client stays what it was, or an answer about it is to come.
    fn sign_in(
        &mut self,
        id: ConnectionId,
        token: &Token,
        answers: &mut Answers,
    ) -> Result<Client, Stop> {
        if !self.access.has_keys() {
            let message = "this server has no keys, so it checks no tokens";
            return Err(ErrorResponse::new(ErrorCode::BadRequest, message).into());
        }
        // One that was asked in time has waited since.
        if self.is_identity_late(id) && !answers.has_waited {
            return Err(ErrorResponse::from(ErrorCode::Unauthorized).into());
        }
        let client = self.identify_shown(id, token, answers)?;
        if self.connections().session(id).is_some() {
            self.replace_session(id, &client);
        } else {
            self.begin_late_session(id, &client)?;
        }
        Ok(client)
    }

    /// Begins the session of a client that was anonymous. Its connection and subscriptions count
    /// for the user from now on.
    fn begin_late_session(&mut self, id: ConnectionId, client: &Client) -> Result<(), Refusal> {
        let (limiter, shown) = (&self.access.clients.limiter, self.limited_by(client));
        let count = self.subscriptions(id).count() as u32;
        limiter.hold_connection(shown)?;
        // Its address counts them already.
        limiter.subscribe(shown, count).inspect_err(|_| limiter.disconnect(shown))?;
        let is_news = self.connections().identify_by(id).is_some();
        self.connections_mut().await_identity(id, None);
        self.begin_session(id, client);
        let credentials = client.credentials();
        if is_news || credentials.user().is_some() {
            self.notify_client(id, credentials, "websocket");
        }
        Ok(())
    }

    /// Begins the session of the newer token, and ends the one before. What counts for the one
    /// counts for the other, which may be a user's in place of a server key's.
    pub(super) fn replace_session(&mut self, id: ConnectionId, client: &Client) {
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
        if self.leave_to_server(self.keeper_of(id).as_ref(), subscription, &target) {
            return;
        }
        self.count(Counter::SubscriptionsRevoked);
        if self.cursors().is_of_presence(subscription) {
            return self.end_denied_presence(id, subscription, &target.name, error);
        }
        if target.kind == Kind::User {
            self.unfollow_kept(id);
        }
        self.unfollow_channel(id, subscription, &name_of(&target));
        // The client may not have learnt yet that it began.
        match self.connections_mut().holder_mut(id) {
            Some(many) => many.ended.push((target, Ending::Denied(error.clone()))),
            None => {
                self.say(id, &Saying::Revoked(&target, error));
            }
        }
    }

    /// Why the client may not have a subscription any more; `None` if it may.
    pub(crate) fn denial(
        &self,
        client: &Client,
        subscription: SubscriptionId,
    ) -> Option<ErrorResponse> {
        let (channel, _) = self.cursors().channel(subscription)?;
        let name = self.engine.name(channel)?;
        // The application has signed whom the client watches.
        if name.is_online() {
            return None;
        }
        let of_presence = name.is_presence().then(|| ChannelName::channel(name.name()));
        let action = of_presence.as_ref().map_or(Action::Subscribe(&name), Action::ReadPresence);
        self.ask_again(client, iter::once(action)).err()
    }
}
