//! A dialect that only tests have, over a worker: every part of the interface, with real frames.

use std::sync::Arc;
use std::time::Duration;

use throng_access::{AccessControl, AccessRules, AllowAll, Decision};
use throng_core::conformance::{Fate, Lateness, TestJournal};
use throng_core::{
    ChannelName, Channels, LagPolicy, MembersRule, Notification, Retention, Rule, Rules,
    ScanAction, ScanTarget,
};
use throng_edge::{Counter, Limits, Settings};
use throng_wire::websocket::deflate::Inflater;
use throng_wire::websocket::{Opcode, parse_deflate_frame, parse_server_frame};

use crate::rig::{Client, Rig};
use crate::scan::scan;
use crate::{presence_world, tokens, waiting};

const UPGRADE: &str = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A connection that speaks the dialect, and what it is greeted with.
fn connect(rig: &mut Rig, target: &str) -> (Client, String) {
    let client = rig.connect(&format!("GET {target} HTTP/1.1\r\n{UPGRADE}"));
    rig.work();
    let bytes = client.received();
    (client, bytes)
}

/// The text frames that have come.
fn texts(client: &Client) -> Vec<String> {
    let bytes = client.received_bytes();
    let (mut at, mut texts) = (0, Vec::new());
    while let Some(frame) = parse_server_frame(&bytes[at..]).expect("a frame") {
        let payload = &bytes[at..][frame.payload];
        let text = String::from_utf8_lossy(payload).into_owned();
        texts.push(match frame.opcode {
            Opcode::Text => text,
            Opcode::Close => {
                let code = u16::from_be_bytes([payload[0], payload[1]]);
                format!("close {code} {}", String::from_utf8_lossy(&payload[2..]))
            }
            other => format!("{other:?}"),
        });
        at += frame.length;
    }
    texts
}

fn say(rig: &mut Rig, client: &Client, text: &str) -> Vec<String> {
    rig.send_frame(client, text);
    rig.work();
    rig.worker.check_invariants();
    texts(client)
}

#[test]
fn a_path_of_its_own_greets_and_ignores_unknown_parameters() {
    let mut rig = Rig::new();
    let (_client, bytes) = connect(&mut rig, "/testing/news?protocol=7&flash=false");
    assert!(bytes.starts_with("HTTP/1.1 101 "), "{bytes}");
    assert!(bytes.contains("* hello "), "{bytes}");
    assert!(bytes.ends_with("* subscribed news"), "{bytes}");
}

#[test]
fn commands_of_one_frame_are_answered_in_order_in_one_frame() {
    let mut rig = Rig::new();
    let (client, _) = connect(&mut rig, "/testing/");
    let answers = say(&mut rig, &client, "1 ping\n~\n2 pub a hello\n3 what\n4 unsub a");
    assert_eq!(answers, ["1 pong\n2 published 0\n3 error bad_request\n4 error not_subscribed"]);
    // What a command brings about comes behind its answer, and before the next.
    rig.publish("a", "old", None);
    rig.work();
    let answers = say(&mut rig, &client, "5 ping\n6 sub a\n7 pub a new");
    assert_eq!(answers, ["5 pong\n6 subscribed a", "7 published 1", "msg a new"]);
}

#[test]
fn clients_of_different_dialects_share_a_channel() {
    let mut rig = Rig::new();
    let (client, _) = connect(&mut rig, "/testing/news");
    let stream = rig.get("/channels/news");
    rig.work();
    stream.received();
    rig.publish("news", "for all", None);
    rig.work();
    assert_eq!(texts(&client), ["msg news for all"]);
    assert!(stream.received().ends_with("for all\n\r\n"));
    assert_eq!(rig.count(Counter::Deliveries), 2);
}

#[test]
fn an_input_that_is_refused_leaves_the_connection() {
    let mut rig = Rig::new();
    let (client, _) = connect(&mut rig, "/testing/");
    rig.send(&client, &[0x82, 0x81, 0, 0, 0, 0, 1]);
    rig.work();
    assert_eq!(texts(&client), ["* refused throng.v1 has text frames only"]);
    let many = vec!["1 ping"; 129].join("\n");
    let answers = say(&mut rig, &client, &many[..]);
    let pongs: usize = answers.iter().map(|text| text.matches("1 pong").count()).sum();
    assert_eq!(pongs, 128);
    assert!(answers.last().is_some_and(|last| last.contains("too many commands")), "{answers:?}");
    assert_eq!(say(&mut rig, &client, "9 ping"), ["9 pong"]);
}

