//! Finds out who sends a request, by the [identification](throng_access::identification) that both
//! planes share, and who is an operator.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `request` | a request, as the identification sees it |
//! | `operator` | who may see the status, disconnect and revoke |
//! | `verification` | verifies tokens without holding up other connections |
//!
//! # Invariants
//!
//! * A login counts for status and metrics only, so that no page can publish or revoke by it.
//! * No response and no line of the log contains a credential or a part of one.

mod operator;
mod request;
mod verification;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderValue;
use http::request::Parts;
use throng_access::limit::ClientKeys;
use throng_access::{
    AccessControl, Action, Answers, Apps, Asker, CacheCounts, Client, ClientApp, Credentials,
    Decision, Identification, KeyRefusal, PassedHeaders, Refused, RefusedCredentials, ServerKey,
    Step,
};
use throng_core::{Answer, Later, Listener, WantedTags};
use throng_wire::credential;
use throng_wire::head::Head;
use throng_wire::subscribe::Request;
use throng_wire::{ErrorCode, ErrorResponse};

use crate::http::answer::ApiError;
use crate::http::caller::Caller;
use crate::http::origin;
use crate::late_answer::within;
use crate::settings::Settings;
use operator::{LoginDesk, require_scope};
pub(crate) use operator::{Operation, logged_out};
use request::{ShownRequest, values};
use verification::{Verification, now};

/// How long a request waits until the application has said who its client is, before it is refused
/// with `busy`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The part of a request that policies and callouts see, besides its credential.
#[derive(Debug, Default)]
pub(crate) struct PassedOn {
    /// The client's address, if it is passed on.
    pub(crate) address: Option<IpAddr>,
    pub(crate) headers: PassedHeaders,
}

/// Checks the credentials of all requests.
pub(crate) struct Authentication {
    access: Arc<AccessControl>,
    verification: Verification,
    /// Logs operators in to the status page.
    desk: LoginDesk,
}

impl Authentication {
    pub(crate) fn new(access: Arc<AccessControl>) -> Authentication {
        Authentication {
            verification: Verification::new(access.tokens.clone()),
            desk: LoginDesk::new(&access.tagger),
            access,
        }
    }

    /// Hits and misses of the cache of verified tokens, which the workers share.
    pub(crate) fn cache_counts(&self) -> CacheCounts {
        let tokens = self.access.tokens.as_ref();
        tokens.map_or_else(CacheCounts::default, |tokens| tokens.authority().cache_counts())
    }

    /// How many tokens workers had verified elsewhere, because that takes long, and how many were
    /// refused because too many waited for it.
    pub(crate) fn slow_counts(&self) -> (u64, u64) {
        self.access.tokens.as_ref().map_or((0, 0), |tokens| tokens.slow_counts())
    }

    /// The parts of a client that have limits by what it has shown.
    pub(crate) fn limited_by(&self, client: &Client) -> ClientKeys {
        self.access.limited_by(client)
    }

    /// The applications whose clients speak the Pusher protocol, as they are now.
    pub(crate) fn apps(&self) -> Arc<Apps> {
        self.access.apps.load_full()
    }

    /// True if there are applications.
    pub(crate) fn has_apps(&self) -> bool {
        !self.access.apps.load().is_empty()
    }

    /// The limits of an application. A request counts towards them and towards its server key's.
    pub(crate) fn limited_app(&self, app: &ClientApp) -> ClientKeys {
        self.access.clients.limiter.app(Some(self.access.tagger.app(app.app().id())))
    }

    /// Credentials that either plane has refused, by reason.
    pub(crate) fn refused(&self) -> &RefusedCredentials {
        &self.access.refused_credentials
    }

