//! A kept-alive connection that asks to subscribe is handed off to a worker, with its bytes.

use std::io::Write as _;
use std::sync::atomic::Ordering;

use throng_access::AllowedPages;
use throng_control::Settings;

use crate::client::{get, post, request};
use crate::server::Server;

fn subscription() -> String {
    request("GET", "/channels/a?since=z-1", &["Accept: text/event-stream"])
}

#[test]
fn a_connection_whose_next_request_subscribes_is_handed_off() {
    let server = Server::new();
    let mut client = server.connect(post("/channels/a", &[], "x"));
    assert_eq!(client.answer().status, 201);
    client.send(subscription());
    let (mut stream, bytes) = server.edge.handed_off();
    assert_eq!(bytes, subscription().as_bytes());
    stream.write_all(b"from the worker").unwrap();
    assert_eq!(client.read_exact(15), b"from the worker");
    assert_eq!(server.metric("throng_http_handoffs_to_workers_total"), 1);
}

#[test]
fn every_kind_of_subscription_is_handed_off() {
    let server = Server::new();
    for bytes in [
        get("/users/a%2Fb"),
        get("/subscribe?channel=a&channel=b"),
        request("GET", "http://other.example/channels/a", &[]),
        "GET /channels/a HTTP/1.0\r\n\r\n".into(),
        request("GET", "/channels/a", &["Connection: Upgrade", "Upgrade: websocket"]),
        // The worker refuses these.
        get("/channels/.."),
        get("/subscribe"),
        get("/channels/a?wait=x"),
    ] {
        let mut client = server.connect_again();
        client.send(&bytes);
        assert_eq!(server.edge.handed_off().1, bytes.as_bytes(), "{bytes}");
    }
}

#[test]
fn bytes_may_arrive_one_by_one() {
    let server = Server::new();
    let mut client = server.connect_again();
    client.send_byte_by_byte(post("/channels/a", &[], "x"));
    assert_eq!(client.answer().status, 201);
    client.send_byte_by_byte(subscription());
    assert_eq!(server.edge.handed_off().1, subscription().as_bytes());
}

/// Two requests may arrive in two pieces, cut anywhere.
#[test]
fn every_cut_has_the_same_result() {
    let server = Server::new();
    let stream = [post("/channels/a", &[], "x"), subscription().into()].concat();
    for cut in 0..stream.len() {
        let mut client = server.connect_again();
        client.send(&stream[..cut]);
        // Usually the first piece has arrived once a later connection is answered.
        server.ask(get("/health"));
        client.send(&stream[cut..]);
        assert_eq!(client.answer().status, 201);
        assert_eq!(server.edge.handed_off().1, subscription().as_bytes(), "cut at {cut}");
    }
}

#[test]
fn pipelined_requests_are_answered_before_the_handoff() {
    let server = Server::new();
    let follows = "what the client says to the worker";
    let mut requests = Vec::new();
    for n in 0..50 {
        requests.extend(post("/channels/a", &[], format!("message {n}")));
    }
    requests.extend(subscription().as_bytes());
    requests.extend(follows.as_bytes());
    // Once all bytes are those that the worker has read, once they arrive later.
    for mut client in [server.connect(requests.clone()), {
        let mut client = server.connect_again();
        client.send(&requests);
        client
    }] {
        for _ in 0..50 {
            assert_eq!(client.answer().status, 201);
        }
        let (stream, mut bytes) = server.edge.handed_off();
        // Bytes that arrive later stay in the socket for the worker.
        while bytes.len() < subscription().len() + follows.len() {
            let mut more = [0; 4096];
            stream.set_nonblocking(false).unwrap();
            let read = std::io::Read::read(&mut &stream, &mut more).unwrap();
            bytes.extend(&more[..read]);
        }
        assert_eq!(bytes, (subscription() + follows).as_bytes());
        client.try_send("x");
    }
}

#[test]
fn a_large_response_is_written_completely_before_the_handoff() {
    let server = Server::new();
    let text = "x".repeat(60_000);
    for _ in 0..16 {
        assert_eq!(server.ask(post("/channels/a", &[], &text)).status, 201);
    }
    let history = get("/channels/a/history");
    let mut client = server.connect([history.clone(), history, subscription()].concat());
    for _ in 0..2 {
        assert_eq!(client.answer().json()["messages"].as_array().unwrap().len(), 16);
    }
    assert_eq!(server.edge.handed_off().1, subscription().as_bytes());
}

