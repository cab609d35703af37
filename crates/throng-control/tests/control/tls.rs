//! Connections over TLS that workers hand off, and that go back to them with their state.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_control::{Settings, TlsConnection};
use throng_tls::{End, Established, SealError, Suite, testing};

use crate::client::{TIMEOUT, get, post, request};
use crate::server::{Server, small};

/// A client after its handshake with a worker.
struct TlsClient {
    socket: TcpStream,
    tls: Established,
    records: Vec<u8>,
    content: Vec<u8>,
    end: Option<End>,
}

/// A new connection whose worker has opened `bytes`, and holds the records of `unopened`.
fn connect(server: &Server, suite: Suite, bytes: impl Into<Vec<u8>>, unopened: &str) -> TlsClient {
    let (of_server, tls) = testing::connect(suite);
    let Established { outgoing, incoming, .. } = of_server;
    let (records, content) = (Vec::new(), Vec::new());
    let socket = server.open();
    let mut client = TlsClient { socket, tls, records, content, end: None };
    let inbound = client.seal(unopened);
    let tls = TlsConnection { outgoing, incoming, inbound, outbound: Vec::new(), user: None };
    server.hand_over(bytes, Some(Box::new(tls)));
    client.socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    client
}

impl TlsClient {
    /// Records with this content, of at most 16 KiB each.
    fn seal(&mut self, content: impl AsRef<[u8]>) -> Vec<u8> {
        let (mut records, mut rest) = (Vec::new(), content.as_ref());
        while !rest.is_empty() {
            if self.tls.outgoing.check() == Err(SealError::KeyUpdateDue) {
                self.tls.incoming.seal_key_update(&mut self.tls.outgoing, &mut records).unwrap();
            }
            let sealed = self.tls.outgoing.seal([rest], &mut records).unwrap();
            rest = &rest[sealed.content_bytes()..];
            self.tls.outgoing.keep(sealed);
        }
        records
    }

    fn send(&mut self, content: impl AsRef<[u8]>) {
        let records = self.seal(content);
        self.socket.write_all(&records).unwrap();
    }

    /// Reads once. False at the end.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let count = self.socket.read(&mut bytes).unwrap();
        self.records.extend_from_slice(&bytes[..count]);
        let opened = self.tls.incoming.open(&mut self.tls.outgoing, &mut self.records);
        self.content.extend_from_slice(&self.records[..opened.content_bytes]);
        self.records.drain(..opened.used_bytes);
        self.end = self.end.or(opened.end);
        count > 0
    }

    fn until(&mut self, end: &str) -> String {
        loop {
            let found = self.content.windows(end.len()).position(|part| part == end.as_bytes());
            if let Some(at) = found {
                let rest = self.content.split_off(at + end.len());
                return String::from_utf8(std::mem::replace(&mut self.content, rest)).unwrap();
            }
            assert!(self.read(), "ended after {:?}", String::from_utf8_lossy(&self.content));
        }
    }

    /// Reads a response: head and body.
    fn answer(&mut self) -> String {
        let head = self.until("\r\n\r\n");
        let length = head.split_once("\r\nContent-Length: ").expect("it has a length").1;
        let length: usize = length.lines().next().unwrap().parse().unwrap();
        while self.content.len() < length {
            assert!(self.read(), "the body is cut off");
        }
        let rest = self.content.split_off(length);
        let body = std::mem::replace(&mut self.content, rest);
        head + &String::from_utf8(body).unwrap()
    }

    /// Reads to the end of the socket, and returns how TLS has ended.
    fn rest(&mut self) -> (String, Option<End>) {
        while self.read() {}
        (String::from_utf8(std::mem::take(&mut self.content)).unwrap(), self.end)
    }
}

fn subscription() -> String {
    request("GET", "/channels/a?since=z-1", &["Accept: text/event-stream"])
}

