//! What handshakes are made with: rustls's configurations, with what the record layer needs of
//! them.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion, version};

use crate::handshake::{Handshake, HandshakeError};
use crate::secrets::SecretCatcher;

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

/// Starts the handshakes of a server.
#[derive(Clone, Debug)]
pub struct Acceptor(Arc<ServerConfig>);

impl Acceptor {
    /// Takes a configuration, and sets in it what the record layer relies on: secrets can be taken
    /// out, this side's order of suites counts, no data comes early, no session is kept here.
    /// Tickets, ALPN, certificates and versions stay as they are.
    pub fn new(mut config: ServerConfig) -> Self {
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(SecretCatcher);
        config.ignore_client_order = true;
        config.max_early_data_size = 0;
        config.send_half_rtt_data = false;
        // The one of rustls is 256 sessions behind a lock that all threads share.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Self(Arc::new(config))
    }

    /// A handshake that waits for the client's first record.
    pub fn handshake(&self) -> Result<Handshake, HandshakeError> {
        Handshake::server(Arc::clone(&self.0))
    }
}

/// Starts the handshakes of a client.
#[derive(Clone, Debug)]
pub struct Connector(Arc<ClientConfig>);

impl Connector {
    /// Takes a configuration, and sets in it what the record layer relies on: secrets can be taken
    /// out, no data is sent early.
    pub fn new(mut config: ClientConfig) -> Self {
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(SecretCatcher);
        config.enable_early_data = false;
        Self(Arc::new(config))
    }

    /// A handshake with this server, whose first `advance` needs no input.
    pub fn handshake(&self, server: ServerName<'static>) -> Result<Handshake, HandshakeError> {
        Handshake::client(Arc::clone(&self.0), server)
    }
}
