//! Finds out who a client is, by the [identification](throng_access::identification) that both
//! planes share, and begins its session.

use std::sync::Arc;

use throng_access::authenticator::Now;
use throng_access::identification::Question;
use throng_access::server_key::ServerKey;
use throng_access::{
    AccessControl, Action, Connect, ConnectVerdict, Details, Identification, Identity, Lead,
    PassedHeaders, Permission, Refusal, Session, Shown, Step, Verdict, Verifier,
};
use throng_core::{
    Answer, Attributes, ChannelName, Channels, LateAnswer, Later, Publisher, QuestionId, Sender,
    WorkerId,
};
use throng_dialect::Encoding;
use throng_wire::credential::Token;
use throng_wire::head::Head;
use throng_wire::subscribe::Request;
use throng_wire::{ErrorResponse, Labels};

use super::ask::{Stop, Wait, ticket};
use super::client::Client;
use super::shown::{Connected, ShownCommand, ShownRequest};
use crate::connection::{Answers, Awaited, ConnectionId, Flags, KnownUser};
use crate::net::Net;
use crate::sessions::Sessions;

/// A client is told that its session ends, within the last tenth of the life of its token: early
/// enough for a third of that to be left.
const LEAD_PART: u32 = 10;

/// 2^32 divided by the golden ratio: its multiples modulo 2^32 are spread evenly.
const GOLDEN: u32 = 0x9e37_79b9;

/// Verifies tokens and asks the application for one identification, which may have to wait.
struct Asking<'a> {
    access: &'a Arc<AccessControl>,
    verifier: Option<&'a mut Verifier>,
    engine: &'a Arc<Channels>,
    worker: WorkerId,
    /// Names the answer that is waited for, if there is one.
    question: QuestionId,
    now: Now,
}

impl Asking<'_> {
    /// The client that shows this, with the answers that it has had. One that `may_come_later` may
    /// show nothing yet.
    fn identify(
        &mut self,
        shown: &impl Shown,
        may_come_later: bool,
        answers: &mut Answers,
    ) -> Result<Client, Stop> {
        let (access, now) = (self.access, self.now);
        let before = answers.identity.clone();
        let mut identification = Identification::new(access, shown, before.clone())?;
        if may_come_later {
            identification.let_come_later();
        }
        if let Some(verifier) = &mut self.verifier {
            identification.pass_over(|text| verifier.knows(text, now.unix_s));
        }
        let awaited = loop {
            match identification.step(now) {
                Step::Known(client) => {
                    let client = Client::Known(client);
                    answers.settle_identity(client.told().cloned(), true);
                    return Ok(client);
                }
                Step::Awaited => return Ok(Client::Unidentified),
                Step::Refused(refused) => return Err(refused.into()),
                Step::Verify(token) => match self.verify(token, shown) {
                    Answer::Now(verdict) => identification.verified(Some(verdict), now),
                    Answer::Later(_) => break Awaited::Keys,
                },
                Step::Ask(connect, question) => match self.ask(connect, &question) {
                    Answer::Now(answer) => identification.told(Some(answer), now),
                    Answer::Later(_) => break Awaited::Client,
                },
            }
        };
        let identity = identification.wait();
        let is_new = match awaited {
            Awaited::Keys => !answers.has_keys || identity.wait_for_others_than(&before),
            _ => true,
        };
        // What has been waited for before does not help now.
        if answers.is_identified || !is_new {
            if let Awaited::Keys = awaited {
                access.refused_credentials.count_unanswered();
            }
            return Err(ErrorResponse::unanswered().into());
        }
        answers.identity = identity;
        Err(Wait::new(self.question, awaited).into())
    }

    fn verify(&mut self, token: &str, shown: &impl Shown) -> Answer<Verdict> {
        let (Some(tokens), Some(verifier)) = (&self.access.tokens, &mut self.verifier) else {
            debug_assert!(false, "a token is verified on a server without keys for tokens");
            return Err(Refusal::TooManyWaiting).into();
        };
        let mut issue = || {
            ticket(self.engine, self.worker, self.question, |verdict: Verdict| {
                // A valid token is verified again, which costs little: it is in the cache now. A
                // refusal is counted once the client has it, which may have gone.
                let refused = |refusal: Refusal| (refusal.label(), ErrorResponse::from(refusal));
                LateAnswer::Keys(verdict.map(drop).map_err(refused))
            })
        };
        // A system call, made only for a token that the cache does not know.
        let address = || shown.address().unwrap_or_default();
        tokens.verify_shortly(verifier, token, address, self.now, Later::new(&mut issue))
    }

    fn ask(&self, connect: &dyn Connect, question: &Question<'_>) -> Answer<ConnectVerdict> {
        let mut issue = || {
            ticket(self.engine, self.worker, self.question, |verdict: ConnectVerdict| {
                LateAnswer::Client(verdict.map(|identity| identity as _))
            })
        };
        connect.who(question.newcomer(), Later::new(&mut issue))
    }
}

