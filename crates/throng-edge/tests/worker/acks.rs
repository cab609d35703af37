//! Frames that clients acknowledge, and what waits for that.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use throng_access::{AccessControl, AllowAll};
use throng_core::{Kind, LagPolicy, Notification, Rule, Rules, ScanAction, ScanTarget};
use throng_edge::{Counter, Settings};

use crate::compact::{frames, v1};
use crate::rig::{Client, Rig};
use crate::scan::scan;
use crate::tokens::has_close;

/// What a client may owe at most.
const FRAMES_MAX: usize = 8;

/// The limit of staleness of channels that begin with `p`.
const STALENESS_MS: u32 = 1_000;

fn rule() -> Rule {
    Rule {
        kind: Some(Kind::Channel),
        pattern: "p*".to_owned(),
        lag_policy: LagPolicy::Latest,
        max_staleness_ms: STALENESS_MS,
        ..Rule::default()
    }
}

fn rig() -> Rig {
    rig_with(rule())
}

/// A rig with a limit that no test reaches.
fn patient_rig() -> Rig {
    rig_with(Rule { max_staleness_ms: 60_000, ..rule() })
}

fn rig_with(rule: Rule) -> Rig {
    let settings = Settings { heartbeat: Duration::ZERO, ..Settings::for_tests() };
    let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
    Rig::with_rules(settings, access, Rules::new(vec![rule], Rule::default()))
}

/// A client of some channels with compact messages, which has read what comes first.
fn reader(rig: &mut Rig, channels: &[&str]) -> Client {
    let query: String = channels.iter().map(|name| format!("channel={name}&")).collect();
    let client = v1(rig, &format!("/subscribe?{query}envelope=compact"));
    client.received();
    client
}

/// Publishes a message, and lets an interval and more pass.
fn publish(rig: &mut Rig, channel: &str, text: &str) {
    rig.publish(channel, text, None);
    rig.work();
    rig.pass(1);
}

/// A frame with messages.
struct Frame {
    asks: bool,
    /// The texts of messages, and `-N` for N that were skipped.
    texts: Vec<String>,
}

/// The frames with messages that have come since the last call.
fn messages(client: &Client) -> Vec<Frame> {
    let text = |item: &Value| match item[2].as_str() {
        Some(text) => text.to_owned(),
        None => item[1].to_string(),
    };
    let frame = |frame: &Vec<Value>| Frame {
        asks: frame[0] == 1,
        texts: frame[1..].iter().map(text).collect(),
    };
    frames(&client.received_bytes()).iter().filter_map(Value::as_array).map(frame).collect()
}

fn texts(client: &Client) -> Vec<String> {
    messages(client).into_iter().flat_map(|frame| frame.texts).collect()
}

fn behind(rig: &mut Rig) -> u64 {
    scan(rig, ScanTarget::Behind, ScanAction::List { limit: 9 }).count
}

