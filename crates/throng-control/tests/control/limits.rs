//! Limits and timeouts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_control::{Limits, Settings};
use throng_core::{ChannelName, Notification};

use crate::client::{get, post, request};
use crate::server::{Server, small};

/// A timeout that a test waits for: longer than a request takes.
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn the_size_of_heads_is_limited() {
    let server = Server::with(small());
    let field = |bytes: usize| format!("X: {}", "x".repeat(bytes));
    let mut client = server.connect_again();
    let spare = 2000 - request("GET", "/health", &[&field(0)]).len();
    client.send(request("GET", "/health", &[&field(spare)]));
    assert_eq!(client.answer().status, 200);
    client.send(request("GET", "/health", &[&field(spare + 1)]));
    client.answer().expect_refusal(431, "head_too_large");
    client.expect_end();

    let mut client = server.connect_again();
    client.send(format!("GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: {}", "x".repeat(2000)));
    client.answer().expect_refusal(431, "head_too_large");
    client.expect_end();

    let mut client = server.connect_again();
    client.send(request("GET", "/health", &["X:"; 70]));
    client.answer().expect_refusal(431, "head_too_large");
    client.expect_end();

    let mut client = server.connect_again();
    client.send(get(&format!("/{}", "x".repeat(2000))));
    client.answer().expect_refusal(414, "uri_too_long");
    client.expect_end();
    assert_eq!((server.refused("head_too_large"), server.refused("uri_too_long")), (3, 1));
}

/// The largest head that the settings allow fits into hyper's buffer.
#[test]
fn a_head_may_be_as_large_as_the_settings_allow() {
    let max_head_bytes = 64 << 10;
    let server = Server::with(Settings { max_head_bytes, ..Settings::for_tests() });
    let spare = max_head_bytes - request("GET", "/health", &["X: "]).len();
    let mut client = server.connect_again();
    client.send(request("GET", "/health", &[&format!("X: {}", "x".repeat(spare))]));
    assert_eq!(client.answer().status, 200);
}

#[test]
fn the_size_of_messages_is_limited() {
    let server = Server::with(small());
    assert_eq!(server.ask(post("/channels/a", &[], "x".repeat(1000))).status, 201);
    // Refused before the body arrives, and without `100 Continue`.
    let fields = ["Content-Length: 1001", "Expect: 100-continue"];
    for fields in [&fields[..], &fields[..1]] {
        let mut client = server.connect(request("POST", "/channels/a", fields));
        let answer = client.answer();
        answer.expect_refusal(413, "too_large");
        assert!(answer.closes());
        client.expect_end();
    }
    let chunked = request("POST", "/channels/a", &["Transfer-Encoding: chunked"]);
    for chunk in ["3e9".to_owned(), "3e8".to_owned()] {
        let bytes = usize::from_str_radix(&chunk, 16).unwrap();
        let rest = if bytes == 1000 { "\r\n1\r\nx\r\n0\r\n\r\n" } else { "\r\n0\r\n\r\n" };
        let body = "x".repeat(bytes);
        let answer = server.ask(format!("{chunked}{chunk}\r\n{body}{rest}"));
        answer.expect_refusal(413, "too_large");
    }
    assert_eq!(server.refused("too_large"), 4);
    assert_eq!(server.metric("throng_http_buffered_request_bytes"), 0);
}

/// A client that keeps sending the body can still read the response.
#[test]
fn the_response_to_a_large_body_is_not_lost() {
    let server = Server::new();
    let mut client = server.connect(request("POST", "/channels/a", &["Content-Length: 800000"]));
    for _ in 0..100 {
        client.try_send([b'x'; 8000]);
    }
    client.answer().expect_refusal(413, "too_large");
    client.expect_end();
}

#[test]
fn a_slow_head_is_refused() {
    let server = Server::with(Settings { head_timeout: SHORT, ..Settings::for_tests() });
    let mut client = server.connect_again();
    client.send("GET /health HTTP/1.1\r\nHost");
    let answer = client.answer();
    answer.expect_refusal(408, "too_slow");
    assert!(answer.closes());
    client.expect_end();
    assert_eq!(server.refused("too_slow"), 1);
}

#[test]
fn a_head_that_trickles_is_refused() {
    let server = Server::with(Settings { head_timeout: SHORT, ..Settings::for_tests() });
    let mut client = server.connect_again();
    client.send("GET /health HTTP/1.1\r\nX: ");
    // The client sends one byte at a time until it is refused.
    let mut trickle = server.connect_again();
    loop {
        client.try_send("x");
        trickle.send(get("/health"));
        trickle.answer();
        if server.refused("too_slow") > 0 {
            break;
        }
    }
    client.answer().expect_refusal(408, "too_slow");
}

