//! Commands about many channels: in parts, and with one answer.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use throng_access::{Access, AccessControl, Action, Asker, Decision};
use throng_core::conformance::{Lateness, OpenReading, TestJournal};
use throng_core::{Answer, Channels, Fetched, JournalId, Later, Rule, Rules};
use throng_edge::{Counter, Settings};
use throng_wire::websocket::{Opcode, write_masked_frame};

use crate::kept;
use crate::rig::{Client, Rig};
use crate::waiting::rig_with;

fn ask(rig: &mut Rig, client: &Client, command: &str) -> String {
    client.received();
    rig.send_frame(client, command);
    rig.work();
    client.received()
}

/// The list `["c0","c1",…]`.
fn names(count: usize) -> String {
    let mut list = String::new();
    for number in 0..count {
        let comma = if number > 0 { "," } else { "" };
        write!(list, "{comma}\"c{number}\"").expect("a string takes everything");
    }
    format!("[{list}]")
}

fn command(kind: &str, list: &str) -> String {
    format!(r#"{{"type":"{kind}","channels":{list},"ref":7}}"#)
}

fn roomy() -> Settings {
    Settings { max_channels_per_connection: 10_000, ..Settings::for_tests() }
}

/// How often `received` has this text.
fn count(received: &str, text: &str) -> usize {
    received.matches(text).count()
}

#[test]
fn a_list_is_answered_in_its_order_with_the_errors_of_each_entry() {
    let settings = Settings { max_channels_per_connection: 3, ..Settings::for_tests() };
    let mut rig = Rig::with(settings);
    rig.publish("a", "old", None);
    let client = rig.v1();
    ask(&mut rig, &client, r#"{"type":"subscribe","channel":"here"}"#);
    let list = r#"["a","here","a",{"channel":"b","history":0},{"user":"*"},{},7,"a//b",
        {"channel":"x","sinc":"1"},{"channel":"y","since":"?"},"full"]"#;
    let answer = ask(&mut rig, &client, &command("subscribe", list));
    let entries = [
        r#"{"type":"subscribed","channels":[{"channel":"a","id":"z-1"},"#,
        r#"{"channel":"here","error":{"code":"already_subscribed","#,
        r#"{"channel":"a","error":{"code":"already_subscribed","#,
        r#"{"channel":"b","id":"z-0"},"#,
        r#"{"user":"*","error":{"code":"bad_name","#,
        r#"{"error":{"code":"bad_request","#,
        r#"{"error":{"code":"bad_request","#,
        r#"{"channel":"a//b","error":{"code":"bad_name","#,
        r#"{"channel":"x","error":{"code":"bad_request","message":"the field `sinc` is unknown"#,
        r#"{"channel":"y","error":{"code":"too_many_channels","#,
        r#"{"channel":"full","error":{"code":"too_many_channels","#,
        r#"}],"ref":7}"#,
    ];
    let mut rest = &answer[..];
    for entry in entries {
        let at = rest.find(entry).unwrap_or_else(|| panic!("{entry} in {answer}"));
        rest = &rest[at + entry.len()..];
    }
    assert_eq!(rest, "");
    rig.publish("b", "new", None);
    rig.work();
    assert!(client.received().contains(r#""data":"new""#));
    let list = r#"["a",{"channel":"b"},"b","x"]"#;
    let answer = ask(&mut rig, &client, &command("unsubscribe", list));
    let expected = concat!(
        r#"{"type":"unsubscribed","channels":["a","b","#,
        r#"{"channel":"b","error":{"code":"not_subscribed","#
    );
    assert!(answer.contains(expected), "{answer}");
    rig.publish("b", "gone", None);
    rig.publish("here", "stays", None);
    rig.work();
    let received = client.received();
    assert!(received.contains("stays") && !received.contains("gone"), "{received}");
    rig.worker.check_invariants();
}

#[test]
fn entries_may_begin_in_different_places() {
    let mut rig = Rig::new();
    for channel in ["a", "b", "c"] {
        (1..=3).for_each(|number| rig.publish(channel, &format!("{channel}{number}"), None));
    }
    let client = rig.v1();
    client.received();
    let list = r#"["a",{"channel":"b","since":"z-1"},{"channel":"c","history":0}]"#;
    let sent = format!(r#"{{"type":"subscribe","channels":{list},"history":1}}"#);
    let received = ask(&mut rig, &client, &sent);
    let answer = concat!(
        r#"{"type":"subscribed","channels":[{"channel":"a","id":"z-2","head":"z-3"},"#,
        r#"{"channel":"b","id":"z-1","head":"z-3","recovered":true},{"channel":"c","id":"z-3"}]}"#
    );
    let messages = received.split_once(answer).unwrap_or_else(|| panic!("{received}")).1;
    for (data, times) in
        [("a1", 0), ("a2", 0), ("a3", 1), ("b1", 0), ("b2", 1), ("b3", 1), ("c3", 0)]
    {
        assert_eq!(count(messages, &format!(r#""data":"{data}""#)), times, "{data}: {messages}");
    }
    rig.worker.check_invariants();
}

#[test]
fn ten_thousand_channels_take_many_turns_and_no_message_precedes_the_answer() {
    let mut rig = Rig::with(roomy());
    let (client, other) = (rig.v1(), rig.v1());
    client.received();
    rig.send_frame(&client, &command("subscribe", &names(10_000)));
    let mut turns = 0;
    while client.has_nothing() {
        rig.worker.work(true);
        turns += 1;
        if turns == 60 {
            rig.publish("c0", "early", None);
            rig.publish("c9999", "before it is followed", None);
            let answer = ask_once(&mut rig, &other, r#"{"type":"ping"}"#);
            assert!(answer.contains("pong"), "others are served meanwhile: {answer}");
        }
        assert!(turns < 1000);
    }
    assert!(turns > 40, "{turns} turns");
    let received = client.received();
    rig.work();
    let received = received + &client.received();
    let (answer, messages) = received.split_once(r#"],"ref":7}"#).expect("an answer");
    assert_eq!(count(answer, r#""id":"z-"#), 10_000);
    assert_eq!(count(messages, r#""data":"early""#), 1, "{messages}");
    rig.worker.check_invariants();
    let answer = ask(&mut rig, &client, &command("unsubscribe", &names(9_999)));
    assert_eq!(count(&answer, r#""c"#), 9_999 + 1);
    assert_eq!(rig.worker.subscriptions_in_all(), 1);
    rig.publish("c9999", "still", None);
    rig.work();
    assert!(client.received().contains("still"));
    rig.worker.check_invariants();
}

#[test]
fn a_command_costs_more_of_a_turn_if_its_client_has_many_channels() {
    let mut rig = Rig::with(roomy());
    let answers_of_a_turn = |rig: &mut Rig, channels: usize| {
        let client = rig.v1();
        ask(rig, &client, &command("subscribe", &names(channels)));
        let mut frames = Vec::new();
        for kind in ["subscribe", "unsubscribe"].iter().cycle().take(32) {
            let text = format!(r#"{{"type":"{kind}","channel":"x"}}"#);
            write_masked_frame(&mut frames, Opcode::Text, text.as_bytes(), [0; 4]);
        }
        rig.send(&client, &frames);
        let at_once = count(&client.received(), r#""channel":"x""#);
        rig.work();
        (at_once, at_once + count(&client.received(), r#""channel":"x""#))
    };
    let (few, of_few) = answers_of_a_turn(&mut rig, 100);
    let (many, of_many) = answers_of_a_turn(&mut rig, 9_000);
    assert_eq!((of_few, of_many), (32, 32));
    assert!(few > 20 && many < 10, "{few} and {many} in a turn");
}

/// Without taking further turns than one.
fn ask_once(rig: &mut Rig, client: &Client, command: &str) -> String {
    client.received();
    rig.send_frame(client, command);
    client.received()
}

#[test]
fn commands_behind_a_list_wait_for_its_answer() {
    let mut rig = Rig::with(roomy());
    let client = rig.v1();
    client.received();
    rig.send_frame(&client, &command("subscribe", &names(1_000)));
    rig.send_frame(&client, r#"{"type":"unsubscribe","channel":"c999"}"#);
    rig.send_frame(&client, r#"{"type":"ping"}"#);
    rig.work();
    let received = client.received();
    let places = [r#""subscribed""#, r#""unsubscribed""#, r#""pong""#].map(|it| received.find(it));
    assert!(places.is_sorted() && places[0].is_some(), "{received}");
    assert_eq!(rig.worker.subscriptions_in_all(), 999);
}

#[test]
fn a_list_is_bounded() {
    let mut rig = Rig::with(roomy());
    let client = rig.v1();
    for (list, expected) in [
        ("[]", "is empty"),
        (r#""a""#, "must be a list"),
        (&names(10_001), "more than 10000 entries"),
    ] {
        let answer = ask(&mut rig, &client, &command("subscribe", list));
        assert!(answer.contains(r#""type":"error""#) && answer.contains(expected), "{answer}");
    }
    let answer = ask(&mut rig, &client, r#"{"type":"subscribe","channels":["a"],"since":"z-1"}"#);
    assert!(answer.contains("field `since` is unknown"), "{answer}");
}

#[test]
fn each_channel_of_a_list_has_its_own_decision() {
    let (mut rig, access) = rig_with(Settings::for_tests());
    let client = rig.v1();
    client.received();
    let list = r#"["slow/a","b","slow/c","slow/d"]"#;
    assert_eq!(ask(&mut rig, &client, &command("subscribe", list)), "");
    rig.publish("b", "before the answer", None);
    access.next().answer(Decision::Allowed);
    access.next().answer(Decision::forbidden("not you"));
    rig.work();
    assert_eq!(client.received(), "", "one is not decided");
    assert_eq!(rig.worker.subscriptions_in_all(), 0);
    rig.pass(60);
    let answer = client.received();
    for expected in [
        r#"{"channel":"slow/a","id":"z-0"},{"channel":"b","id":"z-1"},"#,
        r#"{"channel":"slow/c","error":{"code":"forbidden","message":"not you"}},"#,
        r#"{"channel":"slow/d","error":{"code":"busy","#,
    ] {
        assert!(answer.contains(expected), "{answer}");
    }
    access.next().answer(Decision::Allowed);
    rig.work();
    assert_eq!(rig.count(Counter::UnawaitedAnswers), 1);
    assert_eq!(rig.worker.subscriptions_in_all(), 2);
    rig.worker.check_invariants();
}

#[test]
fn a_list_that_is_half_done_is_answered_before_an_upgrade() {
    let mut rig = Rig::with(roomy());
    let client = rig.v1();
    client.received();
    rig.send_frame(&client, &command("subscribe", &names(5_000)));
    while rig.worker.subscriptions_in_all() < 1_000 {
        rig.worker.work(true);
    }
    rig.publish("c0", "hello", None);
    rig.replace_process();
    rig.work();
    let received = client.received();
    assert_eq!(count(&received, r#""id":"z-"#), 5_000 + 1);
    assert_eq!(count(&received, "already"), 0);
    assert_eq!(count(&received, r#""data":"hello""#), 1);
    rig.send_frame(&client, &command("unsubscribe", &names(5_000)));
    while rig.worker.subscriptions_in_all() > 2_000 {
        rig.worker.work(true);
    }
    rig.replace_process();
    assert_eq!(count(&client.received(), r#""c"#), 5_000 + 1);
    assert_eq!(rig.worker.subscriptions_in_all(), 0);
}

#[test]
fn a_list_that_waits_for_a_decision_is_asked_about_again_after_an_upgrade() {
    let (mut rig, access) = rig_with(Settings::for_tests());
    let client = rig.v1();
    assert_eq!(ask(&mut rig, &client, &command("subscribe", r#"["a","slow/b"]"#)), "");
    rig.replace_process();
    rig.work();
    drop(access.next());
    access.next().answer(Decision::Allowed);
    rig.work();
    let received = client.received();
    assert_eq!(count(&received, r#""id":"z-0""#), 2, "{received}");
    rig.worker.check_invariants();
}

#[test]
fn a_blocked_client_gets_the_answer_and_all_messages_later() {
    let mut rig = Rig::with(roomy());
    let client = rig.v1();
    client.received();
    client.stall_after(0);
    rig.send_frame(&client, &command("subscribe", &names(1_000)));
    rig.work();
    for number in [0, 500, 999] {
        rig.publish(&format!("c{number}"), &format!("hello {number}"), None);
    }
    rig.work();
    rig.read_some(&client, 100);
    rig.work();
    rig.read_again(&client);
    rig.work();
    let received = client.received();
    let (_, messages) = received.split_once(r#"],"ref":7}"#).expect("an answer");
    assert_eq!(count(messages, r#""data":"hello "#), 3, "{messages}");
    rig.worker.check_invariants();
}

#[test]
fn a_client_that_goes_in_the_middle_of_a_list_leaves_nothing() {
    let mut rig = Rig::with(roomy());
    let client = rig.v1();
    client.received();
    rig.send_frame(&client, &command("subscribe", &names(5_000)));
    while rig.worker.subscriptions_in_all() < 1_000 {
        rig.worker.work(true);
    }
    rig.hang_up(&client);
    rig.work();
    assert_eq!(rig.worker.subscriptions_in_all(), 0);
    rig.worker.check_invariants();
}

#[test]
fn a_list_may_name_the_inbox_of_a_user_with_kept_channels() {
    let (mut rig, access) = kept::rig(roomy());
    kept::change(&rig, &access, "ann", &kept::update(&["kept"], &[]), || {});
    rig.work();
    let client = rig.v1();
    let list = r#"["a",{"user":"ann"},{"user":"bob"},"kept","b"]"#;
    let answer = ask(&mut rig, &client, &command("subscribe", list));
    for expected in [
        r#"{"channel":"a","id":"z-0"},{"user":"ann","id":"z-0"},"#,
        r#"{"user":"bob","error":{"code":"bad_request","#,
        r#"{"channel":"kept","error":{"code":"already_subscribed","#,
        r#"{"channel":"b","id":"z-0"}]"#,
    ] {
        assert!(answer.contains(expected), "{expected}: {answer}");
    }
    for channel in ["a", "kept", "b"] {
        rig.publish(channel, channel, None);
    }
    rig.work();
    let received = client.received();
    let places = ["a", "kept", "b"].map(|data| received.find(&format!(r#""data":"{data}""#)));
    assert!(places.is_sorted() && places[0].is_some(), "in order: {received}");
    let list = r#"["kept",{"user":"ann"},"a"]"#;
    let answer = ask(&mut rig, &client, &command("unsubscribe", list));
    assert!(answer.contains(r#"{"channel":"kept","error":{"code":"forbidden","#), "{answer}");
    assert!(answer.contains(r#"{"user":"ann"},"a"]"#), "{answer}");
    assert_eq!(rig.worker.subscriptions_in_all(), 1);
    rig.worker.check_invariants();
}

/// A policy that changes while a list waits, so that the first of its channels is refused then.
#[derive(Debug, Default)]
struct Changing(AtomicBool);

impl Access for Changing {
    fn may(&self, _: &Asker<'_>, action: Action<'_>, _: Later<'_, Decision>) -> Answer<Decision> {
        let is_first = matches!(action, Action::Subscribe(name) if name.name() == "first");
        let is_refused = is_first && self.0.load(Ordering::Relaxed);
        if is_refused { Decision::forbidden("no more") } else { Decision::Allowed }.into()
    }
}

#[test]
fn a_list_of_which_an_entry_is_refused_after_a_wait_keeps_the_answers_about_others() {
    let access = Arc::new(Changing::default());
    let own = |pattern: &str| Rule { pattern: pattern.into(), ..Rule::default() };
    let missing = Rule { must_exist: true, ..own("missing") };
    let there = Rule { journal: Some(JournalId(0)), ..own("there") };
    let rules = Rules::new(vec![missing, there], Rule::default());
    let control = (Arc::new(AccessControl::open(Arc::clone(&access) as _)), rules);
    let mut journal = None;
    let mut rig = Rig::with_engine(Settings::for_tests(), control, |memory| {
        let lateness = Lateness { of_readings: true, ..Lateness::default() };
        let late = TestJournal::new(Arc::clone(&memory), usize::MAX).with_lateness(lateness);
        let late = journal.insert(Arc::new(late));
        Channels::new(memory, vec![Arc::clone(late) as _])
    });
    let journal = journal.expect("the channels have it");
    let client = rig.v1();
    client.received();
    let list = r#"["first","missing","there"]"#;
    assert_eq!(ask(&mut rig, &client, &command("subscribe", list)), "", "one is fetched");
    access.0.store(true, Ordering::Relaxed);
    for open in journal.take_readings() {
        let OpenReading::Fetch(channel, reading, ticket) = open else { panic!("of an inbox") };
        ticket.answer(Fetched::held_by(journal.read(rig.now_ms(), &channel, reading)));
    }
    rig.work();
    let answer = client.received();
    for expected in [
        r#"{"channel":"first","error":{"code":"forbidden","#,
        r#"{"channel":"missing","error":{"code":"not_created","#,
        r#"{"channel":"there","id":"#,
    ] {
        assert!(answer.contains(expected), "{expected}: {answer}");
    }
    assert_eq!(rig.worker.subscriptions_in_all(), 1);
    rig.worker.check_invariants();
}
