//! Which servers a client of TLS trusts.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `authorities` | certificates of authorities: those of a file, or of this system |
//! | `checker` | checks a server's certificate, once for as long as it stays the same |
//! | `unchecked` | accepts every certificate, for tests |
//! | `fault` | what is wrong with a server's certificate, in a few words |
//!
//! # Invariants
//!
//! * A certificate is accepted unchecked only if [`Trust::Anyone`] was asked for by name. Even then
//!   the server has to prove that it has the certificate's key.
//! * A check that is remembered is forgotten after [`REMEMBERED_MAX`], so a certificate that
//!   expires during a long run is noticed.

mod authorities;
mod checker;
mod fault;
mod unchecked;

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

pub use authorities::{TrustError, certificates};
pub use checker::REMEMBERED_MAX;
pub use fault::fault;

/// Which servers are trusted.
#[derive(Debug, Clone)]
pub enum Trust {
    /// Those whose certificate one of these authorities has signed.
    Authorities(Arc<[CertificateDer<'static>]>),
    /// Any server that has the key of the certificate that it shows.
    Anyone,
}

impl Trust {
    /// Trusts the authorities in `file`, or else those that this system trusts.
    ///
    /// # Errors
    ///
    /// [`TrustError`] if the file cannot be read, or if there is none.
    pub fn load(file: Option<&Path>) -> Result<Trust, TrustError> {
        let authorities = match file {
            Some(path) => certificates(path)?,
            None => authorities::of_system()?,
        };
        Ok(Trust::Authorities(authorities.into()))
    }

    /// The configuration of a client that speaks HTTP/1.1 and has no certificate of its own.
    ///
    /// # Errors
    ///
    /// [`TrustError::Tls`] if `provider` cannot serve the versions, or no authority is usable.
    pub fn client_config(
        &self,
        provider: Arc<CryptoProvider>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<ClientConfig, TrustError> {
        let checker: Arc<dyn ServerCertVerifier> = match self {
            Trust::Authorities(authorities) => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(authorities.iter().cloned());
                let checker = WebPkiServerVerifier::builder_with_provider(
                    Arc::new(roots),
                    Arc::clone(&provider),
                );
                Arc::new(checker::Checker::new(checker.build().map_err(TrustError::Authorities)?))
            }
            Trust::Anyone => Arc::new(unchecked::Unchecked(Arc::clone(&provider))),
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(TrustError::Tls)?
            .dangerous()
            .with_custom_certificate_verifier(checker)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}