#[test]
fn reasons_have_codes_and_texts_of_its_own() {
    let mut rig = Rig::new();
    let (client, _) = connect(&mut rig, "/testing/");
    // Not masked.
    rig.send(&client, &[0x81, 1, b'x']);
    rig.work();
    assert_eq!(texts(&client), ["close 1002 no frame"]);
    let (client, _) = connect(&mut rig, "/testing/");
    rig.queue.post(Notification::Drain);
    rig.pass(600);
    assert_eq!(
        texts(&client).last().map(String::as_str),
        Some("close 4200 another server takes over")
    );
}

#[test]
fn a_refusal_comes_before_the_upgrade_with_its_own_status() {
    let settings = Settings { max_channels_per_connection: 0, ..Settings::for_tests() };
    let mut rig = Rig::with(settings);
    let (_, bytes) = connect(&mut rig, "/testing/news");
    assert!(bytes.starts_with("HTTP/1.1 400 "), "{bytes}");
    assert!(bytes.contains("\r\nX-Testing: too_many_channels\r\n"), "{bytes}");
    let (_, bytes) = connect(&mut rig, "/testing/%00");
    assert!(bytes.starts_with("HTTP/1.1 400 ") && bytes.contains("X-Testing: bad_name"), "{bytes}");
    assert!(!bytes.contains(r#"{"error""#), "{bytes}");
}

#[test]
fn a_silent_connection_gets_static_bytes_in_its_own_interval() {
    let mut rig = Rig::new();
    let (client, _) = connect(&mut rig, "/testing/");
    let mut heartbeats = 0;
    for _ in 0..30 {
        rig.pass(10);
        heartbeats += texts(&client).iter().filter(|text| *text == "~").count();
    }
    assert!((4..=8).contains(&heartbeats), "{heartbeats} in 30 s");
}

#[test]
fn it_survives_a_new_process() {
    let mut rig = Rig::new();
    let (client, _) = connect(&mut rig, "/testing/news");
    rig.replace_process();
    rig.publish("news", "after", None);
    rig.work();
    assert_eq!(texts(&client), ["msg news after"]);
}

#[test]
fn a_token_is_shown_in_a_frame() {
    let settings = Settings { welcome: false, ..Settings::for_tests() };
    let mut rig = Rig::with_control(settings, Arc::new(tokens::control(AccessRules::default())));
    let token = tokens::token_of_ann();
    let head = format!("GET /testing/ HTTP/1.1\r\nAuthorization: Bearer {token}\r\n{UPGRADE}");
    let client = rig.connect(&head);
    rig.work();
    client.received();
    let newer = tokens::token(7200, r#""sub": "ann", "throng": {"subscribe": ["halls/*"]}"#);
    let answers = say(&mut rig, &client, &format!("1 sub halls/a\n2 auth {newer}\n3 sub halls/a"));
    assert_eq!(answers, ["1 error forbidden\n2 user ann\n3 subscribed halls/a"]);
}

#[test]
fn a_subscription_has_an_end_of_its_own() {
    let mut rig = Rig::new();
    let (client, _) = connect(&mut rig, "/testing/");
    let answers = say(&mut rig, &client, "1 sub a 10\n2 sub b 20\n3 sub c");
    let expected = ["1 subscribed a", "2 subscribed b", "3 subscribed c"];
    assert_eq!(answers, expected);
    rig.pass(50);
    rig.replace_process();
    assert!(texts(&client).iter().all(|text| text == "~"));
    // Found within a second.
    for _ in 0..8 {
        rig.pass(10);
    }
    let ended: Vec<_> = texts(&client).into_iter().filter(|text| text != "~").collect();
    assert_eq!(ended, ["* revoked a forbidden"]);
    for _ in 0..12 {
        rig.pass(10);
    }
    let ended: Vec<_> = texts(&client).into_iter().filter(|text| text != "~").collect();
    assert_eq!(ended, ["* revoked b forbidden"]);
    rig.publish("a", "nobody", None);
    rig.publish("c", "somebody", None);
    rig.work();
    assert_eq!(texts(&client), ["msg c somebody"]);
}

#[test]
fn a_client_shows_who_it_is_in_a_frame_within_a_deadline() {
    let settings = Settings { welcome: false, ..Settings::for_tests() };
    let mut rig = Rig::with_control(settings, Arc::new(tokens::control(AccessRules::default())));
    let [(late, _), (client, _)] = [(); 2].map(|()| connect(&mut rig, "/testing/"));
    let token = tokens::token_of_ann();
    let answers = say(&mut rig, &client, &format!("1 sub rooms/a\n2 auth {token}\n3 sub rooms/a"));
    assert_eq!(answers, ["1 error unauthorized\n2 user ann\n3 subscribed rooms/a"]);
    for _ in 0..12 {
        rig.pass(10);
    }
    assert_eq!(texts(&late).last().map(String::as_str), Some("close 4009 who are you?"));
    assert!(texts(&client).iter().all(|text| text == "~"));
}

/// A rig whose rule of all channels is `rule`.
fn rig_with_rule(settings: Settings, rule: Rule) -> Rig {
    let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
    Rig::with_rules(settings, access, Rules::new(Vec::new(), rule))
}

#[test]
fn commands_of_one_frame_take_as_many_turns_as_frames_would() {
    let mut rig = Rig::new();
    let (client, _) = connect(&mut rig, "/testing/");
    let pings: Vec<_> = (0..100).map(|number| format!("{number} ping")).collect();
    rig.send_frame(&client, &pings.join("\n"));
    let first = texts(&client);
    assert!(matches!(&first[..], [text] if (20..=32).contains(&text.lines().count())), "{first:?}");
    rig.send_frame(&client, "100 ping");
    rig.work();
    let lines: Vec<_> = first.into_iter().chain(texts(&client)).collect();
    let lines: Vec<_> = lines.iter().flat_map(|text| text.lines()).collect();
    let expected: Vec<_> = (0..=100).map(|number| format!("{number} pong")).collect();
    assert_eq!(lines, expected);
    rig.worker.check_invariants();
}

#[test]
fn large_answers_are_frames_of_their_own_and_end_the_turn() {
    let limits = Limits { max_outbound_bytes: 1 << 20, ..Limits::default() };
    let mut rig = Rig::with(Settings { limits, ..Settings::for_tests() });
    for _ in 0..6 {
        rig.publish("a", &"x".repeat(50 << 10), None);
    }
    rig.work();
    let (client, _) = connect(&mut rig, "/testing/");
    let many = vec!["1 history a"; 20].join("\n");
    rig.send_frame(&client, &many);
    assert_eq!(texts(&client).len(), 1, "in one turn");
    rig.work();
    let answers = texts(&client);
    assert_eq!(answers.len(), 19);
    assert!(answers.iter().all(|text| (200 << 10..300 << 10).contains(&text.len())));
    // A client that does not read is closed, as if it had asked in many frames.
    client.stall_after(0);
    rig.send_frame(&client, &many);
    rig.work();
    assert!(client.is_closed());
    assert_eq!(rig.count(Counter::ClosedOverload), 1);
    rig.worker.check_invariants();
}

#[test]
fn an_upgrade_publishes_the_commands_of_a_frame_once() {
    let mut journal = None;
    let access = Arc::new(AccessControl::open(Arc::new(AllowAll)));
    let wrapped = (access, Rules::default().with_journal());
    let mut rig = Rig::with_engine(Settings::for_tests(), wrapped, |memory| {
        let lateness = Lateness { of_publications: true, ..Lateness::default() };
        let late = TestJournal::new(Arc::clone(&memory), usize::MAX).with_lateness(lateness);
        let late = Arc::new(late);
        journal = Some(Arc::clone(&late));
        Channels::new(memory, vec![late])
    });
    let journal = journal.expect("it wraps the engine");
    let (client, _) = connect(&mut rig, "/testing/");
    assert_eq!(say(&mut rig, &client, "1 pub a x\n2 pub a y\n3 pub a z"), [""; 0]);
    assert_eq!(journal.open().len(), 1);
    // The journal has it, and nothing says yet what has become of it.
    rig.replace_process();
    assert_eq!(journal.open().len(), 1, "the others are not executed");
    assert_eq!(texts(&client), ["1 error outcome_unknown"]);
    rig.work();
    let a = ChannelName::channel("a");
    assert_eq!(journal.open().len(), 2, "{:?}", journal.open());
    for _ in 0..3 {
        journal.settle(&a, Fate::Published);
        rig.work();
    }
    assert_eq!(texts(&client), ["2 published 0", "3 published 0"]);
    assert!(journal.open().is_empty());
    rig.worker.check_invariants();
}

#[test]
fn a_connection_that_a_refusal_ends_executes_no_more() {
    let limits = Limits { max_outbound_bytes: 20, ..Limits::default() };
    let (mut rig, access) = waiting::rig_with(Settings { limits, ..Settings::for_tests() });
    let (client, _) = connect(&mut rig, "/testing/");
    client.stall_after(0);
    rig.send_frame(&client, "1 ping");
    rig.send_frame(&client, "2 sub slow\n3 pub a x");
    rig.work();
    assert!(!client.is_closed());
    access.next().answer(Decision::forbidden("not you"));
    rig.work();
    assert!(client.is_closed());
    assert_eq!(rig.count(Counter::MessagesPublished), 0);
}

#[test]
fn a_client_is_the_member_that_its_application_has_signed() {
    let members = Some(MembersRule { are_connections: false, grace_ms: 0 });
    let mut rig = rig_with_rule(Settings::for_tests(), Rule { members, ..Rule::default() });
    let (watcher, _) = connect(&mut rig, "/testing/");
    let answers = say(&mut rig, &watcher, "1 watch a");
    assert_eq!(answers, ["1 subscribed a", "* members a 0"]);
    let (client, _) = connect(&mut rig, "/testing/");
    let data = "d".repeat(1020);
    let too_large = format!(r#"1 sub a 900 ann {{"x":"{data}"}}"#);
    assert_eq!(say(&mut rig, &client, &too_large), ["1 error too_large"]);
    assert_eq!(say(&mut rig, &client, "1 sub a 900 ann [1]"), ["1 error bad_request"]);
    let answers = say(&mut rig, &client, r#"2 sub a 900 ann {"name": "Ann"}"#);
    assert_eq!(answers, ["2 subscribed a"]);
    let object = r#"{"user":"ann","info":{"name":"Ann"}}"#;
    assert_eq!(texts(&watcher), [format!("* join a {object}")]);
    rig.replace_process();
    let answers = say(&mut rig, &client, "3 watch a\n4 unsub a");
    assert_eq!(answers, ["3 error already_subscribed\n4 unsubscribed a"]);
    assert_eq!(texts(&watcher), [r#"* leave a {"user":"ann"}"#]);
}

#[test]
fn it_has_words_for_gaps_lateness_and_history() {
    let retention = Retention { max_messages: 2, max_bytes: 1 << 20, max_age_ms: 3_600_000 };
    let rule =
        Rule { retention, max_lag_messages: 2, lag_policy: LagPolicy::Skip, ..Rule::default() };
    let mut rig = rig_with_rule(Settings::for_tests(), rule);
    let (client, _) = connect(&mut rig, "/testing/a");
    let (other, _) = connect(&mut rig, "/testing/a");
    client.stall_after(0);
    for number in 0..6 {
        rig.publish("a", &number.to_string(), None);
        rig.work();
    }
    assert_eq!(texts(&other).len(), 6);
    rig.read_again(&client);
    rig.work();
    let received = texts(&client);
    assert!(received.iter().any(|text| text.starts_with("* gap a ")), "{received:?}");
    assert_eq!(received.last().map(String::as_str), Some("msg a 5"));
    assert_eq!(scan(&mut rig, ScanTarget::All, ScanAction::TellLate(true)).count, 2);
    assert_eq!(texts(&client), ["* late true"]);
    let (_late, greeting) = connect(&mut rig, "/testing/a");
    assert!(greeting.ends_with("* late true"), "{greeting}");
    scan(&mut rig, ScanTarget::All, ScanAction::TellLate(false));
    assert_eq!(texts(&client), ["* late false"]);
    let answers = say(&mut rig, &client, "1 history a\n2 who a");
    assert!(answers[0].starts_with("1 history 2 {"), "{answers:?}");
    assert!(answers.iter().any(|text| text.ends_with("2 present a 3")), "{answers:?}");
    assert_eq!(rig.count(Counter::ToldLate), 2 + 1 + 3);
}

#[test]
fn it_is_told_of_presence() {
    let mut rig = presence_world::rig(presence_world::rules());
    let mut events = presence_world::events();
    let (client, _) = connect(&mut rig, "/testing/");
    assert_eq!(say(&mut rig, &client, "1 watch room")[0], "1 subscribed room");
    let _ann = rig.get("/channels/room?user=ann");
    for _ in 0..30 {
        rig.pass(1);
        events.step(rig.now_ms(), rig.channels());
        rig.work();
    }
    let told = texts(&client);
    let last = told.iter().rfind(|text| text.starts_with("* presence {"));
    assert!(last.is_some_and(|last| last.contains("ann")), "{told:?}");
}

#[test]
fn a_token_that_ends_is_announced_and_closes() {
    let settings = Settings { welcome: false, ..Settings::for_tests() };
    let mut rig = Rig::with_control(settings, Arc::new(tokens::control(AccessRules::default())));
    let token = tokens::token(100, r#""sub": "ann", "throng": {"subscribe": ["a"]}"#);
    let head = format!("GET /testing/a HTTP/1.1\r\nAuthorization: Bearer {token}\r\n{UPGRADE}");
    let client = rig.connect(&head);
    rig.work();
    client.received();
    rig.pass(1070);
    let told = texts(&client);
    assert!(told.iter().any(|text| text.starts_with("* expiring ")), "{told:?}");
    rig.pass(50);
    assert_eq!(texts(&client).last().map(String::as_str), Some("close 4009 who are you?"));
}

#[test]
fn a_client_that_lags_or_is_silent_is_told_why_it_is_closed() {
    let rule = Rule { max_lag_messages: 2, ..Rule::default() };
    let settings = Settings { ping_interval: Duration::from_secs(30), ..Settings::for_tests() };
    let mut rig = rig_with_rule(settings, rule);
    let (client, _) = connect(&mut rig, "/testing/a");
    let (silent, _) = connect(&mut rig, "/testing/");
    client.stall_after(0);
    for _ in 0..6 {
        rig.publish("a", "news", None);
        rig.work();
    }
    rig.read_again(&client);
    rig.work();
    assert_eq!(texts(&client).last().map(String::as_str), Some("close 4201 you do not read"));
    let mut heard = Vec::new();
    for _ in 0..100 {
        rig.pass(10);
        heard.extend(texts(&silent));
    }
    assert!(heard.contains(&"Ping".to_owned()), "{heard:?}");
    assert_eq!(heard.last().map(String::as_str), Some("close 4202 you do not answer"));
}

#[test]
fn its_messages_are_compressed_and_stay_so_at_an_upgrade() {
    let mut rig = Rig::new();
    let offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n";
    let head = format!("GET /testing/a HTTP/1.1\r\n{offer}{UPGRADE}");
    let [client, half] = [(); 2].map(|()| rig.connect(&head));
    let (plain, _) = connect(&mut rig, "/testing/a");
    rig.work();
    for client in [&client, &half] {
        let greeting = client.received();
        assert!(greeting.contains("permessage-deflate"), "{greeting}");
    }
    half.stall_after(9);
    let text = "again and again ".repeat(400);
    rig.publish("a", &text, None);
    rig.work();
    let expected = format!("msg a {text}");
    assert_eq!(texts(&plain), [&*expected]);
    let inflated = |bytes: &[u8]| {
        let frame = parse_deflate_frame(bytes).expect("a frame").expect("a whole one");
        assert_eq!((frame.is_compressed, frame.length), (true, bytes.len()));
        assert!(bytes.len() < 1000);
        let message = Inflater::default().message(&bytes[frame.payload], true, 1 << 20);
        String::from_utf8(message.expect("it is compressed")).expect("text")
    };
    assert_eq!(inflated(&client.received_bytes()), expected);
    // The new process goes on in the middle of the compressed message.
    let mut bytes = half.received_bytes();
    assert_eq!(bytes.len(), 9);
    rig.replace_process();
    rig.read_again(&half);
    rig.work();
    bytes.extend(half.received_bytes());
    assert_eq!(inflated(&bytes), expected);
}
