//! Finds out who a client is, by the token or key that it shows.

use std::sync::Arc;

use throng_access::authenticator::Now;
use throng_access::server_key::{PREFIX, ServerKey};
use throng_access::{
    Action, Identity, Lead, Permission, Refusal, Session, ShownToken, VerifiedToken, choose_cookie,
    limit,
};
use throng_core::{Answer, ChannelName, IdempotencyKey, LateAnswer, Later, Publisher};
use throng_wire::credential::{Credential, Place, of_subscription};
use throng_wire::head::{self, Head, Limits, Parsed};
use throng_wire::subscribe::Request;
use throng_wire::{ErrorCode, ErrorResponse};

use super::ask::{Known, Wait, ticket};
use super::client::Client;
use crate::connection::{ConnectionId, Flags, Stage, Tried};
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

impl Unidentified {
    fn code(&self) -> ErrorCode {
        match self {
            Unidentified::Refused(error) => error.code,
            Unidentified::Limited(_) => ErrorCode::TooManyRequests,
            Unidentified::Later(_) => ErrorCode::Busy,
        }
    }
}

impl From<ErrorResponse> for Unidentified {
    fn from(error: ErrorResponse) -> Unidentified {
        Unidentified::Refused(error)
    }
}

impl<N: Net> Worker<N> {
    /// The client of a subscription that has waited until this is `known`. `head` begins with the
    /// head of its request. `told` is the application's earlier answer about the client.
    pub(in crate::worker) fn identify_again(
        &mut self,
        id: ConnectionId,
        request: &Request,
        head: &[u8],
        known: &Known,
        told: Option<Arc<Identity>>,
    ) -> Result<Client, Unidentified> {
        let limits = Limits { max_head_bytes: self.settings.max_head_bytes };
        let Ok(Parsed::Complete { head, .. }) = head::parse(head, limits) else {
            debug_assert!(false, "the head of a request was parsed before");
            return Err(ErrorResponse::from(ErrorCode::BadRequest).into());
        };
        let (tried, told) = match known {
            Known::Keys(tried) => (Tried::clone(tried), told),
            Known::Client(told) => (Tried::settled(), Some(Arc::clone(told))),
            _ => (Tried::settled(), told),
        };
        self.identify(id, request, &head, tried, told)
    }

