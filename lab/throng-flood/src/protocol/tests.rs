//! Splitting the input does not change the events, and nothing is kept between messages.

use proptest::prelude::*;
use throng_wire::websocket::{Opcode, write_close, write_frame, write_frame_head};

use super::*;

/// The events as owned text.
fn events(framing: Framing, pieces: &[&[u8]]) -> (Result<Vec<String>, &'static str>, bool) {
    let (mut partial, mut events) = (None, Vec::<String>::new());
    for piece in pieces {
        let fed = feed(framing, &mut partial, piece, &mut |event| {
            events.push(match event {
                Event::Message(data) => format!("message {}", String::from_utf8_lossy(data)),
                Event::Id(id) => format!("id {}", String::from_utf8_lossy(id)),
                Event::Ping(data) => format!("ping {}", data.len()),
                Event::Response(response) => format!(
                    "answer {} {} {:?} {}",
                    response.status,
                    String::from_utf8_lossy(&response.body),
                    response.next.id.or(response.next.etag),
                    response.keeps_alive
                ),
                other => format!("{other:?}"),
            });
        });
        if let Err(fault) = fed {
            return (Err(fault), partial.is_none());
        }
        // Nothing is decoded after the end.
        if events.last().is_some_and(|last| last.starts_with("Close") || last == "End") {
            break;
        }
    }
    (Ok(events), partial.is_none())
}

fn assert_same_however_cut(framing: Framing, bytes: &[u8], expected: &[&str]) {
    let expected = expected.iter().map(|&event| event.to_owned()).collect();
    let expected = (Ok(expected), true);
    assert_eq!(events(framing, &[bytes]), expected);
    for cut in 0..=bytes.len() {
        assert_eq!(events(framing, &[&bytes[..cut], &bytes[cut..]]), expected, "cut at {cut}");
    }
    let single: Vec<_> = bytes.chunks(1).collect();
    assert_eq!(events(framing, &single), expected);
}

fn chunk(content: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", content.len()).as_bytes(), content, b"\r\n"].concat()
}

const WEBSOCKET: Framing = Framing::WebSocket { may_compress: false };

#[test]
fn compressed_messages() {
    let deflating = Framing::WebSocket { may_compress: true };
    // Whole, then in two fragments, then one that is not compressed.
    let bytes = [0xc1, 1, b'a', 0x42, 1, b'b', 0x89, 0, 0x80, 1, b'c', 0x81, 1, b'd'];
    let expected = ["Compressed([97])", "ping 0", "Compressed([98, 99])", "message d"];
    assert_same_however_cut(deflating, &bytes, &expected);
    assert!(events(WEBSOCKET, &[&bytes]).0.is_err());
    assert!(events(deflating, &[&[0xc9, 0]]).0.is_err());
}

#[test]
fn frames() {
    let mut bytes = Vec::new();
    write_frame(&mut bytes, Opcode::Text, b"one");
    write_frame(&mut bytes, Opcode::Ping, b"hi");
    write_frame(&mut bytes, Opcode::Binary, &[b'x'; 300]);
    // Three fragments with a ping between them; the first is empty.
    bytes.extend_from_slice(&[0x01, 0, 0x00, 2, b'a', b'b', 0x89, 0, 0x80, 1, b'c']);
    write_frame(&mut bytes, Opcode::Pong, b"");
    let long = format!("message {}", "x".repeat(300));
    let expected = ["message one", "ping 2", &long, "ping 0", "message abc", "Heartbeat"];
    assert_same_however_cut(WEBSOCKET, &bytes, &expected);
}

#[test]
fn a_close_frame_has_a_code() {
    let mut bytes = Vec::new();
    write_close(&mut bytes, 1012, "restart");
    assert_same_however_cut(WEBSOCKET, &bytes, &["Close(Some(1012), None)"]);
    assert_same_however_cut(WEBSOCKET, &[0x88, 0], &["Close(None, None)"]);
    let told = b"\x88\x17\x03\xf4reconnect in 1500 ms.";
    assert_same_however_cut(WEBSOCKET, told, &["Close(Some(1012), Some(1500))"]);
}

#[test]
fn frames_that_violate_the_protocol() {
    let faults: [&[u8]; 4] =
        [&[0x80, 0], &[0x01, 0, 0x81, 0], &[0x81, 0x80, 0, 0, 0, 0], &[0xc1, 0]];
    for fault in faults {
        assert!(events(WEBSOCKET, &[fault]).0.is_err(), "{fault:?}");
    }
}

