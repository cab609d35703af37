//! Finds out who sends a request: checks its token or server key.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `certified` | who a client is by its certificate |
//! | `client` | the sender of a request, after the check |
//! | `connect` | asks the application who a client without a credential is |
//! | `operator` | who may see the status, disconnect and revoke |
//! | `verification` | verifies tokens without holding up other connections |
//! | `refused` | counts what is refused, by reason |
//!
//! # Invariants
//!
//! * On a server without keys nothing that a request shows is looked at, because a proxy in front
//!   may have a use of its own for it.
//! * A login counts for status and metrics only, so that no page can publish or revoke by it.
//! * No response and no line of the log contains a credential or a part of one.

mod certified;
mod client;
mod connect;
mod operator;
mod refused;
mod verification;

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{HeaderValue, ORIGIN};
use http::request::Parts;
use throng_access::{
    AccessControl, CacheCounts, Credentials, Identity, KeyRefusal, ServerKey, ShownToken,
    VerifiedToken, choose_cookie,
};
use throng_core::{Listener, WantedTags};
use throng_wire::credential::{self, Credential, Place};
use throng_wire::{ErrorCode, ErrorResponse};

use crate::http::answer::ApiError;
use crate::http::caller::Caller;
use crate::http::origin;
use crate::settings::Settings;
pub(crate) use client::Client;
pub(crate) use connect::PassedOn;
use operator::{LoginDesk, require_scope};
pub(crate) use operator::{Operation, logged_out};
pub(crate) use refused::RefusedCredentials;
use verification::Verification;

/// Checks the credentials of all requests, and counts those that it refuses.
pub(crate) struct Authentication {
    access: Arc<AccessControl>,
    verification: Verification,
    /// Logs operators in to the status page.
    desk: LoginDesk,
    refused: RefusedCredentials,
}

impl Authentication {
    pub(crate) fn new(access: Arc<AccessControl>) -> Authentication {
        Authentication {
            verification: Verification::new(access.tokens.clone()),
            desk: LoginDesk::new(&access.tagger),
            refused: RefusedCredentials::default(),
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

    /// The tag of the user that a token names, for the limits of users.
    pub(crate) fn user_tag(&self, identity: &Identity) -> Option<u64> {
        identity.user().map(|user| self.access.tagger.user(user))
    }

    /// The tag of a server key, for the limits of keys.
    pub(crate) fn key_tag(&self, key: &ServerKey) -> u64 {
        self.access.tagger.server_key(key.name())
    }

    pub(crate) fn refused(&self) -> &RefusedCredentials {
        &self.refused
    }

    /// The sender of a request that does not subscribe.
    pub(crate) async fn client(
        &self,
        settings: &Settings,
        head: &Parts,
    ) -> Result<Client, ApiError> {
        let find = |cookie: Option<&str>| {
            credential::of_request(|name| values(&head.headers, name), cookie)
        };
        self.client_by(settings, head, find).await
    }

    /// The sender of a request whose credential `find` finds. It gets the name of the cookie that
    /// may have a token.
    pub(crate) async fn client_by<'a>(
        &self,
        settings: &Settings,
        head: &Parts,
        find: impl FnOnce(Option<&str>) -> Result<Option<Credential<'a>>, ErrorResponse>,
    ) -> Result<Client, ApiError> {
        if !self.access.has_keys() {
            return Ok(Client::Anonymous);
        }
        let Some(credential) = find(self.access.token_cookie.as_deref())? else {
            return match self.identify_by_certificate(settings, head)? {
                Some(client) => Ok(client),
                None => self.identify_elsewhere(settings, head).await,
            };
        };
        // Browsers send cookies by themselves, with requests of foreign pages as well.
        if credential.place() == Place::Cookie {
            origin::check_cookie(settings, head)?;
        }
        let has_origin = head.headers.contains_key(ORIGIN);
        if credential.place() == Place::Header
            && let Some(found) =
                self.access.server_key((credential.text(), Place::Header), has_origin)
        {
            return match found {
                Ok(key) => Ok(Client::Key(key)),
                Err(refusal) => Err(self.refuse_key(refusal).into()),
            };
        }
        let (identity, text) = self.verify_shown(head, &credential, has_origin).await?;
        let token = ShownToken { identity: &identity, text };
        Ok(Client::Token(self.confirm(settings, head, token).await?))
    }

    /// The token of a request that counts: of two cookies the valid one.
    async fn verify_shown<'t>(
        &self,
        head: &Parts,
        credential: &'t Credential<'_>,
        has_origin: bool,
    ) -> Result<VerifiedToken<'t>, ApiError> {
        let address = self.limited_address(head)?;
        let verify = async |text: &'t str| {
            if let Some(Err(refusal)) =
                self.access.server_key((text, credential.place()), has_origin)
            {
                return Err(ApiError::from(self.refuse_key(refusal)));
            }
            let verified = self.verification.verify(text, address).await;
            let identity = verified.inspect_err(|refusal| self.refused.count(refusal.label()))?;
            Ok((self.with_certificate(head, identity)?, text))
        };
        let first = verify(credential.text()).await;
        let Some(other) = credential.other_cookie() else { return first };
        choose_cookie(first, verify(other).await, |refusal: &ApiError| refusal.error.code)
    }

    /// Fails if a client that was checked before is not to be believed any more: what it has shown
    /// may have ended, or may have been revoked, while its body was awaited.
    pub(crate) fn recheck(&self, client: &Client) -> Result<(), ErrorResponse> {
        let Client::Token(identity) = client else { return Ok(()) };
        let now_s = verification::now_s();
        if let Some(certificates) = &self.access.certificates
            && identity.is_of_certificate()
        {
            return certificates.recheck(identity, now_s);
        }
        match (&self.access.connect, &self.access.tokens) {
            (Some(connect), _) if identity.is_of_application() => connect.recheck(identity, now_s),
            (_, Some(tokens)) if tokens.authority().revocations().is_revoked(identity) => {
                Err(ErrorCode::TokenRevoked.into())
            }
            _ if !identity.is_current(now_s) => Err(ErrorCode::TokenExpired.into()),
            _ => Ok(()),
        }
    }

    /// The address for which a token counts that is forged or waits for a key, or a denial. Whoever
    /// reaches the admin listener has no limits as an address.
    fn limited_address(&self, head: &Parts) -> Result<Option<IpAddr>, ApiError> {
        let (caller, clients) = (Caller::of(head), &self.access.clients);
        match caller.listener {
            Listener::Public if clients.limiter.limits_strangers() => {
                caller.address(&clients.source, head)
            }
            Listener::Public | Listener::Admin => Ok(None),
        }
    }

    /// The credentials of a client that subscribes and says that it is `user`. A server without
    /// keys believes it; otherwise the policy decides about that user's inbox.
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
            let has_origin = headers("origin").next().is_some();
            let key = self
                .access
                .server_key((credential.text(), credential.place()), has_origin)
                .ok_or_else(|| {
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
        self.refused.count(refusal.label());
        refusal.into()
    }
}

/// All values of a header, as the wire formats take them.
fn values<'a>(headers: &'a HeaderMap, name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes)
}
