//! Connections that wait for decisions of an access policy, which the test makes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use throng_access::{Access, Action, Asker, Decision};
use throng_core::{Answer, Body, Later, Replacement, Ticket};

use crate::rig::Rig;
use throng_edge::{Counter, Settings};

/// Decides about channels whose names begin with `slow` when the test does.
#[derive(Debug, Default)]
pub(crate) struct Undecided {
    open: Mutex<Vec<Ticket<Decision>>>,
    /// True if the rules have changed since, and allow nothing any more.
    is_closed: AtomicBool,
}

impl Access for Undecided {
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        match action {
            _ if self.is_closed.load(Ordering::Relaxed) => Decision::forbidden("no more").into(),
            _ if asker.is_repeated => Decision::Allowed.into(),
            Action::Subscribe(name) | Action::Publish(name) if name.name().starts_with("slow") => {
                let (ticket, answer) = later.ticket();
                self.open.lock().expect("no test panics here").push(ticket);
                answer
            }
            _ => Decision::Allowed.into(),
        }
    }
}

impl Undecided {
    /// The oldest open question.
    pub(crate) fn next(&self) -> Ticket<Decision> {
        self.open.lock().expect("no test panics here").remove(0)
    }

    fn allow_until(&self, unix_ms: u64) {
        self.next().answer(Decision::AllowedUntil(unix_ms));
    }

    fn allow(&self) {
        self.next().answer(Decision::Allowed);
    }
}

fn rig() -> (Rig, Arc<Undecided>) {
    rig_with(Settings::for_tests())
}

pub(crate) fn rig_with(settings: Settings) -> (Rig, Arc<Undecided>) {
    let access = Arc::new(Undecided::default());
    (Rig::with_access(settings, Arc::clone(&access) as Arc<dyn Access>), access)
}

const DEADLINE: u32 = 50;

#[test]
fn a_request_is_answered_when_all_of_it_is_decided() {
    let (mut rig, access) = rig();
    let client = rig.get("/subscribe?channel=slow/a&channel=b&channel=slow/c");
    rig.work();
    assert_eq!(client.received(), "");
    access.allow();
    rig.work();
    assert_eq!(client.received(), "", "one is not decided");
    rig.publish("slow/a", "too early", None);
    access.allow();
    rig.work();
    assert!(client.received().starts_with("HTTP/1.1 200"));
    rig.publish("slow/a", "now", None);
    rig.work();
    let received = client.received();
    assert!(received.contains("now") && !received.contains("too early"), "{received}");
    rig.worker.check_invariants();
}

#[test]
fn a_denial_refuses_the_request_at_once() {
    let (mut rig, access) = rig();
    let client = rig.get("/subscribe?channel=slow/a&channel=slow/b");
    access.next().answer(Decision::forbidden("not you"));
    rig.work();
    let received = client.received();
    assert!(received.starts_with("HTTP/1.1 403") && received.contains("not you"), "{received}");
    access.allow();
    rig.work();
    assert_eq!(client.received(), "");
    assert_eq!(rig.count(Counter::UnawaitedAnswers), 1);
    rig.worker.check_invariants();
}

