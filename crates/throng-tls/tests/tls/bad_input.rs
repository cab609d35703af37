//! What no ordinary peer sends after the handshake: each gets its alert, and nothing panics.

use proptest::prelude::*;
use throng_tls::{
    Alert, CONTENT_BYTES_MAX, End, Established, Opened, Role, SealError, StreamEnd, Suite,
    WITHOUT_DATA_MAX, freeze, thaw,
};

use crate::support::{Forger, ROLES};

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
const KEY_UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];

const TLS13: Suite = Suite::Tls13Aes128Gcm;

fn open(own: &mut Established, records: &mut [u8]) -> Opened {
    own.incoming.open(&mut own.outgoing, records)
}

/// What comes of one record in a fresh connection.
fn end_of(suite: Suite, role: Role, content_type: u8, content: &[u8]) -> Option<End> {
    let (mut own, mut forger) = Forger::connect(suite, role);
    let mut record = forger.seal(content_type, content, 0);
    open(&mut own, &mut record).end
}

#[test]
fn padding_is_removed() {
    for suite in Suite::ALL.into_iter().filter(|suite| suite.is_tls13()) {
        for role in ROLES {
            let (mut own, mut forger) = Forger::connect(suite, role);
            let mut records = forger.seal(DATA, b"one", 0);
            records.extend(forger.seal(DATA, b", two\0", 1000));
            records.extend(forger.seal(DATA, b"", 100));
            records.extend(forger.seal(DATA, &[b'x'; 100], CONTENT_BYTES_MAX - 100));
            let opened = open(&mut own, &mut records);
            assert_eq!((opened.used_bytes, opened.end), (records.len(), None));
            assert_eq!(&records[..9], b"one, two\0");
            assert_eq!(&records[9..opened.content_bytes], [b'x'; 100]);
        }
    }
}

#[test]
fn a_record_has_an_upper_limit() {
    for suite in Suite::ALL {
        let (mut own, mut forger) = Forger::connect(suite, Role::Server);
        let mut record = forger.seal(DATA, &vec![1; CONTENT_BYTES_MAX], 0);
        assert_eq!(open(&mut own, &mut record).content_bytes, CONTENT_BYTES_MAX);
        let mut record = forger.seal(DATA, &vec![1; CONTENT_BYTES_MAX + 1], 0);
        assert_eq!(open(&mut own, &mut record).end, Some(End::Failed(Alert::RecordOverflow)));
        // The header is enough.
        let (mut own, _) = Forger::connect(suite, Role::Server);
        let opened = open(&mut own, &mut [DATA, 3, 3, 0x48, 1]);
        assert_eq!(opened.end, Some(End::Failed(Alert::RecordOverflow)));
    }
    let (mut own, mut forger) = Forger::connect(TLS13, Role::Server);
    let mut record = forger.seal(DATA, &vec![1; CONTENT_BYTES_MAX], 1);
    assert_eq!(open(&mut own, &mut record).end, Some(End::Failed(Alert::RecordOverflow)));
}

#[test]
fn a_changed_bit_anywhere_is_noticed() {
    for suite in Suite::ALL {
        let (own, mut forger) = Forger::connect(suite, Role::Server);
        let frozen = freeze(own.outgoing, own.incoming).unwrap();
        let record = forger.seal(DATA, b"hello", 0);
        for bit in 0..record.len() * 8 {
            let (mut outgoing, mut incoming) = thaw(frozen.as_bytes()).unwrap();
            let mut changed = record.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // If it is longer now, the rest is here, too.
            changed.resize(record.len() + (1 << 15), 0);
            let opened = incoming.open(&mut outgoing, &mut changed);
            assert_eq!(opened.content_bytes, 0, "{suite:?}, bit {bit}");
            let is_noticed = matches!(opened.end, Some(End::Failed(_)));
            let is_longer_than_all = opened.end.is_none() && (24..40).contains(&bit);
            assert!(is_noticed || is_longer_than_all, "{suite:?}, bit {bit}: {opened:?}");
            assert_eq!(incoming.stream_end(), StreamEnd::Truncated);
        }
    }
}

#[test]
fn a_record_cannot_be_repeated_left_out_or_swapped() {
    for suite in Suite::ALL {
        for order in [[0, 0], [1, 0], [1, 2]] {
            let (mut own, mut forger) = Forger::connect(suite, Role::Server);
            let sealed = [b"a", b"b", b"c"].map(|content| forger.seal(DATA, content, 0));
            let mut records = order.map(|index| sealed[index].clone()).concat();
            let opened = open(&mut own, &mut records);
            assert_eq!(opened.end, Some(End::Failed(Alert::BadRecordMac)), "{suite:?}");
            assert_eq!(opened.content_bytes, usize::from(order[0] == 0));
        }
    }
}

