use proptest::prelude::*;

use super::super::frame::write_masked_frame;
use super::*;

const MAX_BYTES: usize = 100_000;
const LIMIT: MessageLimits = MessageLimits { max_bytes: MAX_BYTES, may_compress: false };
const COMPRESSED: MessageLimits = MessageLimits { max_bytes: MAX_BYTES, may_compress: true };
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// An owned event, for comparisons.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Message(bool, Vec<u8>),
    Compressed(bool, Vec<u8>),
    Ping(Vec<u8>),
    Pong,
    Close(Option<u16>, String),
}

fn text(text: &str) -> Said {
    Said::Message(true, text.into())
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

/// Feeds pieces as a connection does: it keeps unconsumed bytes for the next piece.
fn read<'p>(
    pieces: impl IntoIterator<Item = &'p [u8]>,
    limits: MessageLimits,
) -> (Vec<Said>, Option<Violation>) {
    read_with(pieces, limits, |reader| reader)
}

/// Goes on with another reader after each piece.
fn resumed(reader: Reader) -> Reader {
    match reader.half_read() {
        Some(half_read) => Reader::resume(half_read, COMPRESSED).expect("it was read so far"),
        None => Reader::default(),
    }
}

fn read_with<'p>(
    pieces: impl IntoIterator<Item = &'p [u8]>,
    limits: MessageLimits,
    after_piece: impl Fn(Reader) -> Reader,
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
        reader = after_piece(reader);
        assert!(held.len() <= UNCONSUMED_BYTES_MAX, "{} bytes held", held.len());
        let max_bytes = limits.max_payload_bytes(limits.may_compress);
        assert!(reader.buffered_bytes() <= max_bytes, "over the limit");
        assert!(!reader.is_idle() || reader.buffered_bytes() == 0, "idle and holds something");
    }
    (events, None)
}

/// Reads the bytes at once, one by one, and split in two at every index. All results must agree.
fn read_all_ways(bytes: &[u8]) -> (Vec<Said>, Option<Violation>) {
    read_all_ways_within(bytes, LIMIT)
}

fn read_all_ways_within(bytes: &[u8], limits: MessageLimits) -> (Vec<Said>, Option<Violation>) {
    let whole = read([bytes], limits);
    assert_eq!(read(bytes.chunks(1), limits), whole, "byte by byte");
    for cut in 0..bytes.len() {
        let (head, tail) = bytes.split_at(cut);
        assert_eq!(read([head, tail], limits), whole, "cut at {cut}");
        assert_eq!(read_with([head, tail], limits, resumed), whole, "resumed at {cut}");
    }
    whole
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_masked_frame(&mut out, Opcode::Text, payload, MASK);
    out[0] = first;
    out
}

fn frames(frames: &[(u8, &[u8])]) -> Vec<u8> {
    frames.iter().flat_map(|(first, payload)| frame(*first, payload)).collect()
}

fn refused(bytes: &[u8]) -> Violation {
    let (events, violation) = read_all_ways(bytes);
    assert_eq!(events, [], "before the violation");
    violation.expect("a violation")
}

#[test]
fn reads_the_masked_example_of_the_rfc() {
    let bytes = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(read_all_ways(&bytes), (vec![text("Hello")], None));
}

#[test]
fn reads_messages_and_fragments_with_control_frames_between() {
    let bytes = frames(&[
        (0x81, "whole ✓".as_bytes()),
        (0x01, b"frag\xe2\x9c"),
        (0x89, b"are you there"),
        (0x00, b""),
        (0x8a, b""),
        (0x80, b"\x93ment"),
        (0x82, &[0xff; 200]),
        (0x81, b""),
        (0x02, b""),
        (0x80, b"\xfe"),
        (0x88, b"\x03\xe8bye"),
    ]);
    let expected = vec![
        text("whole ✓"),
        Said::Ping(b"are you there".to_vec()),
        Said::Pong,
        text("frag✓ment"),
        Said::Message(false, vec![0xff; 200]),
        text(""),
        Said::Message(false, vec![0xfe]),
        Said::Close(Some(1000), "bye".into()),
    ];
    assert_eq!(read_all_ways(&bytes), (expected, None));
}

