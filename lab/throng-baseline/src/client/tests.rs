//! The client against small servers made of blocking sockets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::Client;
use super::target::{Path, Target};
use crate::{frame, http};

/// Ends a test that would hang; a test that passes never waits for it.
const DEADLINE: Duration = Duration::from_secs(20);

/// The time after which a delivery counts as missing.
const MISSING_DEADLINE: Duration = Duration::from_millis(300);

const CONNECTIONS: usize = 20;

const HEAD: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

fn websocket() -> Target {
    Target::WebSocket(Path::Own("/users/u".to_owned()))
}

/// A client with all connections subscribed, on two threads and in two steps; and the server's
/// ends, each with its request line.
fn subscribed() -> (Client, Vec<(TcpStream, String)>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let accepting = thread::spawn(move || {
        let accept = |_| {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
            let mut request = Vec::new();
            while http::head_bytes(&request).is_none() {
                let mut part = [0; 1024];
                let bytes = stream.read(&mut part).expect("a request");
                request.extend_from_slice(&part[..bytes]);
            }
            // In two parts, so that a head may arrive in two.
            stream.write_all(&HEAD[..20]).expect("half a head");
            stream.write_all(&HEAD[20..]).expect("the other half");
            let line = String::from_utf8_lossy(&request).lines().next().map(str::to_owned);
            (stream, line.expect("a request line"))
        };
        (0..CONNECTIONS).map(accept).collect()
    });
    let mut client = Client::start(2).expect("threads");
    client.connect(&websocket(), &[port], 7).expect("the first subscribed");
    client.connect(&websocket(), &[port], CONNECTIONS - 7).expect("all subscribed");
    (client, accepting.join().expect("all accepted"))
}

fn send_to_all(streams: &mut [(TcpStream, String)], bytes: &[u8]) -> Result<()> {
    for (stream, _) in streams {
        stream.write_all(bytes)?;
    }
    Ok(())
}

#[test]
fn every_connection_has_its_own_number() {
    let (_client, streams) = subscribed();
    let mut asked: Vec<_> = streams.into_iter().map(|(_, line)| line).collect();
    asked.sort_unstable();
    let mut expected: Vec<_> =
        (0..CONNECTIONS).map(|number| format!("GET /users/u{number} HTTP/1.1")).collect();
    expected.sort_unstable();
    assert_eq!(asked, expected);
}

#[test]
fn a_round_ends_with_the_last_byte_of_the_last_delivery() {
    let (client, mut streams) = subscribed();
    let message = frame::text(&frame::payload(64));
    for _ in 0..3 {
        let round = client.round(message.len(), DEADLINE, || {
            send_to_all(&mut streams, &message[..10])?;
            send_to_all(&mut streams, &message[10..])
        });
        assert_eq!(round.expect("a round").latencies_ms.len(), CONNECTIONS);
    }
}

#[test]
fn missing_deliveries_are_counted() {
    let (client, mut streams) = subscribed();
    let message = frame::text(&frame::payload(64));
    let round = client.round(message.len(), MISSING_DEADLINE, || {
        send_to_all(&mut streams[3..], &message)?;
        send_to_all(&mut streams[..1], &message[1..])
    });
    let error = round.expect_err("three are missing").to_string();
    assert!(error.starts_with("of 20 connections 3 did not receive"), "{error}");
}

#[test]
fn a_closed_connection_and_a_surplus_are_errors() {
    let (client, mut streams) = subscribed();
    let message = frame::text(&frame::payload(64));
    let round = client.round(message.len(), DEADLINE, || {
        send_to_all(&mut streams[1..], &message.repeat(2))?;
        send_to_all(&mut streams[..1], &message)
    });
    let error = round.expect_err("most have received too much").to_string();
    assert!(error.contains("received too much"), "{error}");

    let (client, streams) = subscribed();
    let round = client.round(message.len(), DEADLINE, || {
        // Dropping them is not enough: threads of other tests have copies of this descriptor table.
        for (stream, _) in &streams[CONNECTIONS / 2..] {
            stream.shutdown(Shutdown::Both)?;
        }
        Ok(())
    });
    let error = round.expect_err("half are closed").to_string();
    assert!(error.contains("closed"), "{error}");
}

#[test]
fn parked_connections_answer_pings() {
    let (client, mut streams) = subscribed();
    let parked = client.park();
    send_to_all(&mut streams, &[0x89, 2, b'h', b'i']).expect("pings");
    for (stream, _) in &mut streams {
        let mut pong = [0; 8];
        stream.read_exact(&mut pong).expect("a pong");
        assert_eq!(pong, [0x8a, 0x82, 0, 0, 0, 0, b'h', b'i']);
    }
    parked.unpark().expect("no connection was lost");
}

#[test]
fn a_refusal_shows_the_response() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let refusing = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(b"HTTP/1.1 503 Full\r\nContent-Length: 0\r\n\r\n").expect("an answer");
        // Stays open until the client has read it.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut client = Client::start(1).expect("a thread");
    let error = client.connect(&websocket(), &[port], 1).expect_err("refused").to_string();
    assert!(error.contains("503 Full"), "{error}");
    drop(client);
    refusing.join().expect("the server has ended");
}
