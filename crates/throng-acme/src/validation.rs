//! The proof for the authority (RFC 8737): a certificate for the name, with the digest of the
//! challenge in an extension.

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::error::AcmeError;

/// The proof for one name.
#[derive(Debug)]
pub struct ChallengeCertificate {
    /// The name that it asks for.
    pub name: String,
    /// The certificate, which nobody has signed.
    pub certificate: CertificateDer<'static>,
    /// The certificate's key.
    pub key: PrivateKeyDer<'static>,
}

impl ChallengeCertificate {
    /// The answer to the challenge whose key authorization has this SHA-256.
    pub(crate) fn new(name: &str, digest: &[u8]) -> Result<ChallengeCertificate, AcmeError> {
        let failed = |error: rcgen::Error| {
            AcmeError::Own(format!("cannot make the certificate that proves {name}: {error}"))
        };
        let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(failed)?;
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.self_signed(&key).map_err(failed)?.der().clone();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        Ok(ChallengeCertificate { name: name.to_owned(), certificate, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_cert::Certificate;
    use x509_cert::der::Decode as _;

    #[test]
    fn the_digest_is_in_a_critical_extension() {
        let answer = ChallengeCertificate::new("a.example", &[7; 32]).unwrap();
        let certificate = Certificate::from_der(&answer.certificate).unwrap();
        let extensions = certificate.tbs_certificate.extensions.unwrap();
        let found = extensions.iter().find(|one| one.extn_id.to_string() == "1.3.6.1.5.5.7.1.31");
        let found = found.unwrap();
        assert!(found.critical);
        assert_eq!(found.extn_value.as_bytes(), [&[4, 32][..], &[7; 32]].concat());
    }
}
