//! The entries of a stream about a channel's state: the newest message of each key.
//!
//! Each message of a channel that keeps a state says in a header, its [link](super::link), what
//! came before it. The newest message of a key is there a second time, as a **copy** under a
//! subject of the key, which outlives the channel's limits. A **record** beside the copies is
//! written with each message, so all that is known of a state changes in one step.
//!
//! # How nothing is missed that nobody counts
//!
//! A message that is gone was superseded, erased, or dropped, and no count tells these apart. So a
//! reader goes from message to message: each link names the message before, and the newest one
//! before that no other can supersede, because it has no key. Where all that is named was read or
//! erased, nothing is missing but messages with keys, whose newest have copies. Tombstones have
//! copies that are not renewed: they prove something only as far back as the stream goes.

use serde::{Deserialize, Serialize};

use super::beside::Found;
use super::link::{self, Link, Place};
use super::message::{self, StoredMessage};
use crate::protocol::headers::{HeaderWriter, Headers};

/// The message that a copy is of, and the bytes that it counts as; of a renewed copy also its time.
const COPY: &str = "Throng-Copy";

/// The batch of a message, the sequence that the record had before, and the place in the batch.
pub(crate) fn batch_of(found: &Found) -> Option<(String, u64, u64)> {
    let headers = Headers::new(&found.headers);
    let mut fields = headers.get(link::LINK)?.split(' ');
    let (batch, record) = (fields.next()?, fields.next()?.parse().ok()?);
    Some((batch.to_owned(), record, fields.nth(2)?.parse().ok()?))
}

/// The link of a message.
pub(crate) fn link_of(found: &Found) -> Option<Link> {
    Link::read(Headers::new(&found.headers).get(link::LINK)?, found.sequence)
}

/// Adds what says that a message is a copy.
pub(crate) fn copied(headers: HeaderWriter, of: Place, bytes: u64) -> HeaderWriter {
    headers.field(COPY, format_args!("{of} {bytes}"))
}

/// The newest message of a key, with what its copy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateCopy {
    /// With the sequence of the message, not of the copy.
    pub(crate) message: StoredMessage,
    /// The bytes that it counts as.
    pub(crate) bytes: u64,
    /// True if the copy was written again later than with its message.
    pub(crate) is_renewed: bool,
}

impl StateCopy {
    /// Reads a copy; `None` if it is none.
    pub(crate) fn read(headers: Headers<'_>, payload: &[u8]) -> Option<StateCopy> {
        let mut message = message::parse(headers, payload)?;
        let mut fields = headers.get(COPY)?.split(' ');
        let of = Place::read(fields.next()?)?;
        let bytes = fields.next()?.parse().ok()?;
        message.sequence = of.sequence(message.sequence);
        let time_ms = fields.next().and_then(|time| time.parse().ok());
        message.wall_ms = time_ms.unwrap_or(message.wall_ms);
        message.key()?;
        Some(StateCopy { message, bytes, is_renewed: time_ms.is_some() })
    }

    /// The copy that the leader gives. Its time is not there, unless it was renewed.
    pub(crate) fn of(found: &Found) -> Option<StateCopy> {
        let sequence = format!("Nats-Sequence: {}\r\n\r\n", found.sequence);
        let block = found.headers.strip_suffix(b"\r\n").unwrap_or(&found.headers);
        let block = [block, sequence.as_bytes()].concat();
        let mut copy = StateCopy::read(Headers::new(&block), &found.data)?;
        if !copy.is_renewed {
            copy.message.wall_ms = found.wall_ms;
        }
        Some(copy)
    }

    /// The headers of the copy that renews this one, after others.
    pub(crate) fn renewed(&self, headers: HeaderWriter, block: Headers<'_>) -> Vec<u8> {
        let StateCopy { message, bytes, .. } = self;
        let own = format!("{} {bytes} {}", message.sequence, message.wall_ms);
        message::described_again(headers, block).field(COPY, own).finish()
    }

    pub(crate) fn key(&self) -> &str {
        self.message.key().unwrap_or_default()
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.message.removes_key()
    }

    /// True if it is a value that has not expired at a time of the servers.
    pub(crate) fn is_value_at(&self, server_ms: u64) -> bool {
        !self.is_tombstone()
            && self.message.expires_wall_ms().is_none_or(|expires_ms| expires_ms > server_ms)
    }
}

/// The record of a state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StateRecord {
    /// Keys that have values.
    pub(crate) keys: u64,
    /// Bytes of those values.
    pub(crate) bytes: u64,
    /// Those of them that expire.
    pub(crate) expiring: u64,
    /// Keys that have tombstones, at most.
    pub(crate) removed: u64,
    /// Tombstones up to this message may be gone.
    pub(crate) floor: u64,
    /// Copies of messages up to this one mean nothing: their history was erased.
    pub(crate) base: u64,
    /// The newest message of the channel.
    pub(crate) head: Place,
    /// The newest one without a key.
    pub(crate) plain: Place,
    /// The batch that it was written with.
    pub(crate) batch: String,
    /// Its sequence when it was written, if it was written again since.
    pub(crate) renews: u64,
}