#[test]
fn a_connection_goes_back_to_a_worker_with_its_tls_state() {
    for suite in Suite::ALL {
        let server = Server::new();
        let mut client = connect(&server, suite, post("/channels/a", &[], "x"), "");
        assert!(client.answer().starts_with("HTTP/1.1 201 "));
        client.send(get("/health"));
        assert!(client.answer().starts_with("HTTP/1.1 200 "));
        client.send(subscription());
        let (_, handoff) = server.edge.handed_off_with_tls();
        assert_eq!(handoff.bytes, subscription().as_bytes());
        let mut tls = handoff.tls.expect("it is a TLS connection");
        assert!(tls.inbound.is_empty() && tls.outbound.is_empty());
        // The worker goes on where the control plane has stopped.
        let mut record = Vec::new();
        let sealed = tls.outgoing.seal([&b"from the worker"[..]], &mut record).unwrap();
        tls.outgoing.keep(sealed);
        (&handoff.stream).write_all(&record).unwrap();
        client.until("from the worker");
    }
}

#[test]
fn a_request_may_come_in_records_that_the_worker_has_not_opened() {
    let server = Server::new();
    let suite = Suite::Tls13Aes128Gcm;
    let whole = post("/channels/a", &[], "x");
    let text = String::from_utf8(whole).unwrap();
    for cut in [0, 1, text.len() / 2, text.len() - 1] {
        let (opened, unopened) = text.split_at(cut);
        let mut client = connect(&server, suite, opened, unopened);
        assert!(client.answer().starts_with("HTTP/1.1 201 "), "cut at {cut}");
    }
}

#[test]
fn records_may_be_cut_anywhere() {
    let server = Server::new();
    let mut client = connect(&server, Suite::Tls13Aes256Gcm, get("/health"), "");
    client.answer();
    let records = client.seal(get("/health"));
    for byte in records {
        client.socket.write_all(&[byte]).unwrap();
    }
    client.answer();
}

#[test]
fn bodies_longer_than_a_record_come_and_go() {
    let server = Server::with(Settings { max_message_bytes: 1 << 20, ..Settings::for_tests() });
    let body = "x".repeat(300_000);
    for suite in [Suite::Tls12Aes128Gcm, Suite::Tls13ChaCha20Poly1305] {
        let mut client = connect(&server, suite, get("/health"), "");
        client.answer();
        client.send(post("/channels/a", &["Content-Type: text/plain"], &body));
        assert!(client.answer().starts_with("HTTP/1.1 201 "));
        client.send(get("/channels/a/history?limit=1"));
        assert!(client.answer().contains(&body));
    }
}

#[test]
fn a_key_update_is_answered_before_the_next_response() {
    let server = Server::new();
    let mut client = connect(&server, Suite::Tls13Aes128Gcm, get("/health"), "");
    client.answer();
    for _ in 0..3 {
        // The next records have another key; the server follows.
        let mut records = Vec::new();
        client.tls.incoming.seal_key_update(&mut client.tls.outgoing, &mut records).unwrap();
        client.socket.write_all(&records).unwrap();
        client.send(get("/health"));
        client.answer();
    }
}

#[test]
fn the_end_of_a_connection_is_said() {
    let server = Server::new();
    let closing = request("GET", "/health", &["Connection: close"]);
    let mut client = connect(&server, Suite::Tls13Aes128Gcm, closing, "");
    let (text, end) = client.rest();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    assert_eq!(end, Some(End::Closed));

    let server = Server::with(small());
    let mut client = connect(&server, Suite::Tls12Aes256Gcm, "GET / HTTP/1.1\r\nbad\r\n\r\n", "");
    let (text, end) = client.rest();
    assert!(text.starts_with("HTTP/1.1 400 "), "{text}");
    assert_eq!(end, Some(End::Closed));
}

