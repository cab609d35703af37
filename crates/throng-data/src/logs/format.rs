//! Keys and values. Numbers in keys are big-endian, so that they sort. A change of either raises
//! the number of the directory's [format](crate::directory::FORMAT).

use std::ops::RangeInclusive;

use throng_core::change::{KnownRecord, LogRecord};
use throng_core::frozen::{
    Decoder, Encoder, RecordKind, ThawError, decode_content, decode_name, encode_content,
    encode_name,
};
use throng_core::{ChannelName, Content, EntryCount, Epoch, Kind, Retention, clock, records};

use super::ages::AgeNow;
use crate::storage::Bytes;
use crate::sync_policy::SyncPolicy;

pub(super) const EPOCH: &[u8] = b"epoch";
pub(super) const RUN: &[u8] = b"run";

/// How much there is of all states.
pub(super) const STATES: &[u8] = b"states";

/// The seed by which publishers that hold room are told apart.
pub(super) const HOLDER_SEED: &[u8] = b"holder seed";

/// The stamp up to which the server may give out stamps without another note.
pub(super) const STAMPS: &[u8] = b"stamps";

/// Says which channels are durable and their retention, as all logs follow it. Missing while some
/// may not.
pub(super) const RETENTION: &[u8] = b"retention";

/// Facts about all channels that were forgotten.
pub(super) const FORGOTTEN: &[u8] = b"forgotten";

/// When the first message was erased that may be in the store's files: the machine's clock.
pub(super) const ERASED_MS: &[u8] = b"erased";

/// The same, of the first one since the rewriting of the files began that is under way, or was.
pub(super) const ERASED_AGAIN_MS: &[u8] = b"erased again";

/// The machine's clock at the last write, to about a minute.
pub(super) const SEEN: &[u8] = b"seen";

/// The value of [`RUN`] after a clean end.
pub(super) const CLEAN: &[u8] = b"clean";

/// The value of [`RUN`] in an older copy that was put back.
pub(super) const RESTORED: &[u8] = b"restored";

/// Start of the value of [`RUN`] if nothing is acknowledged before it is synced.
pub(super) const SYNCED: &[u8] = b"always ";

/// Tables of [`Space::Records`](crate::storage::Space::Records) beside those of
/// [`throng_core::records`], whose numbers are lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Table {
    /// The records of logs, by name.
    LogRecords = 128,
    /// The messages of erased histories that are yet to be removed, by name and first offset.
    Erased = 129,
    /// The newest message of each key of a log, by name and key.
    Keys = 130,
    /// How much of a log's state there is, by name.
    States = 131,
    /// When values expire and tombstones are dropped, by time, name and offset.
    KeyExpiry = 132,
    /// Tombstones before the bounds of logs, by name and offset.
    Tombstones = 133,
    /// The entries of keys of erased histories that are yet to be removed, by name.
    ErasedKeys = 134,
    /// The publishers of created channels, by name.
    Creators = 135,
    /// What publishers hold of the room for states and creations, by their numbers.
    Holders = 136,
}

/// Bytes of the time in the keys of tables that are ordered by it.
pub(super) const TIME_BYTES: usize = 8;

/// The value of [`RUN`] while the server runs.
pub(super) fn run(sync: SyncPolicy, boot: &str) -> Vec<u8> {
    let word = match sync {
        SyncPolicy::Always => "always",
        SyncPolicy::Interval => "interval",
        SyncPolicy::Never => "never",
    };
    format!("{word} {boot}").into_bytes()
}

pub(super) fn epoch_value(epoch: Epoch) -> Vec<u8> {
    epoch.number().to_be_bytes().to_vec()
}

pub(super) fn epoch(value: &[u8]) -> Result<Epoch, ThawError> {
    number(value).map(Epoch::numbered)
}

/// The part of a limit by which a log may exceed it: then messages are dropped down to the limit,
/// so that not every new one drops an old one and moves the floor.
const SLACK_PART: usize = 16;

