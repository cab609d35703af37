//! Handshakes that fail, and what they tell.

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::sync::Arc;
use throng_tls::{
    Acceptor, Connector, HANDSHAKE_RECORDS_MAX, HandshakeError, LeastVersion, Role, Suite,
    provider, self_test,
};

use crate::support::{configs, connect, handshake, send, shake_hands, take};

#[test]
fn self_test_passes() {
    self_test(&provider()).unwrap();
}

#[test]
fn the_peer_is_described() {
    let (mut server, mut client) = configs(Suite::Tls13Aes128Gcm);
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = ServerName::try_from("example.org").unwrap();
    let mut other: Connection = ClientConnection::new(Arc::new(client), name).unwrap().into();
    let handshake = Acceptor::new(server).handshake().unwrap();
    let (established, _) = shake_hands(handshake, &mut other, usize::MAX);
    assert_eq!(established.peer.alpn.as_deref(), Some(&b"http/1.1"[..]));
    assert_eq!(established.peer.server_name.as_deref(), Some("example.org"));
    assert!(established.peer.certificates.is_empty());
    assert!(!established.peer.is_resumed);

    let (established, _, _) = connect(Suite::Tls12Aes256Gcm, Role::Client);
    assert_eq!(established.peer.certificates.len(), 1);
    assert_eq!(established.peer.server_name, None);
}

#[test]
fn a_session_is_resumed_without_memory_of_the_server() {
    for suite in [Suite::Tls13Aes128Gcm, Suite::Tls12Aes128Gcm] {
        let (mut server, client) = configs(suite);
        server.ticketer = rustls::crypto::ring::Ticketer::new().unwrap();
        let (acceptor, client) = (Acceptor::new(server), Arc::new(client));
        for is_resumed in [false, true] {
            let name = ServerName::try_from("localhost").unwrap();
            let client = ClientConnection::new(Arc::clone(&client), name).unwrap();
            let mut other = client.into();
            let handshake = acceptor.handshake().unwrap();
            let (mut established, _) = shake_hands(handshake, &mut other, usize::MAX);
            assert_eq!(established.peer.is_resumed, is_resumed);
            let mut records = send(&mut other, b"hello");
            let opened = established.incoming.open(&mut established.outgoing, &mut records);
            assert_eq!(&records[..opened.content_bytes], b"hello");
        }
    }
}

/// With TLS 1.3 a client gets its ticket after the handshake, and sends its request first.
#[test]
fn each_client_resumes_with_its_own_ticket() {
    for suite in [Suite::Tls13Aes128Gcm, Suite::Tls12Aes128Gcm] {
        let (mut server, client) = configs(suite);
        server.ticketer = rustls::crypto::ring::Ticketer::new().unwrap();
        let server = Arc::new(server);
        let connector = Connector::resuming(client);
        let connect = |ticket| {
            let name = ServerName::try_from("localhost").unwrap();
            let mut own = connector.resume(name, ticket).unwrap();
            let mut other = ServerConnection::new(Arc::clone(&server)).unwrap().into();
            let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
            loop {
                let progress = own.advance(&to_client, &mut to_server).unwrap();
                to_client.drain(..progress.used_bytes);
                crate::support::feed(&mut other, &to_server).unwrap();
                to_server.clear();
                if progress.is_done {
                    break;
                }
                take(&mut other, &mut to_client);
            }
            own.send(&[7; 20_000], &mut to_server).unwrap();
            crate::support::feed(&mut other, &to_server).unwrap();
            to_client.extend(send(&mut other, b"answer"));
            let (mut content, mut output) = (Vec::new(), Vec::new());
            while own.awaits_ticket() {
                let used = own.receive(&to_client, &mut content, &mut output).unwrap();
                assert!(used > 0, "the server sends tickets");
                to_client.drain(..used);
            }
            let mut established = own.finish().unwrap();
            let opened = established.incoming.open(&mut established.outgoing, &mut to_client);
            content.extend_from_slice(&to_client[..opened.content_bytes]);
            assert_eq!((&content[..], opened.end), (&b"answer"[..], None));
            established.peer
        };
        let (first, second) = (connect(None), connect(None));
        assert!(!first.is_resumed && !second.is_resumed && second.ticket.is_some());
        let third = connect(first.ticket);
        assert!(third.is_resumed, "{suite:?}");
        // A ticket of TLS 1.2 stays valid, and the server need not send another.
        assert!(third.ticket.is_some() || suite == Suite::Tls12Aes128Gcm);
    }
}

/// rustls sends its first data together with its last flight: we see it after the handshake only.
#[test]
fn data_right_behind_the_handshake_is_left() {
    let (mut own, mut other, _) = handshake(Suite::Tls13Aes128Gcm, Role::Server);
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    take(&mut other, &mut to_server);
    own.advance(&to_server, &mut to_client).unwrap();
    crate::support::feed(&mut other, &to_client).unwrap();
    let mut input = send(&mut other, b"hello");
    let progress = own.advance(&input, &mut to_client).unwrap();
    assert!(progress.is_done && progress.used_bytes < input.len());
    let mut established = own.finish().unwrap();
    let rest = &mut input[progress.used_bytes..];
    let opened = established.incoming.open(&mut established.outgoing, rest);
    assert_eq!(&rest[..opened.content_bytes], b"hello");
}

