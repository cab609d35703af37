//! Checks a server's certificate, once for as long as it stays the same.
//!
//! A load generator opens a million connections to one server. Whether an authority has signed its
//! certificate is the same question each time, and takes as long as the rest of the handshake. That
//! the server has the certificate's key is checked each time.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use ring::digest::{Context, Digest, SHA256};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

/// How long a check is remembered.
pub const REMEMBERED_MAX: Duration = Duration::from_secs(60);

/// rustls's check, with a memory for the last certificate that passed it.
#[derive(Debug)]
pub(crate) struct Checker<V> {
    inner: V,
    passed: RwLock<Option<Passed>>,
}

#[derive(Debug)]
struct Passed {
    /// Of all that the check depends on, besides the time.
    digest: Digest,
    at: UnixTime,
}

impl<V> Checker<V> {
    pub(crate) fn new(inner: V) -> Checker<V> {
        Checker { inner, passed: RwLock::new(None) }
    }

    fn has_passed(&self, digest: &Digest, now: UnixTime) -> bool {
        let passed = self.passed.read().unwrap_or_else(PoisonError::into_inner);
        passed.as_ref().is_some_and(|passed| {
            let age = now.as_secs().checked_sub(passed.at.as_secs());
            passed.digest.as_ref() == digest.as_ref()
                && age.is_some_and(|age| age < REMEMBERED_MAX.as_secs())
        })
    }
}

impl<V: ServerCertVerifier> ServerCertVerifier for Checker<Arc<V>> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let name = server_name.to_str();
        let certificates = std::iter::once(end_entity).chain(intermediates).map(AsRef::as_ref);
        let digest = digest(certificates.chain([name.as_bytes(), ocsp_response]));
        if self.has_passed(&digest, now) {
            return Ok(ServerCertVerified::assertion());
        }
        let verified = self.inner.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        let passed = Passed { digest, at: now };
        *self.passed.write().unwrap_or_else(PoisonError::into_inner) = Some(passed);
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// The digest of several texts, each with its length, so that no two lists have the same.
fn digest<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Digest {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    context.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustls::CertificateError;

    use super::*;

    /// Refuses certificates that begin with `!`, and counts its checks.
    #[derive(Debug, Default)]
    struct Counting(AtomicU64);

    impl ServerCertVerifier for Counting {
        fn verify_server_cert(
            &self,
            end_entity: &CertificateDer<'_>,
            _intermediates: &[CertificateDer<'_>],
            _server_name: &ServerName<'_>,
            _ocsp_response: &[u8],
            _now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if end_entity.starts_with(b"!") {
                return Err(CertificateError::UnknownIssuer.into());
            }
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(CertificateError::BadSignature.into())
        }

        fn verify_tls13_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(CertificateError::BadSignature.into())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            Vec::new()
        }
    }

    #[test]
    fn a_check_is_repeated_when_anything_changes() {
        let checker = Checker::new(Arc::new(Counting::default()));
        let check = |own: &'static [u8], chain: &'static [u8], name: &'static str, s: u64| {
            let name = ServerName::try_from(name).unwrap();
            let now = UnixTime::since_unix_epoch(Duration::from_secs(s));
            let (own, chain) = (CertificateDer::from(own), [CertificateDer::from(chain)]);
            let is_trusted = checker.verify_server_cert(&own, &chain, &name, &[], now).is_ok();
            (is_trusted, checker.inner.0.swap(0, Ordering::Relaxed))
        };
        assert_eq!(check(b"a", b"b", "x.test", 100), (true, 1));
        assert_eq!(check(b"a", b"b", "x.test", 159), (true, 0));
        assert_eq!(check(b"a", b"b", "x.test", 160), (true, 1));
        assert_eq!(check(b"a", b"b", "x.test", 99), (true, 1), "the clock was set back");
        assert_eq!(check(b"a", b"b", "y.test", 99), (true, 1));
        assert_eq!(check(b"ab", b"", "y.test", 99), (true, 1));
        // A refusal is never remembered, and does not replace what is.
        assert_eq!(check(b"!", b"", "y.test", 99), (false, 1));
        assert_eq!(check(b"!", b"", "y.test", 99), (false, 1));
        assert_eq!(check(b"ab", b"", "y.test", 99), (true, 0));
    }
}
