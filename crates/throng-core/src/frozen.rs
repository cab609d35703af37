//! State as bytes, so that another process can go on with it: logs, subscriptions, connections.
//!
//! Frozen state is a sequence of **records**. The first byte of a record is its [`RecordKind`];
//! the transport keeps records apart, and passes a descriptor beside each connection's record. The
//! first record of a sequence has the version of the format. `docs/reference/frozen-state.md`
//! describes all records byte by byte, `docs/reference/formats.md` the promise.
//!
//! # Contract
//!
//! * Integers are little-endian. Texts and bytes have their length before them.
//! * No input panics or allocates more than a small multiple of its own length: bytes that end
//!   early, have an unknown value or have something behind their end are an error.
//! * A change of a record raises [`VERSION`]. Readers of a version read all lower ones.
//!
//! | module | what it is |
//! |---|---|
//! | `content` | names and messages |

mod content;

pub(crate) use content::{Head, encode_content_at};

pub use content::{OFFSET_MAX, decode_content, decode_name, encode_content, encode_name};

/// The version of the format that this build writes, and the newest one that it reads.
pub const VERSION: u16 = 11;

/// The bytes after the kind of a sequence's first record. Builds from before version 0.1.0, which
/// counted otherwise, wrote `throng`.
const MAGIC: &[u8; 6] = b"frozen";

/// Why bytes are not frozen state that this build can read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ThawError {
    /// A newer version of the program wrote it.
    #[error("it was written by a newer version: format {0}, and this build reads up to {VERSION}")]
    Newer(u16),
    /// The bytes end early.
    #[error("it ends early")]
    Truncated,
    /// A value that the format does not allow. The field says which.
    #[error("it is not valid: {0}")]
    Invalid(&'static str),
}

/// The kinds of records, by the number in their first byte. A number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// The first record of an engine.
    Engine = 1,
    /// A channel of an engine; its messages follow.
    Channel = 2,
    /// A message of the channel before it, in an engine or in a worker.
    Message = 3,
    /// The idempotency key of a publication.
    IdempotencyKey = 4,
    /// The last record of an engine.
    EngineEnd = 5,
    /// The first record of a segment: messages of an engine in memory that two processes share.
    Segment = 6,
    /// A message in a segment.
    SealedMessage = 7,
    /// A segment whose messages an engine refers to.
    SegmentInUse = 8,
    /// Messages of the channel before it that are in a segment.
    SealedMessages = 9,
    /// Channels of a shard of an engine that were forgotten, and since when they had no message.
    QuietChannels = 10,
    /// Members of a channel of an engine.
    Members = 11,
    /// How far a user of an engine has read channels.
    Markers = 12,
    /// Where a user of an engine goes on in channels.
    Bookmarks = 13,
    /// A user of an engine whom others watch.
    Watched = 14,
    /// The first record of a worker.
    Worker = 16,
    /// A channel that a worker follows; the messages of its replay buffer follow.
    FollowedChannel = 17,
    /// A message that some connections have been written in part.
    PartialMessage = 18,
    /// A connection. Its socket travels beside it.
    Connection = 19,
    /// The last record of a worker.
    WorkerEnd = 20,
    /// The grants of tokens that connections of a worker have shown.
    Grants = 21,
    /// The name of the user of the connection that follows.
    User = 22,
    /// When the connections of a worker were accepted.
    Acceptances = 23,
    /// The first record of what subscribers of presence events have been told.
    PresenceEvents = 32,
    /// A channel whose presence events somebody follows.
    WatchedChannel = 33,
    /// The first record of a node of several: what it knows of the stream.
    Node = 48,
    /// Another node that it knows.
    OtherNode = 49,
    /// A channel that it follows in the stream.
    StreamChannel = 50,
    /// The last record of a node.
    NodeEnd = 51,
}

impl RecordKind {
    const ALL: [RecordKind; 28] = [
        RecordKind::Engine,
        RecordKind::Channel,
        RecordKind::Message,
        RecordKind::IdempotencyKey,
        RecordKind::EngineEnd,
        RecordKind::Segment,
        RecordKind::SealedMessage,
        RecordKind::SegmentInUse,
        RecordKind::SealedMessages,
        RecordKind::QuietChannels,
        RecordKind::Members,
        RecordKind::Markers,
        RecordKind::Bookmarks,
        RecordKind::Watched,
        RecordKind::Worker,
        RecordKind::FollowedChannel,
        RecordKind::PartialMessage,
        RecordKind::Connection,
        RecordKind::WorkerEnd,
        RecordKind::Grants,
        RecordKind::User,
        RecordKind::Acceptances,
        RecordKind::PresenceEvents,
        RecordKind::WatchedChannel,
        RecordKind::Node,
        RecordKind::OtherNode,
        RecordKind::StreamChannel,
        RecordKind::NodeEnd,
    ];
}

