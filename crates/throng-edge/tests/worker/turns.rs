//! A connection that takes a part of what it lacks each time: all of its channels have their turns.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use throng_access::{AccessControl, AllowAll};
use throng_core::{LagPolicy, Rule, Rules};
use throng_edge::Settings;

use crate::compact::{frames, v1};
use crate::rig::{Client, Rig};

const CHANNELS: usize = 20;

fn rig(lag_policy: LagPolicy) -> Rig {
    let settings = Settings { heartbeat: Duration::ZERO, ..Settings::for_tests() };
    let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
    let rule = Rule { lag_policy, max_lag_messages: 10, ..Rule::default() };
    Rig::with_rules(settings, access, Rules::new(Vec::new(), rule))
}

/// A connection that follows all channels, `c1/` to `c20/` in their messages.
fn reader(rig: &mut Rig, kind: &str) -> Client {
    let query: String = (1..=CHANNELS).map(|number| format!("channel=c{number}&")).collect();
    let target = format!("/subscribe?{query}");
    let client = match kind {
        "compact" => v1(rig, &format!("{target}envelope=compact")),
        "v1" => v1(rig, &target),
        kind => rig.connect(&format!(
            "GET {target}envelope=true HTTP/1.1\r\nHost: localhost\r\nAccept: {kind}\r\n\r\n"
        )),
    };
    rig.work();
    client.received();
    client
}

/// How many messages of each channel a client gets that takes two or three in each round, in each
/// of which all channels have more than their lag limits.
fn served(lag_policy: LagPolicy, kind: &str) -> HashMap<String, usize> {
    let mut rig = rig(lag_policy);
    let client = reader(&mut rig, kind);
    client.stall_after(0);
    let (mut received, large) = (String::new(), "x".repeat(400));
    for _ in 0..5 * CHANNELS {
        for channel in 1..=CHANNELS {
            (0..12).for_each(|_| {
                rig.publish(&format!("c{channel}"), &format!("c{channel}/{large}"), None)
            });
        }
        rig.work();
        rig.read_some(&client, 1_500);
        rig.work();
        rig.pass(1);
        received += &client.received();
        rig.worker.check_invariants();
    }
    let mut served = HashMap::new();
    let mut parts: Vec<_> = received.split(&format!("/{large}")).collect();
    // Behind the last whole message. Before each is the name of its channel.
    parts.pop();
    for part in parts {
        let name = &part[part.rfind('c').expect("a name")..];
        *served.entry(name.to_owned()).or_default() += 1;
    }
    served
}

#[test]
fn a_slow_client_gets_all_of_its_channels_in_turn() {
    for kind in ["compact", "v1", "text/event-stream", "text/plain"] {
        for lag_policy in [LagPolicy::Latest, LagPolicy::Skip] {
            let served = served(lag_policy, kind);
            assert_eq!(served.len(), CHANNELS, "{kind}, {lag_policy:?}: {served:?}");
        }
        let served = served(LagPolicy::Latest, kind);
        let (most, least) = (served.values().max(), served.values().min());
        assert!(most.zip(least).is_some_and(|(most, least)| *most <= least + 2), "{served:?}");
    }
}

/// How many counts of skipped messages come without a message behind them.
fn counts_alone(items: &[Value]) -> usize {
    let is_count = |item: &Value| item.as_array().is_some_and(|item| item.len() == 2);
    let pairs = items.iter().zip(items.iter().skip(1).chain([&Value::Null]));
    pairs.filter(|(item, next)| is_count(item) && item[0] != next[0]).count()
}

#[test]
fn a_slow_client_is_told_little_of_what_it_does_not_get() {
    const MANY: usize = 1_000;
    let mut rig = rig(LagPolicy::Latest);
    let client = v1(&mut rig, "/subscribe?envelope=compact");
    for from in (0..MANY).step_by(100) {
        let names: Vec<_> = (from..from + 100).map(|number| format!(r#""c{number}""#)).collect();
        let names = names.join(",");
        rig.send_frame(&client, &format!(r#"{{"type":"subscribe","channels":[{names}]}}"#));
        rig.work();
    }
    let publish = |rig: &mut Rig| {
        (0..MANY).for_each(|channel| rig.publish(&format!("c{channel}"), &"x".repeat(100), None));
        rig.work();
    };
    client.received();
    client.stall_after(0);
    (0..3).for_each(|_| publish(&mut rig));
    let mut received = Vec::new();
    for _ in 0..10 {
        rig.read_some(&client, 6_000);
        rig.work();
        publish(&mut rig);
        received.extend(client.received_bytes());
    }
    rig.read_again(&client);
    rig.work();
    received.extend(client.received_bytes());
    let frames = frames(&received);
    let items = frames.iter().filter_map(Value::as_array).flat_map(|frame| &frame[1..]);
    let items: Vec<_> = items.cloned().collect();
    let alone = counts_alone(&items);
    assert!(items.len() > MANY && alone <= 300, "{alone} of {}", items.len());
}