#[test]
fn the_end_between_two_requests_is_said() {
    let idle_timeout = Duration::from_millis(100);
    let server = Server::with(Settings { idle_timeout, ..Settings::for_tests() });
    let mut client = connect(&server, Suite::Tls13Aes128Gcm, get("/health"), "");
    client.answer();
    assert_eq!(client.rest(), (String::new(), Some(End::Closed)), "it is idle");

    let mut server = Server::new();
    let mut client = connect(&server, Suite::Tls12Aes256Gcm, get("/health"), "");
    client.answer();
    server.begin_drain();
    assert_eq!(client.rest(), (String::new(), Some(End::Closed)), "the server drains");
}

#[test]
fn a_client_that_ends_is_told_the_same() {
    let server = Server::new();
    let mut client = connect(&server, Suite::Tls13Aes128Gcm, get("/health"), "");
    client.answer();
    let mut record = Vec::new();
    client.tls.outgoing.seal_alert(throng_tls::Alert::CloseNotify, &mut record).unwrap();
    client.socket.write_all(&record).unwrap();
    assert_eq!(client.rest(), (String::new(), Some(End::Closed)));
}

#[test]
fn a_forged_record_ends_the_connection_with_an_alert() {
    let server = Server::new();
    for suite in Suite::ALL {
        let mut client = connect(&server, suite, get("/health"), "");
        client.answer();
        let mut record = client.seal(get("/health"));
        *record.last_mut().unwrap() ^= 1;
        client.socket.write_all(&record).unwrap();
        let (text, end) = client.rest();
        // 20 is bad_record_mac.
        assert_eq!((text.as_str(), end), ("", Some(End::PeerFailed(20))), "{suite:?}");
    }
}

#[test]
fn a_forged_record_behind_a_request_ends_the_connection() {
    let server = Server::new();
    for suite in Suite::ALL {
        let mut client = connect(&server, suite, get("/health"), "");
        client.answer();
        let mut records = client.seal(get("/health"));
        let mut forged = client.seal(get("/health"));
        *forged.last_mut().unwrap() ^= 1;
        records.append(&mut forged);
        client.socket.write_all(&records).unwrap();
        let (_, end) = client.rest();
        assert_eq!(end, Some(End::PeerFailed(20)), "{suite:?}");
    }
}

#[test]
fn a_client_that_has_ended_is_answered_and_ended() {
    let server = Server::new();
    let (of_server, mut tls) = testing::connect(Suite::Tls13Aes128Gcm);
    let Established { mut outgoing, mut incoming, .. } = of_server;
    let mut record = Vec::new();
    tls.outgoing.seal_alert(throng_tls::Alert::CloseNotify, &mut record).unwrap();
    assert_eq!(incoming.open(&mut outgoing, &mut record).end, Some(End::Closed));
    let (records, content) = (Vec::new(), Vec::new());
    let socket = server.open();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut client = TlsClient { socket, tls, records, content, end: None };
    let (inbound, outbound) = (Vec::new(), Vec::new());
    let tls = TlsConnection { outgoing, incoming, inbound, outbound, user: None };
    server.hand_over(get("/health"), Some(Box::new(tls)));
    let (text, end) = client.rest();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    assert_eq!(end, Some(End::Closed));
}

#[test]
fn a_connection_that_no_worker_takes_is_refused_over_tls() {
    let server = Server::new();
    server.edge.is_full.store(true, Ordering::SeqCst);
    let mut client = connect(&server, Suite::Tls13Aes128Gcm, get("/health"), "");
    client.answer();
    client.send(subscription());
    let (text, end) = client.rest();
    // `EventSource` gives up on any status but 200.
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("\n: busy: "), "{text}");
    assert!(text.contains("\nretry: "), "{text}");
    assert_eq!(end, Some(End::Closed));
}

#[test]
fn connections_beyond_the_limit_are_refused_over_tls() {
    let settings = Settings { max_control_connections: 0, ..Settings::for_tests() };
    let server = Server::with(settings);
    for _ in 0..100 {
        let mut client = connect(&server, Suite::Tls13Aes128Gcm, get("/health"), "");
        let (text, end) = client.rest();
        assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("\"full\""), "{text}");
        assert_eq!(end, Some(End::Closed));
    }
}
