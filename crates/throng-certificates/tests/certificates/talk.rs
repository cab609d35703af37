//! A client of rustls that shakes hands with an acceptor, in memory.

use std::sync::{Arc, Mutex};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme,
    SupportedProtocolVersion,
};
use throng_tls::{Acceptor, Peer, provider};

/// What a client saw and what the server knows of it.
pub(crate) struct Talk {
    /// The certificate that the server showed.
    pub(crate) shown: Option<Vec<u8>>,
    pub(crate) peer: Peer,
}

/// A client, which keeps its sessions.
pub(crate) struct Client {
    config: Arc<ClientConfig>,
    seen: Arc<Seen>,
}

impl Client {
    pub(crate) fn new(version: &'static SupportedProtocolVersion) -> Client {
        Client::with_certificate(version, None)
    }

    pub(crate) fn with_certificate(
        version: &'static SupportedProtocolVersion,
        certificate: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Client {
        let seen = Arc::new(Seen::default());
        let builder = ClientConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&seen) as Arc<_>);
        let mut config = match certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
                builder.with_client_auth_cert(vec![CertificateDer::from(certificate)], key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.resumption = Resumption::in_memory_sessions(16);
        Client { config: Arc::new(config), seen }
    }

    /// A certificate authority that validates a name (RFC 8737).
    pub(crate) fn validating() -> Client {
        let mut client = Client::new(&TLS13);
        Arc::make_mut(&mut client.config).alpn_protocols = vec![b"acme-tls/1".to_vec()];
        client
    }

    /// Shakes hands, and reads what the server sends after it. The error is the server's.
    pub(crate) fn talk(&self, acceptor: &Acceptor, name: &'static str) -> Result<Talk, String> {
        self.seen.0.lock().unwrap().take();
        let name = ServerName::try_from(name).unwrap();
        let mut client = ClientConnection::new(Arc::clone(&self.config), name).unwrap();
        let mut to_server = Vec::new();
        client.write_tls(&mut to_server).unwrap();
        let mut handshake = acceptor.handshake_for(&to_server).unwrap();
        loop {
            while client.wants_write() {
                client.write_tls(&mut to_server).unwrap();
            }
            let mut to_client = Vec::new();
            let progress = handshake.advance(&to_server, &mut to_client);
            let mut records = &to_client[..];
            while !records.is_empty() {
                client.read_tls(&mut records).unwrap();
                let _ = client.process_new_packets();
            }
            let progress = progress.map_err(|error| error.to_string())?;
            to_server.drain(..progress.used_bytes);
            if progress.is_done && !client.is_handshaking() {
                break;
            }
        }
        let peer = handshake.finish().unwrap().peer;
        Ok(Talk { shown: self.seen.0.lock().unwrap().take(), peer })
    }
}

/// Trusts every server, and remembers its certificate.
#[derive(Debug, Default)]
struct Seen(Mutex<Option<Vec<u8>>>);

impl ServerCertVerifier for Seen {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.0.lock().unwrap() = Some(end_entity.to_vec());
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
        provider().signature_verification_algorithms.supported_schemes()
    }
}
