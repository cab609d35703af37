//! Shutdown.

use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_control::Settings;
use throng_core::{ChannelName, Mail};

use crate::client::{Client, PATIENCE, get, post, request};
use crate::server::Server;

/// Shorter than anybody wants to wait, longer than a request takes.
const SHORT: Duration = Duration::from_millis(100);

/// A server that waits for bodies for as long as these tests may take to send them.
fn patient() -> Server {
    let settings = Settings::default();
    Server::with(Settings { drain_timeout: PATIENCE, drain_body_timeout: PATIENCE, ..settings })
}

/// A request that the server has certainly begun with.
fn in_flight(server: &Server) -> Client {
    let fields = ["Content-Length: 1", "Expect: 100-continue"];
    let mut client = server.connect(request("POST", "/channels/a", &fields));
    assert_eq!(client.answer().status, 100);
    client
}

#[test]
fn requests_are_finished_and_idle_connections_closed() {
    let mut server = patient();
    let mut busy = in_flight(&server);
    let mut idle = server.connect_again();
    let mut asking = {
        server.follow(&ChannelName::channel("b"));
        server.connect(get("/channels/b/presence"))
    };
    let Mail::Presence { question, .. } = server.mail() else { panic!("a question") };
    server.begin_drain();
    idle.expect_end();
    busy.send("x");
    question.answer([], false);
    for client in [&mut busy, &mut asking] {
        let answer = client.answer();
        assert!(matches!(answer.status, 200 | 201) && answer.closes(), "{answer:?}");
        client.expect_end();
    }
    server.join();
}

#[test]
fn what_still_arrives_is_answered() {
    let mut server = patient();
    let mut busy = in_flight(&server);
    let mut idle = server.connect_again();
    server.begin_drain();
    idle.expect_end();
    for request in [
        post("/channels/a", &[], "x"),
        post("/publish", &[], "{}"),
        get("/channels/a").into(),
        get("/channels/..").into(),
        // The body is not waited for.
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
    assert_eq!(server.figure("throng_draining"), 1);
    busy.send("x");
    assert_eq!(busy.answer().status, 201);
    drop(busy);
    server.join();
}

/// Whatever is accepted is still to be delivered, so nobody is sent home before.
#[test]
fn the_workers_part_after_the_last_publication() {
    let mut server = patient();
    let mut busy = in_flight(&server);
    let mut idle = server.connect_again();
    server.begin_drain();
    idle.expect_end();
    server.expect_no_parting();
    busy.send("x");
    assert_eq!(busy.answer().status, 201);
    server.expect_parting();
    drop(busy);
    server.join();
}

#[test]
fn the_workers_do_not_wait_for_anything_else() {
    let mut server = patient();
    server.follow(&ChannelName::channel("b"));
    let mut asking = server.connect(get("/channels/b/presence"));
    let Mail::Presence { question, .. } = server.mail() else { panic!("a question") };
    let mut unwanted = server.connect(request("POST", "/nowhere", &["Content-Length: 1"]));
    server.begin_drain();
    server.expect_parting();
    question.answer([], false);
    assert_eq!(asking.answer().status, 200);
    unwanted.send("x");
    assert_eq!(unwanted.answer().status, 404);
    drop((asking, unwanted));
    server.join();
}

/// One half-sent request must not hold up the goodbye of everybody.
#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let settings =
        Settings { drain_timeout: PATIENCE, drain_body_timeout: SHORT, ..Settings::default() };
    let mut server = Server::with(settings);
    let mut stuck = [
        in_flight(&server),
        server.connect(request("POST", "/channels/a", &["Content-Length: 3"]) + "x"),
        server.connect(request("POST", "/publish", &["Content-Length: 3"]) + "x"),
        server.connect(request("POST", "/channels/a", &["Transfer-Encoding: chunked"]) + "1\r\nx"),
    ];
    server.begin_drain();
    server.expect_parting();
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
fn a_body_that_keeps_coming_is_not_waited_for_longer_than_said() {
    let settings =
        Settings { drain_timeout: SHORT, drain_body_timeout: PATIENCE, ..Settings::default() };
    let mut server = Server::with(settings);
    let mut stuck = in_flight(&server);
    server.begin_drain();
    stuck.answer().expect_refusal(503, "draining");
    stuck.expect_end();
    server.expect_parting();
    drop(stuck);
    server.join();
}

#[test]
fn a_head_that_has_begun_is_refused() {
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

/// Up to the moment at which the workers have nobody left, they may hand somebody over.
#[test]
fn what_comes_while_the_workers_part_is_answered() {
    let mut server = Server::new();
    server.edge.connections.store(2, Ordering::SeqCst);
    server.begin_drain();
    server.expect_parting();
    for _ in 0..3 {
        let mut late = server.connect(post("/channels/a", &[], "x"));
        late.answer().expect_refusal(503, "draining");
        late.expect_end();
    }
    server.edge.connections.store(0, Ordering::SeqCst);
    server.join();
}

#[test]
fn without_connections_it_ends_at_once() {
    let mut server = Server::new();
    server.begin_drain();
    server.join();
}

#[test]
fn a_lost_connection_is_not_the_end() {
    let server = Server::new();
    server.lose_one();
    assert_eq!(server.ask(get("/health")).status, 200);
}
