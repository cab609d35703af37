//! Channels that end: subscribers get all messages and then the end, in the way of their transport.

use std::time::Duration;

use throng_core::{Body, ChannelName, LogChange, Publication};
use throng_edge::{Counter, Settings};

use crate::rig::{Client, Rig};

/// A rig whose connections have neither welcomes nor heartbeats.
fn rig() -> Rig {
    let settings = Settings { heartbeat: Duration::ZERO, welcome: false, ..Settings::for_tests() };
    Rig::with(settings)
}

/// Ends a channel with a last message, as the control plane does.
pub(crate) fn end(rig: &Rig, channel: &str, last: &str) {
    let name = ChannelName::channel(channel);
    let last = Publication::new(name.clone(), Body::Text(last.into()));
    let change = LogChange::end(name.clone(), Some(last), &rig.engine.state(&name));
    rig.engine.change(rig.now_ms(), change).expect("there is room");
}

/// Opens a channel again that has ended.
fn open(rig: &Rig, channel: &str) {
    let name = ChannelName::channel(channel);
    let change = LogChange::open(name.clone(), &rig.engine.state(&name)).expect("it has ended");
    rig.engine.change(rig.now_ms(), change).expect("there is room");
}

const WEBSOCKET: &str = "HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

fn websocket(rig: &mut Rig, target: &str) -> Client {
    let client = rig.connect(&format!("GET {target} {WEBSOCKET}"));
    assert!(client.received().starts_with("HTTP/1.1 101"));
    client
}

/// A stream without chunks, whose response head the client has read.
fn stream(rig: &mut Rig, target: &str) -> Client {
    let client = rig.connect(&format!("GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n"));
    assert!(client.received().starts_with("HTTP/1.1 200"));
    client
}