/// Room for a number of eight bytes.
const NUMBER_BYTES: usize = size_of::<u64>();

/// The output of `write`, about this many bytes.
fn encoded(kind: RecordKind, bytes: usize, write: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut encoder = Encoder::with_capacity(kind, bytes);
    write(&mut encoder);
    encoder.finish()
}

/// Memory in which keys and values are put together, one after the other.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<u8>);

impl Scratch {
    fn encoded(&mut self, kind: RecordKind, write: impl FnOnce(&mut Encoder)) -> Bytes {
        let mut encoder = Encoder::reusing(kind, std::mem::take(&mut self.0));
        write(&mut encoder);
        self.0 = encoder.finish();
        Bytes::from(&*self.0)
    }

    /// The key of a channel, as [`name`] makes it.
    pub(super) fn name(&mut self, name: &ChannelName) -> Bytes {
        self.encoded(RecordKind::Channel, |encoder| encode_name(encoder, name))
    }

    /// The key of a message, as [`message`] makes it.
    pub(super) fn message(&mut self, channel: &ChannelName, offset: u64) -> Bytes {
        self.encoded(RecordKind::Channel, |encoder| {
            encode_name(encoder, channel);
            encoder.raw(&offset.to_be_bytes());
        })
    }

    /// The value of a message.
    pub(super) fn content(&mut self, content: &Content) -> Bytes {
        self.encoded(RecordKind::Message, |encoder| encode_content(encoder, content))
    }

    /// The value of a head.
    pub(super) fn head(&mut self, head: &LogHead) -> Bytes {
        self.encoded(RecordKind::Channel, |encoder| head.encode(encoder))
    }
}

/// The key of a channel. No key begins with another one: the name's length is in front of it.
pub(super) fn name(name: &ChannelName) -> Vec<u8> {
    // With room for what comes behind it in other keys.
    let bytes = name.name().len() + 2 * NUMBER_BYTES;
    encoded(RecordKind::Channel, bytes, |encoder| encode_name(encoder, name))
}

/// A channel or user, as a sentence names it.
pub(super) fn shown(name: &ChannelName) -> String {
    let noun = match name.kind() {
        Kind::User => "user",
        Kind::Channel | Kind::Internal => "channel",
    };
    format!("{noun} {:?}", name.name())
}

pub(super) fn name_of(key: &[u8]) -> Result<ChannelName, ThawError> {
    let (_, mut decoder) = Decoder::new(key)?;
    let name = decode_name(&mut decoder)?;
    decoder.finish()?;
    Ok(name)
}

/// The channel that a key begins with, and what is behind it.
pub(super) fn split_name(key: &[u8]) -> Result<(ChannelName, &[u8]), ThawError> {
    let (_, mut decoder) = Decoder::new(key)?;
    let name = decode_name(&mut decoder)?;
    let rest = key.get(self::name(&name).len()..).ok_or(ThawError::Truncated)?;
    Ok((name, rest))
}

pub(super) fn message(channel: &ChannelName, offset: u64) -> Vec<u8> {
    let mut key = name(channel);
    key.extend_from_slice(&offset.to_be_bytes());
    key
}

/// Beyond the keys of messages with these offsets.
pub(super) fn message_end(channel: &ChannelName, offsets: &RangeInclusive<u64>) -> Vec<u8> {
    message(channel, offsets.end().saturating_add(1))
}

/// The channel and the offset of a message's key.
pub(super) fn message_of(key: &[u8]) -> Result<(ChannelName, u64), ThawError> {
    let (name, offset) =
        key.split_last_chunk::<{ size_of::<u64>() }>().ok_or(ThawError::Truncated)?;
    Ok((name_of(name)?, u64::from_be_bytes(*offset)))
}

pub(super) fn key(channel: &ChannelName, text: &str) -> Vec<u8> {
    let mut key = name(channel);
    key.extend_from_slice(text.as_bytes());
    key
}

