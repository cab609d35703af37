//! Connections that follow what the server keeps for their users.

use std::sync::Arc;

use throng_access::{AccessControl, AllowAll, KeptChange};
use throng_core::{ChannelName, KeptNotice, Notification, Ticket};
use throng_edge::Settings;

use crate::rig::{Client, Rig};

/// A rig, and its access control.
pub(crate) fn rig(settings: Settings) -> (Rig, Arc<AccessControl>) {
    let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
    (Rig::with_control(settings, Arc::clone(&access)), access)
}

pub(crate) fn update(add: &[&str], remove: &[&str]) -> KeptChange {
    let strings = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    KeptChange::Update { add: strings(add), remove: strings(remove) }
}

/// Changes what a user follows, as the control plane does. Calls `done` when the worker has acted.
pub(crate) fn change(
    rig: &Rig,
    access: &AccessControl,
    user: &str,
    change: &KeptChange,
    done: impl FnOnce() + Send + 'static,
) {
    let inbox = ChannelName::user(user);
    let ticket = Ticket::new(move |_: Option<()>| done());
    let announce = |names: Vec<ChannelName>| {
        // There is one worker.
        if let Some((worker, local, channel)) = rig.engine.audience(&inbox).workers.pop() {
            let names = names.as_slice().into();
            let notice = KeptNotice { inbox, local, channel, names, done: ticket };
            rig.engine.post(worker, Notification::Kept(Box::new(notice)));
        }
    };
    let plan = access.kept.plan(user, change, 0).expect("it is within the limits");
    access.kept.make(user, change, plan, announce);
}

fn keep(rig: &mut Rig, access: &AccessControl, add: &[&str], remove: &[&str]) {
    change(rig, access, "ann", &update(add, remove), || {});
    rig.work();
}

fn sse(rig: &mut Rig, since: &str) -> Client {
    let head =
        format!("GET /users/ann?since={since} HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n");
    rig.connect(&head)
}

#[test]
fn a_user_follows_kept_channels_without_asking() {
    let (mut rig, access) = rig(Settings::for_tests());
    keep(&mut rig, &access, &["a", "b"], &[]);
    let clients = [sse(&mut rig, ""), rig.get("/users/ann"), rig.get("/users/ann?wait=9")];
    let others = [rig.get("/users/bob"), rig.get("/subscribe?channel=c&user=ann")];
    rig.publish("a", "first", None);
    rig.work();
    for client in &clients {
        assert_eq!(client.received().matches("first").count(), 1);
    }
    assert!(others.iter().all(|other| !other.received().contains("first")));
}

#[test]
fn a_position_is_one_id_for_all_channels() {
    let (mut rig, access) = rig(Settings::for_tests());
    let names: Vec<_> = (0..600).map(|n| format!("channel-{n}")).collect();
    let all: Vec<_> = names.iter().map(String::as_str).collect();
    keep(&mut rig, &access, &all, &[]);
    let client = sse(&mut rig, "");
    assert!(client.received().contains("Throng-Id: ~z-0\r\n"));
    for (n, name) in names.iter().enumerate().step_by(100) {
        rig.publish(name, &n.to_string(), None);
    }
    rig.work();
    let received = client.received();
    assert_eq!(received.matches("id: ~z-").count(), 6, "{received}");
    assert!(received.contains("id: ~z-3\ndata: 200\n"), "{received}");
    let resumed = sse(&mut rig, "~z-3").received();
    assert!(resumed.contains("Throng-Recovered: true\r\n"), "{resumed}");
    assert!(resumed.contains("id: ~z-4\ndata: 300\n") && !resumed.contains("data: 200\n"));
    let foreign = sse(&mut rig, "~y-3").received();
    assert!(foreign.contains("Throng-Recovered: false\r\n") && foreign.contains("data: 0\n"));
}