    /// The client of a subscription, by the head of its request. `tried` has the verdicts on its
    /// tokens; `told` as in [`Worker::identify_again`].
    pub(in crate::worker) fn identify(
        &mut self,
        id: ConnectionId,
        request: &Request,
        head: &Head<'_>,
        tried: Tried,
        told: Option<Arc<Identity>>,
    ) -> Result<Client, Unidentified> {
        if self.connections[id].has(Flags::VIEWER) {
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
                None => self.identify_elsewhere(id, request, head, told),
            };
        };
        match credential.place() {
            Place::Cookie => self.check_cookie(request, head)?,
            Place::Header if credential.text().starts_with(PREFIX) => {
                return Ok(self.find_key(credential.text(), request)?);
            }
            Place::Header | Place::Query | Place::Subprotocol | Place::Command => {}
        }
        let (identity, text) = self.verify_shown(id, &credential, tried)?;
        self.confirm(id, request, head, ShownToken { identity: &identity, text }, told)
    }

    fn find_key(&self, text: &str, request: &Request) -> Result<Client, ErrorResponse> {
        if request.origin.is_some() {
            let message = "a server key must not be in a page: give pages tokens";
            return Err(ErrorResponse::new(ErrorCode::Forbidden, message));
        }
        match self.access.server_keys.load().find(text) {
            Ok(key) => {
                let tag = self.access.tagger.server_key(key.name());
                Ok(Client::Key { grants: Arc::clone(key.grants()), tag })
            }
            Err(error) => Err(ErrorResponse::new(ErrorCode::InvalidToken, error.to_string())),
        }
    }

    /// The token of a request that counts: of two cookies the valid one.
    fn verify_shown<'t>(
        &mut self,
        id: ConnectionId,
        credential: &'t Credential<'_>,
        mut tried: Tried,
    ) -> Result<VerifiedToken<'t>, Unidentified> {
        // To verify the other one again would charge its address again.
        let now_s = self.clock.wall_s();
        if tried.has_counted
            && let Some(verifier) = &mut self.verifier
            && let Some(text) = credential.texts().find(|text| verifier.knows(text, now_s))
        {
            return Ok((self.verify(id, text)?, text));
        }
        let first = self.try_token(id, 0, credential.text(), &mut tried);
        let Some(other) = credential.other_cookie() else { return first };
        if let Err(Unidentified::Later(_)) = first {
            return first;
        }
        match self.try_token(id, 1, other, &mut tried) {
            later @ Err(Unidentified::Later(_)) => later,
            second => choose_cookie(first, second, Unidentified::code),
        }
    }

    /// The verdict on the token at this place of those that a request has.
    fn try_token<'t>(
        &mut self,
        id: ConnectionId,
        at: usize,
        text: &'t str,
        tried: &mut Tried,
    ) -> Result<VerifiedToken<'t>, Unidentified> {
        if let Some(error) = &tried.refusals[at] {
            return Err(error.clone().into());
        }
        let refusal = match self.verify(id, text) {
            Ok(identity) => return Ok((identity, text)),
            Err(refusal) => refusal,
        };
        Err(match refusal {
            Unidentified::Later(wait) => {
                tried.at = at;
                Unidentified::Later(wait.after(std::mem::take(tried)))
            }
            Unidentified::Refused(error) => {
                tried.refusals[at] = Some(error.clone());
                error.into()
            }
            limited @ Unidentified::Limited(_) => limited,
        })
    }

    /// The identity by a connection's token, perhaps besides a certificate.
    pub(in crate::worker) fn verify(
        &mut self,
        id: ConnectionId,
        token: &str,
    ) -> Result<Arc<Identity>, Unidentified> {
        if token.starts_with(PREFIX) {
            let message = "this is a server key, not a token: it counts in the header \
                           `Authorization` only, and not in a page";
            return Err(ErrorResponse::new(ErrorCode::InvalidToken, message).into());
        }
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
                let peer = self.net.peer(&self.connections[id].socket)?;
                self.access.clients.source.of_connection(peer.ip())
            })
        };
        match tokens.verify_shortly(verifier, token, address, now, Later::new(&mut issue)) {
            Answer::Now(Ok(identity)) => Ok(self.with_certificate(id, identity)?),
            Answer::Now(Err(Refusal::Limited(refusal))) => Err(Unidentified::Limited(refusal)),
            Answer::Now(Err(refusal)) => Err(ErrorResponse::from(refusal).into()),
            Answer::Later(_) => {
                Err(Unidentified::Later(Wait::new(question, Stage::Keys(Box::default()))))
            }
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
                self.connections.begin_session(id, grants, None, session);
            }
            Client::Token(identity) => {
                let lead = self.lead(id, identity);
                let tagger = &self.access.tagger;
                let session = |place| Session::new(identity, place, tagger, lead);
                let (grants, user) = (identity.grants(), identity.user());
                self.connections.begin_session(id, grants, user, session);
            }
        }
    }

    /// How long before its end the client is told. The times of many clients that came together are
    /// spread. Only `throng.v1` has a word for it, and a way to show a newer token.
    fn lead(&self, id: ConnectionId, identity: &Identity) -> Lead {
        let connection = &self.connections[id];
        if !connection.has(Flags::V1) {
            return Lead::NONE;
        }
        let now_s = u32::try_from(self.clock.wall_s()).unwrap_or(u32::MAX);
        // Without a time of issue its life begins now.
        let from_s = if identity.issued_s() == 0 { now_s } else { identity.issued_s().min(now_s) };
        let window_s = identity.expires_s().saturating_sub(from_s) / LEAD_PART;
        let spread = u64::from(connection.generation.number().wrapping_mul(GOLDEN));
        let spread_s = (u64::from(window_s * 2 / 3) * spread) >> 32;
        Lead::from_s(window_s - spread_s as u32)
    }
}