#[test]
fn what_is_no_tls_is_told_apart() {
    for input in [&b"GET / HTTP/1.1\r\n"[..], b"G", &[22, 2, 0, 0, 9], &[128; 40]] {
        let (server, _) = configs(Suite::Tls13Aes128Gcm);
        let mut handshake = Acceptor::new(server).handshake().unwrap();
        let (mut output, result) = (Vec::new(), handshake.advance(input, &mut Vec::new()));
        assert!(matches!(result, Err(HandshakeError::NotTls)), "{result:?}");
        handshake.advance(&[], &mut output).unwrap();
        assert!(output.is_empty());
    }
}

/// The description of the alert, unsealed, that ends `output`.
fn alert(output: &[u8]) -> Option<u8> {
    let front = output.len().checked_sub(7)?;
    (output[front..front + 6] == [21, 3, 3, 0, 2, 2]).then(|| output[output.len() - 1])
}

#[test]
fn an_oversized_handshake_record_is_refused_early() {
    let (server, _) = configs(Suite::Tls13Aes128Gcm);
    let mut handshake = Acceptor::new(server).handshake().unwrap();
    let mut output = Vec::new();
    let result = handshake.advance(&[22, 3, 1, 0xff, 0xff], &mut output);
    assert!(result.is_err());
    assert_eq!(alert(&output), Some(50), "{output:?}");
}

#[test]
fn a_handshake_in_tiny_records_is_too_long() {
    let (mut own, mut other, _) = handshake(Suite::Tls13Aes128Gcm, Role::Server);
    let (mut hello, mut tiny) = (Vec::new(), Vec::new());
    take(&mut other, &mut hello);
    for byte in &hello[5..] {
        tiny.extend([22, 3, 1, 0, 1, *byte]);
    }
    let result = own.advance(&tiny, &mut Vec::new());
    assert!(hello.len() > HANDSHAKE_RECORDS_MAX);
    assert!(matches!(result, Err(HandshakeError::TooLong)), "{result:?}");
}

#[test]
fn garbage_gets_an_alert() {
    let (server, _) = configs(Suite::Tls13Aes128Gcm);
    let mut handshake = Acceptor::new(server).handshake().unwrap();
    let mut output = Vec::new();
    let result = handshake.advance(&[22, 3, 1, 0, 4, 1, 0, 0, 0], &mut output);
    assert!(matches!(result, Err(HandshakeError::Refused(_))), "{result:?}");
    assert_eq!(alert(&output), Some(50), "{output:?}");
}

#[test]
fn only_tls_1_3_can_be_spoken() {
    let (_, client) = configs(Suite::Tls12Aes128Gcm);
    let (server, _) = configs(Suite::Tls13Aes128Gcm);
    let server = rustls::ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(LeastVersion::Tls13.versions())
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(server.cert_resolver);
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = Connector::new(client).handshake(name).unwrap();
    let (mut hello, mut output) = (Vec::new(), Vec::new());
    client.advance(&[], &mut hello).unwrap();
    let result = Acceptor::new(server).handshake().unwrap().advance(&hello, &mut output);
    assert!(matches!(result, Err(HandshakeError::Refused(_))), "{result:?}");
    assert_eq!(alert(&output), Some(70), "protocol_version");
}

/// The thread's variable must not leak secrets from one connection into another.
#[test]
fn handshakes_may_interleave_on_one_thread() {
    let suites = [Suite::Tls13Aes128Gcm, Suite::Tls13Aes256Gcm, Suite::Tls13Aes128Gcm];
    let mut pairs = suites.map(|suite| (handshake(suite, Role::Server), Vec::new()));
    for ((own, other, _), input) in &mut pairs {
        let mut output = Vec::new();
        take(other, input);
        let progress = own.advance(input, &mut output).unwrap();
        input.drain(..progress.used_bytes);
        crate::support::feed(other, &output).unwrap();
        take(other, input);
    }
    for ((mut own, mut other, _), input) in pairs {
        let progress = own.advance(&input, &mut Vec::new()).unwrap();
        assert!(progress.is_done);
        let mut established = own.finish().unwrap();
        let mut records = send(&mut other, b"mine");
        let opened = established.incoming.open(&mut established.outgoing, &mut records);
        assert_eq!(&records[..opened.content_bytes], b"mine");
    }
}

#[test]
fn an_unfinished_handshake_cannot_be_finished() {
    let (own, _, _) = handshake(Suite::Tls13Aes128Gcm, Role::Client);
    assert!(matches!(own.finish(), Err(HandshakeError::NotDone)));
}
