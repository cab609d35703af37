//! Subscriptions that begin with the state of a channel, and slow ones that pass over superseded
//! values.

use std::sync::Arc;
use std::time::Duration;

use throng_access::{AccessControl, AccessRules, AllowAll};
use throng_core::{Rule, Rules};
use throng_edge::{Counter, Settings};

use crate::rig::{Client, Rig};
use crate::tokens::{control, token, websocket};

fn rig(rule: Rule) -> Rig {
    let settings = Settings { heartbeat: Duration::ZERO, ..Settings::for_tests() };
    let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
    Rig::with_rules(settings, access, Rules::new(Vec::new(), rule))
}

/// A channel with two keys and a message without one, of which one key was set twice and a third
/// one was removed.
fn prices() -> Rig {
    let mut rig = rig(Rule::default());
    for (key, text) in [("a", "old"), ("b", "1"), ("gone", "x"), ("a", "2")] {
        rig.set_key("prices", key, text);
    }
    rig.remove_key("prices", "gone");
    rig.publish("prices", "hello", None);
    rig.work();
    rig
}

/// Key and data of each envelope, or the type of a notice, that a stream has got since the last
/// call.
fn lines(client: &Client) -> Vec<String> {
    let text = client.received();
    let body = text.split_once("\r\n\r\n").map_or(&*text, |(_, body)| body);
    let shown = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect(line);
        match (line["type"].as_str(), line["state_key"].as_str()) {
            (Some("message"), Some(key)) if line["tombstone"] == true => format!("{key}-"),
            (Some("message"), Some(key)) => format!("{key}={}", line["data"].as_str().unwrap()),
            (Some("message"), None) => line["data"].as_str().unwrap().to_owned(),
            (Some(kind), _) => match line["count"].as_u64() {
                Some(count) => format!("{kind} {count}"),
                None => kind.to_owned(),
            },
            (None, _) => panic!("{line}"),
        }
    };
    body.lines().map(shown).collect()
}

/// A stream without chunks.
fn stream(rig: &mut Rig, query: &str) -> Client {
    rig.connect(&format!("GET /channels/prices{query} HTTP/1.0\r\nHost: localhost\r\n\r\n"))
}

