//! Asks the access policy for a request, and whether its client is still to be believed after it
//! has waited.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use http::request::Parts;
use throng_access::{Action, Asker, Client, Credentials, Decision, Details};
use throng_core::{Later, Listener, Publisher, WantedTags};
use throng_wire::ErrorResponse;

use crate::authentication::PassedOn;
use crate::control::Control;
use crate::http::caller::Caller;
use crate::late_answer::{PendingAnswer, ask};

/// How long a request waits for the access policy to decide before it is refused with `busy`.
const DECISION_TIMEOUT: Duration = Duration::from_secs(5);

/// A request that needs permissions. All its decisions together have one time limit.
pub(super) struct Permit<'r> {
    control: &'r Control,
    client: &'r Client,
    credentials: Credentials<'r>,
    listener: Listener,
    /// The part of the request that policies and callouts see.
    passed: PassedOn,
    wait_left: Duration,
}

impl<'r> Permit<'r> {
    /// The request with this head, of `client`.
    pub(super) fn of(
        control: &'r Control,
        head: &Parts,
        client: &'r Client,
    ) -> Result<Permit<'r>, ErrorResponse> {
        Ok(Permit {
            control,
            client,
            credentials: client.credentials(),
            listener: Caller::of(head).listener,
            passed: control.authentication.passed(&control.settings, head)?,
            wait_left: DECISION_TIMEOUT,
        })
    }

    /// The same, of a client that says it is `user`.
    pub(super) fn with_user(self, user: Option<&'r str>) -> Permit<'r> {
        let credentials = self.control.authentication.credentials(self.client, user);
        Permit { credentials, ..self }
    }

    /// Fails unless the client may do this.
    pub(super) async fn ask(&mut self, action: Action<'_>) -> Result<(), ErrorResponse> {
        let asked = match self.ask_policy(&self.asker(), action) {
            PendingAnswer::Answered(decision) => return decision.allowed_until_ms().map(drop),
            waits @ PendingAnswer::Waits(..) => waits,
        };
        let started = Instant::now();
        let decision = asked.within(self.wait_left).await;
        self.wait_left = self.wait_left.saturating_sub(started.elapsed());
        decision.ok_or_else(ErrorResponse::unanswered)?.allowed_until_ms()?;
        self.recheck(action)
    }

    /// Fails if what the client has shown has ended or was revoked while the request waited, or if
    /// the rules that hold now do not allow `action` any more. What was asked elsewhere is not
    /// asked again.
    pub(super) fn recheck(&self, action: Action<'_>) -> Result<(), ErrorResponse> {
        self.control.authentication.recheck(self.client)?;
        let asker = Asker { is_repeated: true, ..self.asker() };
        match self.ask_policy(&asker, action) {
            PendingAnswer::Answered(decision) => decision.allowed_until_ms().map(drop),
            PendingAnswer::Waits(..) => Ok(()),
        }
    }

    /// The publisher to whom the request's idempotency keys belong.
    pub(super) fn publisher(&self) -> Publisher<'r> {
        match self.client {
            Client::Token(identity) => identity.user().map_or(Publisher::Token, Publisher::User),
            Client::Key(key) => Publisher::ServerKey(key.name()),
            Client::Anonymous if self.listener == Listener::Admin => Publisher::Operator,
            Client::Anonymous => Publisher::Anonymous,
        }
    }

    fn asker(&self) -> Asker<'_> {
        let Permit { listener, credentials, .. } = *self;
        let details = Details { address: self.passed.address, headers: Some(&self.passed.headers) };
        Asker { listener, credentials, details, is_repeated: false }
    }

    fn ask_policy(&self, asker: &Asker<'_>, action: Action<'_>) -> PendingAnswer<Decision> {
        let may = |later: Later<'_, _>| {
            Ok::<_, Infallible>(self.control.authentication.may(asker, action, later))
        };
        let Ok(asked) = ask(may);
        asked
    }

    /// The connections of which the client may learn what they follow: its own. `None` if it is
    /// not known which these are.
    pub(super) fn own_connections(&self) -> Option<WantedTags> {
        let authentication = &self.control.authentication;
        match self.client {
            _ if !authentication.controls_access() => Some(WantedTags::ALL),
            Client::Key(_) => Some(WantedTags::ALL),
            _ if self.listener == Listener::Admin => Some(WantedTags::ALL),
            Client::Token(identity) => identity.user().map(|user| authentication.tags_of(user)),
            Client::Anonymous => None,
        }
    }
}
