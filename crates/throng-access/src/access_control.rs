//! Access control, shared by both planes.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;

use crate::authenticator::Authenticator;
use crate::certificate::CertificateUsers;
use crate::clients::Clients;
use crate::connect::{Connect, Passed};
use crate::kept::{KeptSubscriptions, SharedKept};
use crate::policy::{Access, AllowAll};
use crate::refusal_log::RefusalLog;
use crate::revocation::{FileStorage, RevocationLog, SharedRevocations};
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
        }
    }

    /// Access control that allows every action to every client.
    pub fn allow_all() -> Arc<AccessControl> {
        Arc::new(AccessControl::open(Arc::new(AllowAll)))
    }

    /// True if access is controlled: the server has keys of any kind, or asks who its clients are,
    /// or their certificates say so. Then a client has no user without one of them.
    pub fn has_keys(&self) -> bool {
        let has_keys = self.tokens.is_some() || !self.server_keys.load().is_empty();
        has_keys || self.connect.is_some() || self.certificates.is_some()
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
