//! Shutdown.

use std::time::Duration;

use throng_control::Settings;
use throng_core::{ChannelName, Mail};

use crate::client::{Client, get, post, request};
use crate::server::Server;

/// A request that the server has certainly begun with.
fn in_flight(server: &Server) -> Client {
    let fields = ["Content-Length: 1", "Expect: 100-continue"];
    let mut client = server.connect(request("POST", "/channels/a", &fields));
    assert_eq!(client.answer().status, 100);
    client
}

#[test]
fn requests_are_finished_and_idle_connections_closed() {
    let mut server = Server::new();
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
    let mut server = Server::new();
    let mut busy = in_flight(&server);
    let mut idle = server.connect_again();
    server.begin_drain();
    idle.expect_end();
    for request in [
        post("/channels/a", &[], "x"),
        post("/publish", &[], "{}"),
        get("/channels/a").into(),
        get("/channels/..").into(),
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
    assert_eq!(server.refused("draining"), 4);
    assert_eq!(server.figure("throng_draining"), 1);
    busy.send("x");
    assert_eq!(busy.answer().status, 201);
    drop(busy);
    server.join();
}

#[test]
fn nobody_is_waited_for_longer_than_said() {
    let drain_timeout = Duration::from_millis(100);
    let mut server = Server::with(Settings { drain_timeout, ..Settings::default() });
    let mut stuck = in_flight(&server);
    server.begin_drain();
    server.join();
    stuck.expect_end();
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