fn acknowledge(rig: &mut Rig, client: &Client, frames: usize) {
    rig.send_frame(client, &format!(r#"{{"type":"ack","frames":{frames}}}"#));
    rig.work();
}

#[test]
fn a_client_that_takes_a_part_gets_its_channels_in_turn() {
    const CHANNELS: usize = 20;
    let names: Vec<_> = (0..CHANNELS).map(|number| format!("p{number}")).collect();
    let mut rig = patient_rig();
    let client = reader(&mut rig, &names.iter().map(String::as_str).collect::<Vec<_>>());
    // Two do not go in one frame.
    let large = "x".repeat(3_000);
    let mut seen = HashSet::new();
    for _ in 0..4 {
        for name in &names {
            rig.publish(name, &format!("{name} {large}"), None);
        }
        rig.work();
        rig.pass(1);
        let got = messages(&client);
        let owed = got.iter().filter(|frame| frame.asks).count();
        let texts = got.into_iter().flat_map(|frame| frame.texts);
        seen.extend(texts.filter_map(|text| text.split_once(' ').map(|(name, _)| name.to_owned())));
        acknowledge(&mut rig, &client, owed);
    }
    assert_eq!(seen.len(), CHANNELS, "{seen:?}");
}

#[test]
fn only_channels_with_a_limit_ask_for_acknowledgements() {
    let mut rig = rig();
    let client = reader(&mut rig, &["p1", "p2", "q"]);
    let (alone, full) = (reader(&mut rig, &["p1"]), v1(&mut rig, "/channels/p1"));
    for (channels, asks) in [(&["p1"][..], true), (&["q"], false), (&["q", "p1", "p2"], true)] {
        for channel in channels {
            rig.publish(channel, "hi", None);
        }
        rig.work();
        rig.pass(1);
        let got = messages(&client);
        assert_eq!(got.iter().map(|it| it.texts.len()).sum::<usize>(), channels.len());
        let asking = got.iter().filter(|frame| frame.asks).count();
        assert_eq!(asking > 0, asks, "{channels:?}");
        if asks {
            assert!(messages(&alone).iter().all(|frame| frame.asks));
            acknowledge(&mut rig, &client, asking);
            acknowledge(&mut rig, &alone, 1);
        }
        rig.pass(1);
    }
    assert!(!full.received().contains("[1,"));
    assert!(client.received().is_empty() && alone.received().is_empty(), "no answer");
    rig.worker.check_invariants();
}

#[test]
fn one_that_owes_many_frames_gets_the_newest_later() {
    let mut rig = patient_rig();
    let client = reader(&mut rig, &["p", "q"]);
    for number in 0..12 {
        publish(&mut rig, "p", &number.to_string());
    }
    let got = messages(&client);
    assert!(got.len() == FRAMES_MAX && got.iter().all(|frame| frame.asks));
    assert_eq!((behind(&mut rig), rig.count(Counter::MessagesConflated)), (1, 0));
    publish(&mut rig, "q", "another channel");
    assert_eq!(texts(&client), ["another channel"]);
    rig.worker.check_invariants();
    acknowledge(&mut rig, &client, 1);
    assert_eq!(texts(&client), ["-3", "11"]);
    assert_eq!((behind(&mut rig), rig.count(Counter::MessagesConflated)), (0, 3));
    acknowledge(&mut rig, &client, FRAMES_MAX);
    publish(&mut rig, "p", "next");
    assert_eq!(texts(&client), ["next"]);
    assert_eq!(rig.count(Counter::Gaps), 0);
    rig.worker.check_invariants();
}

#[test]
fn one_that_owes_a_frame_for_long_gets_the_newest_later() {
    let mut rig = rig();
    let (client, other) = (reader(&mut rig, &["p"]), reader(&mut rig, &["p"]));
    publish(&mut rig, "p", "0");
    acknowledge(&mut rig, &other, 1);
    rig.pass(STALENESS_MS / 200);
    for number in 1..20 {
        publish(&mut rig, "p", &number.to_string());
        acknowledge(&mut rig, &other, 1);
    }
    assert_eq!((texts(&client), texts(&other).len()), (vec!["0".to_owned()], 20));
    acknowledge(&mut rig, &client, 1);
    assert_eq!(texts(&client), ["-18", "19"]);
    assert_eq!(rig.count(Counter::Gaps), 0);
    rig.worker.check_invariants();
}

#[test]
fn one_that_never_acknowledges_is_held_and_not_closed() {
    let mut rig = rig();
    let (client, slow) = (reader(&mut rig, &["p", "q"]), reader(&mut rig, &["p"]));
    slow.stall_after(0);
    for number in 0..100 {
        publish(&mut rig, "p", &number.to_string());
    }
    let got = texts(&client);
    assert!(got.len() <= FRAMES_MAX && got[0] == "0", "{got:?}");
    publish(&mut rig, "q", "another channel");
    assert_eq!(texts(&client), ["another channel"]);
    assert_eq!(behind(&mut rig), 2);
    rig.hang_up(&client);
    rig.pass(1);
    assert_eq!(behind(&mut rig), 1);
    rig.worker.check_invariants();
}

#[test]
fn more_than_was_sent_cannot_be_acknowledged() {
    for (sent, said) in [(0, 1), (2, 3), (2, u32::MAX as usize)] {
        let mut rig = rig();
        let client = reader(&mut rig, &["p"]);
        (0..sent).for_each(|_| publish(&mut rig, "p", "hi"));
        acknowledge(&mut rig, &client, said);
        assert!(has_close(&client, 4008), "{said} of {sent}");
        assert_eq!(rig.count(Counter::ClosedBadAck), 1);
        rig.worker.check_invariants();
    }
    let mut rig = rig();
    let plain = v1(&mut rig, "/channels/p");
    publish(&mut rig, "p", "hi");
    acknowledge(&mut rig, &plain, 1);
    assert!(has_close(&plain, 4008), "it was asked for nothing");
    let client = reader(&mut rig, &["p"]);
    for wrong in ["0", "-1", "1.5", "\"1\"", "null", "4294967296"] {
        rig.send_frame(&client, &format!(r#"{{"type":"ack","frames":{wrong},"ref":7}}"#));
        let received = client.received();
        assert!(received.contains(r#""code":"bad_request""#) && received.contains(r#""ref":7"#));
    }
}

#[test]
fn a_client_owes_the_same_to_a_new_process() {
    let mut rig = rig();
    let client = reader(&mut rig, &["p"]);
    publish(&mut rig, "p", "0");
    publish(&mut rig, "p", "1");
    rig.replace_process();
    rig.pass(STALENESS_MS / 200);
    publish(&mut rig, "p", "2");
    publish(&mut rig, "p", "3");
    assert_eq!(texts(&client), ["0", "1"]);
    rig.replace_process();
    rig.pass(1);
    assert_eq!((texts(&client).len(), behind(&mut rig)), (0, 1));
    acknowledge(&mut rig, &client, 2);
    assert_eq!(texts(&client), ["-1", "3"]);
    acknowledge(&mut rig, &client, 1);
    rig.replace_process();
    acknowledge(&mut rig, &client, 1);
    assert!(has_close(&client, 4008));
}

#[test]
fn a_frame_that_asks_is_cut_at_any_byte() {
    for is_replaced in [false, true] {
        for taken in 0..60 {
            let mut rig = patient_rig();
            let client = reader(&mut rig, &["p1", "p2", "q"]);
            client.stall_after(taken);
            for round in 1..=3 {
                for name in ["p1", "p2", "q"] {
                    rig.publish(name, &format!("{name}.{round}"), None);
                }
                rig.work();
                rig.pass(1);
            }
            if is_replaced {
                rig.replace_process();
            }
            rig.read_again(&client);
            rig.work();
            rig.pass(1);
            let got = messages(&client);
            let (asked, mut of) = (got.iter().filter(|frame| frame.asks).count(), [0, 0, 0]);
            for text in got.into_iter().flat_map(|frame| frame.texts) {
                let Some((channel, round)) = text.split_once('.') else { continue };
                let at = ["p1", "p2", "q"].iter().position(|name| *name == channel).expect(&text);
                let round: u32 = round.parse().expect("a number");
                assert!(round > of[at] && (at < 2 || round == of[at] + 1), "{taken}: {text}");
                of[at] = round;
            }
            assert_eq!(of, [3, 3, 3], "cut at {taken}");
            acknowledge(&mut rig, &client, asked);
            assert!(!has_close(&client, 4008), "cut at {taken}");
            acknowledge(&mut rig, &client, 1);
            assert!(has_close(&client, 4008), "cut at {taken}");
            rig.worker.check_invariants();
        }
    }
}

#[test]
fn history_is_acknowledged_like_all_that_comes() {
    let mut rig = patient_rig();
    let long = |number: usize| format!("{number}.{}", "x".repeat(3_000));
    (0..40).for_each(|number| rig.publish("p", &long(number), None));
    rig.work();
    let client = v1(&mut rig, "/channels/p?envelope=compact&history=40");
    let mut got = Vec::new();
    for _ in 0..40 {
        let frames = messages(&client);
        assert!(frames.len() <= FRAMES_MAX && frames.iter().all(|frame| frame.asks));
        if frames.is_empty() {
            break;
        }
        acknowledge(&mut rig, &client, frames.len());
        got.extend(frames.into_iter().flat_map(|frame| frame.texts));
    }
    assert_eq!(got, (0..40).map(long).collect::<Vec<_>>());
    rig.worker.check_invariants();
}

#[test]
fn one_that_is_late_with_history_gets_the_newest() {
    let mut rig = rig();
    let long = |number: usize| format!("{number}.{}", "x".repeat(3_000));
    (0..40).for_each(|number| rig.publish("p", &long(number), None));
    rig.work();
    let client = v1(&mut rig, "/channels/p?envelope=compact&history=40");
    assert_eq!(messages(&client).len(), FRAMES_MAX);
    rig.pass(STALENESS_MS / 100);
    publish(&mut rig, "p", "new");
    publish(&mut rig, "p", "newest");
    acknowledge(&mut rig, &client, FRAMES_MAX);
    let got = texts(&client);
    assert_eq!(got.last().map(String::as_str), Some("newest"));
    assert!(got.len() < 40 && !got.contains(&"new".to_owned()), "{}", got.len());
}

#[test]
fn one_that_never_acknowledges_makes_nobody_keep_its_history() {
    let mut rig = rig();
    (0..20).for_each(|number| rig.publish("p", &format!("{number}.{}", "x".repeat(3_000)), None));
    rig.work();
    let client = v1(&mut rig, "/channels/p?envelope=compact&history=20");
    assert_eq!(messages(&client).len(), FRAMES_MAX);
    rig.pass(STALENESS_MS / 100);
    (0..300).for_each(|number| publish(&mut rig, "p", &number.to_string()));
    let found = scan(&mut rig, ScanTarget::Behind, ScanAction::List { limit: 9 });
    let lag = found.connections[0].lag.as_ref().expect("it is behind");
    assert!(lag.messages > 300 && lag.bytes < 3_000, "{lag:?}");
    acknowledge(&mut rig, &client, FRAMES_MAX);
    assert_eq!(texts(&client).last().map(String::as_str), Some("299"));
}

#[test]
fn a_volatile_message_does_not_wait_for_acknowledgements() {
    let mut rig = patient_rig();
    let client = reader(&mut rig, &["p"]);
    rig.publish_volatile("p", "typing");
    rig.work();
    let got = messages(&client);
    assert!(got.len() == 1 && !got[0].asks);
    (0..FRAMES_MAX).for_each(|_| publish(&mut rig, "p", "hi"));
    rig.publish_volatile("p", "typing");
    rig.work();
    assert!(!texts(&client).contains(&"typing".to_owned()));
    assert_eq!(rig.count(Counter::VolatileDroppedBehind), 1);
}

#[test]
fn one_that_leaves_while_it_is_held_leaves_nothing_behind() {
    let mut rig = patient_rig();
    let client = reader(&mut rig, &["p1", "p2"]);
    for _ in 0..=FRAMES_MAX {
        publish(&mut rig, "p1", "hi");
    }
    publish(&mut rig, "p2", "held");
    assert_eq!(texts(&client).len(), FRAMES_MAX);
    rig.send_frame(&client, r#"{"type":"unsubscribe","channel":"p1"}"#);
    rig.work();
    client.received();
    acknowledge(&mut rig, &client, 2);
    assert_eq!(texts(&client), ["held"]);
    assert_eq!(behind(&mut rig), 0);
    rig.worker.check_invariants();
}

#[test]
fn what_is_held_comes_before_the_end() {
    let held = |rig: &mut Rig| {
        let client = reader(rig, &["p"]);
        (0..=FRAMES_MAX).for_each(|number| publish(rig, "p", &number.to_string()));
        assert_eq!(texts(&client).len(), FRAMES_MAX);
        client
    };
    let newest = format!(",\"{FRAMES_MAX}\"]]");
    let mut rig = patient_rig();
    let client = held(&mut rig);
    rig.send(&client, &[0x88, 0x80, 0, 0, 0, 0]);
    rig.work();
    assert!(client.received().contains(&newest), "before the answer to its close");
    let client = held(&mut rig);
    rig.queue.post(Notification::Drain);
    rig.work();
    rig.pass(1);
    let received = client.received();
    assert!(received.contains(&newest) && received.contains("reconnect in"), "{received}");
}

#[test]
fn one_that_is_held_for_too_long_is_closed_if_the_rule_says_so() {
    let slow_timeout = Some(Duration::from_secs(3));
    let mut rig = rig_with(Rule { slow_timeout, ..rule() });
    let client = reader(&mut rig, &["p"]);
    for number in 0..60 {
        publish(&mut rig, "p", &number.to_string());
    }
    assert!(has_close(&client, 4000));
    assert_eq!(rig.count(Counter::ClosedSlow), 1);
}