/// As after a reload of the settings.
#[test]
fn what_waits_while_the_rules_change_goes_by_the_new_ones() {
    let (mut rig, access) = rig();
    let plain = rig.connect(
        "GET /channels/slow HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    access.allow();
    rig.work();
    assert!(plain.received().contains("101"));
    rig.send_frame(&plain, "y");
    let request = rig.get("/channels/slow");
    let socket = rig.v1();
    socket.received();
    rig.send_frame(&socket, r#"{"type":"subscribe","channel":"slow/b"}"#);
    let publisher = rig.v1();
    publisher.received();
    rig.send_frame(&publisher, r#"{"type":"publish","channel":"slow/c","data":"x"}"#);
    access.is_closed.store(true, Ordering::Relaxed);
    while !access.open.lock().expect("no test panics here").is_empty() {
        access.allow();
    }
    rig.work();
    let refusal = request.received();
    assert!(refusal.starts_with("HTTP/1.1 403") && refusal.contains("no more"), "{refusal}");
    for client in [&socket, &publisher, &plain] {
        let received = client.received();
        assert!(received.contains("no more"), "{received}");
    }
    assert_eq!(rig.count(Counter::MessagesPublished), 0);
    rig.worker.check_invariants();
}

#[test]
fn a_request_without_answer_is_refused_at_the_deadline() {
    let (mut rig, access) = rig();
    let (client, given_up) = (rig.get("/channels/slow"), rig.get("/channels/slow"));
    drop(access.open.lock().expect("no test panics here").pop());
    rig.work();
    assert!(given_up.received().starts_with("HTTP/1.1 503"), "there will be no answer");
    rig.pass(DEADLINE - 1);
    assert_eq!(client.received(), "");
    rig.pass(1);
    let received = client.received();
    assert!(received.starts_with("HTTP/1.1 503") && received.contains("\"busy\""), "{received}");
    assert!(received.contains("Retry-After: "), "{received}");
    access.allow();
    rig.work();
    assert_eq!(client.received(), "");
    assert_eq!((rig.count(Counter::WaitsTimedOut), rig.count(Counter::UnawaitedAnswers)), (1, 1));
}

#[test]
fn the_answer_for_a_connection_that_has_gone_reaches_no_other() {
    let (mut rig, access) = rig();
    let first = rig.get("/channels/slow");
    rig.hang_up(&first);
    assert_eq!(rig.worker.connection_count(), 0, "its end is noticed while it waits");
    let second = rig.get("/channels/slow");
    access.allow();
    rig.work();
    assert_eq!(second.received(), "");
    assert_eq!(rig.count(Counter::UnawaitedAnswers), 1);
    access.allow();
    rig.work();
    assert!(second.received().starts_with("HTTP/1.1 200"));
}

/// Answers come in the order of the commands, and messages of followed channels keep coming.
#[test]
fn commands_wait_behind_one_that_waits_and_messages_do_not() {
    let (mut rig, access) = rig();
    let client = rig.v1();
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"a"}"#);
    client.received();
    rig.send_frame(&client, r#"{"type":"publish","channel":"slow","data":"x","ref":1}"#);
    rig.send_frame(&client, r#"{"type":"ping","ref":2}"#);
    rig.publish("a", "meanwhile", None);
    rig.work();
    let received = client.received();
    assert!(received.contains("meanwhile") && !received.contains("ref"), "{received}");
    access.allow();
    rig.work();
    let received = client.received();
    let at = |text: &str| received.find(text).unwrap_or_else(|| panic!("no {text}: {received}"));
    assert!(at("\"published\"") < at("\"pong\""), "{received}");
    rig.worker.check_invariants();
}

#[test]
fn a_command_without_answer_is_refused_and_the_next_one_is_done() {
    let (mut rig, _access) = rig();
    let client = rig.v1();
    client.received();
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"slow","ref":1}"#);
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"a","ref":2}"#);
    rig.pass(DEADLINE);
    let received = client.received();
    let at = |text: &str| received.find(text).unwrap_or_else(|| panic!("no {text}: {received}"));
    assert!(at("\"busy\"") < at("\"subscribed\""), "{received}");
    rig.worker.check_invariants();
}

/// A worker does not read the pong of a client whose command waits. It must not miss it either.
#[test]
fn a_wait_ends_in_time_beside_heartbeats() {
    let access = Arc::new(Undecided::default());
    let heartbeat = std::time::Duration::from_secs(1);
    let settings = Settings { heartbeat, ping_interval: heartbeat, ..Settings::for_tests() };
    let mut rig = Rig::with_access(settings, Arc::clone(&access) as Arc<dyn Access>);
    let client = rig.v1();
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"slow"}"#);
    client.received();
    for _ in 1..DEADLINE {
        rig.pass(1);
        rig.worker.check_invariants();
    }
    let received = client.received();
    assert!(received.matches("heartbeat").count() >= 3, "{received}");
    assert!(!received.contains("busy"), "{received}");
    rig.pass(1);
    assert!(client.received().contains("busy"));
}

#[test]
fn a_drain_refuses_what_waits() {
    let (mut rig, _access) = rig();
    let client = rig.get("/channels/slow");
    rig.queue.post(throng_core::Notification::Drain);
    rig.pass(1);
    let received = client.received();
    assert!(received.starts_with("HTTP/1.1 503") && received.contains("draining"), "{received}");
}

#[test]
fn requests_behind_one_that_waits_are_bounded() {
    let (mut rig, access) = rig();
    let client = rig.get("/channels/slow?wait=30");
    rig.publish("slow", "x", None);
    rig.send(&client, b"GET /channels/slow?wait=30&since=z-0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    access.allow();
    rig.work();
    rig.publish("slow", "y", None);
    rig.work();
    assert!(client.received().contains("HTTP/1.1 200"));
    let filler = vec![b'x'; Settings::for_tests().max_head_bytes + 1];
    rig.send(&client, &filler);
    assert_eq!(rig.worker.connection_count(), 0, "more than a head");
}

#[test]
fn the_first_expiring_permission_closes_a_connection() {
    let (mut rig, access) = rig();
    let headers = "Host: localhost\r\nAccept: text/event-stream\r\n";
    let stream = rig.connect(&format!("GET /channels/slow HTTP/1.1\r\n{headers}\r\n"));
    access.allow_until(3000);
    let socket = rig.v1();
    for channel in ["slow/a", "slow/b", "slow/c"] {
        let command = format!(r#"{{"type":"subscribe","channel":"{channel}"}}"#);
        rig.send_frame(&socket, &command);
        rig.work();
        match channel {
            "slow/a" => access.allow_until(4000),
            "slow/b" => access.allow_until(3000),
            _ => access.allow(),
        }
        rig.work();
    }
    assert_eq!(socket.received().matches("subscribed").count(), 3);
    rig.pass(29);
    rig.worker.check_invariants();
    assert!(!stream.received().contains("expired"));
    assert_eq!(socket.received(), "");
    rig.pass(1);
    let received = stream.received();
    assert!(received.contains("event: expired\n") && received.ends_with("0\r\n\r\n"), "{received}");
    assert!(socket.received().contains("permission of this connection has expired"));
    assert_eq!(rig.count(Counter::ClosedExpired), 2);
    rig.worker.check_invariants();
}

/// Decides about publications by their content, which it notes, when the test does.
#[derive(Debug, Default)]
struct Editor {
    open: Mutex<Vec<(String, Ticket<Decision>)>>,
}

impl Access for Editor {
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        later: Later<'_, Decision>,
    ) -> Answer<Decision> {
        if asker.is_repeated || !matches!(action, Action::Publish(_)) {
            return Decision::Allowed.into();
        }
        let draft = asker.details.content.expect("the content of a publication");
        let (ticket, answer) = later.ticket();
        let content = (format!("{:?} {:?}", draft.body, draft.content_type), ticket);
        self.open.lock().expect("no test panics here").push(content);
        answer
    }

    fn reads_content(&self, _: &Asker<'_>, action: Action<'_>) -> bool {
        matches!(action, Action::Publish(_))
    }
}

impl Editor {
    /// The content of the oldest open question, which is answered with a text.
    fn replace(&self, text: &str) -> String {
        let (content, ticket) = self.open.lock().expect("no test panics here").remove(0);
        let body = Body::Text(text.into());
        let replacement = Replacement { body, content_type: Some("text/x-edited".into()) };
        ticket.answer(Decision::AllowedAs(Arc::new(replacement)));
        content
    }
}

#[test]
fn a_publication_may_be_allowed_with_other_content() {
    let access = Arc::new(Editor::default());
    let mut rig = Rig::with_access(Settings::for_tests(), Arc::clone(&access) as Arc<dyn Access>);
    let (reader, v1) = (rig.get("/channels/a?envelope=true"), rig.v1());
    let plain = rig.connect(
        "GET /channels/a HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    for client in [&reader, &v1, &plain] {
        client.received();
    }
    rig.send_frame(&v1, r#"{"type":"publish","channel":"a","data":{"n":1},"key":"k"}"#);
    rig.send_frame(&plain, "rude");
    // The process that takes over asks again, with the content.
    rig.replace_process();
    rig.work();
    drop(access.open.lock().expect("no test panics here").drain(..2));
    assert_eq!(access.replace("one"), r#"Json("{\"n\":1}") None"#);
    assert_eq!(access.replace("two"), r#"Text("rude") None"#);
    rig.work();
    let received = reader.received();
    for text in ["one", "two"] {
        let edited = format!(r#""content_type":"text/x-edited","data":"{text}""#);
        assert!(received.contains(&edited), "{received}");
    }
    assert!(!received.contains("rude") && plain.received().contains("two"));
    assert!(v1.received().contains(r#""type":"published""#));
    // A repeated publication is asked about again, and publishes nothing.
    rig.send_frame(&v1, r#"{"type":"publish","channel":"a","data":{"n":1},"key":"k"}"#);
    access.replace("again");
    rig.work();
    assert!(v1.received().contains(r#""duplicate":true"#));
    assert_eq!(reader.received(), "");
}

#[test]
fn content_that_cannot_be_published_is_refused_before_anybody_is_asked() {
    let access = Arc::new(Editor::default());
    let settings = Settings { max_message_bytes: 10, ..Settings::for_tests() };
    let mut rig = Rig::with_access(settings, Arc::clone(&access) as Arc<dyn Access>);
    let client = rig.v1();
    client.received();
    for (fields, code) in [
        (r#""data":"12345678901""#, "too_large"),
        (r#""data":"{","content_type":"application/json""#, "bad_json"),
    ] {
        rig.send_frame(&client, &format!(r#"{{"type":"publish","channel":"a",{fields}}}"#));
        assert!(client.received().contains(code), "{code}");
    }
    assert!(access.open.lock().expect("no test panics here").is_empty());
}
