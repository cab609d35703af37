//! Compact envelopes, and the numbers of channels in them.

use crate::rig::{Client, Rig};

fn v1(rig: &mut Rig, target: &str) -> Client {
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
    let frames = format!("[0,[{number},1,\"half\"]]\u{fffd}\u{12}[0,[{number},2,\"whole\"]]");
    assert!(client.received().ends_with(&frames[..]));
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
