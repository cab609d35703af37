//! Finds out who a client is, by the token or key that it shows.

use std::sync::Arc;

use throng_access::authenticator::Now;
use throng_access::server_key::{PREFIX, ServerKey};
use throng_access::{Action, Identity, Lead, Permission, Refusal, Session, ShownToken, limit};
use throng_core::{Answer, ChannelName, IdempotencyKey, LateAnswer, Later, Publisher};
use throng_wire::credential::{Credential, Place, of_subscription};
use throng_wire::head::{self, Head, Limits, Parsed};
use throng_wire::subscribe::Request;
use throng_wire::{ErrorCode, ErrorResponse};

use super::ask::{Wait, ticket};
use super::client::Client;
use crate::connection::{ConnectionId, Flags, Stage};
use crate::net::Net;
use crate::worker::Worker;

/// A client is told that its session ends, within the last tenth of the life of its token: early
/// enough for a third of that to be left.
const LEAD_PART: u32 = 10;

/// 2^32 divided by the golden ratio: its multiples modulo 2^32 are spread evenly.
const GOLDEN: u32 = 0x9e37_79b9;

/// Why it is not known who a client is.
pub(in crate::worker) enum Unidentified {
    /// The request or command is refused.
    Refused(ErrorResponse),
    /// A limit of the client's address is reached.
    Limited(limit::Refusal),
    /// The key that verifies its token is being fetched.
    Later(Wait),
}

impl From<ErrorResponse> for Unidentified {
    fn from(error: ErrorResponse) -> Unidentified {
        Unidentified::Refused(error)
    }
}

impl<N: Net> Worker<N> {
    /// Who asks for a subscription that has waited. `head` begins with the head of its request.
    /// `told` is what the application has said of the client, if it was asked.
    pub(in crate::worker) fn identify_again(
        &mut self,
        id: ConnectionId,
        request: &Request,
        head: &[u8],
        told: Option<Arc<Identity>>,
    ) -> Result<Client, Unidentified> {
        let limits = Limits { max_head_bytes: self.settings.max_head_bytes };
        let Ok(Parsed::Complete { head, .. }) = head::parse(head, limits) else {
            debug_assert!(false, "the head of a request was parsed before");
            return Err(ErrorResponse::from(ErrorCode::BadRequest).into());
        };
        self.identify(id, request, &head, told)
    }

    /// Who asks for a subscription, by the head of its request; `told` as in
    /// [`Worker::identify_again`].
    pub(in crate::worker) fn identify(
        &mut self,
        id: ConnectionId,
        request: &Request,
        head: &Head<'_>,
        told: Option<Arc<Identity>>,
    ) -> Result<Client, Unidentified> {
        if self.connections.get(id).is_some_and(|found| found.has(Flags::VIEWER)) {
            return Ok(Client::Viewer);
        }
        if !self.access.has_keys() {
            let user = request.user().map(ChannelName::user);
            return Ok(Client::Unchecked { user });
        }
        let cookie = self.access.token_cookie.as_deref();
        let Some(credential) = of_subscription(head, request, cookie)? else {
            return match self.identify_by_certificate(id, request, head)? {
                Some(client) => Ok(client),
                None => self.identify_elsewhere(id, (request, head), told),
            };
        };
        self.check_place(&credential, request, head)?;
        if credential.text().starts_with(PREFIX) {
            return Ok(self.find_key(credential.text())?);
        }
        let token = self.verify(id, credential.text())?;
        self.confirm(
            id,
            (request, head),
            ShownToken { identity: &token, text: credential.text() },
            told,
        )
    }

    /// Fails if the credential does not count where it stands.
    fn check_place(
        &self,
        credential: &Credential<'_>,
        request: &Request,
        head: &Head<'_>,
    ) -> Result<(), ErrorResponse> {
        let is_key = credential.text().starts_with(PREFIX);
        if is_key && credential.place() != Place::Header {
            let message = "a server key counts in the header `Authorization` only";
            return Err(ErrorResponse::new(ErrorCode::InvalidToken, message));
        }
        if is_key && request.origin.is_some() {
            let message = "a server key must not be in a page: give pages tokens";
            return Err(ErrorResponse::new(ErrorCode::Forbidden, message));
        }
        if credential.place() == Place::Cookie {
            self.check_cookie(request, head)?;
        }
        Ok(())
    }

    fn find_key(&self, text: &str) -> Result<Client, ErrorResponse> {
        match self.access.server_keys.load().find(text) {
            Ok(key) => {
                let tag = self.access.tagger.server_key(key.name());
                Ok(Client::Key { grants: Arc::clone(key.grants()), tag })
            }
            Err(error) => Err(ErrorResponse::new(ErrorCode::InvalidToken, error.to_string())),
        }
    }