/// The range of the keys of a channel.
pub(super) fn keys(channel: &ChannelName) -> (Vec<u8>, Vec<u8>) {
    // No text has this byte.
    (name(channel), [&name(channel)[..], &[u8::MAX]].concat())
}

/// The key of the read marker of an inbox.
pub(crate) fn read_marker(inbox: &ChannelName) -> Vec<u8> {
    [&[records::Table::ReadMarkers as u8], inbox.name().as_bytes()].concat()
}

/// The keys of the marker of a user in a channel, within [`records::Table::ChannelMarkers`] and
/// [`records::Table::MarkedChannels`]. No name has a byte of 0.
pub(crate) fn channel_marker(user: &str, channel: &str) -> [Vec<u8>; 2] {
    let [user, channel] = [user, channel].map(str::as_bytes);
    [[user, b"\0", channel].concat(), [channel, b"\0", user].concat()]
}

/// The two names in one of these keys.
pub fn names_of_marker(key: &[u8]) -> Option<(&str, &str)> {
    let at = key.iter().position(|byte| *byte == 0)?;
    let (first, second) = (str::from_utf8(&key[..at]), str::from_utf8(&key[at + 1..]));
    first.ok().zip(second.ok())
}

/// The key of a channel in a table of other state.
pub(super) fn of_table(table: Table, channel: &ChannelName) -> Vec<u8> {
    [&[table as u8], &*name(channel)].concat()
}

/// The key of a note that messages of a channel from this offset on are erased. Its value is the
/// last offset.
pub(super) fn erased(channel: &ChannelName, first: u64) -> Vec<u8> {
    [&[Table::Erased as u8], &*message(channel, first)].concat()
}

/// The channel and the offsets of such a note.
pub(super) fn erased_of(
    key: &[u8],
    value: &[u8],
) -> Result<(ChannelName, RangeInclusive<u64>), ThawError> {
    let (name, first) = message_of(key.get(1..).ok_or(ThawError::Truncated)?)?;
    Ok((name, first..=number(value)?))
}

/// The value of a note that entries of keys up to an offset are erased, from this key on.
pub(super) fn erased_keys(last: u64, key: &[u8]) -> Vec<u8> {
    [&last.to_be_bytes(), key].concat()
}

/// The offset and the key of such a note.
pub(super) fn erased_keys_of(value: &[u8]) -> Result<(u64, &[u8]), ThawError> {
    let (last, key) = value.split_at_checked(NUMBER_BYTES).ok_or(ThawError::Truncated)?;
    Ok((number(last)?, key))
}

/// The value of a record.
pub(super) fn record_value(KnownRecord { version, record }: &KnownRecord) -> Vec<u8> {
    [&version.to_be_bytes(), record.block()].concat()
}

/// The record of a value.
pub(super) fn record(value: &[u8]) -> Result<KnownRecord, ThawError> {
    let (version, block) = value.split_at_checked(NUMBER_BYTES).ok_or(ThawError::Truncated)?;
    let record = LogRecord::read(block).map_err(|_| ThawError::Invalid("the record of a log"))?;
    Ok(KnownRecord { version: number(version)?, record })
}

/// A key of a table that is ordered by time.
pub(super) fn at(at_ms: u64, what: &[u8]) -> Vec<u8> {
    [&at_ms.to_be_bytes(), what].concat()
}

pub(super) fn content(
    value: &[u8],
    epoch: Epoch,
    channel: &ChannelName,
) -> Result<Content, ThawError> {
    let (_, mut decoder) = Decoder::new(value)?;
    let content = decode_content(&mut decoder, epoch, channel)?;
    decoder.finish()?;
    Ok(content)
}

