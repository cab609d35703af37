//! Segments: messages of logs in memory that two processes share while one takes over.
//!
//! A segment is a sequence of records, each preceded by its length in four bytes: the first has the
//! version and the epoch, each other one a message with the name of its channel, as
//! `docs/reference/frozen-state.md` describes them. It may hold messages of any channels in any
//! order; a log refers to each by its number in the segment.
//!
//! The bytes never change once there is a segment: whoever makes one passes in memory that nobody
//! can write to. So they are checked once.

use std::fmt;
use std::sync::Arc;

use crate::clock;
use crate::frozen::{
    Decoder, Encoder, Head, RecordKind, ThawError, decode_name, encode_content_at, encode_name,
};
use crate::id::Epoch;
use crate::message::{Content, OVERHEAD_BYTES};
use crate::name::ChannelName;
use crate::stamp::Stamp;

/// Memory that is shared with another process, and that nobody can write to.
pub type SharedBytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// Bytes of the length before each record.
const LENGTH_BYTES: usize = size_of::<u32>();

/// Why decoding cannot fail: all of it was decoded before.
const CHECKED: &str = "a segment is checked when it is made, and never changes";

/// Messages in shared memory.
pub(crate) struct Segment {
    bytes: SharedBytes,
    /// Where each message's record starts, and where one after the last would.
    starts: Box<[u32]>,
    epoch: Epoch,
    /// Milliseconds by which the segment's clock is ahead of this process's. It stays even if the
    /// clock is set, so that times do not move.
    ahead_ms: i64,
    /// Tells it from all others of the engine.
    number: u32,
    /// The lowest stamp in it.
    first: Stamp,
}

/// A message in a segment.
#[derive(Debug, Clone)]
pub(crate) struct Sealed<'a> {
    pub(crate) head: Head<'a>,
    /// The weight that counts against limits.
    pub(crate) weight_bytes: usize,
    /// The kind and the name of its channel, as they are encoded.
    name: &'a [u8],
    /// Stands before the body.
    decoder: Decoder<'a>,
}

impl Sealed<'_> {
    pub(crate) fn is_of(&self, channel: &SealedName) -> bool {
        channel.0[1..] == *self.name
    }
}

/// The name of a channel as its messages in segments have it.
#[derive(Debug)]
pub(crate) struct SealedName(Vec<u8>);

impl SealedName {
    pub(crate) fn new(channel: &ChannelName) -> SealedName {
        let mut encoder = Encoder::new(RecordKind::SealedMessage);
        encode_name(&mut encoder, channel);
        SealedName(encoder.finish())
    }
}

impl Segment {
    /// A segment from another process, of an engine with this epoch. The clock of its times is
    /// `ahead_ms` ahead. Checks all of it.
    pub(crate) fn read(bytes: SharedBytes) -> Result<Segment, ThawError> {
        let all = (*bytes).as_ref();
        if u32::try_from(all.len()).is_err() {
            return Err(ThawError::Invalid("a segment is too long"));
        }
        let (first, mut at) = record_at(all, 0)?;
        let (kind, mut decoder) = Decoder::new(first)?;
        if kind != RecordKind::Segment {
            return Err(ThawError::Invalid("the first record of a segment"));
        }
        decoder.version()?;
        let epoch = Epoch::numbered(decoder.u64()?);
        decoder.finish()?;
        let (mut starts, mut first) = (vec![(at + LENGTH_BYTES) as u32], Stamp(u64::MAX));
        while at < all.len() {
            let (record, behind) = record_at(all, at)?;
            first = first.min(check(record, epoch)?);
            at = behind;
            starts.push((at + LENGTH_BYTES) as u32);
        }
        Ok(Segment { bytes, starts: starts.into(), epoch, ahead_ms: 0, number: 0, first })
    }