#[test]
fn changes_act_on_live_connections() {
    let (mut rig, access) = rig(Settings::for_tests());
    let clients = [sse(&mut rig, ""), rig.get("/users/ann"), rig.get("/users/ann?envelope=true")];
    rig.publish("a", "before", None);
    keep(&mut rig, &access, &["a"], &[]);
    rig.publish("a", "within", None);
    rig.work();
    // The worker hears of both at once.
    rig.publish("a", "last", None);
    keep(&mut rig, &access, &[], &["a"]);
    rig.publish("a", "after", None);
    rig.work();
    for client in &clients {
        let received = client.received();
        assert_eq!(received.matches("within").count(), 1, "{received}");
        assert_eq!(received.matches("last").count(), 1, "{received}");
        assert!(!received.contains("before") && !received.contains("after"), "{received}");
    }
    rig.worker.check_invariants();
}

#[test]
fn a_long_poll_that_waits_follows_a_new_channel() {
    let (mut rig, access) = rig(Settings::for_tests());
    let poll = rig.get("/users/ann?wait=9");
    keep(&mut rig, &access, &["a"], &[]);
    rig.publish("a", "hello", None);
    rig.work();
    let answer = poll.received();
    assert!(answer.contains("Throng-Id: ~z-1\r\n") && answer.ends_with("hello"), "{answer}");
    let empty = rig.get("/users/ann?wait=0&since=~z-1").received();
    assert!(empty.starts_with("HTTP/1.1 204") && empty.contains("Throng-Id: ~z-1"), "{empty}");
}

#[test]
fn a_poll_that_does_not_wait_gets_what_was_published() {
    let (mut rig, access) = rig(Settings::for_tests());
    keep(&mut rig, &access, &["a", "b"], &[]);
    rig.publish("a", "first", None);
    // The first connection of this worker that follows kept channels.
    let poll = rig.get("/users/ann?wait=0&since=~z-0");
    rig.work();
    let answer = poll.received();
    assert!(answer.contains("Throng-Id: ~z-1\r\n") && answer.ends_with("first"), "{answer}");
    // The worker has not heard of it: no connection here follows the channel.
    rig.publish("b", "second", None);
    let poll = rig.get("/users/ann?wait=0&since=~z-1");
    rig.work();
    let answer = poll.received();
    assert!(answer.contains("Throng-Id: ~z-2\r\n") && answer.ends_with("second"), "{answer}");
    // One that is told of a gap gets what is left, however long it would wait.
    let poll = rig.get("/users/ann?wait=9&since=~y-1");
    rig.work();
    let answer = poll.received();
    assert!(answer.contains("Throng-Recovered: false\r\n"), "{answer}");
    assert!(answer.contains("first\nsecond"), "{answer}");
    let empty = rig.get("/users/ann?wait=0&since=~z-2").received();
    assert!(empty.starts_with("HTTP/1.1 204") && empty.contains("Throng-Id: ~z-2"), "{empty}");
    rig.worker.check_invariants();
}

#[test]
fn a_long_poll_gets_what_was_published_before_its_channels_end() {
    let (mut rig, access) = rig(Settings::for_tests());
    keep(&mut rig, &access, &["a", "b"], &[]);
    let poll = rig.get("/users/ann?wait=9");
    rig.publish("a", "last", None);
    keep(&mut rig, &access, &["c"], &["a", "b"]);
    rig.publish("a", "after", None);
    rig.work();
    assert!(poll.received().ends_with("last"), "{}", poll.received());
    rig.worker.check_invariants();
}

#[test]
fn a_client_of_an_inbox_alone_resumes_from_its_message() {
    let (mut rig, access) = rig(Settings::for_tests());
    rig.publish("a", "long ago", None);
    let publication = throng_core::Publication::new(
        ChannelName::user("ann"),
        throng_core::Body::Text("to ann".into()),
    );
    rig.engine.publish(1, publication).unwrap();
    keep(&mut rig, &access, &["a"], &[]);
    rig.publish("a", "new", None);
    let client = sse(&mut rig, "z-1");
    rig.work();
    let resumed = client.received();
    assert!(resumed.contains("Throng-Recovered: true\r\n"), "{resumed}");
    assert!(resumed.contains("id: ~z-3\ndata: new\n") && !resumed.contains("long ago"));
}

