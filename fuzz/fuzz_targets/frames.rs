//! WebSocket frames: events and violations do not depend on how the bytes are split into reads, and
//! the memory between two reads stays within its limits.
//!
//! Input: one byte for the message limit, one for the split, then frames as clients send them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_wire::websocket::{
    Event, Opcode, Reader, Step, UNCONSUMED_BYTES_MAX, Violation, parse_server_frame, write_close,
    write_frame,
};

/// An owned event, for comparisons.
#[derive(Debug, PartialEq)]
enum Said {
    Message(bool, Vec<u8>),
    Ping(Vec<u8>),
    Pong,
    Close(Option<u16>, String),
}

fn said(event: Event<'_>) -> Said {
    match event {
        Event::Message { is_text, payload } => Said::Message(is_text, payload.into_owned()),
        Event::Ping(payload) => Said::Ping(payload.to_vec()),
        Event::Pong => Said::Pong,
        Event::Close { code, reason } => Said::Close(code, reason.to_owned()),
    }
}

/// Feeds pieces as a connection does: it keeps unconsumed bytes for the next piece, and drops an
/// idle reader.
fn read<'p>(
    pieces: impl IntoIterator<Item = &'p [u8]>,
    max_message_bytes: usize,
) -> (Vec<Said>, Option<Violation>) {
    let mut reader = Reader::default();
    let mut held = Vec::new();
    let mut events = Vec::new();
    for piece in pieces {
        held.extend_from_slice(piece);
        let mut consumed = 0;
        while consumed < held.len() {
            match reader.next(&mut held[consumed..], max_message_bytes) {
                Ok(Step::Incomplete { consumed: more }) => {
                    consumed += more;
                    break;
                }
                Ok(Step::Fragment { consumed: more }) => consumed += more,
                Ok(Step::Event { event, consumed: more }) => {
                    events.push(said(event));
                    consumed += more;
                    if matches!(events.last(), Some(Said::Close(..))) {
                        return (events, None);
                    }
                }
                Err(violation) => return (events, Some(violation)),
            }
        }
        held.drain(..consumed);
        assert!(held.len() <= UNCONSUMED_BYTES_MAX, "{} bytes held", held.len());
        assert!(reader.buffered_bytes() <= max_message_bytes, "more than the limit buffered");
        if reader.is_idle() {
            assert_eq!(reader.buffered_bytes(), 0);
            reader = Reader::default();
        }
    }
    (events, None)
}

/// Checks that a client can parse the server's reply.
fn check_answer(said: &Said) {
    let mut out = Vec::new();
    let (opcode, payload) = match said {
        Said::Message(true, payload) => (Opcode::Text, payload.as_slice()),
        Said::Message(false, payload) => (Opcode::Binary, payload.as_slice()),
        Said::Ping(payload) => (Opcode::Pong, payload.as_slice()),
        Said::Pong => return,
        Said::Close(code, reason) => {
            write_close(&mut out, code.unwrap_or(1000), reason);
            assert!(parse_server_frame(&out).unwrap().is_some());
            return;
        }
    };
    write_frame(&mut out, opcode, payload);
    let frame = parse_server_frame(&out).unwrap().unwrap();
    assert_eq!((frame.opcode, frame.length), (opcode, out.len()));
    assert_eq!(&out[frame.payload], payload);
}

fuzz_target!(|data: &[u8]| {
    let [limit, cut, bytes @ ..] = data else { return };
    let max_message_bytes = usize::from(*limit) * 4;
    let whole = read([bytes], max_message_bytes);
    assert_eq!(read(bytes.chunks(1), max_message_bytes), whole);
    assert_eq!(read(bytes.chunks(usize::from(*cut) + 2), max_message_bytes), whole);
    let (head, tail) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    assert_eq!(read([head, tail], max_message_bytes), whole);
    whole.0.iter().for_each(check_answer);
    // The client's parser must survive the same bytes.
    let _ = parse_server_frame(bytes);
});