/// A record, as it is in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownState {
    /// The sequence of its message.
    pub(crate) sequence: u64,
    /// Its places are sequences.
    pub(crate) record: StateRecord,
}

impl KnownState {
    /// Reads a record; `None` if it cannot be read.
    pub(crate) fn read(sequence: u64, data: &[u8]) -> Option<KnownState> {
        let mut record: StateRecord = serde_json::from_slice(data).ok()?;
        let written = if record.renews > 0 { record.renews } else { sequence };
        record.head = Place::at(record.head.sequence(written));
        record.plain = Place::at(record.plain.sequence(written));
        Some(KnownState { sequence, record })
    }

    pub(crate) fn head(&self) -> u64 {
        self.record.head.sequence(0)
    }

    pub(crate) fn plain(&self) -> u64 {
        self.record.plain.sequence(0)
    }

    /// The sequence that it had when it was written.
    pub(crate) fn written(&self) -> u64 {
        if self.record.renews > 0 { self.record.renews } else { self.sequence }
    }

    /// The record that is written in its place, with the same content.
    pub(crate) fn renewed(&self) -> Vec<u8> {
        StateRecord { renews: self.written(), ..self.record.clone() }.block()
    }
}

impl StateRecord {
    pub(crate) fn block(&self) -> Vec<u8> {
        // Texts and numbers always become JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use throng_core::{Attributes, Body, ChannelName, Publication};

    use super::*;

    fn publication() -> Publication {
        let attributes = Attributes::of(&[(4, b"ACME")]).ok();
        let body = Body::Text("187.4".into());
        let channel = ChannelName::channel("prices");
        Publication { attributes, ..Publication::new(channel, body) }
    }

    #[test]
    fn a_place_is_a_sequence_or_a_distance() {
        let places = [Place::at(7), Place::before(3), Place::default(), Place::before(99)];
        assert_eq!(places.map(|place| place.sequence(10)), [7, 7, 0, 0]);
    }

    #[test]
    fn kept_states_are_read() {
        let header = || HeaderWriter::default();
        let text = |block: Vec<u8>| String::from_utf8(block).expect("it is text");
        let places = [Place::before(1), Place::at(4)];
        let linked = link::linked(header(), ("node.s1", 6, 1), places).finish();
        let described = message::published(header(), &publication());
        let copied = copied(described.clone(), Place::before(2), 80).finish();
        let record = StateRecord {
            keys: 2,
            bytes: 200,
            expiring: 1,
            removed: 1,
            floor: 3,
            base: 1,
            head: Place::before(3),
            plain: Place::at(4),
            batch: "node.s1".into(),
            renews: 0,
        };
        let lines = [linked, copied, record.block()].map(text);
        let lines = lines.map(|line| serde_json::Value::from(line).to_string());
        let kept = crate::kept::lines("states", &lines);
        let [linked, copied, block] = &kept[..] else { panic!("{kept:?}") };
        let read = |line: &str| -> String { serde_json::from_str(line).expect("it is a text") };
        let (linked, copied, block) = (read(linked), read(copied), read(block));
        let found = |headers: &str| Found {
            sequence: 10,
            subject: String::new(),
            headers: headers.as_bytes().to_vec(),
            data: b"187.4".to_vec(),
            wall_ms: 5_000,
        };
        assert_eq!(batch_of(&found(&linked)), Some(("node.s1".to_owned(), 6, 1)));
        assert_eq!(link_of(&found(&linked)), Some(Link { before: 9, plain: 4 }));
        let copy = StateCopy::of(&found(&copied)).expect("it is one");
        assert_eq!((copy.message.sequence, copy.bytes, copy.key()), (8, 80, "ACME"));
        assert_eq!((copy.message.wall_ms, copy.is_renewed), (5_000, false));
        // A renewed copy is of the same message, and says when that was published.
        let again = text(copy.renewed(header(), Headers::new(copied.as_bytes())));
        let again = StateCopy::of(&Found { sequence: 20, wall_ms: 9_000, ..found(&again) });
        assert_eq!(again, Some(StateCopy { is_renewed: true, ..copy }));
        let known = KnownState::read(10, block.as_bytes()).expect("it is one");
        assert_eq!((known.head(), known.plain(), known.written()), (7, 4, 10));
        let again = KnownState::read(30, &known.renewed()).expect("it is one");
        assert_eq!((again.head(), again.plain(), again.written()), (7, 4, 10));
    }
}
