//! Compact envelopes, the numbers of channels in them, and frames with several.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use throng_core::Rules;
use throng_edge::{Counter, Settings};
use throng_wire::websocket::parse_server_frame;

use crate::rig::{Client, Rig};
use crate::tokens::control;

pub(crate) fn v1(rig: &mut Rig, target: &str) -> Client {
    let client = rig.connect(&format!(
        "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: throng.v1\r\n\r\n"
    ));
    rig.work();
    client
}

/// The number that a client was told in this text.
fn number_in(received: &str) -> u32 {
    let at = received.find("\"number\":").unwrap_or_else(|| panic!("a number in {received}"));
    let digits = &received[at + 9..];
    let end = digits.find(|digit: char| !digit.is_ascii_digit()).expect("it ends");
    digits[..end].parse().expect("digits")
}

/// The frames that a client has received, behind the head if that is there.
pub(crate) fn frames(received: &[u8]) -> Vec<Value> {
    let head = received.windows(4).position(|window| window == b"\r\n\r\n");
    let mut rest = &received[head.map_or(0, |at| at + 4)..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let frame = parse_server_frame(rest).expect("a frame").expect("all of it");
        frames.push(serde_json::from_slice(&rest[frame.payload.clone()]).expect("JSON"));
        rest = &rest[frame.length..];
    }
    frames
}

/// The messages of each frame that has some: the number of the channel, the offset and the data.
fn messages(frames: &[Value]) -> Vec<Vec<(u64, u64, String)>> {
    let message = |message: &Value| {
        let number = |at: usize| message[at].as_u64().expect("a number");
        (number(0), number(1), message[2].as_str().expect("a text").to_owned())
    };
    let messages = |frame: &Vec<Value>| {
        assert_eq!(frame[0], 0);
        frame[1..].iter().map(message).collect()
    };
    frames.iter().filter_map(Value::as_array).map(messages).collect()
}

