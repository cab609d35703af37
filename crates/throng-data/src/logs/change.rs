//! Writing beyond plain publications: changes under a condition, records of logs, and erasure.
//!
//! # Invariants
//!
//! * A condition is judged against the group so far, so it holds in the commit.
//! * A head says whether its log has a record. A log with one is not forgotten.
//! * An erased message leaves the placeholder of an expired one; an erased history leaves only a
//!   note of the rows to remove (see `erased`). Each is one commit.
//! * The name of an erased log is forgotten soon (see `forgotten`), which counts as an erasure.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use throng_core::change::{
    ChangeError, Erase, KnownRecord, LogChange, LogRecord, LogState, RECORD_BYTES_MAX, RecordChange,
};
use throng_core::{
    ChannelName, Content, Kind, MessageId, Publication, PublishError, Replacement, Retention,
    RoomHolder, Stamp, clock, creation,
};

use super::ages::AgeNow;
use super::entry::Appended;
use super::format::{self, LogHead, Table};
use super::group::{Group, GroupChannel, GroupRecord, TRIMMED_PER_COMMIT};
use super::reader::unreadable;
use super::retention::note_empty;
use super::state_rows::CreatorRow;
use super::writer::Writer;
use crate::storage::{Bytes, KeyOrder, Space, StorageError};

/// Bytes of messages that are read at most to count those that can be read: some milliseconds of
/// work.
const COUNTED_BYTES: u64 = 4 << 20;

/// What a creation takes on the disk and in its memory, besides its record and the channel's name:
/// the rows of the channel in six tables.
const CREATION_BYTES: usize = 300;

