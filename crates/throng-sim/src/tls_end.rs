//! The client's side of a TLS connection, inside its pipe.
//!
//! It opens every record as soon as the server has written it, whether the client reads or not: a
//! record that was sealed with a key and number that are not those that follow does not open. So
//! whatever happens to a connection, across handoffs and frozen state, no two records that leave
//! may share them. [`Positions`] checks the same for all connections of a world together.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use throng_tls::{
    Acceptor, Alert, Connector, End, Established, Handshake, Incoming, Outgoing, RECORD_BYTES_MAX,
    Suite, testing,
};

use crate::random::Random;

/// The header of a record, whose last two bytes are the length of what follows.
const HEADER_BYTES: usize = 5;

/// How many records without content a client sends before it sends content again: fewer than the
/// server allows.
const UPDATES_MAX: u32 = 20;

/// The keys and numbers of all records that servers of a world have written.
#[derive(Debug, Default)]
pub(crate) struct Positions(RefCell<HashSet<(Vec<u8>, u64)>>);

impl Positions {
    /// A record was written with this key and number, which must be the first one.
    fn take(&self, position: (Vec<u8>, u64)) {
        let number = position.1;
        let is_first = self.0.borrow_mut().insert(position);
        assert!(is_first, "two TLS records have the same key, and the number {number}");
    }

    /// How many records were written.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

/// How far the client is.
enum Side {
    Shaking(Box<Handshake>),
    Done(Outgoing, Incoming),
}

/// The client's side of one connection.
pub(crate) struct TlsEnd {
    side: Option<Side>,
    /// Content to send once the handshake is done.
    unsent: Vec<u8>,
    /// The beginning of a record that the server has written in part.
    record: Vec<u8>,
    /// Content that was opened, each part with the position of its record's last byte in all that
    /// the server has written.
    opened: VecDeque<(u64, Vec<u8>)>,
    written_bytes: u64,
    read_bytes: u64,
    /// The number of bytes of content in whole records.
    pub(crate) content_bytes: u64,
    /// Records that the client has sent since its last content.
    updates: u32,
    /// True if the server has said that it sends no more.
    pub(crate) is_told_end: bool,
    /// The number of times that the server went on with another key.
    pub(crate) key_updates: u64,
    /// The most bytes that the server reads at once.
    pub(crate) read_bytes_max: usize,
    random: Random,
    positions: Rc<Positions>,
}

impl TlsEnd {
    /// A client that begins its handshake, and what it sends for that.
    pub(crate) fn begin(
        connector: &Connector,
        positions: &Rc<Positions>,
        mut random: Random,
    ) -> (TlsEnd, Vec<u8>) {
        let mut handshake = testing::client(connector);
        let mut hello = Vec::new();
        handshake.advance(&[], &mut hello).expect("a client speaks first");
        let end = TlsEnd {
            side: Some(Side::Shaking(Box::new(handshake))),
            unsent: Vec::new(),
            record: Vec::new(),
            opened: VecDeque::new(),
            written_bytes: 0,
            read_bytes: 0,
            content_bytes: 0,
            updates: 0,
            is_told_end: false,
            key_updates: 0,
            read_bytes_max: random.pick(&[usize::MAX, usize::MAX, 700, 7]),
            random,
            positions: Rc::clone(positions),
        };
        (end, hello)
    }

    /// True if the client's handshake is done.
    pub(crate) fn is_established(&self) -> bool {
        matches!(self.side, Some(Side::Done(..)))
    }

    /// The number of bytes that are missing of a record that was written in part.
    pub(crate) fn missing_bytes(&self) -> usize {
        match self.record.first_chunk::<HEADER_BYTES>() {
            Some(header) => record_bytes(header) - self.record.len(),
            None => 0,
        }
    }

    /// True if a record was written in part, which may have content that nobody opens.
    pub(crate) fn has_part(&self) -> bool {
        !self.record.is_empty()
    }

    /// The most bytes of content that a record which was written in part may have.
    pub(crate) fn part_bytes_max(&self) -> u64 {
        match self.record.first_chunk::<HEADER_BYTES>() {
            _ if self.record.is_empty() || !self.is_established() => 0,
            Some(header) => record_bytes(header) as u64,
            None => RECORD_BYTES_MAX as u64,
        }
    }

    /// The client sends content: returns its records. Some come with a new key.
    pub(crate) fn send(&mut self, content: impl IntoIterator<Item = u8>) -> Vec<u8> {
        self.unsent.extend(content);
        self.seal()
    }