#[test]
fn nothing_is_opened_after_a_failure_or_the_end() {
    for (content, end) in [
        (&[1, 0][..], End::Closed),
        (&[2, 0], End::Closed),
        (&[2, 40], End::PeerFailed(40)),
        (&[2, 40, 1], End::Failed(Alert::DecodeError)),
        (&[], End::Failed(Alert::DecodeError)),
        (&[7, 7], End::Failed(Alert::IllegalParameter)),
    ] {
        for suite in Suite::ALL {
            let (mut own, mut forger) = Forger::connect(suite, Role::Server);
            let mut records = forger.seal(DATA, b"before", 0);
            records.extend(forger.seal(ALERT, content, 0));
            let used = records.len();
            records.extend(forger.seal(DATA, b"behind", 0));
            let opened = open(&mut own, &mut records);
            assert_eq!((opened.used_bytes, opened.end), (used, Some(end)), "{suite:?}");
            assert_eq!(&records[..opened.content_bytes], b"before");
            let mut records = forger.seal(DATA, b"behind", 0);
            let opened = open(&mut own, &mut records);
            let all = Opened { content_bytes: 0, used_bytes: records.len(), end: None };
            assert_eq!(opened, all, "what follows is ignored");
            let is_clean = end == End::Closed;
            let expected = if is_clean { StreamEnd::Clean } else { StreamEnd::Truncated };
            assert_eq!(own.incoming.stream_end(), expected);
        }
    }
}

#[test]
fn warnings_are_ignored_where_the_version_has_them() {
    for suite in Suite::ALL {
        let user_canceled = end_of(suite, Role::Server, ALERT, &[1, 90]);
        assert_eq!(user_canceled, None);
        let no_renegotiation = end_of(suite, Role::Server, ALERT, &[1, 100]);
        let expected = suite.is_tls13().then_some(End::Failed(Alert::DecodeError));
        assert_eq!(no_renegotiation, expected);
    }
}

#[test]
fn other_types_are_refused() {
    let unexpected = Some(End::Failed(Alert::UnexpectedMessage));
    for role in ROLES {
        for content_type in [0, 1, 20, 24, 255] {
            for suite in Suite::ALL {
                let end = end_of(suite, role, content_type, &[1]);
                assert_eq!(end, unexpected, "{suite:?} {content_type}");
            }
        }
        // Not sealed at all, with the type in the header.
        for content_type in [20, 21, 22, 24] {
            let (mut own, _) = Forger::connect(TLS13, role);
            assert_eq!(open(&mut own, &mut [content_type, 3, 3, 0, 1, 1]).end, unexpected);
        }
        // Only padding; no messages; others than those that may come.
        assert_eq!(end_of(TLS13, role, 0, &[0; 50]), unexpected);
        assert_eq!(end_of(TLS13, role, HANDSHAKE, &[]), unexpected);
        for message in [1, 2, 13, 20, 0] {
            assert_eq!(end_of(TLS13, role, HANDSHAKE, &[message, 0, 0, 0]), unexpected);
        }
    }
    assert_eq!(end_of(TLS13, Role::Server, HANDSHAKE, &[4, 0, 0, 0]), unexpected);
}

#[test]
fn a_new_handshake_is_refused() {
    for suite in Suite::ALL.into_iter().filter(|suite| !suite.is_tls13()) {
        let refused = Some(End::Failed(Alert::NoRenegotiation));
        assert_eq!(end_of(suite, Role::Server, HANDSHAKE, &[1, 0, 0, 0]), refused);
        assert_eq!(end_of(suite, Role::Client, HANDSHAKE, &[0, 0, 0, 0]), refused);
    }
}

#[test]
fn key_updates_have_one_form() {
    for (content, alert) in [
        (&[24, 0, 0, 1, 2][..], Alert::IllegalParameter),
        (&[24, 0, 0, 2, 0, 0], Alert::DecodeError),
        (&[24, 0, 0, 0], Alert::DecodeError),
        // In two records, and with something behind it: keys change within a record.
        (&[24, 0, 0], Alert::UnexpectedMessage),
        (&[24, 0, 0, 1], Alert::UnexpectedMessage),
        (&[24, 0, 0, 1, 0, 24], Alert::UnexpectedMessage),
    ] {
        for role in ROLES {
            let end = end_of(TLS13, role, HANDSHAKE, content);
            assert_eq!(end, Some(End::Failed(alert)), "{content:?}");
        }
    }
}

#[test]
fn the_old_key_opens_nothing_after_a_key_update() {
    for suite in Suite::ALL.into_iter().filter(|suite| suite.is_tls13()) {
        let (mut own, mut forger) = Forger::connect(suite, Role::Server);
        let mut records = forger.seal(HANDSHAKE, &KEY_UPDATE, 0);
        forger.update_key();
        records.extend(forger.seal(DATA, b"next", 0));
        let opened = open(&mut own, &mut records);
        assert_eq!(&records[..opened.content_bytes], b"next");
        assert_eq!(own.outgoing.check(), Ok(()), "no answer was asked for");

        let mut records = forger.seal(HANDSHAKE, &KEY_UPDATE_REQUESTED, 0);
        records.extend(forger.seal(DATA, b"old", 0));
        let opened = open(&mut own, &mut records);
        assert_eq!(opened.end, Some(End::Failed(Alert::BadRecordMac)));
        assert_eq!(own.outgoing.check(), Err(SealError::KeyUpdateDue));
    }
}

