//! Shutdown.

use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_control::{Limits, Settings};
use throng_core::{ChannelName, Notification};

use crate::client::{Client, TIMEOUT, get, post, request};
use crate::server::Server;

/// A timeout that a test waits for: longer than a request takes.
const SHORT: Duration = Duration::from_millis(100);

/// A server whose timeouts do not expire while a test sends a body.
fn patient() -> Server {
    let settings = Settings::for_tests();
    Server::with(Settings {
        drain_timeout: TIMEOUT,
        limits: Limits { drain_body_timeout: TIMEOUT, ..Limits::default() },
        ..settings
    })
}

/// Begins a publication, and waits until the server reads its body.
fn in_progress(server: &Server) -> Client {
    let fields = ["Content-Length: 1", "Expect: 100-continue"];
    let mut client = server.connect(request("POST", "/channels/a", &fields));
    assert_eq!(client.answer().status, 100);
    client
}

#[test]
fn a_drain_answers_requests_and_closes_idle_connections() {
    let mut server = patient();
    let mut busy = in_progress(&server);
    let mut idle = server.connect_again();
    let mut asking = {
        server.follow(&ChannelName::channel("b"));
        server.connect(get("/channels/b/presence"))
    };
    let Notification::Presence { query, .. } = server.notification() else { panic!("a question") };
    server.begin_drain();
    idle.expect_end();
    busy.send("x");
    query.answer([], false);
    for client in [&mut busy, &mut asking] {
        let answer = client.answer();
        assert!(matches!(answer.status, 200 | 201) && answer.closes(), "{answer:?}");
        client.expect_end();
    }
    server.join();
}

#[test]
fn a_drain_refuses_publications_and_answers_reads() {
    let mut server = patient();
    let mut busy = in_progress(&server);
    let mut idle = server.connect_again();
    server.begin_drain();
    idle.expect_end();
    for request in [
        post("/channels/a", &[], "x"),
        post("/publish", &[], "{}"),
        get("/channels/a").into(),
        get("/channels/..").into(),
        // Refused before its body arrives.
        request("POST", "/channels/a", &["Content-Length: 1"]).into(),
    ] {
        let mut client = server.connect(request);
        let answer = client.answer();
        answer.expect_refusal(503, "draining");
        assert!(answer.closes());
        client.expect_end();
    }
    let health = server.ask(get("/health"));
    assert_eq!((health.status, health.text(), health.closes()), (503, "draining\n", true));
    assert!(health.field("retry-after").is_some());
    assert_eq!(server.ask(get("/channels/a/history")).status, 200);
    let mut client = server.connect(request("HEAD", "/channels/a", &[]));
    assert_eq!(client.answer_to_head().status, 503);
    assert_eq!(server.refused("draining"), 6);
    assert_eq!(server.metric("throng_draining"), 1);
    busy.send("x");
    assert_eq!(busy.answer().status, 201);
    drop(busy);
    server.join();
}

/// An accepted message must still be delivered, so the workers keep their connections until then.
#[test]
fn the_workers_drain_after_the_last_publication() {
    let mut server = patient();
    let mut busy = in_progress(&server);
    let mut idle = server.connect_again();
    server.begin_drain();
    idle.expect_end();
    server.expect_workers_not_draining();
    busy.send("x");
    assert_eq!(busy.answer().status, 201);
    server.expect_workers_draining();
    drop(busy);
    server.join();
}

#[test]
fn the_workers_do_not_wait_for_other_requests() {
    let mut server = patient();
    server.follow(&ChannelName::channel("b"));
    let mut asking = server.connect(get("/channels/b/presence"));
    let Notification::Presence { query, .. } = server.notification() else { panic!("a question") };
    let mut unwanted = server.connect(request("POST", "/nowhere", &["Content-Length: 1"]));
    server.begin_drain();
    server.expect_workers_draining();
    query.answer([], false);
    assert_eq!(asking.answer().status, 200);
    unwanted.send("x");
    assert_eq!(unwanted.answer().status, 404);
    drop((asking, unwanted));
    server.join();
}

/// One incomplete request must not delay the drain of the workers.
#[test]
fn a_body_that_does_not_arrive_is_refused() {
    let settings = Settings {
        drain_timeout: TIMEOUT,
        limits: Limits { drain_body_timeout: SHORT, ..Limits::default() },
        ..Settings::for_tests()
    };
    let mut server = Server::with(settings);
    let mut stuck = [
        in_progress(&server),
        server.connect(request("POST", "/channels/a", &["Content-Length: 3"]) + "x"),
        server.connect(request("POST", "/publish", &["Content-Length: 3"]) + "x"),
        server.connect(request("POST", "/channels/a", &["Transfer-Encoding: chunked"]) + "1\r\nx"),
    ];
    server.begin_drain();
    server.expect_workers_draining();
    for client in &mut stuck {
        let answer = client.answer();
        answer.expect_refusal(503, "draining");
        assert!(answer.closes());
        client.expect_end();
    }
    drop(stuck);
    server.join();
}

#[test]
fn a_body_that_keeps_arriving_is_refused_at_the_drain_timeout() {
    let settings = Settings {
        drain_timeout: SHORT,
        limits: Limits { drain_body_timeout: TIMEOUT, ..Limits::default() },
        ..Settings::for_tests()
    };
    let mut server = Server::with(settings);
    let mut stuck = in_progress(&server);
    server.begin_drain();
    stuck.answer().expect_refusal(503, "draining");
    stuck.expect_end();
    server.expect_workers_draining();
    drop(stuck);
    server.join();
}

#[test]
fn an_incomplete_head_is_refused() {
    let mut server = Server::new();
    let mut client = server.connect(get("/health") + "POST /channels/a HT");
    assert_eq!(client.answer().status, 200);
    server.begin_drain();
    let answer = client.answer();
    answer.expect_refusal(503, "draining");
    assert!(answer.closes());
    client.expect_end();
    drop(client);
    server.join();
}

/// The workers hand off connections as long as they run.
#[test]
fn connections_that_arrive_while_the_workers_drain_are_answered() {
    let mut server = Server::new();
    server.edge.connections.store(2, Ordering::SeqCst);
    server.begin_drain();
    server.expect_workers_draining();
    for _ in 0..3 {
        let mut late = server.connect(post("/channels/a", &[], "x"));
        late.answer().expect_refusal(503, "draining");
        late.expect_end();
    }
    server.edge.connections.store(0, Ordering::SeqCst);
    server.join();
}

#[test]
fn a_server_without_connections_ends_at_once() {
    let mut server = Server::new();
    server.begin_drain();
    server.join();
}

#[test]
fn the_server_goes_on_after_a_failed_handoff() {
    let server = Server::new();
    server.lose_one();
    assert_eq!(server.ask(get("/health")).status, 200);
}