    fn seal(&mut self) -> Vec<u8> {
        let mut records = Vec::new();
        let Some(Side::Done(outgoing, incoming)) = &mut self.side else { return records };
        if self.random.percent(10) && self.updates < UPDATES_MAX && outgoing.suite().is_tls13() {
            self.updates += 1;
            if self.random.percent(50) {
                testing::ask_for_key_update(outgoing, incoming, &mut records);
            } else {
                incoming.seal_key_update(outgoing, &mut records).expect("nothing is open");
            }
        }
        while !self.unsent.is_empty() {
            if outgoing.check().is_err() {
                let updated = incoming.seal_key_update(outgoing, &mut records);
                updated.expect("only a key update is due");
            }
            let sealed = outgoing.seal([&self.unsent[..]], &mut records);
            let sealed = sealed.expect("nothing is open");
            self.unsent.drain(..sealed.content_bytes());
            outgoing.keep(sealed);
            self.updates = 0;
        }
        records
    }

    /// The client sends no more: it sometimes says so, and is cut off otherwise.
    pub(crate) fn end(&mut self) -> Vec<u8> {
        let mut record = Vec::new();
        let says_so = self.random.percent(50);
        if let Some(Side::Done(outgoing, _)) = self.side.as_mut().filter(|_| says_so) {
            outgoing.seal_alert(Alert::CloseNotify, &mut record).expect("nothing is open");
        }
        record
    }

    /// The server has written bytes. Returns what the client answers at once.
    pub(crate) fn take(&mut self, bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
        let before = self.record.len();
        self.record.extend(bytes);
        self.written_bytes += (self.record.len() - before) as u64;
        let mut answer = Vec::new();
        if let Some(Side::Shaking(mut handshake)) =
            self.side.take_if(|side| matches!(side, Side::Shaking(_)))
        {
            let progress = handshake.advance(&self.record, &mut answer);
            let progress = progress.expect("the server's handshake is right");
            self.record.drain(..progress.used_bytes);
            if !progress.is_done {
                self.side = Some(Side::Shaking(handshake));
                return answer;
            }
            let Established { outgoing, incoming, .. } =
                handshake.finish().expect("the handshake is done");
            self.side = Some(Side::Done(outgoing, incoming));
            answer.extend(self.seal());
        }
        self.open();
        answer
    }

    /// Opens the whole records, one after the other.
    fn open(&mut self) {
        let Some(Side::Done(outgoing, incoming)) = &mut self.side else { return };
        let mut rest = std::mem::take(&mut self.record);
        while let Some(header) = rest.first_chunk::<HEADER_BYTES>() {
            let length = record_bytes(header);
            if rest.len() < length {
                break;
            }
            assert!(!self.is_told_end, "a record follows the end of TLS");
            let position = testing::next_position(incoming);
            let key = position.0.clone();
            self.positions.take(position);
            let opened = incoming.open(outgoing, &mut rest[..length]);
            match opened.end {
                None => {}
                Some(End::Closed) => self.is_told_end = true,
                Some(end) => panic!("a client cannot open what the server wrote: {end:?}"),
            }
            self.key_updates += u64::from(testing::next_position(incoming).0 != key);
            let behind = (rest.len() - length) as u64;
            self.content_bytes += opened.content_bytes as u64;
            let content = rest[..opened.content_bytes].to_vec();
            self.opened.push_back((self.written_bytes - behind, content));
            rest.drain(..length);
        }
        self.record = rest;
    }

    /// The client reads `count` of the bytes that the server has written: returns the content of
    /// the records that are complete with them.
    pub(crate) fn read(&mut self, count: usize) -> Vec<u8> {
        self.read_bytes += count as u64;
        let mut content = Vec::new();
        while self.opened.front().is_some_and(|(end, _)| *end <= self.read_bytes) {
            content.extend(self.opened.pop_front().into_iter().flat_map(|(_, part)| part));
        }
        content
    }
}

impl std::fmt::Debug for TlsEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsEnd")
            .field("record_bytes", &self.record.len())
            .field("is_established", &self.is_established())
            .field("unsent_bytes", &self.unsent.len())
            .finish_non_exhaustive()
    }
}

/// The length of a record with its header.
fn record_bytes(header: &[u8; HEADER_BYTES]) -> usize {
    HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]]))
}

/// State that all TLS connections of a world share: one suite, one certificate.
pub(crate) struct TlsWorld {
    pub(crate) acceptor: Acceptor,
    connector: Connector,
    pub(crate) positions: Rc<Positions>,
    random: Random,
}

impl TlsWorld {
    /// With a suite chosen at random.
    pub(crate) fn new(mut random: Random) -> TlsWorld {
        let (acceptor, connector) = testing::peers(random.pick(&Suite::ALL));
        TlsWorld { acceptor, connector, positions: Rc::default(), random }
    }

    /// A client's side, and what it sends first.
    pub(crate) fn client(&mut self) -> (TlsEnd, Vec<u8>) {
        let random = Random::new(self.random.below(usize::MAX) as u64);
        TlsEnd::begin(&self.connector, &self.positions, random)
    }
}
