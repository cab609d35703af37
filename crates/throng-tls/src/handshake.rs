//! The handshake, which is rustls's. This is the only file that drives rustls.
//!
//! rustls is fed one record at a time. So when it is done, the next record in the caller's buffer
//! is the first of the record layer, and rustls has seen nothing of it. Then keys and secrets are
//! taken out, and rustls's object, some 8 KB, is dropped.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use std::io::{Read as _, Write as _};

use rustls::{
    AlertDescription, CipherSuite, ClientConfig, ClientConnection, Connection,
    ConnectionTrafficSecrets, HandshakeKind, ProtocolVersion, ServerConfig, ServerConnection,
    SupportedCipherSuite,
};
use thiserror::Error;

use crate::incoming::{Incoming, Role};
use crate::keys::{RecordKey, Secret};
use crate::outgoing::Outgoing;
use crate::record::{ALERT, CONTENT_BYTES_MAX, HANDSHAKE, HEADER_BYTES, Header, RECORD_BYTES_MAX};
use crate::secrets::{self, Secrets};
use crate::suite::Suite;
use crate::tickets::{HandshakeTickets, SessionTicket};

/// How many bytes a peer may send until the handshake is done. A message has at most 64 KB; the
/// longest is a chain of certificates, usually 5 KB.
pub const HANDSHAKE_BYTES_MAX: usize = 96 * 1024;

/// How many records a peer may send until the handshake is done. Nobody needs more than a dozen;
/// records of one byte would make each message expensive.
pub const HANDSHAKE_RECORDS_MAX: usize = 64;

/// Why a handshake failed. Send what is in `output`, which has the alert, and close.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The first bytes are no TLS record: probably plain HTTP.
    #[error("the peer does not speak TLS: its first bytes are no TLS handshake")]
    NotTls,
    /// The peer sent more than [`HANDSHAKE_BYTES_MAX`] or [`HANDSHAKE_RECORDS_MAX`].
    #[error("the TLS handshake is too long: more than 64 records or 96 KB")]
    TooLong,
    #[error("the TLS handshake failed: {0}")]
    Refused(#[from] rustls::Error),
    /// `finish` was called too early.
    #[error("the TLS handshake is not done")]
    NotDone,
    /// The suite is none of [`Suite`].
    #[error("the TLS handshake chose a cipher suite that the record layer does not know")]
    UnknownSuite,
    /// The keys that follow from the secrets are not those that rustls gave.
    #[error("TLS keys derived from the secrets differ from those of the handshake")]
    SecretsDiffer,
}

/// A flaw of a certificate, the server's or its client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateFlaw {
    /// The client has told that it does not trust the server's.
    Distrusted,
    /// The client shows none, and has to.
    Missing,
    /// The server does not accept the client's.
    Refused,
}

impl CertificateFlaw {
    /// The flaw in a sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            CertificateFlaw::Distrusted => {
                "the client does not trust the certificate of this server"
            }
            CertificateFlaw::Missing => "the client shows no certificate, and has to",
            CertificateFlaw::Refused => "the certificate of the client is not accepted",
        }
    }
}

impl HandshakeError {
    /// The certificate's flaw, if that is the reason.
    pub fn certificate_flaw(&self) -> Option<CertificateFlaw> {
        let HandshakeError::Refused(error) = self else { return None };
        match error {
            rustls::Error::AlertReceived(
                AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown,
            ) => Some(CertificateFlaw::Distrusted),
            rustls::Error::NoCertificatesPresented => Some(CertificateFlaw::Missing),
            rustls::Error::InvalidCertificate(_) => Some(CertificateFlaw::Refused),
            _ => None,
        }
    }
}

/// The user that a client's certificate names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertifiedUser {
    /// The name, as it stands in the certificate.
    pub name: Box<str>,
    /// From when on the certificate is valid, in seconds since 1970.
    pub from_s: u32,
    /// Until when it is, in seconds since 1970.
    pub until_s: u32,
}

