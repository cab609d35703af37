//! Configurations of handshakes: rustls's, with the record layer's additions.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion, version};

use crate::handshake::{Handshake, HandshakeError, UserOf};
use crate::secrets::SecretCatcher;
use crate::tickets::{CurrentTicket, SessionTicket};

/// The lowest protocol version that is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeastVersion {
    #[default]
    Tls12,
    Tls13,
}

impl LeastVersion {
    /// The versions, for the builders of rustls.
    pub fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        static VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
        match self {
            Self::Tls12 => &VERSIONS,
            Self::Tls13 => &VERSIONS[..1],
        }
    }
}

/// The algorithms: ring's, AES-128-GCM first. It has the smaller secrets, the cheaper derivation of
/// keys, and is not slower than the others.
pub fn provider() -> CryptoProvider {
    use ring::cipher_suite::{
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    let cipher_suites = vec![
        TLS13_AES_128_GCM_SHA256,
        TLS13_AES_256_GCM_SHA384,
        TLS13_CHACHA20_POLY1305_SHA256,
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ];
    CryptoProvider { cipher_suites, ..ring::default_provider() }
}

/// The name of the protocol by which a certificate authority validates that a name leads to this
/// server (RFC 8737), as it stands in a ClientHello: behind its length.
const VALIDATION: &[u8] = b"\x0aacme-tls/1";

/// Starts the handshakes of a server. Clones share the configurations, which can be replaced.
#[derive(Clone)]
pub struct Acceptor {
    configs: Arc<RwLock<Configs>>,
    user_of: Option<UserOf>,
}

struct Configs {
    own: Arc<ServerConfig>,
    /// For handshakes of a certificate authority that validates a name, while one is awaited.
    validation: Option<Arc<ServerConfig>>,
}

impl Acceptor {
    /// Takes a configuration, and sets in it what the record layer relies on: secrets can be taken
    /// out, this side's order of suites counts, no data comes early, no session is kept here.
    /// Tickets, ALPN, certificates and versions stay as they are.
    pub fn new(config: ServerConfig) -> Self {
        let configs = Configs { own: prepared(config), validation: None };
        Self { configs: Arc::new(RwLock::new(configs)), user_of: None }
    }

    /// The same, which also tells whose certificate a client showed: see [`Peer::user`].
    ///
    /// [`Peer::user`]: crate::Peer::user
    #[must_use]
    pub fn with_users(self, user_of: UserOf) -> Self {
        Self { user_of: Some(user_of), ..self }
    }

    /// Uses this configuration from the next handshake on, in all clones. Handshakes under way go
    /// on with the one that they began with.
    pub fn replace(&self, config: ServerConfig) {
        self.configs.write().unwrap_or_else(PoisonError::into_inner).own = prepared(config);
    }

    /// Uses this configuration, in all clones, for the handshakes of certificate authorities that
    /// validate a name (RFC 8737); with `None` they are like any other.
    pub fn answer_validations(&self, config: Option<ServerConfig>) {
        let config = config.map(prepared);
        self.configs.write().unwrap_or_else(PoisonError::into_inner).validation = config;
    }

    /// A handshake that waits for the client's first record.
    pub fn handshake(&self) -> Result<Handshake, HandshakeError> {
        self.handshake_for(&[])
    }

    /// A handshake with a client whose first record begins with `input`, which is passed on later
    /// nevertheless. Only this one may be a validation.
    pub fn handshake_for(&self, input: &[u8]) -> Result<Handshake, HandshakeError> {
        let configs = self.configs.read().unwrap_or_else(PoisonError::into_inner);
        let is_validation = |_: &&Arc<ServerConfig>| {
            input.windows(VALIDATION.len()).any(|window| window == VALIDATION)
        };
        let validation = configs.validation.as_ref().filter(is_validation);
        let config = Arc::clone(validation.unwrap_or(&configs.own));
        drop(configs);
        Handshake::server(config, self.user_of.clone())
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

fn prepared(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(SecretCatcher);
    config.ignore_client_order = true;
    config.max_early_data_size = 0;
    config.send_half_rtt_data = false;
    // The one of rustls is 256 sessions behind a lock that all threads share.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Arc::new(config)
}

/// Starts the handshakes of a client.
#[derive(Clone, Debug)]
pub struct Connector {
    config: Arc<ClientConfig>,
    resumes: bool,
}

impl Connector {
    /// Takes a configuration, and sets in it what the record layer relies on: secrets can be taken
    /// out, no data is sent early.
    pub fn new(mut config: ClientConfig) -> Self {
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(SecretCatcher);
        config.enable_early_data = false;
        Self { config: Arc::new(config), resumes: false }
    }

    /// Like [`Connector::new`], for clients that resume: each keeps its own ticket and passes it to
    /// [`Connector::resume`].
    pub fn resuming(mut config: ClientConfig) -> Self {
        config.resumption = Resumption::store(Arc::new(CurrentTicket));
        Self { resumes: true, ..Self::new(config) }
    }

    /// A handshake with this server, whose first `advance` needs no input.
    pub fn handshake(&self, server: ServerName<'static>) -> Result<Handshake, HandshakeError> {
        self.resume(server, None)
    }

    /// A handshake that shows a ticket of the same server.
    /// [`Peer::is_resumed`](crate::Peer::is_resumed) says whether the server accepted it.
    pub fn resume(
        &self,
        server: ServerName<'static>,
        ticket: Option<SessionTicket>,
    ) -> Result<Handshake, HandshakeError> {
        Handshake::client(Arc::clone(&self.config), server, ticket, self.resumes)
    }
}
