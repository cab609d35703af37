//! What handshakes are made with: rustls's configurations, with what the record layer needs of
//! them.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion, version};

use crate::handshake::{Handshake, HandshakeError, UserOf};
use crate::secrets::SecretCatcher;
use crate::tickets::{CurrentTicket, Ticket};

/// The lowest protocol version that is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeastVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    Tls12,
    /// Only TLS 1.3.
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

/// The algorithms: those of ring, AES-128-GCM first. It has the smaller secrets, the cheaper
/// derivation of keys, and is not slower than the others.
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

/// Starts the handshakes of a server. Clones share the configuration, which can be replaced.
#[derive(Clone)]
pub struct Acceptor {
    config: Arc<RwLock<Arc<ServerConfig>>>,
    user_of: Option<UserOf>,
}

impl Acceptor {
    /// Takes a configuration, and sets in it what the record layer relies on: secrets can be taken
    /// out, this side's order of suites counts, no data comes early, no session is kept here.
    /// Tickets, ALPN, certificates and versions stay as they are.
    pub fn new(config: ServerConfig) -> Self {
        Self { config: Arc::new(RwLock::new(prepared(config))), user_of: None }
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
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = prepared(config);
    }

    /// A handshake that waits for the client's first record.
    pub fn handshake(&self) -> Result<Handshake, HandshakeError> {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
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

    /// A handshake that shows a ticket of the same server. What becomes of it is in
    /// [`Peer::is_resumed`](crate::Peer::is_resumed).
    pub fn resume(
        &self,
        server: ServerName<'static>,
        ticket: Option<Ticket>,
    ) -> Result<Handshake, HandshakeError> {
        Handshake::client(Arc::clone(&self.config), server, ticket, self.resumes)
    }
}