/// The facts about a message that retention needs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measure {
    pub(super) bytes: u64,
    /// When it was published, by the machine's clock.
    pub(super) time_ms: u64,
    pub(super) stamp: u64,
    pub(super) is_expiring: bool,
    /// True if it is none of the messages that a log keeps: see
    /// [`EntryCount`](throng_core::EntryCount).
    pub(super) is_blank: bool,
}

/// Measures the message of a value.
pub(super) fn measure(value: &[u8]) -> Result<Measure, ThawError> {
    // The name and the epoch do not matter.
    let channel = ChannelName::channel("any");
    let content = content(value, Epoch::numbered(0), &channel)?;
    Ok(measure_content(&content, value.len()))
}

/// Measures a message whose value has this many bytes.
pub(super) fn measure_content(content: &Content, bytes: usize) -> Measure {
    let (time_ms, stamp) = (clock::wall_ms(content.time_ms), content.stamp.0);
    let (is_expiring, is_blank) = (is_expiring(content), content.is_blank());
    Measure { bytes: bytes as u64, time_ms, stamp, is_expiring, is_blank }
}

/// True if a message may not count as unread: it expires or has expired, or is a notice.
pub(super) fn is_expiring(content: &Content) -> bool {
    content.expires_ms.is_some() || content.is_notice()
}

/// A number that is a key or a value.
pub(super) fn number(bytes: &[u8]) -> Result<u64, ThawError> {
    let bytes = bytes.try_into().map_err(|_| ThawError::Invalid("a number"))?;
    Ok(u64::from_be_bytes(bytes))
}

/// Bits of the last byte of a head.
const MAY_LAG: u8 = 1 << 0;
const HAS_RECORD: u8 = 1 << 1;
const HAS_KEYS: u8 = 1 << 2;
const HAS_ENDED: u8 = 1 << 3;
const HAS_BLANKS: u8 = 1 << 4;
const IS_ERASED: u8 = 1 << 5;

/// Facts about a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LogHead {
    /// The offset of the newest message.
    pub(super) offset: u64,
    /// The offset of the newest message that is no longer there.
    pub(super) floor: u64,
    /// Bytes of the messages between them.
    pub(super) bytes: u64,
    /// When the newest message was published; 0 before the first one.
    pub(super) newest_ms: u64,
    /// The stamp of the newest message that is no longer there.
    pub(super) lost: u64,
    /// The messages between them that [may not be unread](is_expiring).
    pub(super) expiring: u64,
    /// How many of them are blanks, but for some of before format 5.
    pub(super) blanks: u64,
    /// The number of the channel in the [table](crate::storage::Space::Numbers) of numbers; 0
    /// before its first message or record.
    pub(super) number: u64,
    /// Where the channel is in the table of expiries: when its oldest message expires, or earlier.
    pub(super) expires_ms: Option<u64>,
    /// True if there may be messages behind it that it does not count: see `Logs::committed_head`.
    pub(super) may_lag: bool,
    /// True if the log has a record.
    pub(super) has_record: bool,
    /// True if the log has a state: see `states`.
    pub(super) has_keys: bool,
    /// True if that says that the channel has ended.
    pub(super) has_ended: bool,
    /// True if the log was erased with its name, and is empty since.
    pub(super) is_erased: bool,
}

impl LogHead {
    /// Counts the next message.
    pub(super) fn add(&mut self, offset: u64, measure: &Measure) {
        self.is_erased = false;
        self.offset = offset;
        self.newest_ms = measure.time_ms;
        self.bytes += measure.bytes;
        self.expiring += u64::from(measure.is_expiring);
        self.blanks += u64::from(measure.is_blank);
    }

    /// Counts the oldest message as dropped.
    pub(super) fn drop_oldest(&mut self, measure: &Measure) {
        self.floor += 1;
        self.bytes = self.bytes.saturating_sub(measure.bytes);
        self.expiring = self.expiring.saturating_sub(u64::from(measure.is_expiring));
        let blanks = self.blanks.saturating_sub(u64::from(measure.is_blank));
        // What it was of one that cannot be read is not known.
        self.blanks = blanks.min(self.offset - self.floor);
    }

