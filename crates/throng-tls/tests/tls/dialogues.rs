//! Random dialogues with rustls, in every suite and in both roles.

use proptest::prelude::*;
use rustls::Connection;
use throng_tls::{
    Established, Incoming, Outgoing, RecordFate, SealError, StreamEnd, Suite, freeze, thaw,
};

use crate::support::{ROLES, connect, feed, handshake, received, send, shake_hands, take};

/// One step of a dialogue.
#[derive(Clone, Debug)]
enum Step {
    /// We send this many bytes; the socket takes this many of each record in the first attempt.
    Send { bytes: usize, taken_first: usize },
    /// rustls sends this many bytes, which arrive in pieces of that length.
    Receive { bytes: usize, piece: usize },
    /// We change our key.
    UpdateKey,
    /// rustls changes its key, and asks us to change ours.
    PeerUpdatesKey,
    /// Another process goes on.
    Freeze,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..40_000_usize, 0..20_000_usize)
            .prop_map(|(bytes, taken_first)| Step::Send { bytes, taken_first }),
        2 => (1..300_usize, 0..40_usize)
            .prop_map(|(bytes, taken_first)| Step::Send { bytes, taken_first }),
        4 => (1..20_000_usize, 1..20_000_usize)
            .prop_map(|(bytes, piece)| Step::Receive { bytes, piece }),
        2 => (1..100_usize, 1..4_usize)
            .prop_map(|(bytes, piece)| Step::Receive { bytes, piece }),
        1 => Just(Step::UpdateKey),
        1 => Just(Step::PeerUpdatesKey),
        2 => Just(Step::Freeze),
    ]
}

/// Both sides, and what is between them.
struct Dialogue {
    outgoing: Outgoing,
    incoming: Incoming,
    other: Connection,
    /// The incomplete record that we keep.
    held: Vec<u8>,
    /// What we have opened and nobody has looked at.
    content: Vec<u8>,
}

impl Dialogue {
    fn new((own, other, behind): (Established, Connection, Vec<u8>)) -> Self {
        let Established { outgoing, incoming, .. } = own;
        let (held, content) = (Vec::new(), Vec::new());
        let mut dialogue = Self { outgoing, incoming, other, held, content };
        dialogue.arrive(&behind);
        dialogue
    }

    fn arrive(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        let opened = self.incoming.open(&mut self.outgoing, &mut self.held);
        assert_eq!(opened.end, None);
        self.content.extend_from_slice(&self.held[..opened.content_bytes]);
        self.held.drain(..opened.used_bytes);
    }

    /// Sends as a server does: what the socket does not take is thrown away or held.
    fn send(&mut self, content: &[u8], taken_first: usize) {
        let (mut rest, mut room, mut got) = (content, taken_first, Vec::new());
        while !rest.is_empty() {
            let mut out = Vec::new();
            if self.outgoing.check() == Err(SealError::KeyUpdateDue) {
                self.incoming.seal_key_update(&mut self.outgoing, &mut out).unwrap();
                feed(&mut self.other, &out).unwrap();
                out.clear();
            }
            // In two parts, as a shared frame and what is before it.
            let (front, back) = rest.split_at(rest.len() / 3);
            let sealed = self.outgoing.seal([front, back], &mut out).unwrap();
            assert_eq!(sealed.record_bytes(), out.len());
            assert!(out.len() <= sealed.content_bytes() + self.outgoing.suite().overhead_bytes());
            assert_eq!(self.outgoing.check(), Err(SealError::Unsettled));
            let (content_bytes, written) = (sealed.content_bytes(), out.len().min(room));
            // The next attempts find more room.
            room = room * 2 + 1;
            feed(&mut self.other, &out[..written]).unwrap();
            match self.outgoing.settle(sealed, written) {
                RecordFate::NotAtAll => {
                    assert_eq!(written, 0);
                    continue;
                }
                RecordFate::Part { rest_bytes } => {
                    assert_eq!(written + rest_bytes, out.len());
                    feed(&mut self.other, &out[written..]).unwrap();
                }
                RecordFate::Whole => assert_eq!(written, out.len()),
            }
            rest = &rest[content_bytes..];
            got.extend(received(&mut self.other));
        }
        assert!(got == content);
    }

