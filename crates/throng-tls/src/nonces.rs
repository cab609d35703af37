//! Under any use, no two records that leave have the same key and number.

use std::collections::HashMap;

use proptest::prelude::*;

use crate::alert::Alert;
use crate::frozen::{freeze, thaw};
use crate::incoming::{Incoming, Role};
use crate::keys::{RecordKey, SECRET_BYTES_MAX, Secret};
use crate::outgoing::{Outgoing, RecordFate, SealError, SealedRecord};
use crate::suite::Suite;

/// A caller's action; `Forget` is a mistake.
#[derive(Clone, Debug)]
enum Act {
    /// Seals; the socket takes this share of the record, in percent, and the caller says so.
    Send(usize),
    /// Seals, and puts the record into a buffer that is written later.
    Keep,
    /// Seals, writes all, and forgets to say so.
    Forget,
    UpdateKey,
    Freeze,
    Close,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        20 => (0..=100_usize).prop_map(Act::Send),
        5 => Just(Act::Send(0)),
        6 => Just(Act::Keep),
        1 => Just(Act::Forget),
        6 => Just(Act::UpdateKey),
        3 => Just(Act::Freeze),
        1 => Just(Act::Close),
    ]
}

fn connection(suite: Suite, fill: u8) -> (Outgoing, Incoming) {
    let secret = |fill: u8| {
        let bytes = [fill; SECRET_BYTES_MAX];
        Secret::new(suite, &bytes[..suite.secret_bytes()]).unwrap()
    };
    let key = RecordKey::derive(suite, &secret(fill));
    let secrets = (secret(fill + 1), secret(fill));
    (Outgoing::new(suite, key, 0), Incoming::new(Role::Server, suite, secrets, 0))
}

type KeyAndNumber = (Vec<u8>, u64);

/// All that left the process, by key and number.
#[derive(Default)]
struct Released(HashMap<KeyAndNumber, Vec<u8>>);

impl Released {
    /// Bytes of one record leave.
    fn leave(&mut self, before: KeyAndNumber, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let before = self.0.insert(before, bytes.to_vec());
        assert_eq!(before, None, "a second record left with this key and number");
    }
}

fn key_and_number(outgoing: &Outgoing) -> KeyAndNumber {
    let (number, _, key) = outgoing.fields();
    ([key.key(outgoing.suite()), &key.iv()[..]].concat(), number)
}

struct Caller {
    outgoing: Outgoing,
    incoming: Incoming,
    released: Released,
    content: u8,
}

impl Caller {
    fn seal(&mut self) -> Option<(SealedRecord, Vec<u8>, KeyAndNumber)> {
        self.content = self.content.wrapping_add(1);
        let (mut out, before) = (Vec::new(), key_and_number(&self.outgoing));
        let sealed = self.outgoing.seal([&[self.content; 9][..]], &mut out);
        sealed.ok().map(|sealed| (sealed, out, before))
    }

    fn act(&mut self, act: &Act) {
        let before = key_and_number(&self.outgoing);
        let mut out = Vec::new();
        match act {
            Act::UpdateKey => {
                let done = self.incoming.seal_key_update(&mut self.outgoing, &mut out);
                self.released.leave(before, if done.is_ok() { &out } else { &[] });
                return;
            }
            Act::Close => {
                let done = self.outgoing.seal_alert(Alert::CloseNotify, &mut out);
                self.released.leave(before, if done.is_ok() { &out } else { &[] });
                return;
            }
            _ => {}
        }
        let Some((sealed, out, before)) = self.seal() else { return };
        match *act {
            Act::Send(percent) => {
                let written = out.len() * percent / 100;
                self.released.leave(before.clone(), &out[..written]);
                let fate = self.outgoing.settle(sealed, written);
                assert_eq!(fate == RecordFate::NotAtAll, written == 0);
                let number = key_and_number(&self.outgoing).1;
                assert_eq!(number, before.1 + u64::from(written > 0));
            }
            Act::Keep => {
                self.released.leave(before, &out);
                self.outgoing.keep(sealed);
            }
            Act::Forget => {
                self.released.leave(before, &out);
                assert_eq!(self.outgoing.check(), Err(SealError::Unsettled));
            }
            _ => unreachable!("the others are done elsewhere"),
        }
    }
}

