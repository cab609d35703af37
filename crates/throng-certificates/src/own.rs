//! The certificate that this process shows as a client.

use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

use crate::CertificateFiles;
use crate::error::{CertificateError, read};
use crate::pair::{Pair, Source};

/// Reads a certificate with its key. It has to be valid now: no server accepts another one.
///
/// # Errors
///
/// One sentence about the file that cannot be used.
pub fn own_certificate(
    files: &CertificateFiles,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, CertificateError> {
    let source = Source {
        certificate_setting: &files.certificate_setting,
        certificate: &files.certificate,
        key_setting: &files.key_setting,
        key: &files.key,
    };
    let certificate = read(source.certificate_setting, source.certificate)?;
    let key = Zeroizing::new(read(source.key_setting, source.key)?);
    let pair = Pair::new(&source, &certificate, &key, provider)?;
    pair.check_time(&source, SystemTime::now(), false)?;
    Ok(pair.key)
}

#[cfg(test)]
mod tests {
    use rustls::crypto::ring::default_provider;

    use super::*;

    #[test]
    fn a_certificate_has_to_be_valid_and_to_have_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let files = CertificateFiles {
            certificate: folder.path().join("c.pem"),
            key: folder.path().join("k.pem"),
            certificate_setting: "nats-cert".into(),
            key_setting: "nats-key".into(),
            is_of_acme: false,
        };
        let of = |files| own_certificate(files, &default_provider()).map(|own| own.cert.len());
        let error = |files| of(files).unwrap_err().to_string();
        assert!(error(&files).starts_with("nats-cert: there is no file "), "{}", error(&files));
        let key = rcgen::KeyPair::generate().unwrap();
        let mut wanted = rcgen::CertificateParams::new(vec!["n1".into()]).unwrap();
        let certificate = wanted.self_signed(&key).unwrap();
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        assert_eq!(of(&files), Ok(1));
        wanted.not_after = rcgen::date_time_ymd(2001, 2, 3);
        wanted.not_before = rcgen::date_time_ymd(2001, 1, 3);
        std::fs::write(&files.certificate, wanted.self_signed(&key).unwrap().pem()).unwrap();
        assert!(error(&files).contains("has expired on Sat, 03 Feb 2001"), "{}", error(&files));
        let other = rcgen::KeyPair::generate().unwrap();
        std::fs::write(&files.key, other.serialize_pem()).unwrap();
        assert!(error(&files).contains("is not the key of the certificate"), "{}", error(&files));
    }
}
