//! Access control, shared by both planes.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;
use throng_core::Listener;
use throng_core::later::{Answer, Later};
use throng_core::name::Kind;
use throng_wire::{ErrorCode, ErrorResponse};

use crate::apps::Apps;
use crate::authenticator::Authenticator;
use crate::certificate::CertificateUsers;
use crate::clients::Clients;
use crate::connect::{Connect, Passed};
use crate::kept::{KeptSubscriptions, SharedKept};
use crate::permission::Permission;
use crate::policy::{Access, Action, AllowAll, Asker, Credentials, Decision};
use crate::refusal_log::RefusalLog;
use crate::refused_credentials::RefusedCredentials;
use crate::revocation::{FileStorage, RevocationLog, SharedRevocations};
use crate::rule::Denial;
use crate::server_key::ServerKeys;
use crate::session::Tagger;

/// Access control, shared by both planes. It does not change while the server runs, except through
/// its parts: keys rotate, and tokens are revoked.
pub struct AccessControl {
    pub policy: Arc<dyn Access>,
    /// Verifies tokens. `None` if the server has no keys for tokens; then every token is refused.
    pub tokens: Option<Arc<Authenticator>>,
    /// Says who a client is that shows no credential. `None` if nothing does; then it is nobody.
    pub connect: Option<Arc<dyn Connect>>,
    /// Says which user a client certificate names. `None` if certificates only decide who may
    /// connect.
    pub certificates: Option<CertificateUsers>,
    /// The applications whose clients speak the Pusher protocol. A reload replaces them.
    pub apps: ArcSwap<Apps>,
    /// The parts of a request that `policy` and `connect` get besides its credential.
    pub passed: Passed,
    /// The keys that applications show. A reload replaces them, but for an empty set.
    pub server_keys: ArcSwap<ServerKeys>,
    /// The file of revocations, which the control plane takes when it starts. `None` if the
    /// settings name none; then nothing can be revoked.
    pub revocations: Mutex<Option<RevocationLog<FileStorage>>>,
    /// The revocations of several servers, instead of a file.
    pub shared_revocations: OnceLock<Arc<SharedRevocations>>,
    /// Makes the tags by which the sessions of a user or of a token are found.
    pub tagger: Tagger,
    /// The name of the cookie that may have the token; `None` if cookies do not count.
    pub token_cookie: Option<Box<str>>,
    /// Where the addresses of clients come from, and their limits.
    pub clients: Arc<Clients>,
    /// The channels that users follow without asking for them.
    pub kept: Arc<KeptSubscriptions>,
    /// The same, of several servers: what they share, if there are others.
    pub shared_kept: OnceLock<Arc<SharedKept>>,
    /// Tells the operator about clients that were refused.
    pub refusals: Arc<RefusalLog>,
    /// Counts the credentials that either plane has refused.
    pub refused_credentials: RefusedCredentials,
}

impl AccessControl {
    /// Access control of a server without keys: a client is the user that it says, and `policy`
    /// decides what it may do.
    pub fn open(policy: Arc<dyn Access>) -> AccessControl {
        AccessControl {
            policy,
            tokens: None,
            connect: None,
            certificates: None,
            apps: ArcSwap::default(),
            passed: Passed::default(),
            server_keys: ArcSwap::default(),
            revocations: Mutex::new(None),
            shared_revocations: OnceLock::new(),
            tagger: Tagger::from_seed([0; 16]),
            token_cookie: None,
            clients: Arc::default(),
            kept: Arc::default(),
            shared_kept: OnceLock::new(),
            refusals: Arc::default(),
            refused_credentials: RefusedCredentials::default(),
        }
    }

    /// Access control that allows every action to every client.
    pub fn allow_all() -> Arc<AccessControl> {
        Arc::new(AccessControl::open(Arc::new(AllowAll)))
    }

    /// True if access is controlled: the server has keys of any kind, those of applications
    /// included, or asks who its clients are, or their certificates say so. Then a client has no
    /// user without one of them.
    pub fn has_keys(&self) -> bool {
        let has_keys = self.tokens.is_some() || !self.server_keys.load().is_empty();
        let has_keys = has_keys || !self.apps.load().is_empty();
        has_keys || self.connect.is_some() || self.certificates.is_some()
    }