#[test]
fn slow_bodies_are_refused() {
    slow_bodies_with(Settings {
        limits: Limits { body_timeout: SHORT, ..Limits::default() },
        ..Settings::for_tests()
    });
    slow_bodies_with(Settings { idle_timeout: SHORT, ..Settings::for_tests() });
}

fn slow_bodies_with(settings: Settings) {
    let server = Server::with(settings);
    for request in [
        request("POST", "/channels/a", &["Content-Length: 3"]) + "x",
        request("POST", "/publish", &["Content-Length: 3"]),
        request("POST", "/channels/a", &["Transfer-Encoding: chunked"]) + "1\r\nx\r\n",
    ] {
        let mut client = server.connect(request);
        let answer = client.answer();
        answer.expect_refusal(408, "too_slow");
        assert!(answer.closes());
        client.expect_end();
    }
    assert_eq!(server.refused("too_slow"), 3);
    assert_eq!(server.texts("a"), [""; 0]);
}

#[test]
fn an_unneeded_body_is_not_awaited_for_longer_than_its_timeout() {
    let server = Server::with(Settings {
        limits: Limits { body_timeout: SHORT, ..Limits::default() },
        ..Settings::for_tests()
    });
    let mut client = server.connect(request("POST", "/nowhere", &["Content-Length: 3"]) + "x");
    let answer = client.answer();
    answer.expect_refusal(404, "not_found");
    assert!(answer.closes());
    client.expect_end();
}

#[test]
fn idle_connections_are_closed() {
    let server = Server::with(Settings { idle_timeout: SHORT, ..Settings::for_tests() });
    let mut client = server.connect_again();
    client.expect_end();
    // An empty line does not begin a request.
    let mut client = server.connect_again();
    client.send("\r\n");
    client.expect_end();
    assert_eq!(server.refused("too_slow"), 0);
}

/// A connection that waits for its response is not idle, and its next head may be incomplete.
#[test]
fn no_timeout_applies_while_the_server_works() {
    let settings = Settings { idle_timeout: SHORT, head_timeout: SHORT, ..Settings::for_tests() };
    let server = Server::with(settings);
    server.follow(&ChannelName::channel("a"));
    let mut waiting = server.connect(get("/channels/a/presence") + &get("/health"));
    let Notification::Presence { query, .. } = server.notification() else { panic!("a question") };
    for _ in 0..2 {
        server.connect_again().expect_end();
    }
    query.answer([], false);
    assert_eq!(waiting.answer().status, 200);
    assert_eq!(waiting.answer().text(), "ok\n");
}

#[test]
fn an_idle_connection_is_closed_for_a_new_one() {
    let server = Server::with(Settings { max_control_connections: 1, ..Settings::for_tests() });
    let mut first = server.connect_again();
    let mut second = server.connect(get("/health"));
    assert_eq!(second.answer().status, 200);
    first.expect_end();
    second.send(get("/health"));
    assert_eq!(second.answer().status, 200);
}

#[test]
fn all_connections_over_the_limit_get_full() {
    let server = Server::with(Settings { max_control_connections: 0, ..Settings::for_tests() });
    // More than the number of lingering refusals.
    let mut all: Vec<_> = (0..100).map(|_| server.connect(get("/health"))).collect();
    for client in &mut all {
        client.answer().expect_refusal(503, "full");
        client.expect_end();
    }
}

/// Subscribers count, too. A server full of subscribers has places for a few more connections;
/// beyond them the one that has been idle for longest is closed.
#[test]
fn subscribers_count_against_the_limit_of_connections() {
    let server = Server::with(Settings { max_connections: 10, ..Settings::for_tests() });
    server.edge.connections.store(10, Ordering::SeqCst);
    let mut silent: Vec<_> = (0..64).map(|_| server.connect_again()).collect();
    assert_eq!(server.ask(get("/health")).status, 200);
    silent[0].expect_end();
    // The others are open, except the one that was evicted for the request above.
    silent[63].send(get("/health"));
    assert_eq!(silent[63].answer().status, 200);
    assert!(server.metric("throng_http_connections_evicted_total") >= 1);
    assert_eq!(server.refused("full"), 0);
}

/// A body that does not arrive does not protect its connection.
#[test]
fn incomplete_requests_are_evicted() {
    let server = Server::with(Settings { max_control_connections: 2, ..Settings::for_tests() });
    let fields = ["Content-Length: 9", "Expect: 100-continue"];
    let mut stuck: Vec<_> =
        (0..2).map(|_| server.connect(request("POST", "/channels/a", &fields))).collect();
    for client in &mut stuck {
        assert_eq!(client.answer().status, 100);
    }
    assert_eq!(server.ask(post("/channels/a", &[], "x")).status, 201);
    stuck[0].expect_end();
}

