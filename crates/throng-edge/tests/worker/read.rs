//! Read markers of users, on `throng.v1`.

use std::sync::Arc;
use std::time::Duration;

use throng_access::{AccessControl, AllowAll};
use throng_core::{Rule, Rules};
use throng_edge::{Counter, Settings};

use crate::rig::{Client, Rig};

#[test]
fn a_client_reads_and_moves_its_marker() {
    let mut rig = Rig::new();
    let client = rig.v1();
    client.received();
    let mut ask = |text: &str| {
        rig.send_frame(&client, text);
        rig.work();
        client.received()
    };
    let published = ask(r#"{"type":"publish","user":"ann","data":"x"}"#);
    assert!(published.contains("z-1"), "{published}");
    let unread = ask(r#"{"type":"read","user":"ann","ref":1}"#);
    assert!(unread.ends_with(r#"{"type":"read","user":"ann","unread":1,"ref":1}"#), "{unread}");
    let read = ask(r#"{"type":"read","user":"ann","id":"z-1"}"#);
    assert!(read.ends_with(r#"{"type":"read","user":"ann","read":"z-1","unread":0}"#), "{read}");
    let back = ask(r#"{"type":"read","user":"ann","id":"z-0","back":true}"#);
    assert!(back.ends_with(r#"{"type":"read","user":"ann","unread":1}"#), "{back}");
    assert!(ask(r#"{"type":"read","user":"ann","id":"1"}"#).contains("bad_id"));
    assert!(ask(r#"{"type":"read","channel":"ann"}"#).contains("forbidden"), "it has no user");
    assert!(ask(r#"{"type":"read"}"#).contains("bad_request"));
}

/// A rig whose connections have neither welcomes nor heartbeats.
fn quiet() -> Rig {
    let settings = Settings { heartbeat: Duration::ZERO, welcome: false, ..Settings::for_tests() };
    Rig::with(settings)
}

/// A client of `throng.v1`, with this query in its request.
fn v1(rig: &mut Rig, query: &str) -> Client {
    rig.connect(&format!(
        "GET /subscribe{query} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: throng.v1\r\n\r\n"
    ))
}

/// The requests of clients that are told of a moved marker, and how.
const TOLD: [(&str, &str); 6] = [
    ("/users/ann?envelope=true", "{}\n"),
    ("/users/ann?envelope=compact", "{}\n"),
    ("/users/ann?transport=sse", "event: unread\ndata: {}\n\n"),
    ("/users/ann?transport=sse&envelope=true", "event: unread\ndata: {}\n\n"),
    ("/users/ann?transport=sse&envelope=compact", "event: unread\ndata: {}\n\n"),
    ("/subscribe?channel=a&user=ann&envelope=true", "{}\n"),
];

#[test]
fn a_moved_marker_is_told_to_the_other_devices() {
    let mut rig = quiet();
    let connect = |rig: &mut Rig, target: &str| {
        let client = rig.connect(&format!("GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n"));
        client.received();
        client
    };
    let told: Vec<_> =
        TOLD.iter().map(|(target, shown)| (connect(&mut rig, target), *shown)).collect();
    let bodies = connect(&mut rig, "/users/ann");
    let polls = ["", "&envelope=true"].map(|more| {
        connect(&mut rig, &format!("/users/ann?transport=poll&wait=60&since=z-2{more}"))
    });
    let sockets = ["", "?envelope=compact"].map(|query| v1(&mut rig, query));
    for socket in &sockets {
        rig.send_frame(socket, r#"{"type":"subscribe","user":"ann"}"#);
    }
    rig.publish_to_user("ann", "1");
    rig.publish_to_user("ann", "2");
    rig.work();
    let all = told.iter().map(|(client, _)| client);
    for client in all.chain([&bodies]).chain(&polls).chain(&sockets) {
        client.received();
    }
    let [mover, other] = &sockets;
    rig.send_frame(mover, r#"{"type":"read","user":"ann","id":"z-1"}"#);
    rig.work();
    let answer = mover.received();
    assert!(answer.ends_with(r#"{"type":"read","user":"ann","read":"z-1","unread":1}"#));
    assert!(!answer.contains("\"type\":\"unread\""), "the mover has the answer: {answer}");
    let json = r#"{"type":"unread","user":"ann","read":"z-1","unread":1}"#;
    assert!(other.received().ends_with(json));
    for (client, shown) in &told {
        assert_eq!(client.received(), shown.replace("{}", json));
    }
    assert_eq!(bodies.received(), "", "a page would take it for a message");
    for poll in &polls {
        assert_eq!(poll.received(), "", "it waits for messages");
    }
    assert_eq!(rig.count(Counter::VolatileDroppedBehind), 0);
    rig.worker.check_invariants();
}

#[test]
fn a_marker_in_a_channel_is_of_the_connections_user() {
    let room = Rule { pattern: "room".into(), read_markers: true, ..Rule::default() };
    let rules = Rules::new(vec![room], Rule::default());
    let settings = Settings { heartbeat: Duration::ZERO, welcome: false, ..Settings::for_tests() };
    let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
    let mut rig = Rig::with_rules(settings, access, rules);
    let devices = ["ann", "ann", "bob"].map(|user| v1(&mut rig, &format!("?user={user}")));
    let follower = v1(&mut rig, "?channel=room");
    rig.publish("room", "1", None);
    rig.publish("room", "2", None);
    rig.work();
    let received = |rig: &mut Rig, client: &Client| {
        rig.work();
        client.received()
    };
    for client in devices.iter().chain([&follower]) {
        client.received();
    }
    let ask = |rig: &mut Rig, client: &Client, text: &str| {
        rig.send_frame(client, text);
        received(rig, client)
    };
    let [mover, other, bob] = &devices;
    let unread = ask(&mut rig, mover, r#"{"type":"read","channel":"room"}"#);
    assert!(unread.ends_with(r#"{"type":"read","channel":"room","unread":2}"#), "{unread}");
    let read = ask(&mut rig, mover, r#"{"type":"read","channel":"room","id":"z-1","ref":1}"#);
    let answer = r#"{"type":"read","channel":"room","read":"z-1","unread":1,"ref":1}"#;
    assert!(read.ends_with(answer) && !read.contains(r#""type":"unread""#), "{read}");
    let told = received(&mut rig, other);
    let notice = r#"{"type":"unread","channel":"room","read":"z-1","unread":1}"#;
    assert!(told.ends_with(notice), "{told}");
    for nobody in [bob, &follower] {
        assert_eq!(received(&mut rig, nobody), "");
    }
    let of_bob = ask(&mut rig, bob, r#"{"type":"read","channel":"room"}"#);
    assert!(of_bob.ends_with(r#"{"type":"read","channel":"room","unread":2}"#), "{of_bob}");
    let none = ask(&mut rig, bob, r#"{"type":"read","channel":"other","id":"z-1"}"#);
    assert!(none.contains("bad_request") && none.contains("`read-markers`"), "{none}");
    let inbox = ask(&mut rig, mover, r#"{"type":"read","user":"ann"}"#);
    assert!(inbox.ends_with(r#"{"type":"read","user":"ann","unread":0}"#), "{inbox}");
    rig.worker.check_invariants();
}
