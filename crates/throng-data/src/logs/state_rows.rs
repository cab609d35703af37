//! The tables of states: entries of [`Space::Records`](crate::storage::Space::Records).

use throng_core::frozen::ThawError;
use throng_core::{ChannelName, RoomHolder};

use super::format::{self, TIME_BYTES, Table};
use crate::storage::{Space, Write};

/// Beyond every key: no byte of UTF-8 is as high.
const KEYS_END: &[u8] = &[u8::MAX];

/// Numbers of a row, big-endian.
fn write<const COUNT: usize>(numbers: [u64; COUNT]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// The numbers of a row, followed by that of its publisher, if it has one.
fn with_holder<const COUNT: usize>(numbers: &[u64; COUNT], holder: RoomHolder) -> Vec<u8> {
    let mut row = write(*numbers);
    if holder != RoomHolder::NOBODY {
        row.extend(holder.number().to_be_bytes());
    }
    row
}

fn read_with_holder<const COUNT: usize>(
    row: &[u8],
) -> Result<([u64; COUNT], RoomHolder), ThawError> {
    let (numbers, holder) = row.split_at(row.len().min(COUNT * size_of::<u64>()));
    let holder = match holder {
        [] => RoomHolder::NOBODY,
        holder => RoomHolder::numbered(u16::from_be_bytes(
            holder.try_into().map_err(|_| ThawError::Invalid("the publisher of a value"))?,
        )),
    };
    Ok((read(numbers)?, holder))
}

fn read<const COUNT: usize>(row: &[u8]) -> Result<[u64; COUNT], ThawError> {
    let (numbers, rest) = row.as_chunks::<{ size_of::<u64>() }>();
    let numbers: Result<[_; COUNT], _> = numbers.try_into();
    match numbers {
        Ok(numbers) if rest.is_empty() => Ok(numbers.map(u64::from_be_bytes)),
        _ => Err(ThawError::Invalid("the row of a state")),
    }
}

/// How much of a log's state there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StateRow {
    /// Keys that have a value.
    pub(crate) keys: u64,
    /// Keys that have a tombstone.
    pub(crate) removed: u64,
    /// Bytes of the values, as limits count them.
    pub(crate) bytes: u64,
    /// The newest messages of keys that are before the bounds of the log.
    pub(crate) older: u64,
    /// The tombstones among these.
    pub(crate) older_removed: u64,
    /// The offset of the newest message that was dropped though nothing had superseded it.
    pub(crate) floor: u64,
    /// The messages up to this offset are none of the state's: they were before it, or are erased.
    pub(crate) base: u64,
}

impl StateRow {
    pub(super) fn encode(&self) -> Vec<u8> {
        let StateRow { keys, removed, bytes, older, older_removed, floor, base } = *self;
        write([keys, removed, bytes, older, older_removed, floor, base])
    }

    pub(super) fn decode(row: &[u8]) -> Result<StateRow, ThawError> {
        let [keys, removed, bytes, older, older_removed, floor, base] = read(row)?;
        Ok(StateRow { keys, removed, bytes, older, older_removed, floor, base })
    }

    /// True if nothing is left of the state.
    pub(super) fn is_over(&self) -> bool {
        self.keys == 0 && self.removed == 0
    }
}

/// The newest message of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyRow {
    pub(crate) offset: u64,
    /// Its bytes, as limits count them; 0 for a tombstone.
    pub(crate) bytes: u64,
    /// When the value expires, by the machine's clock; 0: never.
    expires_ms: u64,
    /// Where it is among those that are due: a value when it expires, a tombstone before the bounds
    /// of its log when it is dropped, or later; 0: nowhere.
    pub(super) due_ms: u64,
    /// 1 if it removes the key.
    tombstone: u64,
    /// The publisher to which a value is charged; nobody before format 6.
    pub(super) holder: RoomHolder,
}

impl KeyRow {
    pub(super) fn value(offset: u64, bytes: u64, expires_ms: Option<u64>) -> KeyRow {
        let (expires_ms, holder) = (expires_ms.unwrap_or(0), RoomHolder::NOBODY);
        KeyRow { offset, bytes, expires_ms, due_ms: expires_ms, tombstone: 0, holder }
    }

    pub(super) fn tombstone(offset: u64) -> KeyRow {
        KeyRow { tombstone: 1, ..KeyRow::value(offset, 0, None) }
    }

    /// The same, which is charged to a publisher.
    pub(super) fn held_by(self, holder: RoomHolder) -> KeyRow {
        KeyRow { holder, ..self }
    }

    /// What its publisher holds for it.
    pub(super) fn charge(&self) -> (RoomHolder, isize) {
        (self.holder, self.bytes as isize)
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.tombstone != 0
    }

    /// True if it is a tombstone before the bounds of its log.
    pub(super) fn is_older_tombstone(&self) -> bool {
        self.is_tombstone() && self.due_ms != 0
    }