#[test]
fn kept_channels_do_not_count_as_channels_of_a_connection() {
    let settings = Settings { max_channels_per_connection: 2, ..Settings::for_tests() };
    let (mut rig, access) = rig(settings);
    keep(&mut rig, &access, &["a", "b", "c", "d"], &[]);
    let client = rig.v1();
    let mut ask = |command: &str| {
        rig.send_frame(&client, command);
        rig.work();
        client.received()
    };
    assert!(ask(r#"{"type":"subscribe","user":"ann"}"#).contains("subscribed"));
    assert!(ask(r#"{"type":"subscribe","channel":"own"}"#).contains("subscribed"));
    assert!(ask(r#"{"type":"subscribe","channel":"e"}"#).contains("too_many_channels"));
    assert!(ask(r#"{"type":"unsubscribe","channel":"a"}"#).contains("forbidden"));
    assert!(ask(r#"{"type":"unsubscribe","channel":"own"}"#).contains("unsubscribed"));
    rig.publish("d", "hello", None);
    rig.work();
    let received = client.received();
    assert!(received.contains("hello") && received.contains(r#""position":"~z-1""#), "{received}");
    rig.send_frame(&client, r#"{"type":"unsubscribe","user":"ann"}"#);
    rig.publish("d", "again", None);
    rig.work();
    assert!(!client.received().contains("again"));
    rig.worker.check_invariants();
}

/// A `throng.v1` connection of ann, and a way to ask it.
fn ann(rig: &mut Rig) -> Client {
    let client = rig.v1();
    assert!(ask(rig, &client, r#"{"type":"subscribe","user":"ann"}"#).contains("subscribed"));
    client
}

fn ask(rig: &mut Rig, client: &Client, command: &str) -> String {
    rig.send_frame(client, command);
    rig.work();
    client.received()
}

#[test]
fn requested_channels_stay_when_no_longer_kept() {
    let (mut rig, access) = rig(Settings::for_tests());
    keep(&mut rig, &access, &["first"], &[]);
    let client = ann(&mut rig);
    for channel in ["asked", "given-up"] {
        let command = format!(r#"{{"type":"subscribe","channel":"{channel}"}}"#);
        assert!(ask(&mut rig, &client, &command).contains("subscribed"));
    }
    keep(&mut rig, &access, &["asked", "given-up"], &[]);
    let refusal = ask(&mut rig, &client, r#"{"type":"unsubscribe","channel":"given-up"}"#);
    assert!(refusal.contains("forbidden"), "{refusal}");
    rig.replace_process();
    keep(&mut rig, &access, &[], &["asked", "given-up", "first"]);
    for channel in ["asked", "given-up", "first"] {
        rig.publish(channel, channel, None);
    }
    rig.work();
    let received = client.received();
    assert!(received.contains(r#""data":"asked""#), "{received}");
    assert!(!received.contains("given-up") && !received.contains("first"), "{received}");
    rig.worker.check_invariants();
}

#[test]
fn requested_channels_count_even_if_kept() {
    let settings = Settings { max_channels_per_connection: 3, ..Settings::for_tests() };
    let (mut rig, access) = rig(settings);
    keep(&mut rig, &access, &["first"], &[]);
    let client = ann(&mut rig);
    for channel in ["a", "b"] {
        let command = format!(r#"{{"type":"subscribe","channel":"{channel}"}}"#);
        assert!(ask(&mut rig, &client, &command).contains("subscribed"));
    }
    keep(&mut rig, &access, &["a", "b"], &[]);
    let refusal = ask(&mut rig, &client, r#"{"type":"subscribe","channel":"c"}"#);
    assert!(refusal.contains("too_many_channels"), "{refusal}");
}