impl<N: Net> Sessions<N> {
    /// The client of a subscription, by the head of its request, with the answers that it has had.
    pub(crate) fn identify(
        &mut self,
        id: ConnectionId,
        request: &Request,
        head: &Head<'_>,
        answers: &mut Answers,
    ) -> Result<Client, Stop> {
        if self[id].has(Flags::VIEWER) {
            return Ok(Client::Viewer);
        }
        if let Some(key) = &request.app {
            return Ok(self.identify_app(key)?);
        }
        if !self.access.has_keys() {
            let user = request.user().map(ChannelName::user);
            return Ok(Client::Unchecked { user });
        }
        // What it wants to follow is allowed, or not, before its connection stands.
        let dialect = Encoding::of_request(request).dialect();
        let may_wait = dialect.has_commands() && request.targets.is_empty();
        let within = dialect.late_identity().or(self.settings.late_identity).within;
        let may_come_later = may_wait && within.is_some();
        let (on, mut asking) = self.asking(id);
        asking.identify(&ShownRequest { on, request, head }, may_come_later, answers)
    }

    /// The client that shows a token on its connection.
    pub(crate) fn identify_shown(
        &mut self,
        id: ConnectionId,
        token: &Token,
        answers: &mut Answers,
    ) -> Result<Client, Stop> {
        let (on, mut asking) = self.asking(id);
        asking.identify(&ShownCommand { on, token }, false, answers)
    }

    fn asking(&mut self, id: ConnectionId) -> (Connected<'_, N>, Asking<'_>) {
        let question = self.next_question(id);
        // Limits need a clock that never goes back; tokens name moments of the machine's clock.
        let now = Now { steady_ms: self.clock().unix_ms(), unix_s: self.clock().wall_s() };
        let Sessions { delivery, settings, access, verifier, engine, .. } = self;
        let sockets = &**delivery;
        let on = Connected { id, sockets, settings, access, now_ms: now.steady_ms };
        let (verifier, worker) = (verifier.as_mut(), sockets.metrics().worker());
        (on, Asking { access, verifier, engine, worker, question, now })
    }

    /// The headers of a request that an access policy gets; `None` if it gets none.
    pub(super) fn passed(
        &self,
        id: ConnectionId,
        request: &Request,
        head: &Head<'_>,
    ) -> Result<Option<PassedHeaders>, ErrorResponse> {
        if self.access.passed.headers.is_empty() {
            return Ok(None);
        }
        let shown = ShownRequest { on: self.connected(id), request, head };
        self.access.passed_headers(&shown).map(Some)
    }

