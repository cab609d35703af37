//! How many handshakes a second one core of this machine can do as a server.
//!
//! Both sides are in memory, and only the server's part is timed: what it derives, signs and seals,
//! without sockets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::crypto::ring::Ticketer;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig};

use crate::config::{Acceptor, Connector, LeastVersion, provider};
use crate::handshake::HandshakeError;
use crate::self_test::{OwnServer, certified_key};
use crate::tickets::SessionTicket;

/// The kind of handshake of TLS 1.3 that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedHandshake {
    /// The server's key is of ECDSA on P-256.
    EcdsaP256,
    /// The server's key is of RSA, with 2048 bits.
    Rsa2048,
    /// A session is resumed, so that the server signs nothing.
    Resumed,
}

/// A key of RSA, because ring cannot make one. It signs handshakes whose both sides are in this
/// file, and nothing else: it is no secret, whatever a scanner for secrets says.
const RSA_KEY: &[u8] = include_bytes!("speed-rsa.der");

/// Handshakes a second of one core. Shakes hands until the server has worked for `time`, at least
/// once.
pub fn handshakes_per_second(kind: TimedHandshake, time: Duration) -> Result<f64, HandshakeError> {
    let provider = Arc::new(provider());
    let versions = LeastVersion::Tls13.versions();
    let key = if kind == TimedHandshake::Rsa2048 { rsa_key()? } else { certified_key()? };
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OwnServer))
        .with_no_client_auth();
    let resumes = kind == TimedHandshake::Resumed;
    if resumes {
        server.ticketer = Ticketer::new()?;
    }
    let connector = if resumes { Connector::resuming(client) } else { Connector::new(client) };
    let acceptor = Acceptor::new(server);
    let (mut spent, mut count) = (Duration::ZERO, 0_u32);
    // The first is not counted: it warms the caches up, and gets the first ticket.
    let (_, mut ticket) = shake_hands(&acceptor, &connector, None)?;
    while count == 0 || spent < time {
        let one;
        (one, ticket) = shake_hands(&acceptor, &connector, ticket)?;
        spent += one;
        count += 1;
    }
    Ok(f64::from(count) / spent.as_secs_f64())
}

/// The time of the server, and the client's ticket.
fn shake_hands(
    acceptor: &Acceptor,
    connector: &Connector,
    ticket: Option<SessionTicket>,
) -> Result<(Duration, Option<SessionTicket>), HandshakeError> {
    let name = ServerName::try_from("self-test").expect("a valid host name");
    let had_ticket = ticket.is_some();
    let mut client = connector.resume(name, ticket)?;
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    client.advance(&[], &mut to_server)?;

    let start = Instant::now();
    let mut server = acceptor.handshake()?;
    let used = server.advance(&to_server, &mut to_client)?.used_bytes;
    let mut spent = start.elapsed();

    to_server.drain(..used);
    let used = client.advance(&to_client, &mut to_server)?.used_bytes;
    to_client.drain(..used);

    let start = Instant::now();
    server.advance(&to_server, &mut to_client)?;
    let established = server.finish()?;
    spent += start.elapsed();

    while client.awaits_ticket() {
        match client.receive(&to_client, &mut Vec::new(), &mut Vec::new())? {
            0 => break,
            used => drop(to_client.drain(..used)),
        }
    }
    debug_assert_eq!(established.peer.is_resumed, had_ticket, "a valid ticket is accepted");
    Ok((spent, client.finish()?.peer.ticket))
}

fn rsa_key() -> Result<CertifiedKey, HandshakeError> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(RSA_KEY));
    let certificate = CertificateDer::from(b"self-test".to_vec());
    Ok(CertifiedKey::new(vec![certificate], any_supported_type(&key)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_can_be_timed() {
        for kind in [TimedHandshake::EcdsaP256, TimedHandshake::Rsa2048, TimedHandshake::Resumed] {
            let found = handshakes_per_second(kind, Duration::ZERO).unwrap();
            assert!(found > 0.0 && found.is_finite(), "{kind:?}: {found}");
        }
    }
}
