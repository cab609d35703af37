//! WebSocket frames: events and violations do not depend on how the bytes are split into reads, and
//! the memory between two reads stays within its limits. Compressed messages are inflated to no
//! more than the limit, and what is compressed is inflated to the same.
//!
//! Input: one byte for the message limit, whose lowest bit allows compression; one for the split;
//! then frames as clients send them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_wire::websocket::deflate::{Deflater, Inflater};
use throng_wire::websocket::{
    Event, MessageLimits, Opcode, Reader, Step, UNCONSUMED_BYTES_MAX, Violation,
    parse_deflate_frame, parse_server_frame, write_close, write_frame,
};

/// An owned event, for comparisons.
#[derive(Debug, PartialEq)]
enum Said {
    Message(bool, Vec<u8>),
    Compressed(bool, Vec<u8>),
    Ping(Vec<u8>),
    Pong,
    Close(Option<u16>, String),
}

fn said(event: Event<'_>) -> Said {
    match event {
        Event::Message { is_text, is_compressed: false, payload } => {
            Said::Message(is_text, payload.into_owned())
        }
        Event::Message { is_text, payload, .. } => Said::Compressed(is_text, payload.into_owned()),
        Event::Ping(payload) => Said::Ping(payload.to_vec()),
        Event::Pong => Said::Pong,
        Event::Close { code, reason } => Said::Close(code, reason.to_owned()),
    }
}

/// Feeds pieces as a connection does: it keeps unconsumed bytes for the next piece, and drops an
/// idle reader.
fn read<'p>(
    pieces: impl IntoIterator<Item = &'p [u8]>,
    limits: MessageLimits,
) -> (Vec<Said>, Option<Violation>) {
    let mut reader = Reader::default();
    let mut held = Vec::new();
    let mut events = Vec::new();
    for piece in pieces {
        held.extend_from_slice(piece);
        let mut consumed = 0;
        while consumed < held.len() {
            match reader.next(&mut held[consumed..], limits) {
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
        let max_bytes = limits.max_payload_bytes(limits.may_compress);
        assert!(reader.buffered_bytes() <= max_bytes, "more than the limit buffered");
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
        // Inflated first.
        Said::Compressed(..) => return,
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

/// Checks that a payload is inflated within the limit, and to the same once it is compressed again.
fn check_inflated(payload: &[u8], is_text: bool, max_bytes: usize) {
    let mut inflater = Inflater::default();
    let Ok(message) = inflater.message(payload, is_text, max_bytes) else { return };
    assert!(message.len() <= max_bytes && message.capacity() <= max_bytes + 1);
    assert!(!is_text || std::str::from_utf8(&message).is_ok());
    let again = Deflater::new(1).deflate(&message, 2 * message.len() + 100).expect("room");
    assert_eq!(inflater.message(&again, is_text, max_bytes), Ok(message));
}

fuzz_target!(|data: &[u8]| {
    let [limit, cut, bytes @ ..] = data else { return };
    let limits = MessageLimits { max_bytes: usize::from(*limit) * 4, may_compress: limit & 1 == 1 };
    let whole = read([bytes], limits);
    assert_eq!(read(bytes.chunks(1), limits), whole);
    assert_eq!(read(bytes.chunks(usize::from(*cut) + 2), limits), whole);
    let (head, tail) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    assert_eq!(read([head, tail], limits), whole);
    whole.0.iter().for_each(check_answer);
    for said in &whole.0 {
        if let Said::Compressed(is_text, payload) = said {
            check_inflated(payload, *is_text, limits.max_bytes);
        }
    }
    // The client's parser must survive the same bytes.
    let _ = parse_server_frame(bytes);
    let _ = parse_deflate_frame(bytes);
    check_inflated(bytes, false, limits.max_bytes);
});