#[test]
fn each_transport_has_its_own_end() {
    let mut rig = rig();
    let lines = stream(&mut rig, "/channels/a");
    let events = stream(&mut rig, "/channels/a?transport=sse");
    let socket = websocket(&mut rig, "/channels/a");
    let poll = rig.get("/channels/a?wait=30");
    let v1 = rig.v1();
    for channel in ["a", "b"] {
        let command = format!(r#"{{"type":"subscribe","channel":"{channel}"}}"#);
        rig.send_frame(&v1, &command);
    }
    v1.received();
    end(&rig, "a", "last");
    rig.work();
    assert_eq!((lines.received().as_str(), lines.is_finished()), ("last\n", true));
    let ended = r#"{"type":"ended","channel":"a","id":"z-2"}"#;
    let of_events = format!("id: z-1\ndata: last\n\nevent: ended\ndata: {ended}\n\n");
    assert_eq!((events.received(), events.is_finished()), (of_events, true));
    let of_socket = "\u{81}\u{4}last\u{88}\u{17}\u{3}\u{e8}the channel has ended";
    let received: String = socket.received_bytes().into_iter().map(char::from).collect();
    assert_eq!(received, of_socket);
    let answer = poll.received();
    assert!(answer.contains("Throng-Ended: true\r\n") && answer.ends_with("last"), "{answer}");
    let frames = v1.received();
    assert!(frames.contains("last") && frames.ends_with(ended), "{frames}");
    // It goes on with its other channel.
    rig.publish("b", "more", None);
    rig.work();
    assert!(v1.received().contains("more") && !v1.is_finished());
    assert_eq!(rig.count(Counter::ClosedEnded), 3);
    rig.worker.check_invariants();
}

#[test]
fn whoever_comes_late_reads_the_log_and_the_end() {
    let mut rig = rig();
    rig.publish("a", "first", None);
    end(&rig, "a", "last");
    let events = rig.get("/channels/a?transport=sse&since=z-1");
    rig.work();
    let received = events.received();
    assert!(received.contains("id: z-2\ndata: last\n\n"), "{received}");
    assert!(received.contains("event: ended\n"), "{received}");
    assert!(events.is_finished());
    // A browser connects again when a stream ends, until it is answered so.
    for target in
        ["/channels/a?transport=sse&since=z-2", "/channels/a?transport=sse", "/channels/a"]
    {
        let over = rig.get(target);
        let answer = over.received();
        assert!(answer.starts_with("HTTP/1.1 204 "), "{target}: {answer}");
        assert!(answer.contains("\r\nThrong-Ended: true\r\n"), "{target}: {answer}");
        assert!(answer.contains("\r\nThrong-Id: z-3\r\n"), "{answer}");
    }
    let poll = rig.get("/channels/a?wait=30");
    rig.work();
    let answer = poll.received();
    assert!(answer.starts_with("HTTP/1.1 204 ") && answer.contains("Throng-Ended"), "{answer}");
    let poll = rig.get("/channels/a?wait=30&since=z-1");
    rig.work();
    let answer = poll.received();
    assert!(answer.contains("Throng-Ended: true\r\n") && answer.ends_with("last"), "{answer}");
    let socket = rig.connect(&format!("GET /channels/a?history=9 {WEBSOCKET}"));
    rig.work();
    let received = String::from_utf8_lossy(&socket.received_bytes()).into_owned();
    assert!(received.contains("first") && received.contains("last"), "{received}");
    assert!(received.ends_with("the channel has ended"), "{received}");
    let v1 = rig.v1();
    rig.send_frame(&v1, r#"{"type":"subscribe","channel":"a","since":"z-2"}"#);
    rig.work();
    let received = v1.received();
    assert!(received.contains(r#"{"type":"ended","channel":"a","id":"z-3"}"#), "{received}");
    rig.send_frame(&v1, r#"{"type":"unsubscribe","channel":"a","ref":1}"#);
    assert!(v1.received().contains("not_subscribed"), "the subscription is over");
    rig.worker.check_invariants();
}

#[test]
fn a_list_tells_of_its_channels_that_have_ended() {
    let mut rig = rig();
    end(&rig, "a", "last");
    let v1 = rig.v1();
    rig.send_frame(&v1, r#"{"type":"subscribe","channels":["a","b"]}"#);
    rig.work();
    let received = v1.received();
    let (answer, rest) = received.split_once(r#""type":"ended""#).expect("it has ended");
    assert!(answer.contains("subscribed"), "{answer}");
    assert!(rest.contains(r#""channel":"a""#), "{rest}");
    rig.worker.check_invariants();
}

#[test]
fn a_slow_reader_gets_all_messages_before_the_end() {
    for replaces in [false, true] {
        let mut rig = rig();
        let slow = stream(&mut rig, "/channels/a?transport=sse");
        slow.stall_after(0);
        rig.publish("a", "first", None);
        end(&rig, "a", "last");
        rig.work();
        assert!(!slow.is_finished());
        if replaces {
            rig.replace_process();
        }
        rig.read_again(&slow);
        rig.work();
        let received = slow.received();
        assert!(received.contains("first") && received.contains("last"), "{received}");
        assert!(received.contains("event: ended") && slow.is_finished(), "{received}");
        rig.worker.check_invariants();
    }
}

#[test]
fn one_of_several_channels_ends_alone() {
    let mut rig = rig();
    let events = stream(&mut rig, "/subscribe?channel=a&channel=b&transport=sse");
    let lines = stream(&mut rig, "/subscribe?channel=a&channel=b");
    let poll = rig.get("/subscribe?channel=a&channel=b&wait=30");
    end(&rig, "a", "last of a");
    rig.work();
    assert!(events.received().contains("event: ended"));
    assert!(lines.received().ends_with("{\"type\":\"ended\",\"channel\":\"a\",\"id\":\"z-2\"}\n"));
    assert!(!poll.received().contains("Throng-Ended"));
    rig.publish("b", "more", None);
    rig.work();
    assert!(events.received().contains("more") && lines.received().contains("more"));
    end(&rig, "b", "last of b");
    rig.work();
    assert!(events.received().contains("event: ended") && events.is_finished());
    assert!(lines.received().contains("last of b") && lines.is_finished());
    rig.worker.check_invariants();
}

#[test]
fn a_poll_with_envelopes_tells_which_channel_has_ended() {
    let mut rig = rig();
    rig.publish("a", "first", None);
    let target = "/subscribe?channel=a&channel=b&wait=30&envelope=true";
    let poll = rig.get(target);
    end(&rig, "a", "last of a");
    rig.work();
    let answer = poll.received();
    let ended = r#"{"type":"ended","channel":"a","id":"z-3"}"#;
    assert!(answer.contains("last of a") && answer.ends_with(ended), "{answer}");
    assert!(!answer.contains("Throng-Ended"), "{answer}");
    // Whoever was away learns it, too, also if there is no message.
    let poll = rig.get(&format!("{target}&since=z-2,{}", "z-0"));
    rig.work();
    assert!(poll.received().ends_with(ended));
    // A client that does not listen waits for the other channel, and is told again with the answer.
    let poll = rig.get(&format!("{target}&since=z-3,{}", "z-0"));
    rig.work();
    assert_eq!(poll.received(), "");
    rig.publish("b", "more", None);
    rig.work();
    let answer = poll.received();
    assert!(answer.contains("more") && answer.ends_with(ended), "{answer}");
    rig.worker.check_invariants();
}

#[test]
fn a_channel_that_is_open_again_has_subscribers() {
    let mut rig = rig();
    let slow = stream(&mut rig, "/channels/a");
    slow.stall_after(0);
    end(&rig, "a", "last");
    rig.work();
    open(&rig, "a");
    let early = rig.connect("GET /channels/a?history=9 HTTP/1.0\r\nHost: localhost\r\n\r\n");
    rig.work();
    rig.publish("a", "again", None);
    rig.work();
    let received = early.received();
    assert!(received.ends_with("\r\n\r\nlast\nagain\n"), "{received}");
    assert!(!early.is_finished());
    rig.read_again(&slow);
    rig.work();
    assert!(slow.received().contains("last\n"));
    rig.worker.check_invariants();
}

#[test]
fn a_frame_for_a_channel_that_has_ended_closes_its_connection() {
    let mut rig = rig();
    let user = websocket(&mut rig, "/subscribe?channel=a&user=ann");
    end(&rig, "a", "last");
    rig.send_frame(&user, "late");
    let received = String::from_utf8_lossy(&user.received_bytes()).into_owned();
    assert!(received.contains("closed: the channel has ended"), "{received}");
}