#[test]
fn a_state_comes_first_and_ends_with_a_notice() {
    let mut rig = prices();
    let client = stream(&mut rig, "?state=true");
    assert_eq!(lines(&client), ["b=1", "a=2", "state"]);
    rig.set_key("prices", "a", "3");
    rig.remove_key("prices", "b");
    rig.publish("prices", "bye", None);
    rig.work();
    assert_eq!(lines(&client), ["a=3", "b-", "bye"]);
    // Another one has its own, and the first one nothing of it.
    let other = stream(&mut rig, "?state=true");
    assert_eq!((lines(&other), lines(&client).len()), (vec!["a=3".into(), "state".into()], 0));
    let (empty, query) = (rig.v1(), r#"{"type":"subscribe","channel":"b","state":true}"#);
    empty.received();
    rig.send_frame(&empty, query);
    let received = empty.received();
    let (subscribed, state) = (received.find("subscribed"), received.find(r#""type":"state""#));
    assert!(subscribed < state && subscribed.is_some(), "{received}");
}

#[test]
fn a_state_comes_over_every_transport() {
    let mut rig = prices();
    let sse = rig.connect("GET /channels/prices?state=true&transport=sse HTTP/1.0\r\n\r\n");
    let events = sse.received();
    let (first, rest) = events.split_once("state_key\":\"b\"").expect(&events);
    let (_, rest) = rest.split_once("state_key\":\"a\"").expect("the second");
    assert!(rest.contains("event: state\n"), "{events}");
    assert!(!first.contains("hello") && !rest.contains("hello"), "{events}");
    let poll =
        rig.connect("GET /channels/prices?state=true&wait=5 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let answer = poll.received();
    assert!(answer.contains("Throng-State: whole\r\n"), "{answer}");
    let (b, a) = (answer.find("state_key\":\"b\""), answer.find("state_key\":\"a\""));
    assert!(b.is_some() && b < a && !answer.contains("hello"), "{answer}");
    let v1 = rig.v1();
    v1.received();
    rig.send_frame(&v1, r#"{"type":"subscribe","channels":["prices"],"state":true}"#);
    let frames = v1.received();
    assert!(frames.find("\"1\"") < frames.find("\"2\""), "{frames}");
    assert!(frames.find("\"2\"") < frames.find(r#""type":"state""#), "{frames}");
    let compact = stream(&mut rig, "?state=true&envelope=compact").received();
    assert!(compact.contains(r#""1",{"state_key":"b"}"#), "{compact}");
    assert!(compact.find(r#"{"state_key":"a"}"#) < compact.find(r#""type":"state""#), "{compact}");
}

#[test]
fn a_client_that_resumes_gets_the_newest_of_what_has_changed() {
    let mut rig = rig(Rule::default());
    let first = stream(&mut rig, "?envelope=true");
    first.received();
    rig.set_key("prices", "a", "1");
    rig.work();
    let id =
        |text: &str| text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let since = id(&first.received());
    for n in 2..9 {
        rig.set_key("prices", "a", &n.to_string());
        rig.set_key("prices", "b", &n.to_string());
    }
    rig.remove_key("prices", "b");
    rig.work();
    let again = stream(&mut rig, &format!("?since={since}&state=true"));
    assert_eq!(lines(&again), ["a=8", "b-"]);
    let foreign = stream(&mut rig, "?since=zzzzzz-5&state=true");
    assert_eq!(lines(&foreign), ["a=8", "b-", "state"], "the whole state in place of a gap");
}

#[test]
fn a_slow_client_passes_over_superseded_values() {
    let mut rig = rig(Rule { max_lag_messages: 10, ..Rule::default() });
    let (slow, quick) = (stream(&mut rig, "?envelope=true"), stream(&mut rig, "?envelope=true"));
    slow.received();
    quick.received();
    slow.stall_after(0);
    for n in 0..500 {
        for key in ["a", "b", "c"] {
            rig.set_key("prices", key, &n.to_string());
        }
        rig.work();
    }
    assert_eq!(lines(&quick).len(), 1_500, "who keeps up gets all");
    rig.read_again(&slow);
    let late = lines(&slow);
    let (values, notices): (Vec<_>, Vec<_>) = late.iter().partition(|line| line.contains('='));
    assert_eq!(values[values.len() - 3..], ["a=499", "b=499", "c=499"]);
    assert!(values.len() <= 5, "{late:?}");
    let told: u64 = notices
        .iter()
        .map(|it| it.strip_prefix("conflated ").unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(told + values.len() as u64, 1_500, "{late:?}");
    assert_eq!(rig.count(Counter::MessagesConflated), told);
    assert!(slow.is_bounded() && !quick.is_bounded(), "what waits unsent grows old");
    rig.set_key("prices", "a", "500");
    rig.work();
    assert_eq!((lines(&slow), lines(&quick)), (vec!["a=500".to_owned()], vec!["a=500".to_owned()]));
}

#[test]
fn a_state_goes_on_after_an_upgrade() {
    let mut rig = rig(Rule::default());
    for n in 0..50 {
        rig.set_key("prices", &format!("key {n}"), &"x".repeat(100));
    }
    let client = rig.connect("GET /channels/prices?state=true HTTP/1.0\r\n\r\n");
    drop(client);
    let slow = rig.connect_stalled("GET /channels/prices?state=true HTTP/1.0\r\n\r\n", 3_000);
    rig.set_key("prices", "key 3", "new");
    rig.publish("prices", "hello", None);
    rig.work();
    rig.replace_process();
    rig.work();
    rig.read_again(&slow);
    let lines = lines(&slow);
    let end = lines.iter().position(|line| line == "state").expect("it ends");
    assert_eq!(lines.len() - end, 3, "{:?}", &lines[end..]);
    assert_eq!(lines[end + 1..], ["key 3=new", "hello"]);
    assert!((49..=50).contains(&end), "{end} values");
}

#[test]
fn a_key_is_set_by_those_whose_token_grants_it() {
    let access = Arc::new(control(AccessRules::default()));
    let mut rig = Rig::with_control(Settings::for_tests(), access);
    let publish = r#"{"type":"publish","channel":"a","state_key":"k","data":"x","ref":1}"#;
    let claims = |grants: &str| format!(r#""sub":"ann","throng":{{{grants}}}"#);
    for (grants, answer) in [
        (r#""publish":["a"]"#, r#""code":"forbidden""#),
        (r#""state":["a"]"#, r#""code":"forbidden""#),
        (r#""publish":["a"],"state":["a"]"#, r#""type":"published""#),
    ] {
        let token = token(3600, &claims(grants));
        let client = websocket(&mut rig, "/subscribe", &token, "throng.v1");
        client.received();
        rig.send_frame(&client, publish);
        let received = client.received();
        assert!(received.contains(answer), "{grants}: {received}");
    }
}

#[test]
fn a_state_is_whole_while_a_newer_value_is_on_its_way() {
    let mut rig = rig(Rule::default());
    let first = rig.get("/channels/a?state=true");
    for (key, value) in [("x", "1"), ("y", "1"), ("z", "1")] {
        rig.set_key("a", key, value);
    }
    rig.work();
    // The worker has not taken it when the second client comes.
    rig.set_key("a", "z", "2");
    let second = rig.get("/channels/a?state=true");
    let v1 = rig.v1();
    rig.send_frame(&v1, r#"{"type":"subscribe","channel":"a","state":true}"#);
    rig.set_key("a", "x", "2");
    rig.work();
    for client in [second, v1] {
        let received = client.received();
        let place = |key| received.rfind(&format!(r#""state_key":"{key}""#));
        let values = ["y", "z", "x"].map(place);
        assert!(values.iter().all(Option::is_some) && values.is_sorted(), "{received}");
        assert_eq!(received.matches(r#""data":"2""#).count(), 2, "{received}");
    }
    drop(first);
}