    /// Decides whether `asker` may perform `action`. The policy has to allow it, and an inbox is
    /// followed only by its user. Never waits; see [`Access::may`].
    pub fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        match self.check_user(asker, action) {
            Ok(()) => self.policy.may(asker, action, later),
            Err(error) => Decision::Denied(error).into(),
        }
    }

    /// True if the decision about a publication depends on its content: see
    /// [`Access::reads_content`].
    pub fn reads_content(&self, asker: &Asker<'_>, action: Action<'_>) -> bool {
        self.policy.reads_content(asker, action)
    }

    /// Fails if `action` is to follow the inbox of a user other than the asker. A token or a key
    /// may grant it explicitly; no rule by channel does. A server without keys believes its
    /// clients, and the admin listener belongs to the application.
    fn check_user(&self, asker: &Asker<'_>, action: Action<'_>) -> Result<(), ErrorResponse> {
        let Action::Subscribe(name) = action else { return Ok(()) };
        let is_free = asker.listener == Listener::Admin || !self.has_keys();
        if name.kind() != Kind::User || is_free {
            return Ok(());
        }
        let Credentials::Known { user, grants } = asker.credentials else {
            return Err(ErrorResponse::new(ErrorCode::Unauthorized, "a user needs a token"));
        };
        if user == Some(name.name()) || grants.allow(Permission::Subscribe, name, user) {
            return Ok(());
        }
        if grants.is_of_key() {
            return Err(Denial::OutOfScope.error(action));
        }
        let message = "the token is of another user than the request";
        Err(ErrorResponse::new(ErrorCode::Forbidden, message))
    }

    /// True if a browser may send by itself what says who a client is: a cookie or a certificate.
    pub fn uses_cookies(&self) -> bool {
        self.token_cookie.is_some()
            || self.certificates.is_some()
            || self.connect.as_ref().is_some_and(|connect| connect.passes_cookies())
    }
}

impl fmt::Debug for AccessControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessControl").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use throng_core::later::{Later, Ticket};
    use throng_core::name::ChannelName;

    use super::*;
    use crate::grants::Grants;
    use crate::server_key::ServerKey;

    fn error_of(access: &AccessControl, asker: &Asker<'_>, name: &str) -> Option<ErrorCode> {
        let inbox = ChannelName::user(name);
        let mut issue = || Ticket::new(drop);
        let answer = access.may(asker, Action::Subscribe(&inbox), Later::new(&mut issue));
        let decision = answer.now().expect("nobody else is asked");
        decision.allowed_until_ms().err().map(|error| error.code)
    }

    #[test]
    fn no_rule_lets_others_follow_the_inbox_of_a_user() {
        let key = ServerKey::for_tests("app", &["subscribe"]);
        let narrow = ServerKey::for_tests("other", &["publish"]);
        let granting = Grants::from_claim(r#"{"subscribe": [{"users": "*"}]}"#).expect("a claim");
        let none = Grants::default();
        let mut access = AccessControl::open(Arc::new(AllowAll));
        let claimed = Credentials::Claimed { user: "bob" };
        let known = |user, grants| Credentials::Known { user, grants };
        for credentials in [Credentials::Anonymous, claimed] {
            let asker = Asker { credentials, ..Asker::default() };
            assert_eq!(error_of(&access, &asker, "ann"), None, "without keys");
        }
        access.certificates = Some(CertificateUsers::new(Arc::default()));
        let (forbidden, unauthorized) = (ErrorCode::Forbidden, ErrorCode::Unauthorized);
        for (credentials, error) in [
            (Credentials::Anonymous, Some(unauthorized)),
            (claimed, Some(unauthorized)),
            (known(Some("ann"), &none), None),
            (known(Some("bob"), &none), Some(forbidden)),
            (known(None, key.grants()), None),
            (known(None, narrow.grants()), Some(forbidden)),
            (known(Some("bob"), &granting), None),
        ] {
            let asker = Asker { credentials, ..Asker::default() };
            assert_eq!(error_of(&access, &asker, "ann"), error, "{credentials:?}");
            let asker = Asker { listener: Listener::Admin, ..asker };
            assert_eq!(error_of(&access, &asker, "ann"), None, "the application's listener");
        }
    }
}