/// A client of many channels, with their numbers.
fn reader(rig: &mut Rig, channels: usize) -> (Client, HashMap<u64, usize>) {
    let client = v1(rig, "/subscribe?envelope=compact");
    client.received();
    for channel in 0..channels {
        rig.send_frame(&client, &format!(r#"{{"type":"subscribe","channel":"c{channel}"}}"#));
    }
    rig.work();
    let number = |frame: &Value| frame["number"].as_u64().expect("subscribed");
    let numbers = frames(&client.received_bytes()).iter().map(number).zip(0..).collect();
    (client, numbers)
}

#[test]
fn a_burst_over_many_channels_is_a_few_frames() {
    const CHANNELS: usize = 200;
    let mut rig = Rig::with(Settings { max_channels_per_connection: 500, ..Settings::for_tests() });
    let (client, numbers) = reader(&mut rig, CHANNELS);
    for round in 1..=2 {
        for channel in 0..CHANNELS {
            rig.publish(&format!("c{channel}"), &format!("{channel}.{round}"), None);
        }
    }
    rig.work();
    let received = messages(&frames(&client.received_bytes()));
    assert!(received.len() <= 4, "{} frames", received.len());
    let mut seen = HashMap::new();
    for (number, offset, text) in received.into_iter().flatten() {
        let channel = numbers[&number];
        assert_eq!(text, format!("{channel}.{offset}"));
        assert_eq!(offset, *seen.entry(channel).and_modify(|seen| *seen += 1).or_insert(1));
    }
    assert!(seen.len() == CHANNELS && seen.values().all(|&seen| seen == 2));
    assert!(rig.count(Counter::JoinedFrames) >= 2);
    assert_eq!(rig.count(Counter::Deliveries), 2 * CHANNELS as u64);
}

#[test]
fn a_large_fan_out_delays_a_frame_by_a_millisecond() {
    let mut rig = Rig::new();
    let (client, _) = reader(&mut rig, 2);
    let others: Vec<_> = (0..400).map(|_| rig.get("/channels/large")).collect();
    rig.publish("c0", "first", None);
    rig.publish("large", "to many", None);
    rig.worker.work(true);
    assert!(rig.worker.is_fanning_out() && client.has_nothing());
    rig.publish("c1", "second", None);
    rig.pass_ms(1);
    rig.worker.work(true);
    assert!(rig.worker.is_fanning_out());
    assert_eq!(messages(&frames(&client.received_bytes())).len(), 1);
    rig.work();
    assert!(others.iter().all(|other| other.received().contains("to many")));
    rig.worker.check_invariants();
}

#[test]
fn the_first_message_after_silence_goes_out_at_once() {
    let mut rig = Rig::new();
    let (client, _) = reader(&mut rig, 3);
    let single = v1(&mut rig, "/channels/c0?envelope=compact");
    single.received();
    for round in 0..3 {
        rig.publish("c0", "first", None);
        rig.work();
        for client in [&client, &single] {
            assert_eq!(messages(&frames(&client.received_bytes())).len(), 1, "{round}");
        }
        for text in ["second", "third"] {
            rig.publish("c0", text, None);
            rig.publish("c1", text, None);
            rig.work();
        }
        assert!(client.received().is_empty() && single.received().is_empty());
        assert_eq!(rig.worker.until_due(), Some(Duration::from_millis(2)));
        rig.pass(1);
        assert_eq!(rig.worker.until_due(), None);
        let many = messages(&frames(&client.received_bytes()));
        assert_eq!(many.iter().map(Vec::len).collect::<Vec<_>>(), [4]);
        assert_eq!(messages(&frames(&single.received_bytes()))[0].len(), 2);
        rig.worker.check_invariants();
        rig.pass(1);
    }
}

#[test]
fn a_frame_is_cut_at_any_byte_and_nothing_is_lost() {
    for is_replaced in [false, true] {
        for taken in 0..150 {
            let mut rig = Rig::new();
            let (client, numbers) = reader(&mut rig, 4);
            client.stall_after(taken);
            let text = |channel, round| format!("{channel}.{round}");
            for round in 1..=4 {
                (0..4).for_each(|it| rig.publish(&format!("c{it}"), &text(it, round), None));
                rig.work();
            }
            rig.pass(1);
            if is_replaced {
                rig.replace_process();
            }
            (0..4).for_each(|it| rig.publish(&format!("c{it}"), &text(it, 5), None));
            rig.work();
            rig.read_again(&client);
            rig.work();
            rig.pass(1);
            let mut seen = HashMap::new();
            for (number, offset, text) in messages(&frames(&client.received_bytes())).concat() {
                let channel = numbers[&number];
                assert_eq!(text, format!("{channel}.{offset}"), "cut at {taken}");
                assert_eq!(offset, *seen.entry(channel).and_modify(|it| *it += 1).or_insert(1));
            }
            assert!(seen.len() == 4 && seen.values().all(|&it| it == 5), "cut at {taken}");
            assert_eq!(rig.count(Counter::Deliveries), 20, "cut at {taken}");
            rig.worker.check_invariants();
        }
    }
}

#[test]
fn what_is_not_for_a_client_is_left_out_of_frames() {
    let mut rig = Rig::new();
    let (client, _) = reader(&mut rig, 2);
    rig.publish("c0", "at once", None);
    rig.work();
    rig.publish_brief("c0", "brief", 50);
    rig.publish("c1", "one", None);
    rig.publish_brief("c1", "brief", 50);
    rig.publish("c0", "two", None);
    rig.work();
    rig.send_frame(&client, r#"{"type":"publish","channel":"c1","data":"own","echo":false}"#);
    rig.work();
    rig.pass(1);
    let received = messages(&frames(&client.received_bytes())).concat();
    let mut texts: Vec<_> = received.iter().map(|(_, _, text)| text.as_str()).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["at once", "one", "two"]);
    rig.publish("c1", "next", None);
    rig.pass(1);
    assert!(client.received().contains("\"next\""));
}

#[test]
fn a_hold_is_no_lag() {
    let rule = throng_core::Rule { max_lag_messages: 1, ..throng_core::Rule::default() };
    let access =
        control(throng_access::AccessRules::new(Vec::new(), throng_access::ChannelAccess::OPEN));
    let rules = Rules::new(Vec::new(), rule);
    let mut rig = Rig::with_rules(Settings::for_tests(), Arc::new(access), rules);
    let (client, _) = reader(&mut rig, 2);
    for number in 0..50 {
        rig.publish("c0", &number.to_string(), None);
        rig.work();
    }
    rig.pass(1);
    let received = messages(&frames(&client.received_bytes())).concat();
    let texts: Vec<_> = received.iter().map(|(_, _, text)| text.as_str()).collect();
    let expected: Vec<_> = (0..50).map(|number| number.to_string()).collect();
    assert_eq!(texts, expected);
}

#[test]
fn one_that_ends_while_it_is_held_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let (client, _) = reader(&mut rig, 3);
    let (other, _) = reader(&mut rig, 3);
    rig.publish("c0", "first", None);
    rig.work();
    for channel in 0..3 {
        rig.publish(&format!("c{channel}"), "held", None);
    }
    rig.work();
    rig.send_frame(&client, r#"{"type":"unsubscribe","channel":"c1"}"#);
    rig.vanish(&other);
    rig.pass(1);
    assert!(other.is_closed());
    let received = messages(&frames(&client.received_bytes())).concat();
    assert_eq!(received.iter().filter(|(_, _, text)| text == "held").count(), 2);
    rig.worker.check_invariants();
    rig.hang_up(&client);
    rig.pass(1);
    assert_eq!(rig.worker.subscriptions_in_all(), 0);
}

#[test]
fn one_that_takes_the_place_of_a_held_one_is_written_once() {
    let mut rig = Rig::new();
    let (client, _) = reader(&mut rig, 2);
    rig.publish("c0", "at once", None);
    rig.publish("c1", "held", None);
    rig.work();
    rig.publish("c1", "held, too", None);
    rig.work();
    rig.send_frame(&client, r#"{"type":"unsubscribe","channel":"c1"}"#);
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"next"}"#);
    rig.work();
    client.received();
    for text in ["one", "two"] {
        rig.publish("next", text, None);
        rig.work();
    }
    rig.pass(1);
    let received = messages(&frames(&client.received_bytes())).concat();
    let texts: Vec<_> = received.iter().map(|(_, _, text)| text.as_str()).collect();
    assert_eq!(texts, ["one", "two"]);
    assert_eq!(rig.worker.until_due(), None);
    rig.worker.check_invariants();
}

#[test]
fn compact_messages_have_the_number_that_was_told() {
    let mut rig = Rig::new();
    let client = v1(&mut rig, "/channels/a?envelope=compact");
    let timed = v1(&mut rig, "/channels/a?envelope=compact&time=true");
    let plain = v1(&mut rig, "/channels/a");
    let number = number_in(&client.received());
    assert_eq!(number_in(&timed.received()), number);
    assert!(!plain.received().contains("\"number\""));
    rig.publish("a", "hi", None);
    rig.work();
    assert!(client.received().ends_with(&format!("[0,[{number},1,\"hi\"]]")));
    let time = rig.now_ms();
    assert!(timed.received().ends_with(&format!("[0,[{number},1,\"hi\",{time}]]")));
    assert!(plain.received().ends_with("\"data\":\"hi\"}"));
    rig.send_frame(&client, r#"{"type":"subscribe","channel":"b","ref":1}"#);
    let received = client.received();
    assert_ne!(number_in(&received), number);
    assert!(received.contains(r#""channel":"b","id":"z-0","number":"#), "{received}");
}

#[test]
fn streams_and_events_tell_numbers_first() {
    let mut rig = Rig::new();
    rig.publish("a", "old", None);
    let lines = rig.get("/subscribe?channel=a&channel=b&user=u&envelope=compact&history=1");
    let received = lines.received();
    let (_, body) = received.split_once("\r\n\r\n").expect("a head");
    let (_, numbers) = body.split_once("{\"type\":\"numbers\",\"channels\":[[\"a\",").expect(body);
    let number: u32 = numbers.split(',').next().unwrap().parse().expect("a number");
    assert!(numbers.contains("\"users\":[[\"u\","), "{numbers}");
    assert!(numbers.contains(&format!("\n[{number},1,\"old\"]\n")), "{numbers}");
    let accept = "Accept: text/event-stream";
    let get = format!("GET /channels/a?envelope=compact HTTP/1.1\r\nHost: localhost\r\n{accept}");
    let events = rig.connect(&format!("{get}\r\n\r\n"));
    let notice = r#"event: numbers
data: {"type":"numbers","channels":[["a","#;
    let received = events.received();
    assert!(received.contains(&format!("{notice}{number},\"z\"]]}}\n\n")), "{received}");
    rig.publish("a", "new", None);
    rig.work();
    let received = events.received();
    assert!(received.contains(&format!("id: z-2\ndata: [{number},2,\"new\"]\n\n")), "{received}");
}

#[test]
fn compact_envelopes_are_refused_where_there_are_none() {
    let mut rig = Rig::new();
    let poll = rig.get("/channels/a?envelope=compact&wait=1");
    assert!(poll.received().contains("bad_parameter"));
    let plain = rig.connect(
        "GET /channels/a?envelope=compact HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    assert!(plain.received().contains("bad_parameter"));
}

#[test]
fn a_new_process_keeps_numbers_and_half_a_message() {
    let mut rig = Rig::new();
    let others: Vec<_> = (0..9).map(|n| v1(&mut rig, &format!("/channels/c{n}"))).collect();
    let client = v1(&mut rig, "/channels/a?envelope=compact");
    let number = number_in(&client.received());
    client.stall_after(3);
    rig.publish("a", "half", None);
    rig.work();
    rig.replace_process();
    drop(others);
    rig.read_again(&client);
    rig.publish("a", "whole", None);
    rig.work();
    let expected = [(1, "half"), (2, "whole")]
        .map(|(offset, text)| vec![(u64::from(number), offset, text.to_owned())]);
    assert_eq!(messages(&frames(&client.received_bytes())), expected);
}

#[test]
fn clients_are_told_of_numbers_that_a_new_process_changes() {
    /// The kind of the record of a followed channel, which its number ends.
    const FOLLOWED_CHANNEL: u8 = 17;
    let mut rig = Rig::new();
    let (client, _) = reader(&mut rig, 2);
    let plain = v1(&mut rig, "/channels/c0");
    plain.received();
    let mut is_first = true;
    rig.replace_process_with(|record| {
        if record[0] == FOLLOWED_CHANNEL && std::mem::take(&mut is_first) {
            let number = record.len() - 4;
            record[number] ^= 1;
        }
    });
    let told = frames(&client.received_bytes());
    assert!(told.len() == 1 && told[0]["type"] == "numbers", "{told:?}");
    let channels = told[0]["channels"].as_array().expect("one");
    let (name, number) = (channels[0][0].as_str().expect("a name"), &channels[0][1]);
    assert_eq!(channels.len(), 1);
    rig.publish(name, "next", None);
    rig.work();
    assert_eq!(frames(&client.received_bytes())[0][1][0], *number);
    assert!(!plain.received().contains("numbers"));
}

#[test]
fn a_list_of_channels_is_answered_with_their_numbers() {
    let mut rig = Rig::new();
    let client = v1(&mut rig, "/subscribe?envelope=compact");
    client.received();
    rig.send_frame(&client, r#"{"type":"subscribe","channels":["a","b"],"ref":1}"#);
    let received = client.received();
    let (a, b) = received.split_once(r#"{"channel":"b""#).expect("an entry of b");
    let (a, b) = (number_in(a), number_in(b));
    rig.publish("a", "hi", None);
    rig.publish("b", "ho", None);
    rig.work();
    let received = client.received();
    for message in [format!("[{a},1,\"hi\"]"), format!("[{b},1,\"ho\"]")] {
        assert!(received.contains(&message), "{message}: {received}");
    }
}
