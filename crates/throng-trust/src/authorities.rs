//! Certificates of authorities.

use std::path::{Path, PathBuf};

use rustls::client::VerifierBuilderError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Why no server can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file cannot be read, or has something else.
    #[error("cannot read certificates in PEM from {}: {reason}", path.display())]
    File {
        /// The file that was named.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The system has none.
    #[error(
        "this system has no certificates of authorities; install the package `ca-certificates`, or \
         name a file of certificates"
    )]
    NoneInSystem,
    /// The certificates are none of authorities.
    #[error("the certificates cannot be used: {0}")]
    Authorities(VerifierBuilderError),
    /// The TLS library refuses its settings.
    #[error("cannot set up TLS: {0}")]
    Tls(rustls::Error),
}

/// The certificates in a PEM file; at least one.
///
/// # Errors
///
/// [`TrustError::File`]
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let fault = |reason: String| TrustError::File { path: path.into(), reason };
    let text = std::fs::read(path).map_err(|error| {
        fault(match error.kind() {
            std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
            _ => error.to_string(),
        })
    })?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| fault(error.to_string()))?;
    if certificates.is_empty() {
        return Err(fault("it has none".to_owned()));
    }
    Ok(certificates)
}

/// The certificates of authorities that this system trusts; at least one. Some entries of a
/// system's store may be unreadable: what is missing shows as a server that is not trusted.
///
/// # Errors
///
/// [`TrustError::NoneInSystem`]
pub(crate) fn of_system() -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let certificates = rustls_native_certs::load_native_certs().certs;
    if certificates.is_empty() { Err(TrustError::NoneInSystem) } else { Ok(certificates) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_must_have_certificates() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let error = || certificates(&path).unwrap_err().to_string();
        assert!(error().ends_with("ca.pem: there is no such file"), "{}", error());
        std::fs::write(&path, "no PEM").unwrap();
        assert!(error().ends_with("ca.pem: it has none"), "{}", error());
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n")
            .unwrap();
        assert!(error().starts_with("cannot read certificates in PEM from "), "{}", error());
    }
}
