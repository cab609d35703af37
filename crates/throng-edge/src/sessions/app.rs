//! Clients of applications: whose they are by the key of their request, who they are by the
//! signature of their application, and what they may publish.
//!
//! To all else such a client is one with a token, whose grants are the application's: see
//! [`throng_access::apps`].

use std::cell::OnceCell;
use std::sync::Arc;

use throng_access::ClientApp;
use throng_access::apps::APP_MEMBERS_MAX;
use throng_access::limit::Refusal;
use throng_core::{ChannelName, MemberPage, SubscriptionId};
use throng_dialect::Saying;
use throng_dialect::dialect::Speaker;
use throng_dialect::saying::Start;
use throng_pusher::{App, SocketId};
use throng_wire::subscribe::Request;
use throng_wire::{ErrorCode, ErrorResponse, MemberClaim};

use super::ask::Stop;
use super::call::Call;
use super::client::Client;
use crate::connection::{Answers, ConnectionId};
use crate::net::Net;
use crate::sessions::Sessions;

/// The members that are read in one step, under a lock.
const MEMBERS_STEP: usize = 100;

/// What a dialect may have to know of the client of a connection.
pub(super) struct SpeakerOf<'a, N: Net> {
    sessions: &'a Sessions<N>,
    id: ConnectionId,
    /// Looked up once it is asked for.
    app: OnceCell<Option<Arc<ClientApp>>>,
}

impl<N: Net> Speaker for SpeakerOf<'_, N> {
    fn app(&self) -> Option<&App> {
        let app = self.app.get_or_init(|| self.sessions.app_of(self.id));
        app.as_ref().map(|own| own.app())
    }

    fn socket(&self) -> Option<SocketId> {
        self.sessions.socket(self.id)
    }

    fn is_user(&self, name: &str) -> bool {
        let session = self.sessions.connections().session(self.id);
        session.is_some_and(|session| session.is_of_user(name, &self.sessions.access.tagger))
    }
}