    /// Counts what is left of a message in its place.
    pub(super) fn replace(&mut self, before: &Measure, after: &Measure) {
        self.bytes = self.bytes.saturating_sub(before.bytes) + after.bytes;
        for (count, is_before, is_after) in [
            (&mut self.expiring, before.is_expiring, after.is_expiring),
            (&mut self.blanks, before.is_blank, after.is_blank),
        ] {
            *count = count.saturating_sub(u64::from(is_before)) + u64::from(is_after);
        }
    }

    /// Counts all messages as dropped.
    pub(super) fn drop_all(&mut self) {
        (self.floor, self.bytes, self.expiring, self.blanks) = (self.offset, 0, 0, 0);
    }

    /// True if nothing is left of the log.
    pub(super) fn is_over(&self) -> bool {
        self.floor == self.offset && !self.has_record && !self.has_keys
    }

    /// The messages between them, and blanks.
    pub(super) fn entries(&self) -> EntryCount {
        let messages = (self.offset - self.floor).saturating_sub(self.blanks);
        EntryCount { messages, blanks: self.blanks }
    }

    /// True if nothing has to be dropped now, as far as is known without reading the oldest
    /// message: it does not expire before it is noted to, unless the retention has changed since,
    /// for which all channels are visited.
    pub(super) fn is_within(&self, retention: &Retention, now: AgeNow) -> bool {
        let with_slack = |max: usize| max.saturating_add(max / SLACK_PART);
        !self.entries().exceeds(with_slack(retention.max_messages))
            && self.bytes <= with_slack(retention.max_bytes) as u64
            && self.expires_ms.is_some_and(|at_ms| now.is_plausible(at_ms, retention))
    }

    fn encode(&self, encoder: &mut Encoder) {
        encoder.u64(self.offset);
        encoder.u64(self.floor);
        encoder.u64(self.bytes);
        encoder.u64(self.newest_ms);
        encoder.u64(self.lost);
        encoder.u64(self.expiring);
        encoder.u64(self.number);
        encoder.u64(self.expires_ms.unwrap_or(u64::MAX));
        let marks = [
            (self.may_lag, MAY_LAG),
            (self.has_record, HAS_RECORD),
            (self.has_keys, HAS_KEYS),
            (self.has_ended, HAS_ENDED),
            (self.blanks > 0, HAS_BLANKS),
            (self.is_erased, IS_ERASED),
        ];
        encoder.u8(marks.iter().filter(|(is_set, _)| *is_set).fold(0, |bits, mark| bits | mark.1));
        if self.blanks > 0 {
            encoder.u64(self.blanks);
        }
    }

    pub(super) fn decode(value: &[u8]) -> Result<LogHead, ThawError> {
        let (_, mut decoder) = Decoder::new(value)?;
        let mut head = LogHead {
            offset: decoder.u64()?,
            floor: decoder.u64()?,
            bytes: decoder.u64()?,
            newest_ms: decoder.u64()?,
            lost: decoder.u64()?,
            expiring: decoder.u64()?,
            number: decoder.u64()?,
            expires_ms: Some(decoder.u64()?).filter(|at_ms| *at_ms != u64::MAX),
            ..LogHead::default()
        };
        let bits = decoder.u8()?;
        [head.may_lag, head.has_record, head.has_keys, head.has_ended, head.is_erased] =
            [MAY_LAG, HAS_RECORD, HAS_KEYS, HAS_ENDED, IS_ERASED].map(|bit| bits & bit != 0);
        if bits & HAS_BLANKS != 0 {
            head.blanks = decoder.u64()?;
        }
        decoder.finish()?;
        if head.floor > head.offset || head.blanks > head.offset - head.floor {
            return Err(ThawError::Invalid("the head of a channel"));
        }
        Ok(head)
    }
}

