//! The other side of each test: rustls, or records made by hand. The fuzz target uses it, too.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex};

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use ring::{aead, hkdf};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring::cipher_suite, ring::sign::any_ecdsa_type};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, ClientConnection, Connection, ConnectionTrafficSecrets, DigitallySignedStruct,
    KeyLog, ServerConfig, ServerConnection, SignatureScheme, SupportedCipherSuite,
};
use throng_tls::{
    Acceptor, Connector, Established, Handshake, LeastVersion, Role, Suite, provider,
};

pub(crate) const ROLES: [Role; 2] = [Role::Server, Role::Client];

/// The suite of rustls that a suite of ours is.
fn of_rustls(suite: Suite) -> SupportedCipherSuite {
    match suite {
        Suite::Tls13Aes128Gcm => cipher_suite::TLS13_AES_128_GCM_SHA256,
        Suite::Tls13Aes256Gcm => cipher_suite::TLS13_AES_256_GCM_SHA384,
        Suite::Tls13ChaCha20Poly1305 => cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        Suite::Tls12Aes128Gcm => cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        Suite::Tls12Aes256Gcm => cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        Suite::Tls12ChaCha20Poly1305 => cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    }
}

/// Configurations that know only this suite.
pub(crate) fn configs(suite: Suite) -> (ServerConfig, ClientConfig) {
    let provider = CryptoProvider { cipher_suites: vec![of_rustls(suite)], ..provider() };
    let provider = Arc::new(provider);
    let versions = LeastVersion::Tls12.versions();
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified_key())));
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAll))
        .with_no_client_auth();
    (server, client)
}

/// The traffic secrets that the other side logged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Logged(Arc<Mutex<HashMap<String, Vec<u8>>>>);

impl KeyLog for Logged {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        self.0.lock().unwrap().insert(label.to_owned(), secret.to_vec());
    }
}

/// Our side before the handshake, and rustls as the other.
pub(crate) fn handshake(suite: Suite, role: Role) -> (Handshake, Connection, Logged) {
    let (mut server, mut client) = configs(suite);
    server.ignore_client_order = true;
    let logged = Logged::default();
    let name = ServerName::try_from("localhost").unwrap();
    match role {
        Role::Server => {
            client.key_log = Arc::new(logged.clone());
            client.enable_secret_extraction = true;
            let other = ClientConnection::new(Arc::new(client), name).unwrap();
            (Acceptor::new(server).handshake().unwrap(), other.into(), logged)
        }
        Role::Client => {
            server.key_log = Arc::new(logged.clone());
            server.enable_secret_extraction = true;
            let other = ServerConnection::new(Arc::new(server)).unwrap();
            (Connector::new(client).handshake(name).unwrap(), other.into(), logged)
        }
    }
}

/// Shakes hands; each side is passed `piece_bytes` at a time. Returns what rustls sent behind the
/// handshake, such as tickets, too.
pub(crate) fn shake_hands(
    mut own: Handshake,
    other: &mut Connection,
    piece_bytes: usize,
) -> (Established, Vec<u8>) {
    let (mut to_other, mut to_own, mut arrived) = (Vec::new(), Vec::new(), Vec::<u8>::new());
    let mut is_done = false;
    for _ in 0..1_000_000 {
        let progress = own.advance(&arrived, &mut to_other).unwrap();
        arrived.drain(..progress.used_bytes);
        is_done |= progress.is_done;
        let piece = to_other.len().min(piece_bytes);
        feed(other, &to_other[..piece]).unwrap();
        to_other.drain(..piece);
        take(other, &mut to_own);
        if is_done && to_other.is_empty() {
            break;
        }
        let piece = to_own.len().min(piece_bytes);
        arrived.extend(to_own.drain(..piece));
    }
    assert!(is_done && !other.is_handshaking(), "the handshake got stuck");
    arrived.append(&mut to_own);
    (own.finish().unwrap(), arrived)
}

/// Both sides after a handshake, and what rustls sent behind it.
pub(crate) fn connect(suite: Suite, role: Role) -> (Established, Connection, Vec<u8>) {
    let (own, mut other, _) = handshake(suite, role);
    let (established, behind) = shake_hands(own, &mut other, usize::MAX);
    assert_eq!(established.outgoing.suite(), suite);
    (established, other, behind)
}

/// Gives rustls bytes.
pub(crate) fn feed(other: &mut Connection, mut bytes: &[u8]) -> Result<(), rustls::Error> {
    while !bytes.is_empty() {
        // It takes nothing behind a close_notify.
        if other.read_tls(&mut bytes).unwrap() == 0 {
            break;
        }
        other.process_new_packets()?;
    }
    Ok(())
}

/// Takes what rustls sends.
pub(crate) fn take(other: &mut Connection, to: &mut Vec<u8>) {
    while other.wants_write() {
        other.write_tls(to).unwrap();
    }
}

/// The records in which rustls sends `content`.
pub(crate) fn send(other: &mut Connection, content: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        let written = other.writer().write(rest).unwrap();
        rest = &rest[written..];
        take(other, &mut records);
    }
    records
}

/// All content that rustls has opened so far.
pub(crate) fn received(other: &mut Connection) -> Vec<u8> {
    let mut content = Vec::new();
    // It ends with `WouldBlock`.
    let _ = other.reader().read_to_end(&mut content);
    content
}

