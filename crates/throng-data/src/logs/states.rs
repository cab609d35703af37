//! The states of logs: the newest message of each key, whatever the retention says of others.
//!
//! A message that is the newest of its key stays where it is when the bounds of its log pass over
//! it. When a newer one supersedes it, it is removed if they have, and otherwise once they do.
//!
//! # Invariants
//!
//! * All that is known of a key is in the commit of the message that sets or removes it.
//! * Each key that a message within the bounds of its log has is in the table of keys, with its
//!   newest message. Tombstones are dropped only beyond the bounds.
//! * Before the bounds of a log and behind the base of its state are the newest messages of keys,
//!   and no others. What an erased history has left is up to the base.
//! * Readers see a log at one moment: its messages in one scan, which is over before it is known
//!   whether the newest of them is acknowledged. So they wait for that.
//!
//! | module | what it is |
//! |---|---|
//! | `due` | what is to be done at a time: values that expire, tombstones that are dropped |
//! | `read` | reading states |

mod due;
mod read;
#[cfg(test)]
mod tests;

use throng_core::change::{ChangeError, KeyCondition};
use throng_core::{
    ChannelName, Content, KeyChange, KeyValue, MessageId, Publication, PublishError, RENEWED_AFTER,
    RoomHolder, Rule, StateLimits, TOMBSTONE_MS, TOMBSTONES_MIN, clock, value_bytes,
};

use super::ages::AgeNow;
use super::format;
use super::group::{Group, GroupChannel, WriteBatch};
use super::group_state::GroupState;
use super::reader::unreadable;
use super::state_rows::{AllStates, KeyRow, StateRow};
use super::writer::Writer;
use crate::storage::{Space, StorageError};

/// Messages of a log between two looks for values that are nearly out of reach.
const RENEWAL_PERIOD: u64 = 64;

/// The oldest message within the bounds of a log, which are about to pass over it.
#[derive(Default)]
pub(super) struct Passing {
    key: Option<Box<str>>,
    time_ms: u64,
    stamp: u64,
    /// True if nobody can read it any more.
    is_gone: bool,
}

impl Writer {
    fn state_limits(&self, name: &ChannelName) -> StateLimits {
        let limits_of = self.state_terms.limits_of.as_ref();
        limits_of.map_or_else(|| Rule::default().state, |limits_of| limits_of(name))
    }

    /// How much there is of all states.
    pub(crate) fn all_states(&self) -> AllStates {
        self.states
    }