    /// What a token says that a connection shows, perhaps besides a certificate.
    pub(in crate::worker) fn verify(
        &mut self,
        id: ConnectionId,
        token: &str,
    ) -> Result<Arc<Identity>, Unidentified> {
        let question = self.next_question(id);
        // Limits need a clock that never goes back; tokens name moments of the machine's clock.
        let now = Now { steady_ms: self.clock.unix_ms(), unix_s: self.clock.wall_s() };
        let (engine, worker) = (&self.engine, self.metrics.worker());
        let (Some(tokens), Some(verifier)) = (&self.access.tokens, &mut self.verifier) else {
            let message = "this server has no keys that verify tokens";
            return Err(ErrorResponse::new(ErrorCode::InvalidToken, message).into());
        };
        let mut issue = || {
            ticket(engine, worker, question, |verdict: Result<Arc<Identity>, Refusal>| {
                // It is verified again, which costs little: it is in the cache now.
                LateAnswer::Keys(verdict.map(drop).map_err(ErrorResponse::from))
            })
        };
        // A system call, made only for a token that the cache does not know.
        let address = || {
            self.connections.address(id).or_else(|| {
                let peer = self.net.peer(&self.connections.get(id)?.socket)?;
                self.access.clients.source.of_connection(peer.ip())
            })
        };
        match tokens.verify_shortly(verifier, token, address, now, Later::new(&mut issue)) {
            Answer::Now(Ok(identity)) => Ok(self.with_certificate(id, identity)?),
            Answer::Now(Err(Refusal::Limited(refusal))) => Err(Unidentified::Limited(refusal)),
            Answer::Now(Err(refusal)) => Err(ErrorResponse::from(refusal).into()),
            Answer::Later(_) => Err(Unidentified::Later(Wait::new(question, Stage::Keys))),
        }
    }

    /// Who the connection is, for `action`. The user is known if the policy needs the names of
    /// users. Otherwise it is known where the connection follows the user's inbox, and where what
    /// the token grants, or the channel itself, shows the name.
    pub(in crate::worker) fn client(&self, id: ConnectionId, action: Action<'_>) -> Client {
        let Some(session) = self.connections.session(id) else {
            return if self.access.has_keys() {
                Client::Anonymous
            } else {
                Client::Unchecked { user: self.user_of(id) }
            };
        };
        let grants = Arc::clone(self.connections.grants_of(session));
        let user = self.user_of_session(id, session, action, &grants);
        Client::Session { user, grants }
    }

    fn user_of_session(
        &self,
        id: ConnectionId,
        session: &Session,
        action: Action<'_>,
        grants: &throng_access::Grants,
    ) -> Option<Box<str>> {
        if !session.has_user() {
            return None;
        }
        if let Some(name) = self.connections.user_of_session(session) {
            return Some(name.into());
        }
        // The session has only the tag of its user. Names come from elsewhere, and have to match
        // it.
        let is_user = |name: &str| session.is_of_user(name, &self.access.tagger);
        if let Some(inbox) = self.user_of(id)
            && is_user(inbox.name())
        {
            return Some(inbox.name().into());
        }
        let (permission, name): (Permission, _) = action.permission()?;
        if name.kind() == throng_core::Kind::User && is_user(name.name()) {
            return Some(name.name().into());
        }
        grants.recognise_user(permission, name, is_user).map(Into::into)
    }

    /// The idempotency key with this text of the connection, which publishes to `channel`.
    pub(in crate::worker) fn idempotency_key(
        &self,
        id: ConnectionId,
        channel: &ChannelName,
        text: &str,
    ) -> IdempotencyKey {
        let Some(session) = self.connections.session(id) else {
            return IdempotencyKey::new(Publisher::Anonymous, text);
        };
        let client = self.client(id, Action::Publish(channel));
        let keys = self.access.server_keys.load();
        let is_shown = |key: &&Arc<ServerKey>| {
            session.key_tag() == Some(self.access.tagger.server_key(key.name()))
        };
        let publisher = match (client.credentials().user(), session.user_tag()) {
            (Some(user), _) => Publisher::User(user),
            (None, Some(tag)) => Publisher::Unnamed(tag),
            (None, None) if session.key_tag().is_none() => Publisher::Token,
            // A key that was removed keeps its connections until they are closed.
            (None, None) => keys
                .iter()
                .find(is_shown)
                .map_or(Publisher::Token, |key| Publisher::ServerKey(key.name())),
        };
        IdempotencyKey::new(publisher, text)
    }

    /// Begins the session of a connection that has just been parked. It counts already for its user
    /// or server key.
    pub(in crate::worker) fn begin_session(&mut self, id: ConnectionId, client: &Client) {
        match client {
            Client::Unchecked { .. }
            | Client::Viewer
            | Client::Anonymous
            | Client::Session { .. } => {}
            Client::Key { grants, tag } => {
                let session = |place| Session::of_key(place, *tag);
                self.connections.begin_session(id, (grants, None), session);
            }
            Client::Token(identity) => {
                let lead = self.lead(id, identity);
                let tagger = &self.access.tagger;
                let known = (identity.grants(), identity.user());
                self.connections
                    .begin_session(id, known, |place| Session::new(identity, place, tagger, lead));
            }
        }
    }

    /// How long before its end the client is told. The times of many clients that came together are
    /// spread. Only `throng.v1` has a word for it, and a way to show a newer token.
    fn lead(&self, id: ConnectionId, identity: &Identity) -> Lead {
        let Some(connection) = self.connections.get(id).filter(|found| found.has(Flags::V1)) else {
            return Lead::NONE;
        };
        let now_s = u32::try_from(self.clock.wall_s()).unwrap_or(u32::MAX);
        // Without a time of issue its life begins now.
        let from_s = if identity.issued_s() == 0 { now_s } else { identity.issued_s().min(now_s) };
        let window_s = identity.expires_s().saturating_sub(from_s) / LEAD_PART;
        let spread = u64::from(connection.generation.number().wrapping_mul(GOLDEN));
        let spread_s = (u64::from(window_s * 2 / 3) * spread) >> 32;
        Lead::from_s(window_s - spread_s as u32)
    }
}
