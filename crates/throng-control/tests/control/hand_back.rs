//! A kept-alive connection that asks to subscribe goes back to a worker, with its bytes.

use std::io::Write as _;
use std::sync::atomic::Ordering;

use throng_control::Settings;

use crate::client::{get, post, request};
use crate::server::Server;

fn subscription() -> String {
    request("GET", "/channels/a?since=z-1", &["Accept: text/event-stream"])
}

#[test]
fn the_next_request_subscribes() {
    let server = Server::new();
    let mut client = server.connect(post("/channels/a", &[], "x"));
    assert_eq!(client.answer().status, 201);
    client.send(subscription());
    let (mut stream, bytes) = server.edge.handed_back();
    assert_eq!(bytes, subscription().as_bytes());
    stream.write_all(b"from the worker").unwrap();
    assert_eq!(client.read_exact(15), b"from the worker");
    assert_eq!(server.figure("throng_http_handoffs_to_workers_total"), 1);
}

#[test]
fn every_kind_of_subscription_goes_back() {
    let server = Server::new();
    for bytes in [
        get("/users/a%2Fb"),
        get("/subscribe?channel=a&channel=b"),
        request("GET", "http://other.example/channels/a", &[]),
        "GET /channels/a HTTP/1.0\r\n\r\n".into(),
        request("GET", "/channels/a", &["Connection: Upgrade", "Upgrade: websocket"]),
        // The worker refuses these, in its own words.
        get("/channels/.."),
        get("/subscribe"),
        get("/channels/a?wait=x"),
    ] {
        let mut client = server.connect_again();
        client.send(&bytes);
        assert_eq!(server.edge.handed_back().1, bytes.as_bytes(), "{bytes}");
    }
}

#[test]
fn bytes_one_by_one_are_the_same_bytes() {
    let server = Server::new();
    let mut client = server.connect_again();
    client.send_byte_by_byte(post("/channels/a", &[], "x"));
    assert_eq!(client.answer().status, 201);
    client.send_byte_by_byte(subscription());
    assert_eq!(server.edge.handed_back().1, subscription().as_bytes());
}

/// However the stream of two requests is cut in two, the same comes of it.
#[test]
fn every_cut_gives_the_same() {
    let server = Server::new();
    let stream = [post("/channels/a", &[], "x"), subscription().into()].concat();
    for cut in 0..stream.len() {
        let mut client = server.connect_again();
        client.send(&stream[..cut]);
        // What was sent has arrived by the time that a later connection is answered, mostly.
        server.ask(get("/health"));
        client.send(&stream[cut..]);
        assert_eq!(client.answer().status, 201);
        assert_eq!(server.edge.handed_back().1, subscription().as_bytes(), "cut at {cut}");
    }
}

#[test]
fn what_is_pipelined_before_is_answered_first() {
    let server = Server::new();
    let follows = "what the client says to the worker";
    let mut requests = Vec::new();
    for n in 0..50 {
        requests.extend(post("/channels/a", &[], format!("message {n}")));
    }
    requests.extend(subscription().as_bytes());
    requests.extend(follows.as_bytes());
    // Once with what the worker read, and once later.
    for mut client in [server.connect(requests.clone()), {
        let mut client = server.connect_again();
        client.send(&requests);
        client
    }] {
        for _ in 0..50 {
            assert_eq!(client.answer().status, 201);
        }
        let (stream, mut bytes) = server.edge.handed_back();
        // What comes later is left in the socket for the worker.
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
fn a_large_answer_is_written_whole_before() {
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
    assert_eq!(server.edge.handed_back().1, subscription().as_bytes());
}

#[test]
fn empty_lines_between_requests_go_along() {
    let server = Server::new();
    let mut client = server.connect_again();
    client.send("\r\n");
    client.send(post("/channels/a", &[], "x"));
    assert_eq!(client.answer().status, 201);
    let bytes = format!("\r\n{}", subscription());
    client.send(&bytes);
    assert_eq!(server.edge.handed_back().1, bytes.as_bytes());
}

#[test]
fn a_half_closed_connection_goes_back_too() {
    let server = Server::new();
    let mut client =
        server.connect([post("/channels/a", &[], "x"), subscription().into()].concat());
    client.finish();
    assert_eq!(client.answer().status, 201);
    assert_eq!(server.edge.handed_back().1, subscription().as_bytes());
}

#[test]
fn after_chunks_nothing_is_looked_for() {
    let server = Server::new();
    let chunked = request("POST", "/channels/c", &["Transfer-Encoding: chunked"]);
    let mut client = server.connect(format!("{chunked}1\r\nx\r\n0\r\n\r\n{}", subscription()));
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (201, true));
    client.expect_end();
    server.edge.expect_nothing_back();
}

#[test]
fn after_the_last_request_nothing_is_looked_for() {
    let server = Server::new();
    let last = post("/channels/a", &["Connection: close"], "x");
    let mut client = server.connect([last, subscription().into()].concat());
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (201, true));
    client.expect_end();
    server.edge.expect_nothing_back();
}

#[test]
fn a_subscription_in_a_body_is_a_body() {
    let server = Server::new();
    assert_eq!(server.ask(post("/channels/a", &[], subscription())).status, 201);
    assert_eq!(server.texts("a"), [subscription()]);
    server.edge.expect_nothing_back();
}

#[test]
fn a_worker_that_takes_no_more_is_busy() {
    let allowed_origins = vec!["https://page.example".into()];
    let server = Server::with(Settings { allowed_origins, ..Settings::default() });
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

/// `EventSource` gives up for ever on any status but 200.
#[test]
fn events_that_are_refused_say_when_to_come_back() {
    let server = Server::new();
    server.edge.is_full.store(true, Ordering::SeqCst);
    let mut client = server.connect_again();
    client.send(subscription());
    let answer = client.answer();
    assert_eq!((answer.status, answer.closes()), (200, true));
    assert_eq!(answer.field("content-type"), Some("text/event-stream"));
    assert!(answer.text().contains("\nretry: "), "{answer:?}");
    client.expect_end();
    // An origin that is not allowed gets no more than before.
    let mut client = server.connect_again();
    client.send(request("GET", "/channels/a", &["Accept: text/event-stream", "Origin: http://x"]));
    client.answer().expect_refusal(503, "busy");
}

/// A page cannot read why a WebSocket was not opened.
#[test]
fn a_websocket_that_is_refused_says_when_to_come_back() {
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

/// Otherwise two planes that disagree would play ball with the connection.
#[test]
fn what_comes_first_does_not_go_back() {
    let server = Server::new();
    server.ask(get("/channels/a")).expect_refusal(400, "bad_request");
    server.ask(get("/channels/..")).expect_refusal(400, "bad_name");
    server.edge.expect_nothing_back();
}
