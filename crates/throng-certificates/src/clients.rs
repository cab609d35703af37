//! Whose certificates clients may show.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use crate::error::CertificateError;
use crate::pair;

/// The setting with the authorities, for errors.
pub(crate) const CA_SETTING: &str = "tls-client-ca";
/// The setting with the revocation lists, for errors.
pub(crate) const CRL_SETTING: &str = "tls-client-crl";

/// Verifies certificates of clients, with the contents of the two files. With revocation lists,
/// every authority below the trusted ones needs one: a certificate whose state is unknown is
/// refused.
pub(crate) fn verifier(
    provider: &Arc<CryptoProvider>,
    (ca_path, authorities): (&Path, &[u8]),
    lists: Option<(&Path, &[u8])>,
    is_required: bool,
) -> Result<Arc<dyn ClientCertVerifier>, CertificateError> {
    let fault = |predicate: &str| CertificateError::of_file(CA_SETTING, ca_path, predicate);
    let mut roots = RootCertStore::empty();
    for authority in pair::chain(CA_SETTING, ca_path, authorities)? {
        roots
            .add(authority)
            .map_err(|_| fault("has something that is not an X.509 certificate; make it again"))?;
    }
    let mut builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    if !is_required {
        builder = builder.allow_unauthenticated();
    }
    let Some((path, bytes)) = lists else {
        return builder.build().map_err(|_| fault("has no usable certificate"));
    };
    let fault = |predicate: &str| CertificateError::of_file(CRL_SETTING, path, predicate);
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(bytes).collect();
    let lists = lists.map_err(|_| fault("is not intact PEM; copy it again"))?;
    if lists.is_empty() {
        return Err(fault(
            "has no revocation list; it must have lines with -----BEGIN X509 CRL----- (PEM)",
        ));
    }
    let verifier = builder.with_crls(lists).build();
    verifier.map_err(|_| {
        fault("has a revocation list that cannot be read; it must be of version 2, with a number")
    })
}
