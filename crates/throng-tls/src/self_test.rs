//! Checks at start that this record layer and rustls agree, before anybody relies on it.
//!
//! The traffic secrets come by way of an interface that was made for debugging, and two programs
//! derive keys from them independently. Should a new version of rustls change either, TLS has to
//! be refused, rather than fail at the first key update.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring::sign::any_ecdsa_type};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, SignatureAlgorithm,
    SignatureScheme, SupportedCipherSuite,
};
use thiserror::Error;

use crate::config::{Acceptor, LeastVersion};
use crate::handshake::{Established, HandshakeError};

/// Why TLS cannot be offered.
#[derive(Debug, Error)]
#[error("TLS self-test failed with {suite}: {problem}; do not offer TLS with this build")]
pub struct SelfTestError {
    suite: String,
    problem: String,
}

/// Shakes hands with rustls in memory, for every cipher suite of `provider` that a key on the
/// curve P-256 can serve, and passes records and key updates both ways. Takes about a millisecond
/// for each suite.
pub fn self_test(provider: &CryptoProvider) -> Result<(), SelfTestError> {
    let suites = provider.cipher_suites.iter();
    for suite in suites.filter(|s| s.usable_for_signature_algorithm(SignatureAlgorithm::ECDSA)) {
        test_suite(provider, *suite)
            .map_err(|problem| SelfTestError { suite: format!("{:?}", suite.suite()), problem })?;
    }
    Ok(())
}

fn test_suite(provider: &CryptoProvider, suite: SupportedCipherSuite) -> Result<(), String> {
    let provider = CryptoProvider { cipher_suites: vec![suite], ..provider.clone() };
    let (Established { mut outgoing, mut incoming, .. }, mut client) =
        shake_hands(Arc::new(provider)).map_err(|error| error.to_string())?;

    // Twice, so that a number counts up, and a second time behind key updates.
    let is_tls13 = suite.tls13().is_some();
    for updates in [0, 0, 1, 1] {
        if is_tls13 && updates > 0 {
            client.refresh_traffic_keys().map_err(|error| error.to_string())?;
        }
        client.writer().write_all(b"to the server").map_err(|error| error.to_string())?;
        let mut records = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut records).map_err(|error| error.to_string())?;
        }
        let opened = incoming.open(&mut outgoing, &mut records);
        if opened.end.is_some() || records.get(..opened.content_bytes) != Some(b"to the server") {
            return Err(format!("a record of rustls was not opened: {opened:?}"));
        }

        let mut records = Vec::new();
        // rustls asks for one with each of its own.
        if is_tls13 && updates > 0 {
            let done = incoming.seal_key_update(&mut outgoing, &mut records);
            done.map_err(|error| error.to_string())?;
        }
        let sealed = outgoing.seal([&b"to the client"[..]], &mut records);
        outgoing.keep(sealed.map_err(|error| error.to_string())?);
        let mut content = [0; 13];
        read_with(&mut client, &records, &mut content)?;
        if &content != b"to the client" {
            return Err("rustls read something else than was sealed".to_owned());
        }
    }
    Ok(())
}

fn read_with(
    client: &mut ClientConnection,
    mut records: &[u8],
    content: &mut [u8],
) -> Result<(), String> {
    while !records.is_empty() {
        client.read_tls(&mut records).map_err(|error| error.to_string())?;
        client.process_new_packets().map_err(|error| error.to_string())?;
    }
    client.reader().read_exact(content).map_err(|error| error.to_string())
}

/// Our server and a client of rustls, after their handshake.
fn shake_hands(
    provider: Arc<CryptoProvider>,
) -> Result<(Established, ClientConnection), HandshakeError> {
    let versions = LeastVersion::Tls12.versions();
    let key = certified_key()?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OwnServer))
        .with_no_client_auth();

    let name = ServerName::try_from("self-test").expect("a valid host name");
    let mut client = ClientConnection::new(Arc::new(client), name)?;
    let mut handshake = Acceptor::new(server).handshake()?;
    let (mut to_server, mut is_done) = (Vec::new(), false);
    while !is_done || client.is_handshaking() || client.wants_write() {
        while client.wants_write() {
            // Writing to a vector does not fail.
            if client.write_tls(&mut to_server).is_err() {
                break;
            }
        }
        let mut to_client = Vec::new();
        let progress = handshake.advance(&to_server, &mut to_client)?;
        let is_stuck = progress.used_bytes == 0 && to_client.is_empty();
        if is_stuck {
            return Err(HandshakeError::NotDone);
        }
        to_server.drain(..progress.used_bytes);
        is_done = progress.is_done;
        let mut records = &to_client[..];
        while !records.is_empty() {
            // Reading from a slice does not fail unless rustls takes no more.
            client.read_tls(&mut records).map_err(|_| HandshakeError::TooLong)?;
            client.process_new_packets()?;
        }
    }
    Ok((handshake.finish()?, client))
}

/// A fresh key. Its certificate is a name only, because [`OwnServer`] does not read it.
pub(crate) fn certified_key() -> Result<CertifiedKey, HandshakeError> {
    let unavailable = |_| rustls::Error::General("no key on P-256 can be made".to_owned());
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
        .map_err(unavailable)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.as_ref().to_vec()));
    let certificate = CertificateDer::from(b"self-test".to_vec());
    Ok(CertifiedKey::new(vec![certificate], any_ecdsa_type(&key)?))
}

/// Trusts the server, because it is in the same process.
#[derive(Debug)]
pub(crate) struct OwnServer;

impl ServerCertVerifier for OwnServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::RSA_PSS_SHA256]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::provider;

    #[test]
    fn every_suite_passes() {
        self_test(&provider()).unwrap();
    }
}