    fn shown<'a>(&'a self, settings: &'a Settings, head: &'a Parts) -> ShownRequest<'a> {
        ShownRequest { access: &self.access, settings, head, subscription: None }
    }

    /// The part of a request that policies and callouts see, besides its credential.
    pub(crate) fn passed(
        &self,
        settings: &Settings,
        head: &Parts,
    ) -> Result<PassedOn, ErrorResponse> {
        let shown = self.shown(settings, head);
        let address = self.access.passed_address(&shown)?;
        Ok(PassedOn { address, headers: self.access.passed_headers(&shown)? })
    }

    /// The sender of a request that does not subscribe.
    pub(crate) async fn client(
        &self,
        settings: &Settings,
        head: &Parts,
    ) -> Result<Client, ApiError> {
        self.identify(&self.shown(settings, head)).await
    }

    /// The sender of a `HEAD` of the `GET` that subscribes, with all that that may show.
    pub(crate) async fn subscriber(
        &self,
        settings: &Settings,
        head: &Parts,
        (get, request): (&Head<'_>, &Request),
    ) -> Result<Client, ApiError> {
        let subscription = Some((get, request));
        self.identify(&ShownRequest { subscription, ..self.shown(settings, head) }).await
    }

    async fn identify(&self, shown: &ShownRequest<'_>) -> Result<Client, ApiError> {
        let identification = Identification::new(&self.access, shown, Answers::default());
        let mut identification = identification.map_err(api_error)?;
        loop {
            match identification.step(now()) {
                Step::Known(client) => return Ok(client),
                // No request is followed by anything that could show who sent it.
                Step::Awaited => return Ok(Client::Anonymous),
                Step::Refused(refused) => return Err(api_error(refused)),
                Step::Verify(token) => {
                    let address = self.access.limited_address(shown)?;
                    let verdict = self.verification.verify(token, address).await;
                    identification.verified(verdict, now());
                }
                Step::Ask(connect, question) => {
                    let ask = |later: Later<'_, _>| Ok(connect.who(question.newcomer(), later));
                    let Ok::<_, Infallible>(answer) = within(CONNECT_TIMEOUT, ask).await;
                    identification.told(answer, now());
                }
            }
        }
    }

    /// Fails if a client that was checked before is not to be believed any more: what it has shown
    /// may have ended, or may have been revoked, while its body was awaited.
    pub(crate) fn recheck(&self, client: &Client) -> Result<(), ErrorResponse> {
        self.access.recheck(client, now().unix_s)
    }

    /// The credentials of a client that subscribes and says that it is `user`. A server without
    /// keys believes it.
    pub(crate) fn credentials<'a>(
        &self,
        client: &'a Client,
        user: Option<&'a str>,
    ) -> Credentials<'a> {
        match user {
            Some(user) if !self.access.has_keys() => Credentials::Claimed { user },
            _ => client.credentials(),
        }
    }

    /// True if the decision about a publication depends on its content.
    pub(crate) fn reads_content(&self, asker: &Asker<'_>, action: Action<'_>) -> bool {
        self.access.reads_content(asker, action)
    }

    /// Whether `asker` may perform `action`; see [`AccessControl::may`].
    pub(crate) fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        self.access.may(asker, action, later)
    }

    /// True if pages of `origin` may send cookies, one of which may identify a client.
    pub(crate) fn allows_cookies(
        &self,
        settings: &Settings,
        listener: Listener,
        origin: &HeaderValue,
    ) -> bool {
        self.access.uses_cookies()
            && origin.to_str().is_ok_and(|origin| origin::lists(settings, listener, origin))
    }

    /// True if operators need a server key at this listener. Without server keys the admin listener
    /// trusts everyone who reaches it. A server without any keys decides by its addresses.
    pub(crate) fn demands_key(&self, listener: Listener) -> bool {
        match listener {
            Listener::Admin => !self.access.server_keys.load().is_empty(),
            Listener::Public => self.access.has_keys(),
        }
    }

    /// Fails unless the sender of a request may do this. Call it after the check of the origin.
    /// Returns the server key by which it may, if it needs one.
    pub(crate) fn check_operator(
        &self,
        settings: &Settings,
        head: &Parts,
        operation: Operation,
    ) -> Result<Option<Arc<ServerKey>>, ApiError> {
        let listener = Caller::of(head).listener;
        if listener == Listener::Public && settings.has_admin_listener {
            return Err(ErrorResponse::not_local().into());
        }
        if !self.demands_key(listener) {
            match operation {
                Operation::Metrics => origin::check_metrics(settings, head),
                Operation::Status
                | Operation::Administration
                | Operation::Listing
                | Operation::Subscriptions => origin::check_status(settings, head),
            }?;
            return Ok(None);
        }
        let key = self.operator(|name| values(&head.headers, name), operation)?;
        Ok(Some(key))
    }

    /// The server key by which a request with these headers comes from an operator.
    pub(crate) fn operator<'a, V: Iterator<Item = &'a [u8]>>(
        &self,
        headers: impl Fn(&'static str) -> V,
        operation: Operation,
    ) -> Result<Arc<ServerKey>, ErrorResponse> {
        let scope = operation.scope();
        if let Some(credential) = credential::of_request(&headers, None)? {
            let shown = (credential.text(), credential.place());
            let has_origin = || headers("origin").next().is_some();
            let key = self.access.server_key(shown, has_origin).ok_or_else(|| {
                ErrorResponse::new(ErrorCode::Forbidden, "only server keys may do this")
            })?;
            return require_scope(key.map_err(|refusal| self.refuse_key(refusal))?, scope);
        }
        credential::check_scheme(headers("authorization"))?;
        let login =
            if operation.accepts_login() { self.desk.find(&self.access, headers)? } else { None };
        let key = login.ok_or_else(|| {
            let message = format!("this needs a server key with the scope `{}`", scope.word());
            ErrorResponse::new(ErrorCode::Unauthorized, message)
        })?;
        require_scope(key, scope)
    }

    /// The header `Set-Cookie` for an operator who has shown `key` on the login page, as
    /// [`LoginDesk::log_in`] makes it.
    pub(crate) fn log_in(
        &self,
        key: &str,
        address: Option<IpAddr>,
        is_secure: bool,
    ) -> Result<String, ErrorResponse> {
        self.desk.log_in(&self.access, key, address, is_secure)
    }

    /// The names of the headers that those get who decide about clients.
    pub(crate) fn passed_headers(&self) -> &[Box<str>] {
        &self.access.passed.headers
    }

    /// True if clients are known by their credentials. On a server without keys anyone may know
    /// everything.
    pub(crate) fn controls_access(&self) -> bool {
        self.access.has_keys()
    }

    /// The tags of the tokens of a user.
    pub(crate) fn tags_of(&self, user: &str) -> WantedTags {
        self.access.tagger.of_user(user)
    }

    fn refuse_key(&self, refusal: KeyRefusal) -> ErrorResponse {
        self.refused().count(refusal.label());
        refusal.into()
    }
}

fn api_error(refused: Refused) -> ApiError {
    match refused {
        Refused::Error(error) => error.into(),
        Refused::Limited(refusal) => ApiError::limited(refusal),
    }
}
