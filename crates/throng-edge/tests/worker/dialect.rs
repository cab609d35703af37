//! A dialect that only tests have, over a worker: every part of the interface, with real frames.

use std::sync::Arc;

use throng_access::AccessRules;
use throng_core::Notification;
use throng_edge::{Counter, Settings};
use throng_wire::websocket::{Opcode, parse_server_frame};

use crate::rig::{Client, Rig};
use crate::tokens;

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
fn a_subscription_has_data_of_its_member_and_an_end_of_its_own() {
    let mut rig = Rig::new();
    let (client, _) = connect(&mut rig, "/testing/");
    let answers = say(&mut rig, &client, "1 sub a 10 {ann}\n2 sub b 20\n3 sub c");
    let expected = ["1 subscribed a as {ann}", "2 subscribed b", "3 subscribed c"];
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