#[test]
fn an_endless_message_is_an_error() {
    let part = vec![b'x'; 1 << 20];
    for framing in [Framing::Lines { is_chunked: false }, Framing::Sse { is_chunked: false }] {
        assert!(events(framing, &[&part[..]; 5]).0.is_err());
    }
    let mut head = Vec::new();
    write_frame_head(&mut head, Opcode::Text, 1 << 40);
    let mut pieces = vec![&head[..]];
    pieces.extend(vec![&part[..]; 5]);
    assert!(events(WEBSOCKET, &pieces).0.is_err());
}

const STREAM: &[u8] = b":\n\nretry: 3\n\nid: 1\ndata: one\n\nevent: x\r\ndata: two\r\ndata: 2\r\n\
    id: 2\r\n\r\n:\n";

const STREAM_EVENTS: [&str; 6] =
    ["Heartbeat", "message one", "id 1", "message two\n2", "id 2", "Heartbeat"];

#[test]
fn event_streams() {
    assert_same_however_cut(Framing::Sse { is_chunked: false }, STREAM, &STREAM_EVENTS);
    assert_same_however_cut(Framing::Sse { is_chunked: true }, &chunk(STREAM), &STREAM_EVENTS);
    // Chunks that split events.
    let chunks: Vec<u8> = STREAM.chunks(7).flat_map(chunk).collect();
    assert_same_however_cut(Framing::Sse { is_chunked: true }, &chunks, &STREAM_EVENTS);
}

#[test]
fn lines_in_chunks() {
    let bytes = [chunk(b"one\n"), chunk(b"\n"), chunk(b"two\r\nthr"), chunk(b"ee\n")].concat();
    let expected = ["message one", "Heartbeat", "message two", "message three"];
    assert_same_however_cut(Framing::Lines { is_chunked: true }, &bytes, &expected);
    let (read, _) = events(Framing::Lines { is_chunked: true }, &[&bytes, b"0\r\n\r\n"]);
    assert_eq!(read.expect("lines").last().map(String::as_str), Some("End"));
}

#[test]
fn responses() {
    let bytes = b"HTTP/1.1 204 No Content\r\nThrong-Id: a-1\r\n\r\n\
        HTTP/1.1 100 Continue\r\n\r\n\
        HTTP/1.1 200 OK\r\nContent-Length: 3\r\nThrong-Id: a-2\r\n\r\none\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\n\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nEtag: 7\r\nConnection: close\r\n\r\n\
        2\r\ntw\r\n1\r\no\r\n0\r\n\r\n\
        HTTP/1.1 503 Busy\r\nConnection: keep-alive, Close\r\nContent-Length: 14\r\n\r\n\
        try later\nnow\n";
    let expected = [
        "answer 204  Some(\"a-1\") true",
        "answer 200 one Some(\"a-2\") true",
        "answer 200 hello None true",
        "answer 200 two Some(\"7\") false",
        "answer 503 try later\nnow\n None false",
    ];
    assert_same_however_cut(Framing::Responses, bytes, &expected);
}

/// The status and body of a response that ends with its connection.
fn last_response(pieces: &[&[u8]]) -> Option<(u16, String)> {
    let (mut partial, mut last) = (None, None);
    for piece in pieces {
        let fed = feed(Framing::Responses, &mut partial, piece, &mut |_| panic!("not whole"));
        fed.expect("a response");
    }
    finish(partial, &mut |event| {
        let Event::Response(response) = event else { panic!("{event:?}") };
        assert!(!response.keeps_alive);
        last = Some((response.status, String::from_utf8_lossy(&response.body).into_owned()));
    });
    last
}

#[test]
fn a_response_without_length_ends_with_the_connection() {
    let last = last_response(&[b"HTTP/1.0 200 OK\r\n\r\nsome", b" more"]);
    assert_eq!(last, Some((200, "some more".to_owned())));
    assert_eq!(last_response(&[b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome"]), None);
    assert_eq!(last_response(&[]), None);
}

#[test]
fn other_protocols_are_rejected() {
    let endless = vec![b'a'; http::HEAD_BYTES_MAX + 1];
    for bytes in [
        &b"SSH-2.0-OpenSSH\n\n"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        &endless,
    ] {
        assert!(events(Framing::Responses, &[bytes]).0.is_err());
    }
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(bytes: Vec<u8>, cut in 0_usize..64) {
        let framings = [
            WEBSOCKET,
            Framing::Sse { is_chunked: true },
            Framing::Lines { is_chunked: false },
            Framing::Responses,
        ];
        for framing in framings {
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            let (whole, is_whole_idle) = events(framing, &[&bytes]);
            let (halves, are_halves_idle) = events(framing, &[first, second]);
            prop_assert_eq!(whole.is_ok(), halves.is_ok());
            if whole.is_ok() {
                prop_assert_eq!((whole, is_whole_idle), (halves, are_halves_idle));
            }
        }
    }
}
