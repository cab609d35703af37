//! Volatile messages: for those that keep up, and without a trace.

use std::sync::Arc;
use std::time::Duration;

use throng_core::ChannelName;
use throng_edge::{Counter, Settings};

use crate::rig::{Client, Rig};

/// A rig whose connections have neither welcomes nor heartbeats.
fn rig() -> Rig {
    let settings = Settings { heartbeat: Duration::ZERO, welcome: false, ..Settings::for_tests() };
    Rig::with(settings)
}

/// A stream without chunks, whose response head the client has read.
fn stream(rig: &mut Rig, target: &str) -> Client {
    let client = rig.connect(&format!("GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n"));
    assert!(client.received().starts_with("HTTP/1.1 200"));
    client
}

fn ask(rig: &mut Rig, client: &Client, command: &str) -> String {
    rig.send_frame(client, command);
    rig.work();
    client.received()
}

fn behind(rig: &Rig) -> u64 {
    rig.count(Counter::VolatileDroppedBehind)
}

#[test]
fn a_volatile_message_reaches_all_transports_without_an_id() {
    let mut rig = rig();
    let lines = stream(&mut rig, "/channels/a");
    let events = stream(&mut rig, "/channels/a?transport=sse");
    let envelopes = stream(&mut rig, "/channels/a?envelope=true");
    let joined = stream(&mut rig, "/subscribe?channel=a&channel=b&transport=sse");
    let socket = rig.v1();
    let subscribed = ask(&mut rig, &socket, r#"{"type":"subscribe","channel":"a"}"#);
    assert!(subscribed.contains("subscribed"));
    let compact = stream(&mut rig, "/channels/a?envelope=compact");
    assert_eq!(rig.publish_volatile("a", "typing"), 6);
    rig.work();
    let of = |client: &Client| client.received().trim_start_matches(": \n\n").to_owned();
    assert_eq!(of(&lines), "typing\n");
    assert_eq!(of(&events), "data: typing\n\n");
    assert_eq!(of(&joined), "data: typing\n\n");
    let envelope = r#"{"type":"message","channel":"a","time":100,"data":"typing"}"#;
    assert_eq!(of(&envelopes), format!("{envelope}\n"));
    assert!(socket.received().ends_with(envelope));
    let number = rig.engine.audience(&ChannelName::channel("a")).workers[0].2.0;
    assert_eq!(of(&compact), format!("[{number},null,\"typing\"]\n"));
    assert_eq!(rig.engine.metrics().channels, 2, "and no log");
    assert_eq!(rig.engine.metrics().messages, 0);
    rig.worker.check_invariants();
}

#[test]
fn a_command_publishes_a_volatile_message_and_spares_its_sender() {
    let mut rig = rig();
    let sender = rig.v1();
    ask(&mut rig, &sender, r#"{"type":"subscribe","channel":"a"}"#);
    let other = stream(&mut rig, "/channels/a");
    let command = r#"{"type":"publish","channel":"a","data":"x","volatile":true,"echo":false}"#;
    let answer = ask(&mut rig, &sender, command);
    let published = r#"{"type":"published","channel":"a","volatile":true,"subscribers":1}"#;
    assert!(answer.ends_with(published), "{answer}");
    assert_eq!(other.received(), "x\n");
    let command = r#"{"type":"publish","channel":"a","data":"y","volatile":true,"ref":7}"#;
    let answer = ask(&mut rig, &sender, command);
    assert!(answer.contains(r#""volatile":true,"subscribers":2,"ref":7}"#), "{answer}");
    assert!(answer.contains(r#""data":"y""#), "{answer}");
    let command = r#"{"type":"publish","channel":"a","data":"y","volatile":true,"key":"k"}"#;
    assert!(ask(&mut rig, &sender, command).contains("no idempotency key"));
    assert_eq!(rig.count(Counter::MessagesPublished), 2);
}

#[test]
fn a_volatile_message_comes_after_earlier_messages() {
    let mut rig = rig();
    let clients: Vec<_> = (0..6).map(|_| stream(&mut rig, "/channels/a")).collect();
    rig.publish("a", "1", None);
    rig.publish_volatile("a", "2");
    rig.publish_volatile("a", "3");
    rig.work();
    rig.publish("a", "4", None);
    rig.work();
    for client in clients {
        assert_eq!(client.received(), "1\n2\n3\n4\n");
    }
}

#[test]
fn a_subscriber_that_is_behind_does_not_get_it_and_has_no_gap() {
    let mut rig = rig();
    let [slow, other] = [(), ()].map(|()| stream(&mut rig, "/channels/a?envelope=true"));
    slow.stall_after(0);
    rig.publish("a", "first", None);
    rig.publish_volatile("a", "typing");
    rig.work();
    assert_eq!(behind(&rig), 1);
    assert!(other.received().contains("typing"));
    rig.read_again(&slow);
    rig.publish("a", "second", None);
    rig.work();
    let received = slow.received();
    assert!(received.contains("first") && received.contains("second"), "{received}");
    assert!(!received.contains("typing") && !received.contains("gap"), "{received}");
    rig.publish_volatile("a", "again");
    rig.work();
    assert!(slow.received().contains("again"));
}

#[test]
fn the_rest_of_a_volatile_message_comes_also_from_the_next_process() {
    for replaces in [false, true] {
        let mut rig = rig();
        let client = stream(&mut rig, "/channels/a");
        client.stall_after(3);
        rig.publish_volatile("a", "typing");
        rig.publish_volatile("a", "not this");
        rig.work();
        rig.publish("a", "kept", None);
        rig.work();
        assert_eq!((client.received().as_str(), behind(&rig)), ("typ", 1));
        if replaces {
            rig.replace_process();
        }
        rig.read_again(&client);
        rig.work();
        assert_eq!(client.received(), "ing\nkept\n");
        rig.worker.check_invariants();
    }
}

#[test]
fn volatile_messages_under_way_are_lost_in_an_upgrade_and_counted() {
    let mut rig = rig();
    let clients: Vec<_> = (0..3).map(|_| stream(&mut rig, "/channels/a")).collect();
    rig.publish("a", "kept", None);
    rig.publish_volatile("a", "typing");
    rig.replace_process();
    assert_eq!(rig.count(Counter::VolatileDroppedUpgrade), 3);
    rig.publish("a", "next", None);
    rig.work();
    assert!(clients.iter().all(|client| client.received() == "kept\nnext\n"));
}

#[test]
fn a_long_poll_is_answered_and_its_position_stays() {
    let mut rig = rig();
    rig.publish("a", "kept", None);
    let polls: Vec<_> = (0..5).map(|_| rig.get("/channels/a?since=z-1&wait=30")).collect();
    let others = rig.get("/subscribe?channel=a&channel=b&since=z-1,z-0&wait=30&envelope=true");
    rig.publish_volatile("a", "typing");
    rig.work();
    for poll in polls {
        let answer = poll.received();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("Throng-Id: z-1\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\ntyping"), "{answer}");
    }
    let answer = others.received();
    assert!(answer.contains("Throng-Id: z-1,z-0\r\n"), "{answer}");
    assert!(answer.ends_with(r#","time":100,"data":"typing"}"#), "{answer}");
    let nothing = rig.get("/channels/a?since=z-1&wait=0").received();
    assert!(nothing.starts_with("HTTP/1.1 204"), "it is not kept for the next one");
}

#[test]
fn a_late_volatile_message_does_not_reach_another_channel() {
    let mut rig = rig();
    let first = stream(&mut rig, "/channels/a");
    rig.publish_volatile("a", "for a");
    rig.hang_up(&first);
    let second = stream(&mut rig, "/channels/b");
    rig.work();
    assert_eq!(second.received(), "");
    assert!(rig.engine.name(throng_core::ChannelId(0)).is_none_or(|name| name.name() == "b"));
}

#[test]
fn an_excluded_connection_does_not_get_it() {
    let mut rig = rig();
    let client = rig.get("/channels/a");
    let head = client.received();
    let name = head.split("Throng-Connection: ").nth(1).and_then(|rest| rest.lines().next());
    let excluded = name.and_then(|name| name.parse().ok());
    assert!(excluded.is_some(), "{head}");
    let other = rig.get("/channels/a");
    other.received();
    let publication = throng_core::VolatilePublication {
        excluded,
        ..throng_core::VolatilePublication::new(
            ChannelName::channel("a"),
            throng_core::Body::Text("x".into()),
        )
    };
    rig.engine.publish_volatile(1, publication);
    rig.work();
    assert_eq!((client.received().as_str(), behind(&rig)), ("", 0));
    assert!(other.received().contains('x'));
}

#[test]
fn a_receipt_does_not_mind_volatile_messages() {
    let mut rig = rig();
    let client = stream(&mut rig, "/channels/a");
    let receipt = crate::receipts::publish_with_receipt(&rig, "a", "kept", None);
    rig.publish_volatile("a", "typing");
    rig.work();
    assert_eq!(client.received(), "kept\ntyping\n");
    let delivered = Arc::clone(&receipt).close();
    assert_eq!((delivered.matched, delivered.written), (1, 1));
}

#[test]
fn no_volatile_message_comes_before_the_answer_to_a_list() {
    let mut rig = rig();
    let client = rig.v1();
    client.received();
    let list: Vec<String> = (0..300).map(|number| format!("\"c{number}\"")).collect();
    let command = format!(r#"{{"type":"subscribe","channels":[{}]}}"#, list.join(","));
    rig.send_frame(&client, &command);
    while rig.publish_volatile("c0", "early") == 0 {
        rig.worker.work(true);
    }
    rig.work();
    let received = client.received();
    let answer = received.find(r#"{"type":"subscribed""#).expect("it is answered");
    assert!(!received[..answer].contains("early"), "{received}");
    rig.publish_volatile("c0", "late");
    rig.work();
    assert!(client.received().contains("late"));
}