    /// The same segment, as the engine numbers it, with the clock that the other process had.
    pub(crate) fn numbered(self, number: u32, ahead_ms: i64) -> Segment {
        Segment { number, ahead_ms, ..self }
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The lowest stamp in it.
    pub(crate) fn first(&self) -> Stamp {
        self.first
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// How many milliseconds the clock of its times is ahead of this process's.
    pub(crate) fn ahead_ms(&self) -> i64 {
        self.ahead_ms
    }

    pub(crate) fn len(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    /// The record of a message.
    fn record(&self, at: u32) -> &[u8] {
        let (from, next) = (self.starts[at as usize], self.starts[at as usize + 1]);
        &(*self.bytes).as_ref()[from as usize..next as usize - LENGTH_BYTES]
    }

    /// The message at a place below [`Segment::len`].
    pub(crate) fn get(&self, at: u32) -> Sealed<'_> {
        decode(self.record(at), self.ahead_ms).expect(CHECKED)
    }

    /// The same on the heap.
    pub(crate) fn content(&self, at: u32) -> Content {
        content(self.get(at), self.epoch).expect(CHECKED)
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} of {} messages", self.number, self.len())
    }
}

/// The record behind a length, and where it ends.
fn record_at(bytes: &[u8], at: usize) -> Result<(&[u8], usize), ThawError> {
    let (length, behind) =
        bytes[at..].split_first_chunk::<LENGTH_BYTES>().ok_or(ThawError::Truncated)?;
    let length = u32::from_le_bytes(*length) as usize;
    let record = behind.get(..length).ok_or(ThawError::Truncated)?;
    Ok((record, at + LENGTH_BYTES + length))
}

/// Reads the record of a message up to its body.
fn decode(record: &[u8], ahead_ms: i64) -> Result<Sealed<'_>, ThawError> {
    let (kind, mut decoder) = Decoder::new(record)?;
    if kind != RecordKind::SealedMessage {
        return Err(ThawError::Invalid("a message of a segment"));
    }
    let _mark = decoder.u8()?;
    let length = usize::from(decoder.u8()?);
    decoder.raw(length)?;
    let name = &record[1..3 + length];
    let head = Head::decode(&mut decoder, ahead_ms)?;
    // The key of a channel is a mark and the name; the body is behind its length.
    let body_bytes = decoder.remaining().saturating_sub(LENGTH_BYTES);
    let weight_bytes = body_bytes + 1 + length + head.weight_bytes() + OVERHEAD_BYTES;
    Ok(Sealed { head, weight_bytes, name, decoder })
}

fn content(sealed: Sealed<'_>, epoch: Epoch) -> Result<Content, ThawError> {
    let Sealed { head, name, mut decoder, .. } = sealed;
    let body = head.body(&mut decoder)?;
    decoder.finish()?;
    Ok(body.content(&head, epoch, decode_name(&mut Decoder::of(name))?))
}

/// Checks the record of a message: that it can be read, and is none of those that logs keep in the
/// place of expired ones. Returns its stamp.
fn check(record: &[u8], epoch: Epoch) -> Result<Stamp, ThawError> {
    let content = content(decode(record, 0)?, epoch)?;
    if content.is_without_body() {
        return Err(ThawError::Invalid("a message of a segment has expired"));
    }
    Ok(content.stamp)
}

/// Makes the bytes of a segment.
#[derive(Debug)]
pub(crate) struct SegmentWriter {
    epoch: Epoch,
    ahead_ms: i64,
    starts: Vec<u32>,
    first: Stamp,
    length: usize,
    /// The bytes not yet taken.
    bytes: Vec<u8>,
}

impl SegmentWriter {
    /// The beginning of a segment.
    pub(crate) fn new(epoch: Epoch) -> SegmentWriter {
        let mut beginning = Encoder::first(RecordKind::Segment);
        beginning.u64(epoch.number());
        let (ahead_ms, first) = (clock::ahead_ms(), Stamp(u64::MAX));
        let (starts, bytes) = (Vec::new(), Vec::new());
        let mut writer = SegmentWriter { epoch, ahead_ms, starts, first, length: 0, bytes };
        writer.put(&beginning.finish());
        writer.starts.push((writer.length + LENGTH_BYTES) as u32);
        writer
    }

    fn put(&mut self, record: &[u8]) {
        self.bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(record);
        self.length += LENGTH_BYTES + record.len();
    }

    /// Adds a message. Returns its place.
    pub(crate) fn push(&mut self, content: &Content) -> u32 {
        let texts = content.weight_bytes() - OVERHEAD_BYTES;
        let mut encoder = Encoder::with_capacity(RecordKind::SealedMessage, texts + 80);
        encode_name(&mut encoder, &content.channel);
        encode_content_at(&mut encoder, content, self.ahead_ms);
        self.put(&encoder.finish());
        self.starts.push((self.length + LENGTH_BYTES) as u32);
        self.first = self.first.min(content.stamp);
        self.len() - 1
    }

    pub(crate) fn len(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    /// True if another message of this weight would make it longer than a segment can be.
    pub(crate) fn is_full(&self) -> bool {
        self.length >= SEGMENT_BYTES_MAX
    }

    /// Takes the bytes that were made since the last time.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// The segment, whose bytes are now in `bytes`: all that were taken.
    pub(crate) fn finish(self, bytes: SharedBytes, number: u32) -> Arc<Segment> {
        assert_eq!((*bytes).as_ref().len(), self.length, "what was taken is not what is there");
        let SegmentWriter { epoch, ahead_ms, starts, first, .. } = self;
        Arc::new(Segment { bytes, starts: starts.into(), epoch, ahead_ms, number, first })
    }
}

/// A segment that is this long gets no further message. It exceeds this by one message, which is
/// shorter than 2 GiB: places in a segment have 32 bits.
const SEGMENT_BYTES_MAX: usize = 256 << 20;