    /// True if it is a value that can be read at this time of the machine's clock.
    pub(crate) fn is_value_at(&self, wall_ms: u64) -> bool {
        !self.is_tombstone() && (self.expires_ms == 0 || self.expires_ms > wall_ms)
    }

    /// Removes all that is known of a key with this newest message, but for the message.
    pub(super) fn remove(&self, channel: &ChannelName, key: &str, to: &mut Vec<Write>) {
        let places = self.places(channel).into_iter().flatten();
        let places = places.chain([self::key(channel, key)]);
        to.extend(places.map(|place| Write::remove(Space::Records, place)));
    }

    /// Its places in other tables.
    pub(super) fn places(&self, channel: &ChannelName) -> [Option<Vec<u8>>; 2] {
        let due = (self.due_ms > 0).then(|| due(self.due_ms, channel, self.offset));
        let is_older_tombstone = self.is_older_tombstone();
        [due, is_older_tombstone.then(|| tombstone(channel, self.offset))]
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let row = [self.offset, self.bytes, self.expires_ms, self.due_ms, self.tombstone];
        with_holder(&row, self.holder)
    }

    pub(super) fn decode(row: &[u8]) -> Result<KeyRow, ThawError> {
        let ([offset, bytes, expires_ms, due_ms, tombstone], holder) = read_with_holder(row)?;
        Ok(KeyRow { offset, bytes, expires_ms, due_ms, tombstone, holder })
    }
}

/// How much there is of all states, and of creations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AllStates {
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
    /// Bytes of creations. Those of before format 6 do not count.
    pub(crate) creations: u64,
}

impl AllStates {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut row = write([self.keys, self.bytes, self.creations]);
        if self.creations == 0 {
            row.truncate(2 * size_of::<u64>());
        }
        row
    }

    pub(super) fn decode(row: &[u8]) -> Result<AllStates, ThawError> {
        if let Ok([keys, bytes]) = read(row) {
            return Ok(AllStates { keys, bytes, creations: 0 });
        }
        read(row).map(|[keys, bytes, creations]| AllStates { keys, bytes, creations })
    }
}

/// The creation of a channel, as it takes room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CreatorRow {
    pub(super) bytes: u64,
    pub(super) holder: RoomHolder,
}

impl CreatorRow {
    pub(super) fn charge(&self) -> (RoomHolder, isize) {
        (self.holder, self.bytes as isize)
    }

    pub(super) fn encode(self) -> Vec<u8> {
        with_holder(&[self.bytes], self.holder)
    }

    pub(super) fn decode(row: &[u8]) -> Result<CreatorRow, ThawError> {
        read_with_holder(row).map(|([bytes], holder)| CreatorRow { bytes, holder })
    }
}

/// The place of what a publisher holds.
pub(super) fn holder(holder: RoomHolder) -> Vec<u8> {
    [&[Table::Holders as u8][..], &holder.number().to_be_bytes()].concat()
}

/// The publisher whose row has this key, and what it holds.
pub(super) fn holder_of(place: &[u8], row: &[u8]) -> Result<(RoomHolder, u64), ThawError> {
    let number = place.get(1..).and_then(|number| number.try_into().ok());
    let number = number.ok_or(ThawError::Invalid("a publisher that holds room"))?;
    Ok((RoomHolder::numbered(u16::from_be_bytes(number)), format::number(row)?))
}

/// The place of a key's newest message.
pub(super) fn key(channel: &ChannelName, key: &str) -> Vec<u8> {
    [&format::of_table(Table::Keys, channel), key.as_bytes()].concat()
}

/// Beyond the places of all keys of a channel.
pub(super) fn keys_end(channel: &ChannelName) -> Vec<u8> {
    [&format::of_table(Table::Keys, channel), KEYS_END].concat()
}

/// The key of a place, which is one of this channel.
pub(super) fn key_of(place: &[u8], channel: &ChannelName) -> Result<Box<str>, ThawError> {
    let prefix = format::of_table(Table::Keys, channel);
    text(place.strip_prefix(&*prefix).unwrap_or_default())
}

/// The channel and the key of a place.
pub(super) fn name_and_key_of(place: &[u8]) -> Result<(ChannelName, Box<str>), ThawError> {
    let of = place.get(1..).ok_or(ThawError::Truncated)?;
    let (name, key) = format::split_name(of)?;
    Ok((name, text(key)?))
}

pub(super) fn text(bytes: &[u8]) -> Result<Box<str>, ThawError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ThawError::Invalid("a key of a state"))?;
    Ok(text.into())
}

/// The place of a time at which a key's newest message is due. Its value is the key.
pub(super) fn due(at_ms: u64, channel: &ChannelName, offset: u64) -> Vec<u8> {
    let what = format::message(channel, offset);
    [&[Table::KeyExpiry as u8], &*format::at(at_ms, &what)].concat()
}

