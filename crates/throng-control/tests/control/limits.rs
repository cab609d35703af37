//! Everything has a limit, and a status that says so.

use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_control::Settings;
use throng_core::{ChannelName, Mail};

use crate::client::{get, post, request};
use crate::server::{Server, small};

/// Shorter than anybody wants to wait, longer than a request takes.
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn heads() {
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

/// The largest head that the settings allow passes hyper, too.
#[test]
fn large_heads() {
    let head_bytes_max = 64 << 10;
    let server = Server::with(Settings { head_bytes_max, ..Settings::default() });
    let spare = head_bytes_max - request("GET", "/health", &["X: "]).len();
    let mut client = server.connect_again();
    client.send(request("GET", "/health", &[&format!("X: {}", "x".repeat(spare))]));
    assert_eq!(client.answer().status, 200);
}

#[test]
fn messages() {
    let server = Server::with(small());
    assert_eq!(server.ask(post("/channels/a", &[], "x".repeat(1000))).status, 201);
    // Refused before the body is there, and without asking for it.
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
    assert_eq!(server.figure("throng_http_buffered_request_bytes"), 0);
}

/// A client that goes on sending still gets to read why it should not.
#[test]
fn the_refusal_of_a_large_body_survives_it() {
    let server = Server::new();
    let mut client = server.connect(request("POST", "/channels/a", &["Content-Length: 800000"]));
    for _ in 0..100 {
        client.try_send([b'x'; 8000]);
    }
    client.answer().expect_refusal(413, "too_large");
    client.expect_end();
}

#[test]
fn slow_heads() {
    let server = Server::with(Settings { head_timeout: SHORT, ..Settings::default() });
    let mut client = server.connect_again();
    client.send("GET /health HTTP/1.1\r\nHost");
    let answer = client.answer();
    answer.expect_refusal(408, "too_slow");
    assert!(answer.closes());
    client.expect_end();
    assert_eq!(server.refused("too_slow"), 1);
}

#[test]
fn heads_that_trickle() {
    let server = Server::with(Settings { head_timeout: SHORT, ..Settings::default() });
    let mut client = server.connect_again();
    client.send("GET /health HTTP/1.1\r\nX: ");
    // Ends with the first read that says why, however long the client would go on.
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
fn slow_bodies() {
    slow_bodies_with(Settings { body_timeout: SHORT, ..Settings::default() });
    slow_bodies_with(Settings { idle_timeout: SHORT, ..Settings::default() });
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
fn a_body_that_nobody_wants_is_not_waited_for_long() {
    let server = Server::with(Settings { body_timeout: SHORT, ..Settings::default() });
    let mut client = server.connect(request("POST", "/nowhere", &["Content-Length: 3"]) + "x");
    let answer = client.answer();
    answer.expect_refusal(404, "not_found");
    assert!(answer.closes());
    client.expect_end();
}

#[test]
fn idle_connections() {
    let server = Server::with(Settings { idle_timeout: SHORT, ..Settings::default() });
    let mut client = server.connect_again();
    client.expect_end();
    // An empty line is not the beginning of a request.
    let mut client = server.connect_again();
    client.send("\r\n");
    client.expect_end();
    assert_eq!(server.refused("too_slow"), 0);
}

/// Who waits for an answer is not idle, nor slow with the next head.
#[test]
fn the_server_does_not_hurry_itself() {
    let settings = Settings { idle_timeout: SHORT, head_timeout: SHORT, ..Settings::default() };
    let server = Server::with(settings);
    server.follow(&ChannelName::channel("a"));
    let mut waiting = server.connect(get("/channels/a/presence") + &get("/health"));
    let Mail::Presence { question, .. } = server.mail() else { panic!("a question") };
    for _ in 0..2 {
        server.connect_again().expect_end();
    }
    question.answer([], false);
    assert_eq!(waiting.answer().status, 200);
    assert_eq!(waiting.answer().text(), "ok\n");
}

#[test]
fn connections() {
    let server = Server::with(Settings { own_connections_max: 1, ..Settings::default() });
    let mut first = server.connect_again();
    let mut second = server.connect(get("/health"));
    assert_eq!(second.answer().status, 200);
    first.expect_end();
    second.send(get("/health"));
    assert_eq!(second.answer().status, 200);
}

#[test]
fn everybody_is_told_that_there_is_no_room() {
    let server = Server::with(Settings { own_connections_max: 0, ..Settings::default() });
    // More than are waited for.
    let mut all: Vec<_> = (0..100).map(|_| server.connect(get("/health"))).collect();
    for client in &mut all {
        client.answer().expect_refusal(503, "full");
        client.expect_end();
    }
}

/// Subscribers take room, too. Beside a full house of them there is room for a few connections, and
/// the one that has been silent for longest gives way to the next.
#[test]
fn connections_of_both_planes() {
    let server = Server::with(Settings { connections_max: 10, ..Settings::default() });
    server.edge.connections.store(10, Ordering::SeqCst);
    let mut silent: Vec<_> = (0..64).map(|_| server.connect_again()).collect();
    assert_eq!(server.ask(get("/health")).status, 200);
    silent[0].expect_end();
    // The others are still there, but for the one that has given way to the answer above.
    silent[63].send(get("/health"));
    assert_eq!(silent[63].answer().status, 200);
    assert!(server.figure("throng_http_connections_evicted_total") >= 1);
    assert_eq!(server.refused("full"), 0);
}

/// A body that does not come is no reason to keep a place.
#[test]
fn half_sent_requests_give_way() {
    let server = Server::with(Settings { own_connections_max: 2, ..Settings::default() });
    let fields = ["Content-Length: 9", "Expect: 100-continue"];
    let mut stuck: Vec<_> =
        (0..2).map(|_| server.connect(request("POST", "/channels/a", &fields))).collect();
    for client in &mut stuck {
        assert_eq!(client.answer().status, 100);
    }
    assert_eq!(server.ask(post("/channels/a", &[], "x")).status, 201);
    stuck[0].expect_end();
}

/// Those for whose answer we are to blame keep their places: then there is no room.
#[test]
fn requests_that_wait_for_us_keep_their_places() {
    let server = Server::with(Settings { own_connections_max: 1, ..Settings::default() });
    server.follow(&ChannelName::channel("b"));
    let mut asking = server.connect(get("/channels/b/presence"));
    let Mail::Presence { question, .. } = server.mail() else { panic!("a question") };
    let mut refused = server.connect(get("/health"));
    let answer = refused.answer();
    answer.expect_refusal(503, "full");
    assert!(answer.closes());
    refused.expect_end();
    question.answer([], false);
    assert_eq!(asking.answer().status, 200);
    assert_eq!(server.refused("full"), 1);
}

/// A request line may be as long as the head. Where hyper's own type for it holds less, the refusal
/// is ours.
#[test]
fn long_targets() {
    let server = Server::new();
    let target = |bytes: usize| format!("/health?{}", "x".repeat(bytes - "/health?".len()));
    assert_eq!(server.ask(get(&target(15_000))).status, 200);
    server.ask(get(&target(17_000))).expect_refusal(414, "uri_too_long");
    let head_bytes_max = 128 << 10;
    let server = Server::with(Settings { head_bytes_max, ..Settings::default() });
    assert_eq!(server.ask(get(&target(65_534))).status, 200);
    server.ask(get(&target(65_535))).expect_refusal(414, "uri_too_long");
}

/// Answers that nobody reads fill the memory only so far, and cost those who do not read them.
#[test]
fn unread_answers() {
    let message_bytes_max = 1 << 20;
    let answer_bytes_max = 1 << 20;
    let settings = Settings { message_bytes_max, answer_bytes_max, ..Settings::default() };
    let server = Server::with(settings);
    // Six times as long as JSON, and more than any socket takes from a server unread.
    let body = vec![1; 1_000_000];
    assert_eq!(server.ask(post("/channels/a", &[], body)).status, 201);
    let page = || server.connect(get("/channels/a/history"));
    let unread = || server.figure("throng_http_buffered_response_bytes");
    // One alone may be larger than the limit.
    let mut stuck = page();
    while unread() < 6_000_000 {}
    // Those who publish have room of their own, and short answers are given always.
    let batch = r#"{"channel":"b","data":1}"#;
    assert_eq!(server.ask(post("/publish", &[], batch)).status, 200);
    assert_eq!(server.ask(post("/channels/a", &[], "x")).status, 201);
    // Whoever asks later for as much gets it, instead of the one that does not read.
    assert_eq!(server.ask(get("/channels/a/history?limit=2")).status, 200);
    let rest = stuck.rest_bytes();
    assert!(rest.len() < 6_000_000, "it was cut off after {} bytes", rest.len());
    while unread() > 0 {}
    assert_eq!(server.figure("throng_http_responses_aborted_total"), 1);
    assert_eq!(page().answer().status, 200);
    assert_eq!(server.refused("busy"), 0);
}

/// Bodies that do not come to their end cost those who began them.
#[test]
fn half_sent_bodies() {
    let settings = Settings { partial_batches_bytes_max: 1 << 20, ..Settings::default() };
    let server = Server::with(settings);
    let partial = || server.figure("throng_http_buffered_request_bytes");
    let begin = |bytes: usize| {
        let head = request("POST", "/publish", &["Content-Length: 1000000"]);
        let before = partial();
        let client = server.connect(head + &"x".repeat(bytes));
        while partial() < before + bytes as u64 {}
        client
    };
    let mut largest = begin(500_000);
    let mut small = begin(100_000);
    // A message is no batch.
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
    // Its first line is no JSON.
    assert_eq!(small.answer().status, 200);
    while partial() > 0 {}
}
