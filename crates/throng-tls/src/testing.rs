//! Both sides of handshakes for tests of other crates.
//!
//! The server's key is of Ed25519, whose signatures have one length: so a seeded simulation sees
//! the same lengths each time, whatever the keys are. Clients trust every certificate.

use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};

use crate::config::{Acceptor, Connector, LeastVersion, provider};
use crate::handshake::{Established, Handshake};
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;
use crate::suite::Suite;

/// A server and a client that know only this suite.
pub fn peers(suite: Suite) -> (Acceptor, Connector) {
    let all = provider();
    // Those of TLS 1.3 first, then for each algorithm of TLS 1.2 one with ECDSA and one with RSA.
    let at = match suite {
        Suite::Tls13Aes128Gcm => 0,
        Suite::Tls13Aes256Gcm => 1,
        Suite::Tls13ChaCha20Poly1305 => 2,
        Suite::Tls12Aes128Gcm => 3,
        Suite::Tls12Aes256Gcm => 5,
        Suite::Tls12ChaCha20Poly1305 => 7,
    };
    let cipher_suites = vec![all.cipher_suites[at]];
    let provider = Arc::new(CryptoProvider { cipher_suites, ..all });
    let versions = LeastVersion::Tls12.versions();
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .expect("the suite belongs to a version")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified_key())));
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("the suite belongs to a version")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAll))
        .with_no_client_auth();
    (Acceptor::new(server), Connector::new(client))
}

/// A handshake of this client.
pub fn client(connector: &Connector) -> Handshake {
    let name = ServerName::try_from("localhost").expect("it is a name");
    connector.handshake(name).expect("the configuration is complete")
}

/// A server and a client after their handshake.
pub fn connect(suite: Suite) -> (Established, Established) {
    let (acceptor, connector) = peers(suite);
    let mut server = acceptor.handshake().expect("the configuration is complete");
    let mut client = client(&connector);
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    loop {
        let of_client = client.advance(&to_client, &mut to_server).expect("the server is right");
        to_client.drain(..of_client.used_bytes);
        let of_server = server.advance(&to_server, &mut to_client).expect("the client is right");
        to_server.drain(..of_server.used_bytes);
        if of_client.is_done && of_server.is_done {
            break;
        }
    }
    let server = server.finish().expect("the handshake is done");
    let mut client = client.finish().expect("the handshake is done");
    // Tickets, which the client has not opened yet.
    let opened = client.incoming.open(&mut client.outgoing, &mut to_client);
    assert!(opened.end.is_none() && opened.content_bytes == 0, "{opened:?}");
    (server, client)
}

/// Appends a key update that asks the peer for one, too, and goes on with the next key.
pub fn ask_for_key_update(outgoing: &mut Outgoing, incoming: &mut Incoming, out: &mut Vec<u8>) {
    incoming.update_key(outgoing, true, out).expect("the connection is open and settled");
}

/// The key, with its initial vector, and the number of the next record that is opened.
pub fn next_position(incoming: &Incoming) -> (Vec<u8>, u64) {
    let (number, key) = incoming.record_key();
    ([key.key(incoming.suite()), &key.iv()[..]].concat(), number)
}

fn certified_key() -> CertifiedKey {
    let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("there is randomness");
    let key = PrivatePkcs8KeyDer::from(key.as_ref().to_vec());
    // Not read: `TrustAll` does without.
    let certificate = CertificateDer::from(b"certificate".to_vec());
    let key = any_eddsa_type(&key).expect("ring has made it");
    CertifiedKey::new(vec![certificate], key)
}

/// Trusts every certificate: it is not what is tested.
#[derive(Debug)]
struct TrustAll;

impl ServerCertVerifier for TrustAll {
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
        vec![SignatureScheme::ED25519]
    }
}
