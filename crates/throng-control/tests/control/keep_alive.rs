//! Several requests on one connection.

use crate::client::{get, post, request};
use crate::server::Server;

#[test]
fn a_connection_serves_many_requests() {
    let server = Server::new();
    let mut client = server.connect_again();
    for n in 1..=20 {
        client.send(post("/channels/a", &[], n.to_string()));
        assert_eq!(client.answer().json()["id"], format!("z-{n}"));
    }
    assert_eq!(server.texts("a").len(), 20);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Server::new();
    let all: Vec<u8> =
        (1..=100).flat_map(|n: u32| post("/channels/a", &[], n.to_string())).collect();
    let mut client = server.connect(all.clone());
    client.send(&all);
    for n in 1..=200 {
        assert_eq!(client.answer().json()["id"], format!("z-{n}"));
    }
}

#[test]
fn the_client_decides_which_request_is_the_last() {
    let server = Server::new();
    let mut client = server.connect_again();
    client.send(request("GET", "/health", &["Connection: close"]));
    assert!(client.answer().closes());
    client.expect_end();

    let mut client = server.connect("GET /health HTTP/1.0\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    client.expect_end();

    let kept = "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    let mut client = server.connect(kept);
    assert_eq!(client.answer().field("connection"), Some("keep-alive"));
    client.send(kept);
    assert_eq!(client.answer().status, 200);
}

#[test]
fn a_half_closed_connection_is_answered() {
    let server = Server::new();
    let mut client = server.connect(post("/channels/a", &[], "x"));
    client.finish();
    assert_eq!(client.answer().status, 201);
    client.expect_end();
}

#[test]
fn an_incomplete_request_is_not_executed() {
    let server = Server::new();
    let whole = post("/channels/a", &[], "hello");
    for cut in 1..whole.len() {
        let mut client = server.connect_again();
        client.send(&whole[..cut]);
        client.finish();
        let rest = client.rest();
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 400 "), "{rest}");
    }
    assert_eq!(server.texts("a"), [""; 0]);
}

#[test]
fn a_client_may_wait_for_100_continue() {
    let server = Server::new();
    let mut client = server.connect_again();
    for _ in 0..2 {
        let fields = ["Expect: 100-continue", "Content-Length: 5"];
        client.send(request("POST", "/channels/a", &fields));
        assert_eq!(client.answer().status, 100);
        client.send("hello");
        let answer = client.answer();
        assert_eq!((answer.status, answer.closes()), (201, false));
    }
    client.send(get("/health"));
    assert_eq!(client.answer().status, 200);
    assert_eq!(server.texts("a"), ["hello", "hello"]);
}

#[test]
fn a_client_need_not_wait_for_100_continue() {
    let server = Server::new();
    let mut client = server.connect_again();
    client.send(post("/channels/a", &["Expect: 100-continue"], "hello"));
    let mut answer = client.answer();
    if answer.status == 100 {
        answer = client.answer();
    }
    assert_eq!((answer.status, answer.closes()), (201, false));
}

#[test]
fn an_upgrade_to_another_protocol_is_ignored() {
    let server = Server::new();
    let mut client = server.connect_again();
    client.send(request("GET", "/chat", &["Connection: Upgrade", "Upgrade: h2c"]));
    assert_eq!(client.answer().status, 200);
    client.send(get("/health"));
    assert_eq!(client.answer().status, 200);
}
