use flate2::{Compress, Compression, FlushCompress};
use proptest::prelude::*;

use super::*;

const LIMIT: usize = 1 << 20;

fn inflated(payload: &[u8]) -> Result<Vec<u8>, Violation> {
    Inflater::default().message(payload, false, LIMIT)
}

fn deflated(message: &[u8]) -> Vec<u8> {
    Deflater::new(6).deflate(message, 2 * message.len() + 100).expect("room")
}

#[test]
fn reads_the_examples_of_the_rfc() {
    // Section 7.2.3.1: one block with fixed codes.
    let hello = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];
    assert_eq!(inflated(&hello), Ok(b"Hello".to_vec()));
    assert_eq!(deflated(b"Hello"), hello);
    // Section 7.2.3.3: a block without compression.
    let stored = [0x00, 0x05, 0x00, 0xfa, 0xff, 0x48, 0x65, 0x6c, 0x6c, 0x6f, 0x00];
    assert_eq!(inflated(&stored), Ok(b"Hello".to_vec()));
    // Section 7.2.3.4: a block marked as the last.
    let last = [0xf3, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x00];
    assert_eq!(inflated(&last), Ok(b"Hello".to_vec()));
    // Section 7.2.3.5: two blocks.
    let two = [0xf2, 0x48, 0x05, 0x00, 0x00, 0x00, 0xff, 0xff, 0xca, 0xc9, 0xc9, 0x07, 0x00];
    assert_eq!(inflated(&two), Ok(b"Hello".to_vec()));
    // Section 7.2.3.6: the empty message.
    assert_eq!(inflated(&[0]), Ok(Vec::new()));
    assert_eq!(deflated(b""), [0]);
    assert_eq!(inflated(&[]), Ok(Vec::new()));
}

#[test]
fn a_block_behind_a_last_one_may_refer_to_it() {
    let mut compress = Compress::new(Compression::new(6), false);
    let text = b"the same words, the same words, the same words";
    let mut payload = Vec::with_capacity(1000);
    compress.compress_vec(text, &mut payload, FlushCompress::Finish).unwrap();
    // 258 bytes, 46 before: `length 258, distance 46` in fixed codes, and the end of the block.
    let length_and_distance = {
        let mut bits = vec![0, 1, 0];
        bits.extend([1, 1, 0, 0, 0, 1, 0, 1]); // 285: 11000101
        bits.extend([0, 1, 0, 1, 0]); // distance 33 to 48: code 10
        bits.extend([1, 0, 1, 1]); // 33 + 13, from the lowest bit
        bits.extend([0; 7]);
        bits
    };
    let mut bytes = vec![0u8; length_and_distance.len().div_ceil(8)];
    for (at, bit) in length_and_distance.into_iter().enumerate() {
        bytes[at / 8] |= bit << (at % 8);
    }
    // Its last byte has room for the header of the empty block, whose tail is left out.
    payload.extend(bytes);
    let message = inflated(&payload).unwrap();
    assert_eq!(message.len(), text.len() + 258);
    assert_eq!(message[text.len()..text.len() + 46], text[..]);
}

#[test]
fn a_message_that_does_not_get_shorter_is_not_compressed() {
    let mut deflater = Deflater::new(1);
    let noise: Vec<u8> =
        (0..1000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    assert_eq!(deflater.deflate(&noise, noise.len() * 7 / 8), None);
    let text = b"{\"a\":1}".repeat(100);
    let payload = deflater.deflate(&text, text.len()).unwrap();
    assert!(payload.len() < text.len() / 4, "{}", payload.len());
    assert_eq!(inflated(&payload), Ok(text.clone()));
    assert_eq!(deflater.deflate(&text, payload.len()), None, "not shorter than that");
    assert_eq!(deflater.deflate(&text, payload.len() + 1), Some(payload));
}

/// A library that stops for want of room must not stumble over what is left.
#[test]
fn a_compressor_goes_on_after_messages_that_did_not_get_shorter() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    for level in [1, 2, 6] {
        let mut deflater = Deflater::new(level);
        for _ in 0..400 {
            let length = next() % 70_000;
            let noise: Vec<u8> = (0..length).map(|_| next() as u8).collect();
            assert_eq!(deflater.deflate(&noise, length - length / 8), None);
            let text = b"{\"a\":1},".repeat(1 + next() % 500);
            let payload = deflater.deflate(&text, text.len() + 100).unwrap();
            assert_eq!(inflated(&payload), Ok(text));
        }
    }
}