/// A connection that waits for the server is not evicted, so a new one is refused.
#[test]
fn requests_that_wait_for_the_server_are_not_evicted() {
    let server = Server::with(Settings { max_control_connections: 1, ..Settings::for_tests() });
    server.follow(&ChannelName::channel("b"));
    let mut asking = server.connect(get("/channels/b/presence"));
    let Notification::Presence { query, .. } = server.notification() else { panic!("a question") };
    let mut refused = server.connect(get("/health"));
    let answer = refused.answer();
    answer.expect_refusal(503, "full");
    assert!(answer.closes());
    refused.expect_end();
    query.answer([], false);
    assert_eq!(asking.answer().status, 200);
    assert_eq!(server.refused("full"), 1);
}

/// A request line may be as long as the head. Hyper's type for targets is smaller; the response to
/// longer ones is the control plane's.
#[test]
fn the_length_of_targets_is_limited() {
    let server = Server::new();
    let target = |bytes: usize| format!("/health?{}", "x".repeat(bytes - "/health?".len()));
    assert_eq!(server.ask(get(&target(15_000))).status, 200);
    server.ask(get(&target(17_000))).expect_refusal(414, "uri_too_long");
    let max_head_bytes = 128 << 10;
    let server = Server::with(Settings { max_head_bytes, ..Settings::for_tests() });
    assert_eq!(server.ask(get(&target(65_534))).status, 200);
    server.ask(get(&target(65_535))).expect_refusal(414, "uri_too_long");
}

/// Unread responses have a memory quota. Beyond it the connection that does not read is closed.
#[test]
fn the_memory_of_unread_responses_is_limited() {
    let max_message_bytes = 1 << 20;
    let max_answer_bytes = 1 << 20;
    let settings = Settings {
        max_message_bytes,
        limits: Limits { max_answer_bytes, ..Limits::default() },
        ..Settings::for_tests()
    };
    let server = Server::with(settings);
    // As JSON six times as long, and more than the socket buffers take.
    let body = vec![1; 1_000_000];
    assert_eq!(server.ask(post("/channels/a", &[], body)).status, 201);
    let page = || server.connect(get("/channels/a/history"));
    let unread = || server.metric("throng_http_buffered_response_bytes");
    // A single response may exceed the limit.
    let mut stuck = page();
    while unread() < 6_000_000 {}
    // Responses to publishers have another quota, and short responses none.
    let batch = r#"{"channel":"b","data":1}"#;
    assert_eq!(server.ask(post("/publish", &[], batch)).status, 200);
    assert_eq!(server.ask(post("/channels/a", &[], "x")).status, 201);
    // A later response of the same size evicts the unread one.
    assert_eq!(server.ask(get("/channels/a/history?limit=2")).status, 200);
    let rest = stuck.rest_bytes();
    assert!(rest.len() < 6_000_000, "not cut off: {} bytes", rest.len());
    while unread() > 0 {}
    assert_eq!(server.metric("throng_http_responses_aborted_total"), 1);
    assert_eq!(page().answer().status, 200);
    assert_eq!(server.refused("busy"), 0);
}

/// Incomplete bodies have a memory quota. Beyond it the largest is refused.
#[test]
fn the_memory_of_incomplete_bodies_is_limited() {
    let settings = Settings {
        limits: Limits { max_partial_batches_bytes: 1 << 20, ..Limits::default() },
        ..Settings::for_tests()
    };
    let server = Server::with(settings);
    let partial = || server.metric("throng_http_buffered_request_bytes");
    let begin = |bytes: usize| {
        let head = request("POST", "/publish", &["Content-Length: 1000000"]);
        let before = partial();
        let client = server.connect(head + &"x".repeat(bytes));
        while partial() < before + bytes as u64 {}
        client
    };
    let mut largest = begin(500_000);
    let mut small = begin(100_000);
    // Messages have another quota than batches.
    let message = request("POST", "/channels/a", &["Content-Length: 2"]);
    let mut other = server.connect(message + "x");
    let mut last = server.connect(request("POST", "/publish", &["Content-Length: 900000"]));
    last.send("\n".repeat(900_000));
    assert_eq!(last.answer().status, 200);
    let refused = largest.answer();
    refused.expect_refusal(503, "busy");
    assert!(refused.closes());
    other.send("x");
    assert_eq!(other.answer().status, 201);
    small.send("\n".repeat(900_000));
    // Status 200, although its first line is not JSON.
    assert_eq!(small.answer().status, 200);
    while partial() > 0 {}
}