impl<N: Net> Sessions<N> {
    pub(super) fn speaker(&self, id: ConnectionId) -> SpeakerOf<'_, N> {
        SpeakerOf { sessions: self, id, app: OnceCell::new() }
    }

    /// The application whose client a connection is.
    pub(super) fn app_of(&self, id: ConnectionId) -> Option<Arc<ClientApp>> {
        let session = self.connections().session(id)?;
        let grants = self.connections().side().grants_of(session);
        self.access.apps.load().with_grants(grants).cloned()
    }

    /// True if a connection is of a client of an application that the settings do not have any
    /// more.
    pub(super) fn has_lost_app(&self, id: ConnectionId) -> bool {
        let session = self.connections().session(id);
        let grants = session.map(|session| self.connections().side().grants_of(session));
        match grants.and_then(|grants| grants.within()) {
            Some(prefix) => !self.access.apps.load().iter().any(|own| own.app().prefix() == prefix),
            None => self[id].encoding().dialect().is_of_apps() && self.app_of(id).is_none(),
        }
    }

    /// A connection, as applications call it.
    pub(super) fn socket(&self, id: ConnectionId) -> Option<SocketId> {
        let app = self.app_of(id)?;
        Some(self.access.apps.load().socket(&app, self.connections().name(id)))
    }

    /// The client of a request that shows the key of an application; empty if it speaks a version
    /// of the protocol that is none of ours.
    pub(super) fn identify_app(&self, key: &str) -> Result<Client, ErrorResponse> {
        let apps = self.access.apps.load();
        if apps.is_empty() {
            return Err(ErrorCode::NotFound.into());
        }
        if key.is_empty() {
            let message = "this server speaks versions 4 to 7 of the protocol";
            return Err(ErrorResponse::new(ErrorCode::BadVersion, message));
        }
        let Some((app, key)) = apps.with_key(key) else {
            let message = "this server has no application with this key";
            return Err(ErrorResponse::new(ErrorCode::Unauthorized, message));
        };
        if !key.is_enabled() {
            let message = "this key of the application is not enabled";
            return Err(ErrorResponse::new(ErrorCode::Forbidden, message));
        }
        Ok(Client::Known(throng_access::Client::Token(Arc::clone(app.client()))))
    }

    /// Fails unless pages of the request's origin may use the application that it names.
    pub(super) fn check_app_page(&self, request: &Request, key: &str) -> Result<(), ErrorResponse> {
        let (apps, pages) = (self.access.apps.load(), self.settings.pages.load());
        let (origin, policy) = (request.origin.as_deref(), self.settings.origin_policy(&pages));
        match apps.with_key(key) {
            Some((app, _)) if !app.allows_page(origin, policy) => {
                let message = "pages of this origin may not use this application";
                Err(ErrorResponse::new(ErrorCode::OriginRefused, message))
            }
            _ => Ok(()),
        }
    }

    /// Takes a client for the user that its application has signed it to be.
    pub(super) fn sign_in_by_app(
        &mut self,
        Call { id, reference }: Call<'_>,
        (user, watchlist): (&str, &[Box<str>]),
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        let gone = || ErrorResponse::from(ErrorCode::Unauthorized);
        let app = self.app_of(id).ok_or_else(gone)?;
        let name = app.app().own(user);
        let session = self.connections().session(id).ok_or_else(gone)?;
        let is_signed_in = session.has_user();
        if is_signed_in && !session.is_of_user(&name, &self.access.tagger) {
            let message = "this connection is signed in as another user";
            return Err(ErrorResponse::new(ErrorCode::Forbidden, message).into());
        }
        if !is_signed_in {
            self.fetch_bookmarks(id, &name, &mut answers.fetched)?;
            let identity = Arc::new(app.client_of(user));
            let client = Client::Known(throng_access::Client::Token(identity));
            self.become_user(id, &client)?;
        }
        self.reply(id, &Saying::Authenticated(Some(&name), 0), reference);
        if !is_signed_in {
            self.go_on_as(id, &name);
            self.watch_users(id, app.app(), watchlist);
        }
        Ok(())
    }

    /// The connection of a client that was nobody in particular is a user's from now on.
    fn become_user(&mut self, id: ConnectionId, client: &Client) -> Result<(), Refusal> {
        let (limiter, shown) = (&self.access.clients.limiter, self.limited_by(client));
        let shown = shown.without_app();
        limiter.admit_connection(shown, true, self.clock().unix_ms())?;
        self.replace_session(id, client);
        self.notify_client(id, client.credentials(), "websocket");
        Ok(())
    }

    /// Fails unless the client may publish an event to a channel now, where its dialect has rules
    /// for that.
    pub(super) fn check_client_event(
        &mut self,
        id: ConnectionId,
        name: &ChannelName,
    ) -> Result<(), ErrorResponse> {
        let most = self[id].encoding().dialect().client_events_per_s();
        let Some(most) = most else { return Ok(()) };
        if self.own_subscription(id, name).is_none() {
            let message = "clients publish to channels that they follow";
            return Err(ErrorResponse::new(ErrorCode::NotSubscribed, message));
        }
        let second = self.clock().wall_s();
        if self.client_events.count(id, second, most) {
            return Ok(());
        }
        let message = format!("a client publishes at most {} events a second", most);
        Err(ErrorResponse::new(ErrorCode::TooManyRequests, message))
    }

    /// The members of a channel that the client is to be confirmed with, if its dialect has them
    /// there. They include the client.
    pub(super) fn first_members(&self, id: ConnectionId, name: &ChannelName) -> Option<MemberPage> {
        if !self[id].confirms_with_members() {
            return None;
        }
        let (now_ms, memory) = (self.clock().unix_ms(), self.engine.memory());
        // Who comes and goes between the steps is told of behind the first one's head, too.
        let mut page = memory.members(now_ms, name, None, MEMBERS_STEP);
        while let Some(after) = page.next.take().filter(|_| page.members.len() < APP_MEMBERS_MAX) {
            let more = memory.members(now_ms, name, Some(&after), MEMBERS_STEP);
            page.members.extend(more.members);
            page.next = more.next;
        }
        self.charge_read(id, page.members.iter().map(|member| member.len()).sum());
        Some(page)
    }

    /// Fails if the client would be a member more than its application allows.
    pub(super) fn check_room(
        &self,
        id: ConnectionId,
        name: &ChannelName,
        claim: Option<&MemberClaim>,
    ) -> Result<(), ErrorResponse> {
        let Some(user) = claim.and_then(|claim| claim.user.as_deref()) else { return Ok(()) };
        if !self[id].confirms_with_members() {
            return Ok(());
        }
        let Some(most) = self.app_of(id).map(|app| app.max_members()) else { return Ok(()) };
        let memory = self.engine.memory();
        if memory.members_of(name) >= most as u64 && !memory.has_member(name, user) {
            let message = format!("a channel has at most {most} members");
            return Err(ErrorResponse::new(ErrorCode::NotStored, message));
        }
        Ok(())
    }

    /// Where the client's subscription stands, if its dialect confirms one again.
    ///
    /// # Errors
    ///
    /// The client has read as much as it may.
    pub(super) fn start_again(
        &self,
        id: ConnectionId,
        name: &ChannelName,
        own: SubscriptionId,
    ) -> Result<Option<Start>, Refusal> {
        let cursors = self.cursors();
        let (Some((number, _)), Some(position), true) =
            (cursors.channel(own), cursors.position(own), self[id].confirms_with_members())
        else {
            return Ok(None);
        };
        self.limit_reading(id)?;
        let is_member = cursors.terms(own).is_some_and(|terms| terms.member.is_some());
        let page = is_member.then(|| self.first_members(id, name)).flatten();
        let members = page.map(|page| page.members);
        Ok(Some(Start { id: position, number, head: Some(position), recovered: None, members }))
    }

    /// The member that the connection is of a channel.
    pub(super) fn member_of(&self, id: ConnectionId, channel: &ChannelName) -> Option<&str> {
        let own = self.own_subscription(id, channel)?;
        self.cursors().terms(own)?.member.as_deref()
    }
}
