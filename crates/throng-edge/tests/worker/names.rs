//! Names of connections.

use throng_core::ConnectionName;

use crate::rig::{Client, Rig};

/// The name that the head of a response has.
pub(crate) fn name(head: &str) -> ConnectionName {
    let line = head.lines().find_map(|line| line.strip_prefix("Throng-Connection: "));
    line.expect("a stream has a name").parse().expect("it is a name")
}

/// A log keeps the name of the connection that does not get a message. A later connection in the
/// same place has another name, even after 2^16 connections.
#[test]
fn a_message_excludes_one_connection_only() {
    let mut rig = Rig::new();
    let publisher = rig.get("/channels/a");
    let of_publisher = name(&publisher.received());
    rig.publish("a", "not to me", Some(of_publisher));
    rig.worker.work(true);
    assert_eq!(publisher.received(), "");
    rig.hang_up(&publisher);
    for _ in 1..1 << 16 {
        let other = rig.get("/channels/b");
        rig.hang_up(&other);
        rig.worker.work(true);
    }
    let later = rig.get("/channels/a?history=1").received();
    assert_eq!(name(&later).index(), of_publisher.index());
    assert_ne!(name(&later), of_publisher);
    assert!(later.contains("not to me"), "{later}");
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn ask(rig: &mut Rig, target: &str, fields: &str) -> Client {
    let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    rig.connect(&head)
}

#[test]
fn each_answer_to_a_subscriber_repeats_the_id_of_its_request() {
    let mut rig = Rig::new();
    let events = "Accept: text/event-stream\r\n";
    for (target, fields, status) in [
        ("/channels/a", "", 200),
        ("/channels/a", events, 200),
        ("/channels/a", UPGRADE, 101),
        ("/channels/a?wait=0", "", 204),
        ("/channels/a?wait=x", "", 400),
        ("/channels/%00", events, 400),
    ] {
        let answer = ask(&mut rig, target, &format!("{fields}X-Request-Id: r-7\r\n")).received();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("\r\nX-Request-Id: r-7\r\n"), "{answer}");
        for other in ["", "X-Request-Id: r 7\r\n", "X-Request-Id: a\r\nX-Request-Id: b\r\n"] {
            let answer = ask(&mut rig, target, &format!("{fields}{other}")).received();
            assert!(!answer.contains("X-Request-Id"), "{answer}");
        }
    }
}

#[test]
fn a_frozen_poll_keeps_the_id_of_its_request() {
    let mut rig = Rig::new();
    let polls = ["r-7", "r-8"].map(|id| {
        let fields = format!("X-Request-Id: {id}\r\n");
        ask(&mut rig, "/channels/a?wait=9", &fields)
    });
    rig.replace_process();
    rig.publish("a", "text", None);
    rig.work();
    for (poll, id) in polls.iter().zip(["r-7", "r-8"]) {
        let answer = poll.received();
        assert!(answer.contains(&format!("\r\nX-Request-Id: {id}\r\n")), "{answer}");
        assert!(answer.ends_with("\r\n\r\ntext"), "{answer}");
    }
}
