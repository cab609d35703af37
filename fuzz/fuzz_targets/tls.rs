//! TLS records: nothing panics, what is opened does not depend on how the bytes are cut, and what
//! this server accepts, rustls accepts, with the same content.
//!
//! Input: one byte for the suite, one for the length of the pieces, then steps of a client: see
//! `next_step`. The client has the right keys, so that its records reach what is behind the seal.

#![no_main]

use std::cell::RefCell;
use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use throng_tls::{End, Incoming, Outgoing, StreamEnd, Suite, freeze, thaw};

#[allow(dead_code)]
#[path = "../../crates/throng-tls/tests/tls/support.rs"]
mod support;

use support::{Forger, feed, received};

/// More records than this make an input slow, not telling.
const STEPS_MAX: usize = 100;

/// rustls allows four warnings, this server more, but not in a row.
const WARNINGS_MAX: usize = 4;

thread_local! {
    /// A server and its client after the handshake, by suite: the frozen form makes them again.
    static STARTED: RefCell<HashMap<u8, (Vec<u8>, Forger)>> = RefCell::default();
}

fn start(suite: Suite) -> (Outgoing, Incoming, Forger) {
    STARTED.with_borrow_mut(|started| {
        let (frozen, forger) = started.entry(suite as u8).or_insert_with(|| {
            let (own, forger) = Forger::connect(suite, throng_tls::Role::Server);
            let frozen = freeze(own.outgoing, own.incoming).expect("nothing was sealed");
            (frozen.as_bytes().to_vec(), forger)
        });
        let (outgoing, incoming) = thaw(frozen).expect("it was frozen here");
        (outgoing, incoming, forger.clone())
    })
}

/// What a client does.
enum Step<'a> {
    /// Sends a record of this type, with this content and padding; this bit of it is wrong.
    Seal(u8, &'a [u8], usize, Option<usize>),
    /// Goes on with its next key.
    UpdateKey,
    /// Sends bytes that are not sealed.
    Raw(&'a [u8]),
}

fn next_step<'a>(data: &mut &'a [u8]) -> Option<Step<'a>> {
    let (&[kind, length], rest) = data.split_first_chunk()?;
    let (content, rest) = rest.split_at(usize::from(length).min(rest.len()));
    *data = rest;
    Some(match kind {
        0..200 => Step::Seal(20 + kind % 5, content, usize::from(kind / 5), None),
        200..230 => Step::Seal(kind % 2 + 22, content, 0, Some(usize::from(length) * 7)),
        230..245 => Step::UpdateKey,
        245.. => Step::Raw(content),
    })
}

fn record(forger: &mut Forger, step: &Step<'_>) -> Vec<u8> {
    match *step {
        Step::Seal(content_type, content, padding, wrong_bit) => {
            let mut record = forger.seal(content_type, content, padding);
            if let Some(bit) = wrong_bit {
                let bit = bit % (record.len() * 8);
                record[bit / 8] ^= 1 << (bit % 8);
            }
            record
        }
        Step::UpdateKey => {
            forger.update_key();
            Vec::new()
        }
        Step::Raw(bytes) => bytes.to_vec(),
    }
}

/// What a server made of a stream.
#[derive(Debug, PartialEq)]
struct Outcome {
    content: Vec<u8>,
    end: Option<End>,
    stream_end: StreamEnd,
    /// Whether the stream ends within a record.
    is_cut: bool,
}

fn open(suite: Suite, steps: &[Step<'_>], piece: usize) -> Outcome {
    let (mut outgoing, mut incoming, mut forger) = start(suite);
    let stream: Vec<u8> = steps.iter().flat_map(|step| record(&mut forger, step)).collect();
    let (mut held, mut content, mut end) = (Vec::new(), Vec::new(), None);
    for piece in stream.chunks(piece) {
        held.extend_from_slice(piece);
        let opened = incoming.open(&mut outgoing, &mut held);
        assert!(opened.content_bytes <= opened.used_bytes && opened.used_bytes <= held.len());
        content.extend_from_slice(&held[..opened.content_bytes]);
        held.drain(..opened.used_bytes);
        assert!(held.len() <= throng_tls::RECORD_BYTES_MAX);
        end = end.or(opened.end);
    }
    let is_cut = end.is_none() && !held.is_empty();
    Outcome { content, end, stream_end: incoming.stream_end(), is_cut }
}

fuzz_target!(|data: &[u8]| {
    let [suite, piece, data @ ..] = data else { return };
    let suite = Suite::ALL[usize::from(*suite) % Suite::ALL.len()];
    let mut data = data;
    let steps: Vec<Step<'_>> = std::iter::from_fn(|| next_step(&mut data))
        .filter(|step| suite.is_tls13() || !matches!(step, Step::UpdateKey))
        .take(STEPS_MAX)
        .collect();

    let own = open(suite, &steps, usize::MAX);
    assert_eq!(own, open(suite, &steps, usize::from(*piece) + 1));

    let warnings = steps.iter().filter(|step| matches!(step, Step::Seal(21, [1, _], ..)));
    if matches!(own.end, Some(End::Failed(_))) || warnings.count() > WARNINGS_MAX {
        return;
    }
    let (mut server, mut forger) = Forger::connect_to_rustls(suite);
    let (mut content, mut result) = (Vec::new(), Ok(()));
    for step in &steps {
        result = result.and_then(|()| feed(&mut server, &record(&mut forger, step)));
        content.extend(received(&mut server));
    }
    match own.end {
        Some(End::PeerFailed(_)) => assert!(result.is_err(), "rustls knows no fatal alert"),
        // rustls may refuse a record before its header is complete.
        _ if own.is_cut => {}
        _ => assert_eq!(result, Ok(())),
    }
    assert_eq!(own.content, content);
});
