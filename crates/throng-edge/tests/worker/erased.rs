//! Erased messages: a worker that gets the notice has nothing of them any more, and shows the
//! notice to those who get more than bodies.

use std::time::Duration;

use throng_core::{
    Attributes, Body, ChannelName, Erase, Erasure, LogChange, MessageId, Publication,
};
use throng_edge::Settings;

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

/// Tells of an erasure, and erases, as the control plane does.
fn erase(rig: &Rig, erasure: Erasure) {
    let (name, now_ms) = (ChannelName::channel("a"), rig.now_ms());
    let notice = LogChange::notice(name.clone(), erasure);
    let told = rig.engine.change(now_ms, notice).expect("there is room");
    for offset in erasure.first.max(1)..=erasure.last {
        let id = MessageId { offset, ..told.ids[0] };
        rig.engine.erase(now_ms, &name, Erase::Message(id));
    }
}

#[test]
fn the_notice_comes_to_readers_of_more_than_bodies() {
    let mut rig = rig();
    let lines = stream(&mut rig, "/channels/a");
    let events = stream(&mut rig, "/channels/a?transport=sse");
    let envelopes = stream(&mut rig, "/channels/a?envelope=true");
    let compact = stream(&mut rig, "/channels/a?envelope=compact");
    let socket = rig.v1();
    rig.send_frame(&socket, r#"{"type":"subscribe","channel":"a"}"#);
    let poll = rig.get("/channels/a?since=z-1&wait=30");
    for text in ["1", "2"] {
        rig.publish("a", text, None);
    }
    rig.work();
    for client in [&lines, &events, &envelopes, &compact, &socket, &poll] {
        assert!(client.received().contains('2'));
    }
    let poll = rig.get("/channels/a?since=z-2&wait=30");
    erase(&rig, Erasure::of(1));
    rig.work();
    assert_eq!(lines.received(), "");
    assert_eq!(events.received(), "id: z-3\nevent: erased\ndata: {\"erased\":\"z-1\"}\n\n");
    let envelope = r#"{"type":"erased","channel":"a","id":"z-3","time":100,"erased":"z-1"}"#;
    assert_eq!(envelopes.received(), format!("{envelope}\n"));
    assert!(socket.received().ends_with(envelope));
    assert!(compact.received().ends_with(",3,null,{\"erased\":\"z-1\"}]\n"));
    assert_eq!(poll.received(), "", "a poll for bodies waits on");
    rig.publish("a", "4", None);
    erase(&rig, Erasure::up_to(4));
    rig.work();
    assert_eq!(lines.received(), "", "the worker has not begun it");
    assert!(events.received().contains("event: erased\ndata: {\"erased_up_to\":\"z-4\"}\n\n"));
    rig.worker.check_invariants();
}

#[test]
fn a_slow_reader_does_not_get_what_was_erased_meanwhile() {
    for replaces in [false, true] {
        let mut rig = rig();
        let [slow, other] = [(), ()].map(|()| stream(&mut rig, "/channels/a?envelope=true"));
        slow.stall_after(0);
        for text in ["first", "secret", "third"] {
            rig.publish("a", text, None);
        }
        rig.work();
        assert!(other.received().contains("secret"), "it was there before");
        erase(&rig, Erasure::of(2));
        rig.work();
        rig.worker.check_invariants();
        if replaces {
            rig.replace_process();
        }
        rig.read_again(&slow);
        rig.work();
        let received = slow.received();
        assert!(received.contains("first") && received.contains("third"), "{received}");
        assert!(!received.contains("secret") && !received.contains("gap"), "{received}");
        assert!(received.contains(r#""erased":"z-2""#), "{received}");
        rig.worker.check_invariants();
    }
}

#[test]
fn a_slow_reader_gets_a_new_message_in_place_of_the_old_one() {
    let mut rig = rig();
    let [slow, other] = [(), ()].map(|()| stream(&mut rig, "/channels/a?envelope=true"));
    slow.stall_after(0);
    for text in ["first", "old"] {
        rig.publish("a", text, None);
    }
    rig.work();
    let name = ChannelName::channel("a");
    let publication = Publication {
        attributes: Some(Attributes::replacing(None, 2)),
        ..Publication::new(name.clone(), Body::Text("new".into()))
    };
    rig.engine.change(rig.now_ms(), LogChange::append(name, vec![publication])).expect("room");
    rig.work();
    rig.read_again(&slow);
    rig.work();
    let received = slow.received();
    assert!(received.contains("first") && !received.contains("old"), "{received}");
    assert!(received.contains(r#""replaces":"z-2","data":"new""#), "{received}");
    assert!(other.received().contains(r#""replaces":"z-2""#));
}

#[test]
fn a_half_written_message_is_finished() {
    for replaces in [false, true] {
        let mut rig = rig();
        let client = stream(&mut rig, "/channels/a");
        client.stall_after(3);
        for text in ["secret", "other"] {
            rig.publish("a", text, None);
        }
        rig.work();
        erase(&rig, Erasure::up_to(2));
        rig.work();
        if replaces {
            rig.replace_process();
        }
        assert_eq!(client.received(), "sec");
        rig.read_again(&client);
        rig.publish("a", "next", None);
        rig.work();
        assert_eq!(client.received(), "ret\nnext\n");
        rig.worker.check_invariants();
    }
}

#[test]
fn a_client_that_was_away_gets_the_notice_and_no_gap() {
    let mut rig = rig();
    for text in ["1", "2", "3"] {
        rig.publish("a", text, None);
    }
    erase(&rig, Erasure::of(2));
    let events = rig.get("/channels/a?transport=sse&since=z-1");
    let received = events.received();
    assert!(received.contains("Throng-Recovered: true"), "{received}");
    assert!(received.contains("id: z-3\ndata: 3\n\n"), "{received}");
    assert!(received.contains("id: z-4\nevent: erased\ndata: {\"erased\":\"z-2\"}\n\n"));
    assert!(!received.contains("id: z-2"), "{received}");
}