/// The peer asks again and again and never reads: it is answered once, at the next data.
#[test]
fn key_updates_are_limited_but_not_over_a_lifetime() {
    let (mut own, mut forger) = Forger::connect(TLS13, Role::Server);
    let update = |forger: &mut Forger| {
        let record = forger.seal(HANDSHAKE, &KEY_UPDATE_REQUESTED, 0);
        forger.update_key();
        record
    };
    for round in 0..10 {
        for _ in 0..WITHOUT_DATA_MAX {
            assert_eq!(open(&mut own, &mut update(&mut forger)).end, None, "round {round}");
        }
        if round % 2 == 0 {
            // Data of the peer.
            assert_eq!(open(&mut own, &mut forger.seal(DATA, b"x", 0)).end, None);
        } else {
            // Data to a peer that only listens.
            let mut out = Vec::new();
            assert_eq!(own.outgoing.check(), Err(SealError::KeyUpdateDue));
            own.incoming.seal_key_update(&mut own.outgoing, &mut out).unwrap();
            let sealed = own.outgoing.seal([&b"data"[..]], &mut out).unwrap();
            own.outgoing.keep(sealed);
            assert_eq!(out.len(), 27 + 26);
        }
    }
    for _ in 0..WITHOUT_DATA_MAX {
        assert_eq!(open(&mut own, &mut update(&mut forger)).end, None);
    }
    let end = open(&mut own, &mut update(&mut forger)).end;
    assert_eq!(end, Some(End::Failed(Alert::UnexpectedMessage)));
}

#[test]
fn empty_records_are_limited() {
    for suite in Suite::ALL {
        let (mut own, mut forger) = Forger::connect(suite, Role::Server);
        for _ in 0..2 {
            for _ in 0..WITHOUT_DATA_MAX {
                assert_eq!(open(&mut own, &mut forger.seal(DATA, b"", 0)).end, None);
            }
            assert_eq!(open(&mut own, &mut forger.seal(DATA, b"x", 0)).content_bytes, 1);
        }
        let mut records = Vec::new();
        for _ in 0..=WITHOUT_DATA_MAX {
            records.extend(forger.seal(DATA, b"", 0));
        }
        let end = open(&mut own, &mut records).end;
        assert_eq!(end, Some(End::Failed(Alert::UnexpectedMessage)), "{suite:?}");
    }
}

/// A client skips tickets, several in a record, and one in several records.
#[test]
fn tickets_are_skipped_by_a_client() {
    let ticket = |length: u32| {
        let mut message = (length | 4 << 24).to_be_bytes().to_vec();
        message.extend(vec![24; length as usize]);
        message
    };
    let messages = [ticket(100), ticket(0), ticket(40_000), KEY_UPDATE.to_vec()].concat();
    let (mut own, mut forger) = Forger::connect(TLS13, Role::Client);
    for part in messages.chunks(CONTENT_BYTES_MAX) {
        let mut record = forger.seal(HANDSHAKE, part, 0);
        assert_eq!(open(&mut own, &mut record).end, None);
        let frozen = freeze(own.outgoing, own.incoming).unwrap();
        (own.outgoing, own.incoming) = thaw(frozen.as_bytes()).unwrap();
    }
    forger.update_key();
    assert_eq!(open(&mut own, &mut forger.seal(DATA, b"x", 0)).content_bytes, 1);

    // Nothing else may come before a ticket is complete.
    let mut records = forger.seal(HANDSHAKE, &ticket(100)[..50], 0);
    records.extend(forger.seal(DATA, b"x", 0));
    let end = open(&mut own, &mut records).end;
    assert_eq!(end, Some(End::Failed(Alert::UnexpectedMessage)));
}

proptest! {
    #[test]
    fn no_bytes_panic_when_opened(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (mut own, _) = Forger::connect(Suite::Tls12Aes128Gcm, Role::Server);
        let mut records = bytes.clone();
        let opened = open(&mut own, &mut records);
        prop_assert_eq!(opened.content_bytes, 0);
        prop_assert!(opened.used_bytes <= bytes.len());
    }

    #[test]
    fn no_bytes_panic_when_thawed(
        version in 0..3_u8,
        suite in 0..8_u8,
        bytes in proptest::collection::vec(any::<u8>(), 0..130),
    ) {
        let bytes = [&[version, suite][..], &bytes].concat();
        if let Ok((mut outgoing, mut incoming)) = thaw(&bytes) {
            let _ = outgoing.check();
            let _ = incoming.seal_key_update(&mut outgoing, &mut Vec::new());
            let _ = incoming.open(&mut outgoing, &mut [23; 200]);
        }
    }
}