#[test]
fn empty_lines_before_the_request_are_handed_off() {
    let server = Server::new();
    let mut client = server.connect_again();
    client.send("\r\n");
    client.send(post("/channels/a", &[], "x"));
    assert_eq!(client.answer().status, 201);
    let bytes = format!("\r\n{}", subscription());
    client.send(&bytes);
    assert_eq!(server.edge.handed_off().1, bytes.as_bytes());
}

#[test]
fn a_half_closed_connection_is_handed_off() {
    let server = Server::new();
    let mut client =
        server.connect([post("/channels/a", &[], "x"), subscription().into()].concat());
    client.finish();
    assert_eq!(client.answer().status, 201);
    assert_eq!(server.edge.handed_off().1, subscription().as_bytes());
}

#[test]
fn a_subscription_after_chunks_is_ignored() {
    let server = Server::new();
    let chunked = request("POST", "/channels/c", &["Transfer-Encoding: chunked"]);
    let mut client = server.connect(format!("{chunked}1\r\nx\r\n0\r\n\r\n{}", subscription()));
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (201, true));
    client.expect_end();
    server.edge.expect_no_handoff();
}

#[test]
fn a_subscription_after_the_last_request_is_ignored() {
    let server = Server::new();
    let last = post("/channels/a", &["Connection: close"], "x");
    let mut client = server.connect([last, subscription().into()].concat());
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (201, true));
    client.expect_end();
    server.edge.expect_no_handoff();
}

#[test]
fn a_subscription_inside_a_body_is_part_of_the_body() {
    let server = Server::new();
    assert_eq!(server.ask(post("/channels/a", &[], subscription())).status, 201);
    assert_eq!(server.texts("a"), [subscription()]);
    server.edge.expect_no_handoff();
}

#[test]
fn a_subscription_that_no_worker_accepts_gets_busy() {
    let allowed_origins = vec!["https://page.example".into()];
    let pages = AllowedPages::new(allowed_origins, Vec::new()).shared();
    let server = Server::with(Settings { pages, ..Settings::for_tests() });
    server.edge.is_full.store(true, Ordering::SeqCst);
    let mut client = server.connect_again();
    client.send(request("GET", "/channels/a", &["Origin: https://page.example"]));
    let answer = client.answer();
    answer.expect_refusal(503, "busy");
    assert!(answer.closes());
    assert_eq!(answer.field("access-control-allow-origin"), Some("https://page.example"));
    client.expect_end();
    assert_eq!(server.refused("busy"), 1);
}

/// `EventSource` gives up on any status but 200.
#[test]
fn a_refused_event_stream_says_when_to_come_back() {
    let server = Server::new();
    server.edge.is_full.store(true, Ordering::SeqCst);
    let mut client = server.connect_again();
    client.send(subscription());
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (200, true));
    assert_eq!(answer.field("content-type"), Some("text/event-stream"));
    assert!(answer.text().contains("\nretry: "), "{answer:?}");
    client.expect_end();
    // Pages of an origin that is not allowed get a plain error.
    let mut client = server.connect_again();
    client.send(request("GET", "/channels/a", &["Accept: text/event-stream", "Origin: http://x"]));
    client.answer().expect_refusal(503, "busy");
}

/// A page cannot read why a WebSocket was not opened.
#[test]
fn a_refused_websocket_says_when_to_come_back() {
    let server = Server::new();
    server.edge.is_full.store(true, Ordering::SeqCst);
    let mut client = server.connect_again();
    client.send(request(
        "GET",
        "/channels/a",
        &[
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ],
    ));
    assert_eq!(client.answer().status, 101);
    let head = client.read_exact(4);
    assert_eq!((head[0], u16::from_be_bytes([head[2], head[3]])), (0x88, 1013));
    let reason = client.read_exact(usize::from(head[1]) - 2);
    assert!(reason.starts_with(b"reconnect in "), "{reason:?}");
    client.expect_end();
}

/// Otherwise planes that disagree would hand the connection back and forth.
#[test]
fn a_subscription_that_a_worker_handed_off_is_not_handed_off() {
    let server = Server::new();
    server.ask(get("/channels/a")).expect_refusal(400, "bad_request");
    server.ask(get("/channels/..")).expect_refusal(400, "bad_name");
    server.edge.expect_no_handoff();
}