#[test]
fn a_message_that_arrives_at_once_is_not_copied() {
    let mut bytes = frame(0x81, b"hello");
    let mut reader = Reader::default();
    let Ok(Step::Event { event: Event::Message { payload, .. }, consumed }) =
        reader.next(&mut bytes, LIMIT)
    else {
        panic!("a message");
    };
    assert!(matches!(payload, Cow::Borrowed(b"hello")));
    assert_eq!(consumed, 11);
    assert!(reader.is_idle());
}

#[test]
fn a_header_alone_allocates_nothing() {
    let mut bytes = frame(0x82, &vec![0; 90_000]);
    let mut reader = Reader::default();
    assert_eq!(reader.next(&mut bytes[..14], LIMIT), Ok(Step::Incomplete { consumed: 14 }));
    assert!(!reader.is_idle());
    assert_eq!(reader.buffered_bytes(), 0);
    assert_eq!(reader.next(&mut bytes[14..24], LIMIT), Ok(Step::Incomplete { consumed: 10 }));
    assert_eq!(reader.buffered_bytes(), 10);
}

/// The memory grows by doubling, however short the fragments are.
#[test]
fn tiny_fragments_are_seldom_copied() {
    const BYTES: usize = 60_000;
    let mut reader = Reader::default();
    let (mut growths, mut capacity) = (0, 0);
    for nth in 0..BYTES {
        let opcode = if nth == 0 { 0x02 } else { 0x00 };
        let mut bytes = frame(opcode, b"x");
        let length = bytes.len();
        assert_eq!(reader.next(&mut bytes, LIMIT), Ok(Step::Fragment { consumed: length }));
        growths += usize::from(reader.buffered_bytes() != capacity);
        capacity = reader.buffered_bytes();
        assert!(capacity <= MAX_BYTES && capacity <= 2 * (nth + 1));
    }
    assert!(growths <= 17, "grown {growths} times");
    let mut last = frame(0x80, b"y");
    let Ok(Step::Event { event: Event::Message { payload, .. }, .. }) =
        reader.next(&mut last, LIMIT)
    else {
        panic!("a message");
    };
    assert_eq!(payload.len(), BYTES + 1);
}

#[test]
fn refuses_bad_headers() {
    let mut unmasked = Vec::new();
    crate::websocket::write_frame(&mut unmasked, Opcode::Text, b"x");
    assert_eq!(refused(&unmasked), Violation::Masking);
    for reserved in [0x10, 0x20, 0x40, 0x70] {
        assert_eq!(refused(&frame(0x81 | reserved, b"x")), Violation::ReservedBits);
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        assert_eq!(refused(&frame(0x80 | opcode, b"x")), Violation::ReservedOpcode);
    }
    for control in [8, 9, 10] {
        assert_eq!(refused(&frame(control, b"")), Violation::FragmentedControl);
        assert_eq!(refused(&frame(0x80 | control, &[0; 126])), Violation::LongControl);
    }
    assert_eq!(refused(&frame(0x80, b"x")), Violation::UnexpectedContinuation);
    assert_eq!(refused(&frame(0x00, b"x")), Violation::UnexpectedContinuation);
    for first in [0x01, 0x02, 0x81, 0x82] {
        let bytes = frames(&[(0x01, b"x"), (first, b"x")]);
        assert_eq!(refused(&bytes), Violation::InterleavedMessage);
    }
}

#[test]
fn compressed_messages_begin_with_rsv1_only() {
    let bytes = frames(&[
        (0xc1, b"\xff"),
        (0x41, b"ab"),
        (0x89, b"p"),
        (0x00, b""),
        (0x80, b"\xff"),
        (0x81, b"plain"),
        (0xc2, b""),
    ]);
    let expected = vec![
        Said::Compressed(true, vec![0xff]),
        Said::Ping(b"p".to_vec()),
        Said::Compressed(true, b"ab\xff".to_vec()),
        text("plain"),
        Said::Compressed(false, vec![]),
    ];
    assert_eq!(read_all_ways_within(&bytes, COMPRESSED), (expected, None));
    for first in [0xc8, 0xc9, 0xca] {
        let (_, violation) = read_all_ways_within(&frame(first, b""), COMPRESSED);
        assert_eq!(violation, Some(Violation::MisplacedCompression), "{first:x}");
    }
    for begin in [0x01, 0x41] {
        let continued = frames(&[(begin, b"a"), (0xc0, b"b")]);
        let (_, violation) = read_all_ways_within(&continued, COMPRESSED);
        assert_eq!(violation, Some(Violation::MisplacedCompression));
    }
    for first in [0xa1, 0x91, 0xe1, 0xf1] {
        let (_, violation) = read_all_ways_within(&frame(first, b""), COMPRESSED);
        assert_eq!(violation, Some(Violation::ReservedBits), "{first:x}");
    }
}