    /// Has the group know the state of a log.
    pub(super) fn load_state<'g>(
        &self,
        name: &ChannelName,
        channel: &'g mut GroupChannel,
    ) -> Result<&'g mut GroupState, StorageError> {
        if channel.state.is_none() {
            let row = if channel.head.has_keys { self.logs.state_row(name)? } else { None };
            if channel.head.has_keys && row.is_none() {
                return Err(StorageError::Damaged("the row of its state is missing".into()));
            }
            channel.state = Some(Box::new(GroupState::new(row)));
        }
        let is_new = !channel.head.has_keys;
        let state = channel.state.get_or_insert_default();
        if is_new {
            state.begin(channel.head.floor);
        }
        Ok(state)
    }

    /// Has the group know the newest message of a key.
    pub(super) fn load_key(
        &self,
        name: &ChannelName,
        channel: &mut GroupChannel,
        key: &str,
    ) -> Result<Option<KeyRow>, StorageError> {
        let state = self.load_state(name, channel)?;
        if !state.knows(key) {
            let row = self.logs.key_row(name, key)?;
            state.learn(key, row);
        }
        Ok(state.newest(key))
    }

    /// Checks that a publisher's states and creations may take so many bytes more.
    pub(super) fn check_room(
        &self,
        batch: &WriteBatch,
        holder: RoomHolder,
        bytes: u64,
    ) -> Result<(), PublishError> {
        let Some(max) = self.state_terms.max_bytes.filter(|_| bytes > 0) else { return Ok(()) };
        let all = batch.states_after(self.states);
        let free = max.saturating_sub(all.bytes.saturating_add(all.creations));
        let room = &self.logs.room;
        room.gate.admit((holder, room.held_with(batch, holder)), bytes, free)
    }

    /// Says why messages, of which all are appended or none, are refused that have keys which the
    /// channel cannot take, or remove some that there are not. Afterwards the group knows the keys.
    pub(super) fn check_keys(
        &self,
        group: &mut Group,
        now: AgeNow,
        name: &ChannelName,
        messages: &[Publication],
    ) -> Result<Result<(), PublishError>, StorageError> {
        let Some(keyed) = messages.iter().find(|message| message.key().is_some()) else {
            return Ok(Ok(()));
        };
        let channel = self.channel(&mut group.channels, name)?;
        let value_of = |key: &str| {
            let row = self.load_key(name, channel, key)?.filter(|row| !row.is_tombstone());
            let can_be_read = row.is_some_and(|row| row.is_value_at(now.wall_ms));
            Ok(row.map(|row| KeyValue { bytes: row.bytes, can_be_read }))
        };
        let change = match KeyChange::of(messages, self.state_limits(name), value_of)? {
            Ok(change) => change,
            Err(refused) => return Ok(Err(refused)),
        };
        let StateRow { keys, bytes, .. } = *self.load_state(name, channel)?.row();
        let grows = change.check(keys, bytes);
        Ok(grows.and_then(|grows| self.check_room(&group.batch, keyed.holder, grows)))
    }

    /// Fails unless a key has the value that a change is made for: returns the one that it has.
    pub(super) fn check_condition(
        &self,
        group: &mut Group,
        now: AgeNow,
        name: &ChannelName,
        condition: &KeyCondition,
    ) -> Result<Result<(), ChangeError>, StorageError> {
        let channel = self.channel(&mut group.channels, name)?;
        let row = self.load_key(name, channel, &condition.key)?;
        let epoch = self.logs.epoch();
        let newest = row.filter(|row| row.is_value_at(now.wall_ms));
        let newest = newest.map(|row| MessageId { epoch, offset: row.offset });
        let holds = newest == condition.newest;
        Ok(if holds { Ok(()) } else { Err(ChangeError::KeyConflict(newest)) })
    }

    /// Notes the key of a message that was added to a log. The group knows the key.
    pub(super) fn note_key(
        &self,
        batch: &mut WriteBatch,
        name: &ChannelName,
        channel: &mut GroupChannel,
        (content, holder): (&Content, RoomHolder),
    ) {
        let offset = content.id.offset;
        let (Some(key), GroupChannel { head, state: Some(state), .. }) = (content.key(), channel)
        else {
            debug_assert!(content.key().is_none(), "the group knows its key");
            return;
        };
        if !head.has_keys {
            state.begin(head.floor);
            head.has_keys = true;
        }
        let before = *state.row();
        if let Some(superseded) = state.take(key, head.floor)
            && superseded.offset <= head.floor
        {
            batch.remove(Space::Messages, format::message(name, superseded.offset));
        }
        let row = if content.removes_key() {
            KeyRow::tombstone(offset)
        } else {
            let expires_ms = content.expires_ms.map(|at_ms| clock::wall_ms(at_ms.get()).max(1));
            let bytes = value_bytes(key, content.weight_bytes()) as u64;
            KeyRow::value(offset, bytes, expires_ms).held_by(holder)
        };
        state.put(key, row);
        batch.count_state(&before, state);
    }

    /// Has values looked for from time to time that are nearly out of reach.
    pub(super) fn note_reach(batch: &mut WriteBatch, name: &ChannelName, head: &format::LogHead) {
        if head.has_keys
            && head.offset > RENEWED_AFTER
            && head.offset.is_multiple_of(RENEWAL_PERIOD)
        {
            batch.key_work.push(name.clone());
        }
    }

    /// The oldest message of a channel with a state, whose key the group knows then; `None` if
    /// either cannot be read now. One that is damaged has no key if it `may_drop`.
    pub(super) fn load_passing(
        &self,
        batch: &mut WriteBatch,
        (name, channel): (&ChannelName, &mut GroupChannel),
        (now, may_drop): (AgeNow, bool),
    ) -> Option<Passing> {
        let loaded = self.load_state(name, channel).map(drop);
        let passing = match loaded.and_then(|()| self.passing(name, channel, now)) {
            // It was told when it was measured.
            Err(StorageError::Damaged(_)) if may_drop && channel.state.is_some() => {
                Ok(Passing::default())
            }
            passing => passing,
        };
        let loaded = passing.and_then(|passing| {
            if let Some(key) = &passing.key {
                self.load_key(name, channel, key)?;
            }
            Ok(passing)
        });
        loaded.map_err(|error| batch.unreadable.note(name, &error)).ok()
    }

    /// The oldest message within the bounds of a log with a state, of which this is the value on
    /// the disk, or the group's.
    fn passing(
        &self,
        name: &ChannelName,
        channel: &GroupChannel,
        now: AgeNow,
    ) -> Result<Passing, StorageError> {
        let offset = channel.head.floor + 1;
        if let Some(measure) = channel.measure(offset) {
            let is_gone = channel.is_erased(offset);
            let key = channel.state.as_ref().and_then(|state| state.own_key(offset));
            let key = key.filter(|_| !is_gone).map(Box::from);
            return Ok(Passing { key, time_ms: measure.time_ms, stamp: measure.stamp, is_gone });
        }
        let value = self.storage().get(Space::Messages, &format::message(name, offset))?;
        // Lost with the machine, in an epoch before this one.
        let Some(value) = value else {
            return Ok(Passing::default());
        };
        let content = format::content(&value, self.logs.epoch(), name).map_err(unreadable)?;
        Ok(Passing {
            key: content.key().map(Box::from),
            time_ms: clock::wall_ms(content.time_ms),
            stamp: content.stamp.0,
            is_gone: content.is_expired(clock::from_wall_ms(now.wall_ms)),
        })
    }

    /// The bounds of a log with a state have passed over a message: it stays if it is the newest of
    /// its key, which the group knows.
    pub(super) fn pass(
        &self,
        batch: &mut WriteBatch,
        name: &ChannelName,
        channel: &mut GroupChannel,
        passing: &Passing,
    ) {
        let GroupChannel { head, state: Some(state), .. } = channel else { return };
        let offset = head.floor;
        let key = passing.key.as_deref();
        let newest = key.and_then(|key| Some((key, state.newest(key)?)));
        if let Some((key, row)) = newest
            && row.offset == offset
        {
            let due_ms = passing.time_ms.saturating_add(TOMBSTONE_MS);
            let max = self.state_limits(name).max_keys.max(TOMBSTONES_MIN);
            if state.pass(key, due_ms, max) {
                batch.key_work.push(name.clone());
            }
            return;
        }
        batch.remove(Space::Messages, format::message(name, offset));
        if newest.is_none() && !passing.is_gone {
            state.lose(offset);
            head.lost = head.lost.max(passing.stamp);
        }
    }
}
