//! Heartbeats that clients choose: how often they come, and how soon dead peers are found.

use throng_core::ChannelName;
use throng_edge::{Counter, Settings};

use crate::rig::Rig;
use crate::tokens::has_close;

const WEBSOCKET: &str = "GET /channels/a HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
     Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A request for events of `a`.
fn sse(query: &str) -> String {
    let fields = "Host: localhost\r\nAccept: text/event-stream\r\n\r\n";
    format!("GET /channels/a{query} HTTP/1.1\r\n{fields}")
}

fn rig() -> Rig {
    Rig::with(Settings { welcome: false, ..Settings::for_tests() })
}

#[test]
fn a_client_chooses_its_heartbeat_and_keeps_it_over_an_upgrade() {
    let mut rig = rig();
    let clients = ["", "?heartbeat=60s", "?heartbeat=10"].map(|query| rig.connect(&sse(query)));
    for _ in 0..2 {
        clients.iter().for_each(|client| drop(client.received()));
        (0..3000).for_each(|_| rig.pass(1));
        let counts = clients.each_ref().map(|client| client.received().matches(":\n\n").count());
        for (count, expected) in counts.into_iter().zip([12, 6, 30]) {
            assert!((expected - 1..=expected + 1).contains(&count), "{counts:?}");
        }
        rig.replace_process();
    }
    // The welcome of a longer one than the time between pings names that.
    for (chosen, told) in [("60s", 60), ("3600", 225)] {
        let socket = WEBSOCKET.replace("/channels/a", &format!("/subscribe?heartbeat={chosen}"));
        let v1 = socket.replace("\r\n\r\n", "\r\nSec-WebSocket-Protocol: throng.v1\r\n\r\n");
        let welcome = rig.connect(&v1).received();
        assert!(welcome.contains(&format!(r#""heartbeat":{told}"#)), "{welcome}");
    }
    // A long-poll has none, and takes the parameter all the same.
    assert_eq!(rig.get("/channels/b?wait=30&heartbeat=60s").received(), "");
    assert!(rig.get("/channels/b?heartbeat=5s").received().starts_with("HTTP/1.1 400"));
    rig.worker.check_invariants();
}

#[test]
fn dead_peers_with_a_long_heartbeat_are_found_as_soon() {
    let mut rig = rig();
    let [stream, vanished] = [(); 2].map(|()| rig.connect(&sse("?heartbeat=3600s")));
    let silent = rig.connect(&WEBSOCKET.replace("/channels/a", "/channels/a?heartbeat=3600s"));
    [&stream, &silent].iter().for_each(|client| drop(client.received()));
    rig.vanish(&vanished);
    let subscribers = |rig: &Rig| rig.engine.audience(&ChannelName::channel("a")).subscribers;
    assert_eq!(subscribers(&rig), 3);
    (0..2260).for_each(|_| rig.pass(1));
    assert_eq!(subscribers(&rig), 2, "nothing was written within the ping interval");
    (0..500).for_each(|_| rig.pass(1));
    assert_eq!((subscribers(&rig), rig.count(Counter::ClosedPingTimeout)), (1, 1));
    assert!(has_close(&silent, 4001));
    let comments = stream.received().matches(":\n\n").count();
    assert!((1..=2).contains(&comments), "{comments} in 276 s");
}
