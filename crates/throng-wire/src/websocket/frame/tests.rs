use std::io::Cursor;

use proptest::prelude::*;
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use super::*;

const LENGTHS: [usize; 8] = [0, 1, 125, 126, 127, 65_535, 65_536, 70_000];

fn their_opcode(opcode: Opcode) -> OpCode {
    match opcode {
        Opcode::Continuation => OpCode::Data(Data::Continue),
        Opcode::Text => OpCode::Data(Data::Text),
        Opcode::Binary => OpCode::Data(Data::Binary),
        Opcode::Close => OpCode::Control(Control::Close),
        Opcode::Ping => OpCode::Control(Control::Ping),
        Opcode::Pong => OpCode::Control(Control::Pong),
    }
}

#[test]
fn tungstenite_reads_what_the_server_writes() {
    for length in LENGTHS {
        let payload: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let mut out = Vec::new();
        write_frame(&mut out, Opcode::Binary, &payload);
        let mut cursor = Cursor::new(&out[..]);
        let (header, theirs) = FrameHeader::parse(&mut cursor).unwrap().unwrap();
        assert!(header.is_final && header.mask.is_none());
        assert_eq!(header.opcode, their_opcode(Opcode::Binary));
        assert_eq!(theirs, length as u64);
        assert_eq!(&out[cursor.position() as usize..], payload);
    }
}

#[test]
fn tungstenite_reads_what_a_client_writes() {
    for length in LENGTHS {
        let payload: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
        let mask = [1, 0x80, 0xff, 3];
        let mut out = Vec::new();
        write_masked_frame(&mut out, Opcode::Text, &payload, mask);
        let mut cursor = Cursor::new(&out[..]);
        let (header, theirs) = FrameHeader::parse(&mut cursor).unwrap().unwrap();
        assert_eq!((header.mask, theirs), (Some(mask), length as u64));
        let start = cursor.position() as usize;
        let unmasked: Vec<u8> =
            out[start..].iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]).collect();
        assert_eq!(unmasked, payload);
    }
}

#[test]
fn a_server_frame_is_parsed_once_it_is_complete() {
    for (opcode, length) in [(Opcode::Text, 0), (Opcode::Ping, 125), (Opcode::Binary, 300)] {
        let payload = vec![b'x'; length];
        let mut bytes = Vec::new();
        write_frame(&mut bytes, opcode, &payload);
        for cut in 0..bytes.len() {
            assert_eq!(parse_server_frame(&bytes[..cut]), Ok(None), "{cut} of {}", bytes.len());
        }
        let whole = bytes.len();
        bytes.extend_from_slice(b"\x81");
        let frame = parse_server_frame(&bytes).unwrap().unwrap();
        assert_eq!((frame.opcode, frame.is_final, frame.length), (opcode, true, whole));
        assert_eq!(&bytes[frame.payload], payload);
    }
}

#[test]
fn a_masked_server_frame_is_refused() {
    let mut bytes = Vec::new();
    write_masked_frame(&mut bytes, Opcode::Text, b"x", [0; 4]);
    assert_eq!(parse_server_frame(&bytes), Err(Violation::Masking));
}

#[test]
fn an_impossible_length_waits_without_overflow() {
    let bytes = [0x82, 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];
    assert_eq!(parse_server_frame(&bytes), Ok(None));
}

#[test]
fn a_close_reason_is_cut_between_characters() {
    let mut out = Vec::new();
    write_close(&mut out, 1012, "reconnect in 5 ms");
    assert_eq!(out, b"\x88\x13\x03\xf4reconnect in 5 ms");

    out.clear();
    write_close(&mut out, 1000, &"é".repeat(100));
    let frame = parse_server_frame(&out).unwrap().unwrap();
    assert_eq!(&out[frame.payload][2..], "é".repeat(61).as_bytes());

    out.clear();
    write_close(&mut out, 1000, &"x".repeat(200));
    assert_eq!(out.len(), 2 + CONTROL_BYTES_MAX);
}

#[test]
fn masking_twice_restores_the_bytes() {
    for length in 0..40 {
        let payload: Vec<u8> = (0..length).collect();
        let mut masked = payload.clone();
        apply_mask(&mut masked, [9, 8, 7, 6]);
        for (at, byte) in masked.iter().enumerate() {
            assert_eq!(*byte, payload[at] ^ [9, 8, 7, 6][at % 4]);
        }
        apply_mask(&mut masked, [9, 8, 7, 6]);
        assert_eq!(masked, payload);
    }
}

proptest! {
    /// If both accept a header, both parse the same values. Ours also refuses reserved bits,
    /// lengths that are not in their shortest form, and what the opcode forbids.
    #[test]
    fn heads_agree_with_tungstenite(bytes in proptest::collection::vec(any::<u8>(), 0..16)) {
        let sender = match bytes.get(1) {
            Some(second) if second & MASKED != 0 => Sender::Client,
            _ => Sender::Server,
        };
        let mut cursor = Cursor::new(&bytes[..]);
        let theirs = FrameHeader::parse(&mut cursor);
        match FrameHead::parse(&bytes, sender, false) {
            Ok(Some(head)) => {
                let (header, length) = theirs.unwrap().unwrap();
                prop_assert_eq!(header.opcode, their_opcode(head.opcode));
                prop_assert_eq!(header.is_final, head.is_final);
                prop_assert_eq!(header.mask.unwrap_or_default(), head.mask);
                prop_assert_eq!(length, head.payload_bytes as u64);
                prop_assert_eq!(cursor.position(), head.bytes as u64);
            }
            Ok(None) => prop_assert!(theirs.unwrap().is_none()),
            Err(_) => {}
        }
    }
}