impl Writer {
    /// Makes a change if its condition holds. Fails without any effect.
    pub(super) fn change(
        &self,
        group: &mut Group,
        now: AgeNow,
        change: &LogChange,
        retention: &Retention,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Appended, StorageError> {
        let name = &change.channel;
        debug_assert!(change.messages.iter().all(|message| message.channel == *name));
        let state = self.state(group, name)?;
        if !change.condition.holds(&state) {
            return Ok(Appended::Refused(ChangeError::Conflict(state)));
        }
        if state.is_ended() && change.is_refused_by_end() {
            return Ok(PublishError::Ended.into());
        }
        if let Some(condition) = &change.condition.key
            && let Err(conflict) = self.check_condition(group, now, name, condition)?
        {
            return Ok(Appended::Refused(conflict));
        }
        let mut admitted = Cow::Borrowed(change);
        let record = state.record.as_ref().map(|known| &known.record);
        let depends = record.is_some_and(LogRecord::is_of_creation)
            || change.messages.iter().any(|message| message.needs_creation)
            || change.creates(&state);
        if depends && let Err(refused) = admitted.to_mut().admit(record) {
            return Ok(refused.into());
        }
        if change.creates(&state)
            && let Err(refused) =
                self.check_room(&group.batch, change.holder, RECORD_BYTES_MAX as u64)
        {
            return Ok(refused.into());
        }
        self.load_creator(group, name)?;
        if let Err(refused) = self.check_keys(group, now, name, &change.messages)? {
            return Ok(refused.into());
        }
        let mut contents = Vec::with_capacity(admitted.messages.len());
        for publication in &admitted.messages {
            // It fails only if the state cannot be read, which was.
            contents.push(self.add_message(group, now, publication, retention, next_stamp)?);
        }
        let version = match &change.record {
            RecordChange::Keep => state.record_version(),
            RecordChange::Write(record) => {
                // No stamp is given out twice, whatever ends meanwhile.
                let version = next_stamp().0;
                let record = KnownRecord { version, record: record.clone() };
                self.set_record(group, name, (Some(record), change.holder))?;
                version
            }
            RecordChange::Remove => {
                self.set_record(group, name, (None, RoomHolder::NOBODY))?;
                self.note_if_empty(group, now, name, retention)?;
                0
            }
        };
        Ok(Appended::Changed(contents, version))
    }

    /// A publication as its channel takes it.
    pub(super) fn admit<'p>(
        &self,
        group: &mut Group,
        publication: &'p Publication,
    ) -> Result<Result<Cow<'p, Publication>, PublishError>, StorageError> {
        let name = &publication.channel;
        let has_record = self.channel(&mut group.channels, name)?.head.has_record;
        let known = if has_record { self.state(group, name)?.record } else { None };
        let record = known.as_ref().map(|known| &known.record);
        let admitted = creation::admit(record, publication.needs_creation, publication);
        Ok(admitted.map(|admitted| match admitted {
            None => Cow::Borrowed(publication),
            Some(Replacement { body, content_type }) => {
                Cow::Owned(Publication { body, content_type, ..publication.clone() })
            }
        }))
    }

    /// As [`Logs::each_mortal`].
    pub(crate) fn each_mortal(
        &self,
        each: &mut dyn FnMut(&ChannelName),
    ) -> Result<(), StorageError> {
        self.logs.each_mortal(each)
    }

    /// The state of a log in a group.
    fn state(&self, group: &mut Group, name: &ChannelName) -> Result<LogState, StorageError> {
        let epoch = self.logs.epoch();
        let channel = self.channel(&mut group.channels, name)?;
        let head = MessageId { epoch, offset: channel.head.offset };
        let record = match &channel.record {
            Some(known) => known.now.clone(),
            None if channel.head.has_record => self.logs.committed_record(name)?,
            None => None,
        };
        channel.record.get_or_insert_with(|| {
            let acknowledged = record.clone();
            Box::new(GroupRecord { acknowledged, now: record.clone(), creator: None })
        });
        Ok(LogState { head, record })
    }

    /// Reads into the group how much room the creation of a channel takes. The state of the channel
    /// was read before.
    fn load_creator(&self, group: &mut Group, name: &ChannelName) -> Result<(), StorageError> {
        let channel = self.channel(&mut group.channels, name)?;
        let Some(known) = channel.record.as_mut().filter(|known| known.creator.is_none()) else {
            return Ok(());
        };
        let is_created = known.now.as_ref().is_some_and(|it| it.record.is_of_creation());
        let row = if is_created { self.logs.creator(name)? } else { None };
        known.creator = Some(row);
        Ok(())
    }

    /// Changes the record of a log whose state and creator were read. The holder is charged if that
    /// creates the channel.
    fn set_record(
        &self,
        group: &mut Group,
        name: &ChannelName,
        (record, holder): (Option<KnownRecord>, RoomHolder),
    ) -> Result<(), StorageError> {
        let Group { batch, channels, new_channels, .. } = group;
        let channel = self.channel(channels, name)?;
        let key = format::of_table(Table::LogRecords, name);
        match &record {
            Some(known) => {
                self.number(batch, new_channels, name, &mut channel.head);
                batch.put(Space::Records, key, format::record_value(known));
            }
            None if channel.head.has_record => batch.remove(Space::Records, key),
            None => {}
        }
        channel.head.has_record = record.is_some();
        channel.head.is_erased &= record.is_none();
        channel.head.has_ended = record.as_ref().is_some_and(|known| known.record.is_of_end());
        let Some(known) = &mut channel.record else { return Ok(()) };
        let is_of_creation = |record: &Option<KnownRecord>| {
            record.as_ref().is_some_and(|known| known.record.is_of_creation())
        };
        let place = || format::of_table(Table::Creators, name);
        match (is_of_creation(&known.now), is_of_creation(&record)) {
            (false, true) => {
                let block = record.as_ref().map_or(0, |known| known.record.block().len());
                let bytes = (CREATION_BYTES + block + name.name().len()) as u64;
                let row = CreatorRow { bytes, holder };
                batch.put(Space::Records, place(), row.encode());
                batch.count_creation(&row, true);
                known.creator = Some(Some(row));
            }
            (true, false) => {
                if let Some(row) = known.creator.replace(None).flatten() {
                    batch.remove(Space::Records, place());
                    batch.count_creation(&row, false);
                }
            }
            (false, false) | (true, true) => {}
        }
        known.now = record;
        Ok(())
    }

    /// Notes when a log is forgotten that may have nothing left.
    pub(super) fn note_if_empty(
        &self,
        group: &mut Group,
        now: AgeNow,
        name: &ChannelName,
        retention: &Retention,
    ) -> Result<(), StorageError> {
        let head = &mut self.channel(&mut group.channels, name)?.head;
        if head.number > 0 && head.floor == head.offset {
            note_empty(&mut group.batch, name, head, now.aged_ms, retention);
        }
        Ok(())
    }

    /// Erases a message, a history, or a log. Fails without any effect.
    pub(super) fn erase(
        &self,
        group: &mut Group,
        now: AgeNow,
        name: &ChannelName,
        what: Erase,
        retention: &Retention,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Appended, StorageError> {
        if let Erase::Message(id) = what {
            return self.erase_message(group, now, (name, id), retention, next_stamp);
        }
        // First all that may fail.
        self.state(group, name)?;
        self.load_creator(group, name)?;
        let channel = self.channel(&mut group.channels, name)?;
        let readable = self.count_readable(now, name, channel)?;
        let LogHead { offset, has_keys, .. } = channel.head;
        let (mut floor, mut older) = (channel.head.floor, 0);
        if has_keys {
            let row = *self.load_state(name, channel)?.row();
            (floor, older) = (row.base, row.older);
        }
        if floor < offset {
            // If it cannot be read, all that there are now are earlier.
            let newest = self.stamp_of(name, channel).unwrap_or_else(|| next_stamp().0);
            let head = &mut channel.head;
            head.lost = head.lost.max(newest);
            head.drop_all();
            let note = format::erased(name, floor + 1);
            group.batch.put(Space::Records, note, offset.to_be_bytes());
            (group.has_erased, group.erases) = (true, true);
            if let Some(state) = channel.state.as_mut().filter(|_| has_keys) {
                let before = *state.row();
                state.clear(offset);
                head.has_keys = false;
                group.batch.count_state(&before, state);
                let note = format::of_table(Table::ErasedKeys, name);
                group.batch.put(Space::Records, note, format::erased_keys(offset, b""));
            }
        }
        if what == Erase::Log {
            self.set_record(group, name, (None, RoomHolder::NOBODY))?;
            self.channel(&mut group.channels, name)?.head.is_erased = true;
            if name.kind() == Kind::User {
                group.batch.remove(Space::Records, format::read_marker(name));
            }
        }
        self.note_if_empty(group, now, name, retention)?;
        Ok(Appended::Erased(readable.map(|readable| readable + older), None))
    }

    /// The stamp of the newest message of a log.
    fn stamp_of(&self, name: &ChannelName, channel: &GroupChannel) -> Option<u64> {
        let offset = channel.head.offset;
        let read = || {
            let value = self.storage().get(Space::Messages, &format::message(name, offset));
            value.ok().flatten().and_then(|value| format::measure(&value).ok())
        };
        channel.measure(offset).or_else(read).map(|measure| measure.stamp)
    }

    /// How many messages of a log can be read, without notices; `None` if it takes long to count
    /// them.
    fn count_readable(
        &self,
        now: AgeNow,
        name: &ChannelName,
        channel: &GroupChannel,
    ) -> Result<Option<u64>, StorageError> {
        let LogHead { floor, offset, expiring, blanks, bytes, .. } = channel.head;
        let count = offset - floor;
        if expiring == blanks {
            return Ok(Some(count - blanks));
        }
        if expiring > 0 && (count > TRIMMED_PER_COMMIT as u64 || bytes > COUNTED_BYTES) {
            return Ok(None);
        }
        let mut expired = channel.erased.iter().filter(|(at, _)| *at > floor).count() as u64;
        if expiring > expired {
            let (from, to) = (format::message(name, floor + 1), format::message(name, offset + 1));
            let (epoch, now_ms) = (self.logs.epoch(), clock::from_wall_ms(now.wall_ms));
            let mut each = |_: &[u8], value: &[u8]| {
                let content = format::content(value, epoch, name);
                expired += u64::from(content.is_ok_and(|content| {
                    let is_readable = !content.is_expired(now_ms) && !content.is_notice();
                    !is_readable && !channel.is_erased(content.id.offset)
                }));
                ControlFlow::Continue(())
            };
            self.storage().scan(Space::Messages, (&from, &to), KeyOrder::Up, &mut each)?;
        }
        Ok(Some(count.saturating_sub(expired)))
    }

    /// Erases a message, if it is there.
    fn erase_message(
        &self,
        group: &mut Group,
        now: AgeNow,
        (name, id): (&ChannelName, MessageId),
        retention: &Retention,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Appended, StorageError> {
        let none = || Ok(Appended::Erased(Some(0), None));
        let epoch = self.logs.epoch();
        let Group { batch, channels, messages, erases, .. } = &mut *group;
        let channel = self.channel(channels, name)?;
        let LogHead { floor, offset: newest, has_keys, .. } = channel.head;
        let first = if has_keys { self.load_state(name, channel)?.row().base } else { floor };
        let is_kept = first < id.offset && id.offset <= newest;
        if id.epoch != epoch || !is_kept || channel.is_erased(id.offset) {
            return none();
        }
        let key = format::message(name, id.offset);
        // One of this group is not on the disk yet.
        let own = (id.offset > channel.acknowledged)
            .then(|| messages.iter_mut().find(|new| *batch.writes[new.write].key == key))
            .flatten();
        let value = match &own {
            Some(new) => batch.writes[new.write].value.clone(),
            None => self.storage().get(Space::Messages, &key)?.map(Bytes::from),
        };
        // Lost with the machine, in an epoch before this one.
        let Some(value) = value else { return none() };
        let content = format::content(&value, epoch, name).map_err(unreadable)?;
        let erased = content.without_body();
        let place = batch.scratch.content(&erased);
        if place == value {
            return none();
        }
        let could_be_read = !content.is_expired(clock::from_wall_ms(now.wall_ms));
        let erased = |tombstone| Appended::Erased(Some(u64::from(could_be_read)), tombstone);
        *erases = true;
        let mut ended = None;
        if let Some(key) = content.key().filter(|_| has_keys) {
            let row = self.load_key(name, channel, key)?;
            if row.is_some_and(|row| row.offset == id.offset)
                && let Some(state) = &mut channel.state
            {
                let before = *state.row();
                state.take(key, floor);
                batch.count_state(&before, state);
                ended = Some(key);
            }
        }
        if id.offset <= floor {
            // Another one is what is left until the commit.
            if ended.is_none() {
                return none();
            }
            batch.remove(Space::Messages, key);
            return self.end_key(group, now, (name, ended), retention, next_stamp).map(erased);
        }
        let before = format::measure_content(&content, value.len());
        let after = format::measure_content(&content.without_body(), place.len());
        channel.replace(id.offset, before, after);
        match own {
            Some(new) => {
                new.is_erased = true;
                batch.writes[new.write].value = Some(place);
            }
            None => batch.put(Space::Messages, key, place),
        }
        self.end_key(group, now, (name, ended), retention, next_stamp).map(erased)
    }

    /// Appends the tombstone of a key whose newest message is erased, because clients may have an
    /// earlier value.
    fn end_key(
        &self,
        group: &mut Group,
        now: AgeNow,
        (name, key): (&ChannelName, Option<&str>),
        retention: &Retention,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Option<Arc<Content>>, StorageError> {
        let Some(key) = key else { return Ok(None) };
        let tombstone = Publication::tombstone(name.clone(), key);
        self.add_message(group, now, &tombstone, retention, next_stamp).map(Some)
    }
}
