//! A certificate with its key, from their files.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use httpdate::fmt_http_date;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

use crate::error::CertificateError;
use crate::facts::Facts;

/// The files of a certificate, and how errors name the settings that name them.
pub(crate) struct Source<'a> {
    pub(crate) certificate_setting: &'a str,
    pub(crate) certificate: &'a Path,
    pub(crate) key_setting: &'a str,
    pub(crate) key: &'a Path,
}

/// A certificate with its chain and its key, ready for handshakes.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) facts: Facts,
}

impl Pair {
    /// Checks and combines the contents of the two files.
    pub(crate) fn new(
        source: &Source<'_>,
        certificate: &[u8],
        key: &Zeroizing<Vec<u8>>,
        provider: &CryptoProvider,
    ) -> Result<Pair, CertificateError> {
        let chain = chain(source.certificate_setting, source.certificate, certificate)?;
        let fault = |predicate: &str| {
            CertificateError::of_file(source.certificate_setting, source.certificate, predicate)
        };
        let facts = chain.first().and_then(Facts::read).ok_or_else(|| {
            fault("begins with something that is not an X.509 certificate; make it again")
        })?;
        let key_fault =
            |predicate: &str| CertificateError::of_file(source.key_setting, source.key, predicate);
        let private_key = private_key(key).map_err(|predicate| key_fault(&predicate))?;
        let certified =
            CertifiedKey::from_der(chain, private_key, provider).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => key_fault(&format!(
                    "is not the key of the certificate in {}; name the key that the certificate \
                     was made with, and put the server's own certificate first",
                    source.certificate.display()
                )),
                _ => key_fault(
                    "has a key of a kind that is not supported; use ECDSA on P-256 or P-384, \
                     Ed25519, or RSA with 2048 to 8192 bits",
                ),
            })?;
        Ok(Pair { key: Arc::new(certified), facts })
    }

    /// Fails unless the certificate is valid `now`, or `may_have_expired`.
    pub(crate) fn check_time(
        &self,
        source: &Source<'_>,
        now: SystemTime,
        may_have_expired: bool,
    ) -> Result<(), CertificateError> {
        let fault = |predicate: &str| {
            CertificateError::of_file(source.certificate_setting, source.certificate, predicate)
        };
        let Facts { not_before, not_after, .. } = self.facts;
        if now > not_after && !may_have_expired {
            let when = fmt_http_date(not_after);
            return Err(fault(&format!("has expired on {when}; get a new certificate")));
        }
        if now < not_before {
            let when = fmt_http_date(not_before);
            return Err(fault(&format!(
                "is not valid before {when}; wait until then, or set the clock of this machine"
            )));
        }
        Ok(())
    }
}

/// All certificates of a file in PEM, at least one.
pub(crate) fn chain(
    setting: &str,
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let fault = |predicate: &str| CertificateError::of_file(setting, path, predicate);
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(bytes).collect();
    let chain = chain.map_err(|_| fault("is not intact PEM; copy it again"))?;
    if chain.is_empty() {
        return Err(fault(
            "has no certificate; it must have lines with -----BEGIN CERTIFICATE----- (PEM)",
        ));
    }
    Ok(chain)
}

/// The key of a file in PEM; else the predicate of an error.
fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    if has(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || has(b"Proc-Type: 4,ENCRYPTED") {
        return Err(
            "is encrypted with a passphrase, for which nobody can be asked; `openssl pkey \
                    -in KEY -out PLAIN` decrypts it: protect the result by the file's permissions"
                .into(),
        );
    }
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            "has no private key; it must have lines with -----BEGIN PRIVATE KEY----- (PEM)".into()
        }
        _ => "is not intact PEM; copy it again".into(),
    })
}