/// Reads from a client's certificates, which were verified, whose they are: a user's, or nobody's.
pub type UserOf = Arc<dyn Fn(&[CertificateDer<'_>]) -> Option<CertifiedUser> + Send + Sync>;

/// How far a handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeProgress {
    /// The number of bytes of the input that were used. The rest is the beginning of a record, or
    /// belongs to the record layer if the handshake is done.
    pub used_bytes: usize,
    pub is_done: bool,
}

/// A handshake under way. It takes about 8 KB of memory.
pub struct Handshake {
    connection: Connection,
    secrets: Secrets,
    user_of: Option<UserOf>,
    tickets: HandshakeTickets,
    /// True if a ticket is worth waiting for.
    wants_ticket: bool,
    /// The peer has said that it sends no more.
    has_closed: bool,
    records: usize,
    bytes: usize,
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Established {
    pub outgoing: Outgoing,
    pub incoming: Incoming,
    pub peer: Peer,
}

/// Facts about the peer from the handshake. The caller keeps the ones that it needs.
#[derive(Debug)]
pub struct Peer {
    /// The protocol that was chosen by ALPN, if any.
    pub alpn: Option<Vec<u8>>,
    /// The name of the server that the client asked for; only a server has it.
    pub server_name: Option<String>,
    /// The peer's certificates, its own first; empty if it showed none.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The user that the client's certificate names, if the acceptor reads users from certificates.
    pub user: Option<CertifiedUser>,
    pub is_resumed: bool,
    /// The ticket to resume with next; only a client of [`Connector::resuming`] has it.
    ///
    /// [`Connector::resuming`]: crate::Connector::resuming
    pub ticket: Option<SessionTicket>,
}

impl Handshake {
    pub(crate) fn server(
        config: Arc<ServerConfig>,
        user_of: Option<UserOf>,
    ) -> Result<Self, HandshakeError> {
        Ok(Self { user_of, ..Self::new(ServerConnection::new(config)?.into()) })
    }

    pub(crate) fn client(
        config: Arc<ClientConfig>,
        server: ServerName<'static>,
        ticket: Option<SessionTicket>,
        wants_ticket: bool,
    ) -> Result<Self, HandshakeError> {
        let mut tickets = HandshakeTickets::showing(ticket);
        let connection = tickets.lend(|| ClientConnection::new(config, server))?;
        Ok(Self { tickets, wants_ticket, ..Self::new(connection.into()) })
    }

    fn new(connection: Connection) -> Self {
        Self {
            connection,
            secrets: Secrets::default(),
            tickets: HandshakeTickets::default(),
            wants_ticket: false,
            has_closed: false,
            user_of: None,
            records: 0,
            bytes: 0,
        }
    }

    /// Takes the complete records at the front of `input`, until the handshake is done, and
    /// appends to `output` what has to be sent: also after an error, and also when it is done.
    ///
    /// Pass unused bytes again with the ones that follow.
    pub fn advance(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<HandshakeProgress, HandshakeError> {
        let mut used_bytes = 0;
        self.take_output(output);
        while !self.is_done() {
            let rest = &input[used_bytes..];
            if self.records == 0 && !self.may_be_tls(rest) {
                return Err(HandshakeError::NotTls);
            }
            let Some(header) = Header::read(rest) else { break };
            let record_bytes = header.record_bytes();
            if record_bytes > RECORD_BYTES_MAX {
                // The header is enough for rustls to refuse it, with the alert.
                self.feed(&rest[..HEADER_BYTES], output)?;
                return Err(HandshakeError::TooLong);
            }
            let Some(record) = rest.get(..record_bytes) else { break };
            self.records += 1;
            self.bytes += record_bytes;
            if self.records > HANDSHAKE_RECORDS_MAX || self.bytes > HANDSHAKE_BYTES_MAX {
                return Err(HandshakeError::TooLong);
            }
            self.feed(record, output)?;
            used_bytes += record_bytes;
        }
        Ok(HandshakeProgress { used_bytes, is_done: self.is_done() })
    }

    /// The suite of a handshake that is done, and whether it has resumed a session; `None` for a
    /// suite that the record layer does not know.
    pub fn outcome(&self) -> Option<(Suite, bool)> {
        let is_resumed = self.connection.handshake_kind() == Some(HandshakeKind::Resumed);
        let suite = match self.connection.negotiated_cipher_suite()?.suite() {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Suite::Tls13Aes128Gcm,
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Suite::Tls13Aes256Gcm,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Suite::Tls13ChaCha20Poly1305,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => Suite::Tls12Aes128Gcm,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => Suite::Tls12Aes256Gcm,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => {
                Suite::Tls12ChaCha20Poly1305
            }
            _ => return None,
        };
        Some((suite, is_resumed))
    }

    /// True if a ticket may still come, now that the handshake is done. TLS 1.3 has them after it,
    /// and only rustls can read them. Until then, use [`Handshake::send`] and
    /// [`Handshake::receive`].
    pub fn awaits_ticket(&self) -> bool {
        self.wants_ticket
            && !self.has_closed
            && !self.tickets.has_received()
            && self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3)
    }

    /// After the handshake: appends records with all of `content` to `output`.
    pub fn send(&mut self, content: &[u8], output: &mut Vec<u8>) -> Result<(), HandshakeError> {
        if !self.is_done() {
            return Err(HandshakeError::NotDone);
        }
        // rustls's buffer is limited.
        for part in content.chunks(CONTENT_BYTES_MAX) {
            // Writing to rustls's buffer does not fail.
            self.connection.writer().write_all(part).map_err(|_| HandshakeError::TooLong)?;
            self.take_output(output);
        }
        Ok(())
    }

    /// After the handshake: opens the first record of `input`, if it is complete, and appends what
    /// it has to `content`. Returns how many bytes of `input` were used. With content, no ticket is
    /// awaited any more.
    pub fn receive(
        &mut self,
        input: &[u8],
        content: &mut Vec<u8>,
        output: &mut Vec<u8>,
    ) -> Result<usize, HandshakeError> {
        let Some(header) = Header::read(input) else { return Ok(0) };
        let record_bytes = header.record_bytes();
        if record_bytes > RECORD_BYTES_MAX {
            return Err(HandshakeError::TooLong);
        }
        let Some(record) = input.get(..record_bytes) else { return Ok(0) };
        self.feed(record, output)?;
        let before = content.len();
        // An error means that there is no content, or no more.
        let _ = self.connection.reader().read_to_end(content);
        if content.len() > before {
            self.wants_ticket = false;
        }
        Ok(record_bytes)
    }

    /// Takes keys and secrets out, and drops the rest.
    pub fn finish(self) -> Result<Established, HandshakeError> {
        let Self { connection, secrets, user_of, tickets, has_closed, .. } = self;
        if connection.is_handshaking() || connection.wants_write() {
            return Err(HandshakeError::NotDone);
        }
        let (role, server_name) = match &connection {
            Connection::Server(server) => (Role::Server, server.server_name().map(str::to_owned)),
            Connection::Client(_) => (Role::Client, None),
        };
        let certificates = connection.peer_certificates().unwrap_or_default();
        let peer = Peer {
            alpn: connection.alpn_protocol().map(<[u8]>::to_vec),
            server_name,
            user: user_of.filter(|_| !certificates.is_empty()).and_then(|read| read(certificates)),
            certificates: certificates.iter().map(|one| one.clone().into_owned()).collect(),
            is_resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            ticket: tickets.into_received(),
        };
        let chosen = connection.negotiated_cipher_suite().ok_or(HandshakeError::NotDone)?;
        let extracted = connection.dangerous_extract_secrets()?;

        let (number_out, key_out) = extracted.tx;
        let (number_in, key_in) = extracted.rx;
        let (suite, key_out) = record_key(chosen, &key_out)?;
        let (_, key_in) = record_key(chosen, &key_in)?;
        let secrets = if suite.is_tls13() {
            let secrets = secrets.into_in_and_out(role).ok_or(HandshakeError::SecretsDiffer)?;
            let is_same = RecordKey::derive(suite, &secrets.0) == key_in
                && RecordKey::derive(suite, &secrets.1) == key_out;
            if !is_same {
                return Err(HandshakeError::SecretsDiffer);
            }
            secrets
        } else {
            (Secret::of_key(&key_in), Secret::empty())
        };
        let mut incoming = Incoming::new(role, suite, secrets, number_in);
        if has_closed {
            incoming.close();
        }
        Ok(Established { outgoing: Outgoing::new(suite, key_out, number_out), incoming, peer })
    }

    /// True if these may be the first bytes of a handshake. A server may begin with an alert.
    fn may_be_tls(&self, input: &[u8]) -> bool {
        let is_client = matches!(self.connection, Connection::Client(_));
        input.first().is_none_or(|first| *first == HANDSHAKE || is_client && *first == ALERT)
            && Header::read(input).is_none_or(|header| header.major_version() == 3)
    }

    fn is_done(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// Gives rustls one record, or a header that it will refuse.
    fn feed(&mut self, mut record: &[u8], output: &mut Vec<u8>) -> Result<(), HandshakeError> {
        let Self { connection, secrets, tickets, has_closed, .. } = self;
        let mut result = Ok(());
        while result.is_ok() && !record.is_empty() {
            // Reading from a slice does not fail; an error means that rustls's buffer is full.
            let taken = connection.read_tls(&mut record).map_err(|_| HandshakeError::TooLong)?;
            if taken == 0 {
                return Err(HandshakeError::TooLong);
            }
            let process = || connection.process_new_packets();
            let state = secrets::catch(secrets, || tickets.lend(process));
            result = state.map(|state| *has_closed |= state.peer_has_closed());
        }
        self.take_output(output);
        result.map_err(HandshakeError::Refused)
    }

    fn take_output(&mut self, output: &mut Vec<u8>) {
        while self.connection.wants_write() {
            // Writing to a vector does not fail.
            if self.connection.write_tls(output).is_err() {
                break;
            }
        }
    }
}

fn record_key(
    chosen: SupportedCipherSuite,
    extracted: &ConnectionTrafficSecrets,
) -> Result<(Suite, RecordKey), HandshakeError> {
    let is_tls13 = chosen.tls13().is_some();
    let (suite, key, iv) = match extracted {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } if is_tls13 => {
            (Suite::Tls13Aes128Gcm, key, iv)
        }
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } if is_tls13 => {
            (Suite::Tls13Aes256Gcm, key, iv)
        }
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } if is_tls13 => {
            (Suite::Tls13ChaCha20Poly1305, key, iv)
        }
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Suite::Tls12Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Suite::Tls12Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Suite::Tls12ChaCha20Poly1305, key, iv)
        }
        _ => return Err(HandshakeError::UnknownSuite),
    };
    let key = RecordKey::new(suite, key.as_ref(), iv.as_ref());
    Ok((suite, key.ok_or(HandshakeError::UnknownSuite)?))
}
