//! Changes of a log in memory: see [`crate::change`].

use std::sync::atomic::Ordering;

use super::super::shared::Shared;
use super::append::check_room;
use super::{Hashed, Shard, Wake};
use crate::change::{
    ChangeError, Changed, Erase, Erased, KnownRecord, LogChange, LogState, RECORD_BYTES_MAX,
    RecordChange, RecordVersion,
};
use crate::creation::{self, ReadAs};
use crate::holder::RoomHolder;
use crate::log::Log;
use crate::publication::{Publication, PublishError, Replacement};

/// Nothing could keep a record.
const KEEPS_NOTHING: &str = "the channel keeps no history, so it has no record: see \
                             `history-messages` of its rule";

impl Shard {
    pub(in crate::memory) fn state(&self, shared: &Shared, name: Hashed<'_>) -> LogState {
        let Some(slot) = self.find(name) else {
            // A channel that is created now starts here.
            return LogState { head: shared.message_id(self.forgotten.head()), record: None };
        };
        let channel = &self.channels[slot];
        let record = channel.log.as_ref().and_then(|log| log.record().cloned());
        LogState { head: shared.message_id(channel.head), record }
    }

    /// Makes a change. Wake the returned workers once the lock is released.
    pub(in crate::memory) fn change(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        hash: u64,
        (mut change, known): (LogChange, Option<ReadAs>),
    ) -> Result<(Changed, Wake), ChangeError> {
        let channel = change.channel.clone();
        let name = Hashed { name: &channel, hash };
        let state = self.state(shared, name);
        if !change.condition.holds(&state) {
            return Err(ChangeError::Conflict(state));
        }
        if state.is_ended() && change.is_refused_by_end() {
            return Err(PublishError::Ended.into());
        }
        if let Some(condition) = &change.condition.key {
            self.check_condition(shared, name, condition)?;
        }
        self.check_keys(shared, name, &change.messages)?;
        if shared.rules.get(shared.rules.find(name.name)).retention.is_none()
            && change.record != RecordChange::Keep
        {
            return Err(ChangeError::Unsupported(KEEPS_NOTHING));
        }
        if shared.has_created() || change.is_of_creation() {
            let must_exist = shared.rules.get(shared.rules.find(name.name)).must_exist;
            change.messages.iter_mut().for_each(|message| message.needs_creation = must_exist);
            change.admit_read(state.record.as_ref().map(|known| &known.record), known)?;
        }
        if change.creates(&state) {
            shared.check_room_for_state(change.holder, RECORD_BYTES_MAX)?;
        }
        shared.check_offsets(state.head.offset, change.messages.len() as u64)?;
        let slot = self.find_or_create(shared, name);
        check_room(shared, self.channels[slot].followers.as_slice())?;
        let (mut ids, mut wake) = (Vec::with_capacity(change.messages.len()), Wake::new());
        for publication in change.messages {
            let offset = shared.offset_after(self.channels[slot].head);
            wake = self.append_at(shared, now_ms, (slot, offset), publication).wake;
            ids.push(shared.message_id(offset));
        }
        wake.extend(self.renew_oldest_value(shared, now_ms, slot));
        shared.published.fetch_add(ids.len() as u64, Ordering::Relaxed);
        let record = self.change_record(shared, now_ms, slot, (change.record, change.holder));
        self.forget_if_unused(shared, now_ms, slot);
        Ok((Changed { ids, record }, wake))
    }

    /// A publication's content as its channel takes it; `None` if that is its own.
    pub(super) fn admit(
        &self,
        shared: &Shared,
        name: Hashed<'_>,
        (publication, known): (&Publication, Option<&mut ReadAs>),
    ) -> Result<Option<Replacement>, PublishError> {
        // Mostly no channel was created.
        if !shared.has_created() {
            return Ok(None);
        }
        let channel = self.find(name).map(|slot| &self.channels[slot]);
        let rule = channel.map_or_else(|| shared.rules.find(name.name), |channel| channel.rule);
        let record = channel.and_then(|channel| channel.log.as_ref()?.record());
        let must_exist = shared.rules.get(rule).must_exist;
        let record = record.map(|known| &known.record);
        creation::admit_read(record, must_exist, publication, known)
    }

    /// True if somebody has created a channel.
    pub(in crate::memory) fn is_created(&self, name: Hashed<'_>) -> bool {
        let log = self.find(name).and_then(|slot| self.channels[slot].log.as_ref());
        log.is_some_and(|log| log.is_created())
    }

    /// Changes the record of a log. Returns its version.
    fn change_record(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        slot: u32,
        (change, creator): (RecordChange, RoomHolder),
    ) -> RecordVersion {
        let channel = &mut self.channels[slot];
        let record = match change {
            RecordChange::Keep => {
                let record = channel.log.as_ref().and_then(|log| log.record());
                return record.map_or(0, |known| known.version);
            }
            RecordChange::Write(record) => {
                // A number that no other record has.
                let version = shared.stamps.begin(self.number).0;
                shared.stamps.end(self.number);
                Some(KnownRecord { version, record })
            }
            RecordChange::Remove => None,
        };
        let lost = shared.lost(channel.rule);
        let log = channel.log.get_or_insert_with(|| Box::new(Log::new(lost)));
        let name_bytes = self.names.get(channel.name).len();
        shared.set_record(now_ms, log, record, (name_bytes, creator))
    }

    /// Erases messages. Wake the returned workers once the lock is released.
    pub(in crate::memory) fn erase(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        name: Hashed<'_>,
        what: Erase,
    ) -> (Erased, Wake) {
        let none = || (Erased { messages: Some(0) }, Wake::new());
        let Some(slot) = self.find(name) else { return none() };
        let channel = &mut self.channels[slot];
        channel.expire(shared, now_ms);
        let Some(log) = &mut channel.log else { return none() };
        let messages = match what {
            Erase::Message(id) => {
                u64::from(id.epoch == shared.epoch && shared.erase(log, id.offset))
            }
            Erase::History | Erase::Log => {
                let messages = log.readable() as u64;
                shared.clear(log);
                messages
            }
        };
        if what == Erase::Log {
            shared.set_record(now_ms, log, None, (0, RoomHolder::NOBODY));
        }
        let wake = self.append_tombstones(shared, now_ms, slot);
        self.forget_if_unused(shared, now_ms, slot);
        (Erased { messages: Some(messages) }, wake)
    }
}