    fn step(&mut self, step: &Step, fill: u8) {
        match *step {
            Step::Send { bytes, taken_first } => self.send(&vec![fill; bytes], taken_first),
            Step::Receive { bytes, piece } => {
                let content = vec![fill; bytes];
                for piece in send(&mut self.other, &content).chunks(piece) {
                    self.arrive(piece);
                }
                assert!(std::mem::take(&mut self.content) == content);
            }
            Step::UpdateKey => {
                let mut out = Vec::new();
                let done = self.incoming.seal_key_update(&mut self.outgoing, &mut out);
                assert_eq!(done.is_ok(), self.outgoing.suite().is_tls13());
                feed(&mut self.other, &out).unwrap();
            }
            Step::PeerUpdatesKey => {
                if self.other.refresh_traffic_keys().is_ok() {
                    let mut records = Vec::new();
                    take(&mut self.other, &mut records);
                    self.arrive(&records);
                    assert_eq!(self.outgoing.check(), Err(SealError::KeyUpdateDue));
                }
            }
            Step::Freeze => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 16,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn rustls_understands_us_and_we_it(steps in proptest::collection::vec(step(), 1..24)) {
        for suite in Suite::ALL {
            for role in ROLES {
                let mut dialogue = Dialogue::new(connect(suite, role));
                for (index, step) in steps.iter().enumerate() {
                    if matches!(step, Step::Freeze) {
                        let frozen = freeze(dialogue.outgoing, dialogue.incoming).unwrap();
                        (dialogue.outgoing, dialogue.incoming) = thaw(frozen.as_bytes()).unwrap();
                        assert_eq!(dialogue.incoming.role(), role);
                    } else {
                        dialogue.step(step, index as u8);
                    }
                }
                close(dialogue);
            }
        }
    }
}

/// Both ends say that they are done, and each hears it.
fn close(mut dialogue: Dialogue) {
    assert_eq!(dialogue.incoming.stream_end(), StreamEnd::Truncated);
    dialogue.other.send_close_notify();
    let mut records = Vec::new();
    take(&mut dialogue.other, &mut records);
    let opened = dialogue.incoming.open(&mut dialogue.outgoing, &mut records);
    assert_eq!((opened.content_bytes, opened.end), (0, Some(throng_tls::End::Closed)));
    assert_eq!(dialogue.incoming.stream_end(), StreamEnd::Clean);

    let mut out = Vec::new();
    dialogue.outgoing.seal_alert(throng_tls::Alert::CloseNotify, &mut out).unwrap();
    let mut records = &out[..];
    dialogue.other.read_tls(&mut records).unwrap();
    assert!(dialogue.other.process_new_packets().unwrap().peer_has_closed());
    assert_eq!(dialogue.outgoing.check(), Err(SealError::Closed));
}

/// What rustls sends is cut into two at every byte, and the state is frozen between.
#[test]
fn a_stream_may_be_cut_at_every_byte() {
    for suite in Suite::ALL {
        for role in ROLES {
            let (established, mut other, mut stream) = connect(suite, role);
            let frozen = freeze(established.outgoing, established.incoming).unwrap();
            stream.extend(send(&mut other, b"one"));
            if suite.is_tls13() {
                other.refresh_traffic_keys().unwrap();
            }
            stream.extend(send(&mut other, b", two"));
            stream.extend(send(&mut other, b" and three"));
            other.send_close_notify();
            take(&mut other, &mut stream);

            for cut in 0..=stream.len() {
                let (mut outgoing, mut incoming) = thaw(frozen.as_bytes()).unwrap();
                let mut front = stream[..cut].to_vec();
                let first = incoming.open(&mut outgoing, &mut front);
                let mut content = front[..first.content_bytes].to_vec();
                let is_whole = cut == stream.len();
                assert_eq!(first.end.is_some(), is_whole, "{suite:?} {role:?} {cut}");
                let end = if is_whole { StreamEnd::Clean } else { StreamEnd::Truncated };
                assert_eq!(incoming.stream_end(), end);

                let held = &front[first.used_bytes..];
                let mut rest = [held, &stream[cut..]].concat();
                let frozen = freeze(outgoing, incoming).unwrap();
                let (mut outgoing, mut incoming) = thaw(frozen.as_bytes()).unwrap();
                let second = incoming.open(&mut outgoing, &mut rest);
                content.extend_from_slice(&rest[..second.content_bytes]);
                assert_eq!(content, b"one, two and three", "{suite:?} {role:?} {cut}");
                assert_eq!(incoming.stream_end(), StreamEnd::Clean);
                let due = if suite.is_tls13() { Err(SealError::KeyUpdateDue) } else { Ok(()) };
                assert_eq!(outgoing.check(), due);
            }
        }
    }
}

/// Handshake and dialogue in pieces of every small size.
#[test]
fn bytes_may_come_one_at_a_time() {
    for suite in Suite::ALL {
        for role in ROLES {
            for piece in [1, 2, 3, 7, 100] {
                let (own, mut other, _) = handshake(suite, role);
                let (established, behind) = shake_hands(own, &mut other, piece);
                let mut dialogue = Dialogue::new((established, other, behind));
                dialogue.step(&Step::PeerUpdatesKey, 1);
                dialogue.step(&Step::Receive { bytes: 50, piece }, 2);
                dialogue.step(&Step::Send { bytes: 50, taken_first: piece }, 3);
                close(dialogue);
            }
        }
    }
}