    /// Details of the connection's client for an access policy, besides its credentials.
    pub(super) fn details<'a>(
        &self,
        id: ConnectionId,
        headers: Option<&'a PassedHeaders>,
    ) -> Details<'a> {
        let is_passed = self.access.passed.address;
        let address = if is_passed { self.connected(id).address() } else { None };
        Details { address, headers, content: None }
    }

    /// The application does not let a client in, and has said so later.
    pub(super) fn charge_denial(&self, id: ConnectionId, error: &ErrorResponse) {
        let address = self.connected(id).address();
        self.access.charge_denial(address, error, self.clock().unix_ms());
    }

    /// Who the connection is, for `action`. The user is known if the policy needs the names of
    /// users. Otherwise it is known where the connection follows the user's inbox, and where what
    /// the token grants, or the channel itself, shows the name.
    pub(crate) fn client(&self, id: ConnectionId, action: Action<'_>) -> Client {
        let Some(session) = self.connections().session(id) else {
            return if self.access.has_keys() {
                Client::Known(throng_access::Client::Anonymous)
            } else {
                Client::Unchecked { user: self.user_of(id) }
            };
        };
        let grants = Arc::clone(self.connections().side().grants_of(session));
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
        if let Some(name) = self.connections().side().user_of(session) {
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

    /// What `read` makes of the connection as a publisher to `channel`.
    pub(crate) fn as_publisher<T>(
        &self,
        id: ConnectionId,
        channel: &ChannelName,
        read: impl FnOnce(Publisher<'_>) -> T,
    ) -> T {
        let Some(session) = self.connections().session(id) else {
            return read(Publisher::Anonymous);
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
        read(publisher)
    }

    /// The attributes of a message that the connection publishes to `channel`: its labels, and the
    /// publisher as the channel's rule shows it.
    pub(crate) fn attributes(
        &self,
        id: ConnectionId,
        channel: &ChannelName,
        labels: &Labels,
    ) -> Option<Attributes> {
        let shown = self.engine.memory().rules().sender(channel);
        if self[id].encoding().dialect().client_events_per_s().is_some() {
            return Attributes::of_publication(labels, self.member_of(id, channel));
        }
        let from = match (shown, self.connections().session(id)) {
            (Sender::Nobody, _) | (_, None) => None,
            (Sender::User, Some(session)) => {
                let grants = self.connections().side().grants_of(session);
                self.user_of_session(id, session, Action::Publish(channel), grants)
            }
            (Sender::Name, Some(session)) => {
                self.connections().side().shown_name_of(session).map(Into::into)
            }
        };
        Attributes::of_publication(labels, from.as_deref())
    }

    /// Begins the session of a connection that has just been parked. It counts already for its user
    /// or server key.
    pub(crate) fn begin_session(&mut self, id: ConnectionId, client: &Client) {
        match client {
            Client::Known(throng_access::Client::Key(key)) => {
                let tag = self.access.tagger.server_key(key.name());
                let session = |place| Session::of_key(place, tag);
                self.connections_mut().begin_session(id, key.grants(), None, session);
            }
            Client::Known(throng_access::Client::Token(identity)) => {
                let lead = self.lead(id, identity);
                let tagger = &self.access.tagger;
                let session = |place| Session::new(identity, place, tagger, lead);
                let shows_names = self.engine.memory().rules().show_names();
                let shown = identity.name().filter(|_| shows_names);
                let has_members = self.engine.memory().rules().have_any_members();
                let info = identity.info().filter(|_| has_members);
                let user = identity.user().map(|user| KnownUser { user, shown, info });
                let connections = self.delivery.connections_mut();
                connections.begin_session(id, identity.grants(), user, session);
            }
            Client::Known(throng_access::Client::Anonymous)
            | Client::Unchecked { .. }
            | Client::Viewer
            | Client::Unidentified
            | Client::Session { .. } => {}
        }
    }

    /// How long before its end the client is told. The times of many clients that came together are
    /// spread. Only `throng.v1` has a word for it, and a way to show a newer token.
    fn lead(&self, id: ConnectionId, identity: &Identity) -> Lead {
        let connection = &self[id];
        if !connection.has_commands() {
            return Lead::NONE;
        }
        let now_s = u32::try_from(self.clock().wall_s()).unwrap_or(u32::MAX);
        // Without a time of issue its life begins now.
        let from_s = if identity.issued_s() == 0 { now_s } else { identity.issued_s().min(now_s) };
        let window_s = identity.expires_s().saturating_sub(from_s) / LEAD_PART;
        let spread = u64::from(connection.generation.number().wrapping_mul(GOLDEN));
        let spread_s = (u64::from(window_s * 2 / 3) * spread) >> 32;
        Lead::from_s(window_s - spread_s as u32)
    }
}