/// The time, the channel and the offset of such a place.
pub(super) fn due_of(place: &[u8]) -> Result<(u64, ChannelName, u64), ThawError> {
    let at = place.get(1..).ok_or(ThawError::Truncated)?;
    let (at_ms, what) = at.split_at_checked(TIME_BYTES).ok_or(ThawError::Truncated)?;
    let (channel, offset) = format::message_of(what)?;
    Ok((format::number(at_ms)?, channel, offset))
}

/// The place of a tombstone. Its value is the key.
pub(super) fn tombstone(channel: &ChannelName, offset: u64) -> Vec<u8> {
    [&[Table::Tombstones as u8], &*format::message(channel, offset)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::format::{LogHead, Scratch};

    /// The additions of format 4 to format 3.
    #[test]
    fn kept_bytes_of_format_4_are_read() {
        let name = ChannelName::channel("a");
        let of_name = [2, 1, 1, b'a'];
        let number = |number: u8| [0, 0, 0, 0, 0, 0, 0, number];
        let row: Vec<u8> = (1..=7).flat_map(number).collect();
        let state = StateRow {
            keys: 1,
            removed: 2,
            bytes: 3,
            older: 4,
            older_removed: 5,
            floor: 6,
            base: 7,
        };
        assert_eq!((StateRow::decode(&row), state.encode()), (Ok(state), row.clone()));
        StateRow::decode(&row[1..]).expect_err("it is short");
        let value = KeyRow::value(1, 2, Some(3));
        let row = [number(1), number(2), number(3), number(3), number(0)].concat();
        assert_eq!((KeyRow::decode(&row), value.encode()), (Ok(value), row));
        let row = [number(9), number(0), number(0), number(0), number(1)].concat();
        let removed = KeyRow::tombstone(9);
        assert_eq!((KeyRow::decode(&row), removed.encode()), (Ok(removed), row));
        let all = AllStates { keys: 1, bytes: 2, creations: 0 };
        let row = [number(1), number(2)].concat();
        assert_eq!((AllStates::decode(&row), all.encode()), (Ok(all), row));
        let place = [&[130], &of_name[..], b"key"].concat();
        assert_eq!((key(&name, "key"), key_of(&place, &name)), (place, Ok("key".into())));
        assert_eq!(format::of_table(Table::States, &name), [&[131], &of_name[..]].concat());
        let place = [&[132], &number(5)[..], &of_name, &number(6)].concat();
        assert_eq!((due(5, &name, 6), due_of(&place)), (place, Ok((5, name.clone(), 6))));
        assert_eq!(tombstone(&name, 6), [&[133], &of_name[..], &number(6)].concat());
        assert_eq!(format::of_table(Table::ErasedKeys, &name), [&[134], &of_name[..]].concat());
        for (has_keys, has_ended, bits) in [(true, false, 4), (false, true, 8)] {
            let head = LogHead { has_keys, has_ended, ..LogHead::default() };
            let value = Scratch::default().head(&head);
            assert_eq!((value.last(), LogHead::decode(&value)), (Some(&bits), Ok(head)));
        }
    }

    /// The additions of format 6 to format 5.
    #[test]
    fn kept_bytes_of_format_6_are_read() {
        let number = |number: u8| [0, 0, 0, 0, 0, 0, 0, number];
        let ann = RoomHolder::numbered(258);
        let value = KeyRow { holder: ann, ..KeyRow::value(1, 2, None) };
        let row = [&[1, 2, 0, 0, 0].map(number).concat()[..], &[1, 2]].concat();
        assert_eq!((KeyRow::decode(&row), value.encode()), (Ok(value), row.clone()));
        KeyRow::decode(&row[..41]).expect_err("the publisher is half a number");
        let created = CreatorRow { bytes: 7, holder: ann };
        let row = [&number(7)[..], &[1, 2]].concat();
        assert_eq!((CreatorRow::decode(&row), created.encode()), (Ok(created), row));
        let by_the_application = CreatorRow { bytes: 7, holder: RoomHolder::NOBODY };
        assert_eq!(CreatorRow::decode(&number(7)), Ok(by_the_application));
        assert_eq!(by_the_application.encode(), number(7));
        let place = vec![136, 1, 2];
        assert_eq!((holder(ann), holder_of(&place, &number(9))), (place, Ok((ann, 9))));
        assert_eq!(format::of_table(Table::Creators, &ChannelName::channel("a"))[0], 135);
        let all = AllStates { keys: 1, bytes: 2, creations: 3 };
        let row = [1, 2, 3].map(number).concat();
        assert_eq!((AllStates::decode(&row), all.encode()), (Ok(all), row));
        let head = LogHead { is_erased: true, ..LogHead::default() };
        let value = Scratch::default().head(&head);
        assert_eq!((value.last(), LogHead::decode(&value)), (Some(&32), Ok(head)));
    }
}