/// Incompressible content takes some bytes more.
#[test]
fn a_compressed_message_may_be_a_little_longer() {
    let limits = MessageLimits { max_bytes: 700, may_compress: true };
    let most = limits.max_payload_bytes(true);
    assert_eq!(most, 864);
    assert_eq!(read([&frame(0xc2, &vec![0; most])[..]], limits).1, None);
    let over = frame(0xc2, &vec![0; most + 1]);
    assert_eq!(read([&over[..8]], limits).1, Some(Violation::TooLarge));
    assert_eq!(read([&frame(0x82, &[0; 701])[..]], limits).1, Some(Violation::TooLarge));
}

#[test]
fn refuses_lengths_in_another_form() {
    let lengths: [(&[u8], Violation); 5] = [
        (&[0xfe, 0, 125], Violation::LengthNotMinimal),
        (&[0xff, 0, 0, 0, 0, 0, 0, 0, 1], Violation::LengthNotMinimal),
        (&[0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff], Violation::LengthNotMinimal),
        (&[0xff, 0x80, 0, 0, 0, 0, 0, 0, 0], Violation::LengthHighBit),
        (&[0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Violation::TooLarge),
    ];
    for (length, violation) in lengths {
        let bytes = [b"\x82", length, &[0; 4]].concat();
        assert_eq!(refused(&bytes), violation, "{length:x?}");
    }
}

#[test]
fn the_limit_counts_all_fragments_and_needs_no_payload() {
    let hundred = MessageLimits::plain(100);
    let fits = frames(&[(0x02, &[0; 60]), (0x00, &[0; 30]), (0x80, &[0; 10])]);
    assert_eq!(read([&fits[..]], hundred), (vec![Said::Message(false, vec![0; 100])], None));
    let over = frames(&[(0x02, &[0; 60]), (0x89, b"p"), (0x80, &[0; 41])]);
    let header_end = over.len() - 41;
    let expected = (vec![Said::Ping(b"p".to_vec())], Some(Violation::TooLarge));
    assert_eq!(read([&over[..header_end]], hundred), expected);
    assert_eq!(read(over.chunks(1), hundred), expected);
    assert_eq!(read([&frame(0x82, &[0; 101])[..8]], hundred).1, Some(Violation::TooLarge));
}

#[test]
fn text_is_refused_at_its_first_bad_byte() {
    assert_eq!(refused(&frame(0x81, b"\xce\xba\xff")), Violation::NotUtf8);
    assert_eq!(refused(&frame(0x81, b"abc\xe2\x9c")), Violation::NotUtf8);
    assert_eq!(refused(&frames(&[(0x01, b"\xe2"), (0x80, b"a")])), Violation::NotUtf8);
    assert_eq!(refused(&frames(&[(0x01, b"\xe2"), (0x80, b"")])), Violation::NotUtf8);

    let long = frame(0x81, &[b"abc\xf4\x90".as_slice(), &[b'x'; 1000]].concat());
    let bad_at = 8 + 5;
    assert_eq!(read([&long[..bad_at - 1]], LIMIT), (vec![], None));
    assert_eq!(read([&long[..bad_at]], LIMIT), (vec![], Some(Violation::NotUtf8)));
    // A binary message may contain any bytes.
    assert_eq!(read_all_ways(&frame(0x82, b"\xff")).1, None);
}

#[test]
fn close_frames_follow_the_rules() {
    let close = |payload: &[u8]| read_all_ways(&frame(0x88, payload));
    assert_eq!(close(b""), (vec![Said::Close(None, String::new())], None));
    assert_eq!(close(b"\x03"), (vec![], Some(Violation::ShortClose)));
    assert_eq!(close(b"\x03\xe8\xff"), (vec![], Some(Violation::NotUtf8)));
    for code in 0..=u16::MAX {
        let is_allowed = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
        let mut bytes = frame(0x88, &code.to_be_bytes());
        let event = Reader::default().next(&mut bytes, LIMIT).map(|_| ());
        assert_eq!(event, if is_allowed { Ok(()) } else { Err(Violation::CloseCode) }, "{code}");
    }
}

#[test]
fn violations_have_close_codes() {
    assert_eq!(Violation::TooLarge.close_code(), 1009);
    assert_eq!(Violation::NotUtf8.close_code(), 1007);
    assert_eq!(Violation::Masking.close_code(), 1002);
    assert_eq!(Violation::MisplacedCompression.close_code(), 1002);
    assert_eq!(Violation::InflatesTooMuch.close_code(), 1009);
    assert_eq!(Violation::NotDeflate.close_code(), 4007);
    assert_eq!(Violation::CloseCode.close_code(), 1002);
}

/// Mostly valid frames: valid sequences, sometimes with one byte changed.
fn traffic() -> impl Strategy<Value = Vec<u8>> {
    let first = prop::sample::select(vec![
        0x81u8, 0x82, 0x01, 0x02, 0x00, 0x80, 0x89, 0x8a, 0x88, 0xc1, 0xc2, 0x41, 0x42,
    ]);
    let payload = prop_oneof![
        "\\PC{0,40}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..200),
    ];
    let frames = prop::collection::vec((first, payload), 1..8);
    (frames, prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()))).prop_map(
        |(frames, change)| {
            let mut bytes: Vec<u8> =
                frames.iter().flat_map(|(first, payload)| frame(*first, payload)).collect();
            if let Some((at, byte)) = change {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn events_do_not_depend_on_how_the_bytes_are_split(
        bytes in traffic(),
        mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        max_bytes in 0usize..400,
        may_compress: bool,
    ) {
        let limits = MessageLimits { max_bytes, may_compress };
        let whole = read([&bytes[..]], limits);
        prop_assert_eq!(&read(bytes.chunks(1), limits), &whole);
        cuts.sort_by_key(|cut| cut.index(bytes.len()));
        let mut rest = &bytes[..];
        let mut pieces = Vec::new();
        for cut in cuts {
            let at = cut.index(bytes.len()) - (bytes.len() - rest.len());
            let (piece, after) = rest.split_at(at);
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        prop_assert_eq!(&read(pieces, limits), &whole);
    }

    #[test]
    fn frames_of_a_client_are_read_back(
        payload in prop::collection::vec(any::<u8>(), 0..70_000),
        mask: [u8; 4],
        piece_bytes in 1usize..5000,
    ) {
        let mut bytes = Vec::new();
        write_masked_frame(&mut bytes, Opcode::Binary, &payload, mask);
        let expected = (vec![Said::Message(false, payload)], None);
        prop_assert_eq!(read(bytes.chunks(piece_bytes), LIMIT), expected);
    }
}

#[test]
fn a_message_that_cannot_be_in_progress_is_not_resumed() {
    let half_read = HalfRead {
        is_text: true,
        is_compressed: false,
        has_fragments: false,
        frame: Some(HalfFrame { missing_bytes: 5, mask: MASK, is_final: true }),
        payload: b"12345".to_vec(),
    };
    let resume = |half_read: &HalfRead, max_bytes| {
        Reader::resume(half_read.clone(), MessageLimits::plain(max_bytes))
    };
    assert!(resume(&half_read, 10).is_ok());
    assert_eq!(resume(&half_read, 9).err(), Some(Violation::TooLarge));
    let endless = HalfFrame { missing_bytes: usize::MAX, mask: MASK, is_final: true };
    let endless = HalfRead { frame: Some(endless), ..half_read.clone() };
    assert_eq!(resume(&endless, MAX_BYTES).err(), Some(Violation::TooLarge));
    let not_utf8 = HalfRead { payload: b"\xff".to_vec(), ..half_read };
    assert_eq!(resume(&not_utf8, 10).err(), Some(Violation::NotUtf8));
    let compressed = HalfRead { is_compressed: true, ..not_utf8 };
    assert_eq!(resume(&compressed, 10).err(), Some(Violation::ReservedBits));
    assert!(Reader::resume(compressed, COMPRESSED).is_ok());
}