/// A side that seals by hand, with any content type and padding. It shares no code with the crate.
#[derive(Clone)]
pub(crate) struct Forger {
    suite: Suite,
    aead: &'static aead::Algorithm,
    hash: hkdf::Algorithm,
    key: Vec<u8>,
    iv: [u8; 12],
    secret: Vec<u8>,
    pub(crate) number: u64,
}

impl Forger {
    /// Our side after a handshake, and the other, which goes on by hand.
    pub(crate) fn connect(suite: Suite, role: Role) -> (Established, Self) {
        let (own, mut other, logged) = handshake(suite, role);
        let (mut established, mut behind) = shake_hands(own, &mut other, usize::MAX);
        let opened = established.incoming.open(&mut established.outgoing, &mut behind);
        assert_eq!((opened.content_bytes, opened.end), (0, None));
        (established, Self::of(suite, role, other, &logged))
    }

    /// rustls as a server, and its client, which goes on by hand.
    pub(crate) fn connect_to_rustls(suite: Suite) -> (Connection, Self) {
        let (server, mut client) = configs(suite);
        let logged = Logged::default();
        client.key_log = Arc::new(logged.clone());
        client.enable_secret_extraction = true;
        let name = ServerName::try_from("localhost").unwrap();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap().into();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap().into();
        loop {
            let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
            take(&mut client, &mut to_server);
            feed(&mut server, &to_server).unwrap();
            take(&mut server, &mut to_client);
            feed(&mut client, &to_client).unwrap();
            if to_client.is_empty() && to_server.is_empty() {
                break;
            }
        }
        (server, Self::of(suite, Role::Server, client, &logged))
    }

    /// Goes on with the keys of `other`, whose peer has this role.
    fn of(suite: Suite, role: Role, other: Connection, logged: &Logged) -> Self {
        let label = if role == Role::Server {
            "CLIENT_TRAFFIC_SECRET_0"
        } else {
            "SERVER_TRAFFIC_SECRET_0"
        };
        let secret = logged.0.lock().unwrap().get(label).cloned().unwrap_or_default();
        let (number, extracted) = other.dangerous_extract_secrets().unwrap().tx;
        let (aead, key, iv) = match extracted {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&aead::AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&aead::AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (&aead::CHACHA20_POLY1305, key, iv)
            }
            _ => unreachable!("rustls has no other"),
        };
        let hash = if secret.len() == 48 { hkdf::HKDF_SHA384 } else { hkdf::HKDF_SHA256 };
        let (key, iv) = (key.as_ref().to_vec(), iv.as_ref().try_into().unwrap());
        Self { suite, aead, hash, key, iv, secret, number }
    }

    /// One record with this content type, content, and number of bytes of padding.
    pub(crate) fn seal(&mut self, content_type: u8, content: &[u8], padding: usize) -> Vec<u8> {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= of_number;
        }
        let ring_nonce = aead::Nonce::assume_unique_for_key(nonce);
        let mut body = content.to_vec();
        let (outer, explicit, additional);
        if self.suite.is_tls13() {
            body.push(content_type);
            body.extend(vec![0; padding]);
            (outer, explicit) = (23, &nonce[..0]);
            let length = u16::try_from(body.len() + 16).unwrap().to_be_bytes();
            additional = vec![23, 3, 3, length[0], length[1]];
        } else {
            let is_gcm = self.aead != &aead::CHACHA20_POLY1305;
            (outer, explicit) = (content_type, if is_gcm { &nonce[4..] } else { &nonce[..0] });
            let length = u16::try_from(body.len()).unwrap().to_be_bytes();
            let front = [content_type, 3, 3, length[0], length[1]];
            additional = [&self.number.to_be_bytes()[..], &front].concat();
        }
        let key = aead::UnboundKey::new(self.aead, &self.key).unwrap();
        aead::LessSafeKey::new(key)
            .seal_in_place_append_tag(ring_nonce, aead::Aad::from(additional), &mut body)
            .unwrap();
        self.number += 1;
        let length = u16::try_from(explicit.len() + body.len()).unwrap().to_be_bytes();
        [&[outer, 3, 3, length[0], length[1]], explicit, &body].concat()
    }

    /// Goes on with the next key, as after a key update.
    pub(crate) fn update_key(&mut self) {
        self.secret = self.expand(b"traffic upd", self.secret.len());
        self.key = self.expand(b"key", self.key.len());
        self.iv = self.expand(b"iv", 12).try_into().unwrap();
        self.number = 0;
    }

    fn expand(&self, label: &[u8], length: usize) -> Vec<u8> {
        let label = [b"tls13 ", label].concat();
        let lengths = [0, length as u8, label.len() as u8];
        let mut out = vec![0; length];
        hkdf::Prk::new_less_safe(self.hash, &self.secret)
            .expand(&[&lengths, &label, &[0]], Length(length))
            .unwrap()
            .fill(&mut out)
            .unwrap();
        out
    }
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn certified_key() -> CertifiedKey {
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.as_ref().to_vec()));
    // Not read: `TrustAll` does without.
    let certificate = CertificateDer::from(b"certificate".to_vec());
    CertifiedKey::new(vec![certificate], any_ecdsa_type(&key).unwrap())
}

/// Trusts every certificate: it is not what is tested here.
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
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
