//! The certificates that TLS trusts.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Why no certificates can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file cannot be read, or has something else.
    #[error("cannot read certificates in PEM from {}: {reason}", path.display())]
    File {
        /// The file of the configuration.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system has none.
    #[error(
        "this system has no certificates of authorities, which `https` needs; install the package \
         `ca-certificates`, or name a file of certificates"
    )]
    NoneInSystem,
    /// The TLS library refuses its own defaults.
    #[error("cannot set up TLS: {0}")]
    Tls(tokio_rustls::rustls::Error),
}

/// Settings of TLS: which authorities may certify the endpoints. `Clone` shares them.
#[derive(Clone)]
pub struct Trust(pub(super) Arc<ClientConfig>);

impl Trust {
    /// Trusts the authorities in `file`, or else those that the system trusts.
    ///
    /// # Errors
    ///
    /// [`TrustError`] if there is none.
    pub fn load(file: Option<&Path>) -> Result<Trust, TrustError> {
        let mut roots = RootCertStore::empty();
        match file {
            Some(path) => add_file(&mut roots, path)?,
            None => {
                // Some entries of a system's store may be unreadable; what is missing shows as an
                // endpoint that is not trusted.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(TrustError::NoneInSystem);
                }
            }
        }
        Trust::of(roots)
    }

    /// Trusts no authority: for endpoints without TLS.
    ///
    /// # Errors
    ///
    /// [`TrustError::Tls`]
    pub fn none() -> Result<Trust, TrustError> {
        Trust::of(RootCertStore::empty())
    }

    fn of(roots: RootCertStore) -> Result<Trust, TrustError> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TrustError::Tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Trust(Arc::new(config)))
    }
}

fn add_file(roots: &mut RootCertStore, path: &Path) -> Result<(), TrustError> {
    let fault = |reason: String| TrustError::File { path: path.into(), reason };
    let certificates = CertificateDer::pem_file_iter(path).map_err(|e| fault(e.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| fault(error.to_string()))?;
        roots.add(certificate).map_err(|error| fault(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(fault("it has none".into()));
    }
    Ok(())
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}