#[test]
fn bombs_are_refused_before_they_are_inflated() {
    let zeros = deflated(&vec![0; 3 << 20]);
    assert!(zeros.len() < 4000);
    let mut inflater = Inflater::default();
    let refused = |inflater: &mut Inflater, payload: &[u8], max_bytes| {
        let refused = inflater.message(payload, false, max_bytes);
        assert_eq!(refused, Err(Violation::InflatesTooMuch));
    };
    refused(&mut inflater, &zeros, LIMIT);
    refused(&mut inflater, &zeros, 0);
    // By the ratio, although the limit allows it.
    refused(&mut inflater, &zeros, 64 << 20);
    let fits = deflated(&vec![0; INFLATED_BYTES_FREE]);
    assert_eq!(inflater.message(&fits, false, LIMIT).map(|m| m.len()), Ok(INFLATED_BYTES_FREE));
    refused(&mut inflater, &fits, INFLATED_BYTES_FREE - 1);
    // The next message begins anew.
    assert_eq!(inflater.message(&deflated(b"next"), true, 4), Ok(b"next".to_vec()));
    // Blocks marked as the last, which cost much more than their two bytes.
    assert_eq!(inflated(&[3, 0].repeat(30_000)), Err(Violation::NotDeflate));
}

#[test]
fn no_more_is_allocated_than_the_limit() {
    let payload = deflated(&b"some text ".repeat(900));
    let message = Inflater::default().message(&payload, true, 9000).unwrap();
    assert!(message.capacity() <= 9001, "{}", message.capacity());
}

#[test]
fn what_is_not_deflate_is_refused() {
    for payload in [&[0xff; 5][..], b"hello", &[0x06], &[0x01, 0x05, 0x00, 0x00, 0x00]] {
        assert_eq!(inflated(payload), Err(Violation::NotDeflate), "{payload:x?}");
    }
    let mut inflater = Inflater::default();
    assert_eq!(inflater.message(&deflated(b"\xff"), true, 10), Err(Violation::NotUtf8));
    assert_eq!(inflater.message(&deflated(b"\xff"), false, 10), Ok(vec![0xff]));
}

/// Text that compresses, with some bytes that do not.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let words =
        prop::collection::vec(prop::sample::select(vec!["price", ":", "1", "\u{e9}"]), 0..2000);
    let noise = prop::collection::vec(any::<u8>(), 0..300);
    (words, noise).prop_map(|(words, noise)| [words.concat().into_bytes(), noise].concat())
}

proptest! {
    #[test]
    fn messages_are_inflated_to_what_they_were(message in message(), level in 1u8..=9) {
        let payload = Deflater::new(level).deflate(&message, 2 * message.len() + 100).unwrap();
        prop_assert_eq!(inflated(&payload), Ok(message.clone()));
        let max_bytes = message.len();
        let mut inflater = Inflater::default();
        prop_assert_eq!(inflater.message(&payload, false, max_bytes), Ok(message));
        if max_bytes > 0 {
            let over = inflater.message(&payload, false, max_bytes - 1);
            prop_assert_eq!(over, Err(Violation::InflatesTooMuch));
        }
    }

    /// DEFLATE has no checksum, so that half a message may be another one.
    #[test]
    fn a_message_without_its_end_is_not_taken_for_it(
        message in message(),
        cut: prop::sample::Index,
    ) {
        let payload = deflated(&message);
        prop_assume!(!message.is_empty());
        prop_assert_ne!(inflated(&payload[..cut.index(payload.len())]), Ok(message));
    }

    #[test]
    fn any_bytes_are_a_message_or_a_violation(
        payload in prop::collection::vec(any::<u8>(), 0..300),
        max_bytes in 0usize..1000,
    ) {
        if let Ok(message) = Inflater::default().message(&payload, false, max_bytes) {
            prop_assert!(message.len() <= max_bytes);
        }
    }

    #[test]
    fn other_flushes_are_read(message in message(), pieces in 1usize..400) {
        let mut compress = Compress::new(Compression::new(6), false);
        // It is not grown. A flush costs some six bytes, also of a single byte.
        let mut payload = Vec::with_capacity(10 * message.len() + 10_000);
        for piece in message.chunks(pieces) {
            compress.compress_vec(piece, &mut payload, FlushCompress::Sync).unwrap();
        }
        compress.compress_vec(&[], &mut payload, FlushCompress::Finish).unwrap();
        payload.push(0);
        prop_assert_eq!(inflated(&payload), Ok(message));
    }
}