proptest! {
    #[test]
    fn no_key_and_number_leave_with_two_records(
        acts in proptest::collection::vec(act(), 1..60),
        suite in 0..Suite::ALL.len(),
    ) {
        let suite = Suite::ALL[suite];
        let (outgoing, incoming) = connection(suite, 1);
        let mut own = Caller { outgoing, incoming, released: Released::default(), content: 0 };
        for act in &acts {
            match act {
                Act::Freeze => {
                    let (outgoing, incoming) = connection(suite, 7);
                    let outgoing = std::mem::replace(&mut own.outgoing, outgoing);
                    let incoming = std::mem::replace(&mut own.incoming, incoming);
                    // One that cannot be frozen is closed.
                    let Ok(frozen) = freeze(outgoing, incoming) else { return Ok(()) };
                    (own.outgoing, own.incoming) = thaw(frozen.as_bytes()).unwrap();
                }
                act => own.act(act),
            }
        }
    }
}

/// In a release build the mistake is not loud, but it still uses no number twice.
#[test]
#[cfg_attr(debug_assertions, should_panic(expected = "settled with another connection"))]
fn a_record_is_not_settled_with_another_connection() {
    let suite = Suite::Tls13Aes128Gcm;
    let ((mut one, _), (mut other, _)) = (connection(suite, 1), connection(suite, 3));
    let of_one = one.seal([&b"one"[..]], &mut Vec::new()).unwrap();
    let of_other = other.seal([&b"other"[..]], &mut Vec::new()).unwrap();
    one.settle(of_other, 0);
    other.settle(of_one, 0);
    assert_eq!((one.fields().0, other.fields().0), (1, 1));
    assert_eq!(one.check(), Err(SealError::Unsettled));
    let closed = one.seal_alert(Alert::InternalError, &mut Vec::new());
    assert!(closed.is_err());
}

#[test]
fn a_connection_with_a_record_in_flight_is_not_frozen() {
    let (mut outgoing, incoming) = connection(Suite::Tls13Aes128Gcm, 1);
    let _sealed = outgoing.seal([&b"x"[..]], &mut Vec::new()).unwrap();
    assert!(freeze(outgoing, incoming).is_err());
}

#[test]
fn a_key_is_replaced_when_it_has_sealed_all_that_it_may() {
    for suite in Suite::ALL {
        let (_, mut incoming) = connection(suite, 1);
        let secret = [1; SECRET_BYTES_MAX];
        let secret = Secret::new(suite, &secret[..suite.secret_bytes()]).unwrap();
        let key = RecordKey::derive(suite, &secret);
        let mut outgoing = Outgoing::new(suite, key, suite.max_records() - 1);
        let mut out = Vec::new();
        let sealed = outgoing.seal([&b"last"[..]], &mut out).unwrap();
        // It is given back, and used again.
        assert_eq!(outgoing.settle(sealed, 0), RecordFate::NotAtAll);
        let sealed = outgoing.seal([&b"last"[..]], &mut out).unwrap();
        outgoing.keep(sealed);
        if suite.is_tls13() {
            assert_eq!(outgoing.check(), Err(SealError::KeyUpdateDue));
            incoming.seal_key_update(&mut outgoing, &mut out).unwrap();
            assert_eq!(outgoing.check(), Ok(()));
            assert_eq!(outgoing.fields().0, 0);
        } else {
            assert_eq!(outgoing.check(), Err(SealError::Exhausted));
            outgoing.seal_alert(Alert::CloseNotify, &mut out).unwrap();
        }
    }
}
