//! Channels and subscriptions with a pace.

use std::sync::Arc;
use std::time::Duration;

use throng_access::{AccessControl, AllowAll};
use throng_core::{LagPolicy, Rule, Rules};
use throng_edge::{Counter, Settings};

use crate::rig::{Client, Rig};

fn rig(rule: Rule) -> Rig {
    let settings = Settings { heartbeat: Duration::ZERO, ..Settings::for_tests() };
    let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
    Rig::with_rules(settings, access, Rules::new(Vec::new(), rule))
}

fn publish(rig: &mut Rig, bodies: &[&str]) {
    for body in bodies {
        rig.publish("a", body, None);
        rig.work();
    }
}

/// The lines of a stream that have come since the last call.
fn lines(client: &Client) -> Vec<String> {
    client.received().lines().map(str::to_owned).collect()
}

/// A stream without chunks, whose response head the client has read.
fn stream(rig: &mut Rig, query: &str) -> Client {
    let client =
        rig.connect(&format!("GET /channels/a{query} HTTP/1.0\r\nHost: localhost\r\n\r\n"));
    assert!(client.received().starts_with("HTTP/1.1 200"));
    client
}

#[test]
fn a_rule_with_a_pace_joins_what_comes_within_it() {
    let mut rig = rig(Rule { pace_ms: 100, ..Rule::default() });
    let client = stream(&mut rig, "");
    publish(&mut rig, &["1", "2", "3"]);
    assert_eq!(lines(&client), ["1"]);
    rig.pass(1);
    assert_eq!(lines(&client), ["2", "3"]);
    publish(&mut rig, &["4"]);
    assert_eq!(lines(&client), [""; 0]);
    rig.pass(3);
    assert_eq!(lines(&client), ["4"]);
    rig.pass(2);
    publish(&mut rig, &["5"]);
    assert_eq!(lines(&client), ["5"], "after silence at once");
}

#[test]
fn a_client_may_ask_for_a_slower_pace() {
    let mut rig = rig(Rule::default());
    let (quick, slow) = (stream(&mut rig, ""), stream(&mut rig, "?pace=200ms"));
    let v1 = rig.v1();
    rig.send_frame(&v1, r#"{"type":"subscribe","channel":"a","pace":200}"#);
    v1.received();
    publish(&mut rig, &["1", "2"]);
    assert_eq!((lines(&quick).len(), lines(&slow).len()), (2, 1));
    assert_eq!(v1.received().matches("message").count(), 1);
    publish(&mut rig, &["3"]);
    rig.pass(1);
    assert_eq!((lines(&quick).len(), lines(&slow).len()), (1, 0));
    rig.pass(2);
    assert_eq!((lines(&quick).len(), lines(&slow)), (0, vec!["2".to_owned(), "3".to_owned()]));
    assert_eq!(v1.received().matches("message").count(), 2);
}

#[test]
fn a_pace_survives_an_upgrade() {
    let mut rig = rig(Rule::default());
    let slow = stream(&mut rig, "?pace=200ms");
    publish(&mut rig, &["1", "2"]);
    assert_eq!(lines(&slow), ["1"]);
    rig.replace_process();
    rig.work();
    assert_eq!(lines(&slow), ["2"], "the clock does not go on");
    publish(&mut rig, &["3"]);
    assert_eq!(lines(&slow), [""; 0], "the pace does");
    rig.pass(4);
    assert_eq!(lines(&slow), ["3"]);
}

#[test]
fn a_latest_channel_with_a_pace_gives_the_newest() {
    let mut rig = rig(Rule { pace_ms: 100, lag_policy: LagPolicy::Latest, ..Rule::default() });
    let client = stream(&mut rig, "");
    publish(&mut rig, &["1", "2", "3"]);
    rig.pass(1);
    let skipped = r#"{"type":"conflated","channel":"a","count":1}"#;
    assert_eq!(lines(&client), ["1", skipped, "3"]);
    assert_eq!(rig.count(Counter::MessagesConflated), 1);
}

#[test]
fn a_paced_subscription_that_was_blocked_keeps_its_pace() {
    let mut rig = rig(Rule { pace_ms: 200, ..Rule::default() });
    let client = stream(&mut rig, "");
    client.stall_after(1);
    publish(&mut rig, &["first"]);
    publish(&mut rig, &["2"]);
    rig.read_again(&client);
    assert_eq!(client.received(), "first\n");
    rig.pass(2);
    assert_eq!(lines(&client), ["2"]);
}

#[test]
fn a_close_is_answered_behind_what_a_pace_holds_back() {
    let mut rig = rig(Rule { pace_ms: 500, ..Rule::default() });
    let client = rig.v1();
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"a","pace":900}"#);
    publish(&mut rig, &["1", "2"]);
    assert_eq!(client.received().matches("\"message\"").count(), 1);
    rig.send(&client, &[0x88, 0x80, 0, 0, 0, 0]);
    rig.work();
    let received = client.received_bytes();
    assert!(String::from_utf8_lossy(&received).contains("\"data\":\"2\""), "{received:?}");
    assert_eq!(received[received.len() - 2..], [0x88, 0]);
}