/// Writes one record.
#[derive(Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// An empty record of a kind.
    pub fn new(kind: RecordKind) -> Encoder {
        Encoder { bytes: vec![kind as u8] }
    }

    /// An empty record of a kind, with room for this many bytes.
    pub fn with_capacity(kind: RecordKind, bytes: usize) -> Encoder {
        let mut record = Vec::with_capacity(bytes);
        record.push(kind as u8);
        Encoder { bytes: record }
    }

    /// An empty record of a kind, in the memory of one that is not needed any more.
    pub fn reusing(kind: RecordKind, mut memory: Vec<u8>) -> Encoder {
        memory.clear();
        memory.push(kind as u8);
        Encoder { bytes: memory }
    }

    /// The first record of a sequence, with the version of the format.
    pub fn first(kind: RecordKind) -> Encoder {
        let mut encoder = Encoder::new(kind);
        encoder.bytes.extend_from_slice(MAGIC);
        encoder.u16(VERSION);
        encoder
    }

    /// Appends a byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends bytes of a length that the reader knows.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a length in four bytes, then the bytes, of which there are less than 4 GiB.
    pub fn bytes(&mut self, bytes: &[u8]) {
        debug_assert!(u32::try_from(bytes.len()).is_ok());
        self.u32(bytes.len() as u32);
        self.raw(bytes);
    }

    /// The finished record.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads one record.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// The record and its kind.
    pub fn new(record: &'a [u8]) -> Result<(RecordKind, Decoder<'a>), ThawError> {
        let mut decoder = Decoder { rest: record };
        let number = decoder.u8()?;
        let kind = RecordKind::ALL.into_iter().find(|&kind| kind as u8 == number);
        Ok((kind.ok_or(ThawError::Invalid("an unknown kind of record"))?, decoder))
    }

    /// Bytes without a kind in front.
    pub(crate) fn of(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { rest: bytes }
    }

    /// The number of bytes that have not been read.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The version in the first record of a sequence, if this build reads it.
    pub fn version(&mut self) -> Result<u16, ThawError> {
        if self.raw(MAGIC.len())? != MAGIC {
            return Err(ThawError::Invalid("it is no frozen state"));
        }
        match self.u16()? {
            0 => Err(ThawError::Invalid("version 0")),
            newer if newer > VERSION => Err(ThawError::Newer(newer)),
            known => Ok(known),
        }
    }

    /// The next bytes, of a known number.
    pub fn raw(&mut self, count: usize) -> Result<&'a [u8], ThawError> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(ThawError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ThawError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(ThawError::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, ThawError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, ThawError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, ThawError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, ThawError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The next bytes, behind their length in four bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8], ThawError> {
        let count = self.u32()? as usize;
        self.raw(count)
    }

    /// The next text, as [`Decoder::bytes`].
    pub fn text(&mut self) -> Result<&'a str, ThawError> {
        text(self.bytes()?)
    }

    /// True if the record ends here.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Fails unless the record ends here.
    pub fn finish(self) -> Result<(), ThawError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(ThawError::Invalid("something follows the end of a record"))
        }
    }
}

fn text(bytes: &[u8]) -> Result<&str, ThawError> {
    std::str::from_utf8(bytes).map_err(|_| ThawError::Invalid("a text that is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(record: &[u8]) -> Result<RecordKind, ThawError> {
        Decoder::new(record).map(|(kind, _)| kind)
    }

    #[test]
    fn values_come_out_as_they_went_in() {
        let mut encoder = Encoder::new(RecordKind::Connection);
        encoder.u8(0xfe);
        encoder.u16(0xfedc);
        encoder.u32(0xfedc_ba98);
        encoder.u64(0xfedc_ba98_7654_3210);
        encoder.bytes(b"bytes");
        encoder.bytes("text \u{fe}".as_bytes());
        let record = encoder.finish();
        let (kind, mut decoder) = Decoder::new(&record).unwrap();
        assert_eq!(kind, RecordKind::Connection);
        assert_eq!((decoder.u8(), decoder.u16()), (Ok(0xfe), Ok(0xfedc)));
        assert_eq!((decoder.u32(), decoder.u64()), (Ok(0xfedc_ba98), Ok(0xfedc_ba98_7654_3210)));
        assert_eq!((decoder.bytes(), decoder.text()), (Ok(&b"bytes"[..]), Ok("text \u{fe}")));
        assert_eq!(decoder.finish(), Ok(()));
    }

    #[test]
    fn newer_versions_and_foreign_bytes_are_refused() {
        let first = Encoder::first(RecordKind::Worker).finish();
        let version = |record: &[u8]| Decoder::new(record).unwrap().1.version();
        assert_eq!(version(&first), Ok(VERSION));
        for end in 1..first.len() {
            assert_eq!(version(&first[..end]), Err(ThawError::Truncated), "{end}");
        }
        let mut newer = first.clone();
        newer[7..].copy_from_slice(&(VERSION + 1).to_le_bytes());
        assert_eq!(version(&newer), Err(ThawError::Newer(VERSION + 1)));
        assert!(ThawError::Newer(VERSION + 1).to_string().contains("written by a newer version"));
        newer[3] = b'x';
        assert_eq!(version(&newer), Err(ThawError::Invalid("it is no frozen state")));
    }

    #[test]
    fn each_kind_is_known_by_its_number() {
        for kind in RecordKind::ALL {
            assert_eq!(kind_of(&Encoder::new(kind).finish()), Ok(kind));
        }
        assert_eq!(kind_of(&[0]), Err(ThawError::Invalid("an unknown kind of record")));
        assert_eq!(kind_of(&[]), Err(ThawError::Truncated));
    }

    #[test]
    fn a_length_beyond_the_end_allocates_nothing() {
        let mut encoder = Encoder::new(RecordKind::Message);
        encoder.u32(u32::MAX);
        let record = encoder.finish();
        let (_, mut decoder) = Decoder::new(&record).unwrap();
        assert_eq!(decoder.bytes(), Err(ThawError::Truncated));
    }
}