/// Facts about all channels that were forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ForgottenMark {
    /// The highest offset of a message.
    pub(super) offset: u64,
    /// The highest stamp of one.
    pub(super) lost: u64,
}

impl ForgottenMark {
    /// The head of a channel that is not there.
    pub(super) fn head(self) -> LogHead {
        let ForgottenMark { offset, lost } = self;
        LogHead { offset, floor: offset, lost, ..LogHead::default() }
    }

    /// The same after a channel was forgotten.
    pub(super) fn with(self, head: &LogHead) -> ForgottenMark {
        ForgottenMark { offset: self.offset.max(head.offset), lost: self.lost.max(head.lost) }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        [self.offset.to_be_bytes(), self.lost.to_be_bytes()].concat()
    }

    pub(super) fn decode(value: &[u8]) -> Result<ForgottenMark, ThawError> {
        let (offset, lost) = value.split_at_checked(NUMBER_BYTES).ok_or(ThawError::Truncated)?;
        Ok(ForgottenMark { offset: number(offset)?, lost: number(lost)? })
    }
}

/// The publication with an idempotency key. It is there as long as the message, under any epoch:
/// both are one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownKey {
    pub(super) offset: u64,
    /// By the machine's clock.
    pub(super) at_ms: u64,
}

impl KnownKey {
    pub(super) fn encode(&self) -> Vec<u8> {
        encoded(RecordKind::IdempotencyKey, 3 * NUMBER_BYTES, |encoder| {
            encoder.u64(self.offset);
            encoder.u64(self.at_ms);
        })
    }

    pub(super) fn decode(value: &[u8]) -> Result<KnownKey, ThawError> {
        let (_, mut decoder) = Decoder::new(value)?;
        let known = KnownKey { offset: decoder.u64()?, at_ms: decoder.u64()? };
        decoder.finish()?;
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The addition of format 5 to format 4.
    #[test]
    fn kept_bytes_of_format_5_are_read() {
        let without = LogHead { offset: 3, number: 1, ..LogHead::default() };
        let head = LogHead { blanks: 2, ..without };
        let bytes = |head: &LogHead| Scratch::default().head(head);
        let row = [&bytes(&without)[..], &[2, 0, 0, 0, 0, 0, 0, 0]].concat();
        let mut expected = row.clone();
        expected[row.len() - 9] = 16;
        assert_eq!((&bytes(&head)[..], LogHead::decode(&expected)), (&expected[..], Ok(head)));
        assert_eq!(LogHead::decode(&bytes(&without)), Ok(without), "as format 4 has it");
    }

    /// The additions of format 3 to format 2.
    #[test]
    fn kept_bytes_of_format_3_are_read() {
        let name = ChannelName::channel("a");
        let key = [2, 1, 1, b'a'];
        assert_eq!(self::name(&name), key);
        let record = LogRecord::of(&[(9, b"x")]).expect("it is short");
        let known = KnownRecord { version: 258, record };
        let row = [0, 0, 0, 0, 0, 0, 1, 2, 9, 0, 1, 0, b'x'];
        assert_eq!(super::record(&row), Ok(known.clone()));
        assert_eq!(record_value(&known), row);
        assert_eq!(of_table(Table::LogRecords, &name), [&[128], &key[..]].concat());
        let note = [&[129], &key[..], &[0, 0, 0, 0, 0, 0, 0, 7]].concat();
        assert_eq!(erased(&name, 7), note);
        let last = [0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(erased_of(&note, &last), Ok((name, 7..=9)));
        for bits in 0..4 {
            let head = LogHead {
                offset: 3,
                number: 1,
                may_lag: bits & 1 != 0,
                has_record: bits & 2 != 0,
                ..LogHead::default()
            };
            let value = Scratch::default().head(&head);
            assert_eq!((value.last(), LogHead::decode(&value)), (Some(&bits), Ok(head)));
        }
    }
}
