//! The states of a shard's channels: their limits, their pages, and values that expire.

use std::cmp::Reverse;
use std::convert::Infallible;

use super::super::shared::Shared;
use super::{Hashed, Shard, Wake};
use crate::change::{ChangeError, KeyCondition};
use crate::holder::RoomHolder;
use crate::publication::{Publication, PublishError};
use crate::state::{KeyChange, KeyPage, KeyQuery, RENEWED_AFTER};

impl Shard {
    /// Fails if messages, of which all are appended or none, have keys that the channel cannot
    /// take, or remove some that there are not.
    pub(super) fn check_keys(
        &self,
        shared: &Shared,
        name: Hashed<'_>,
        messages: &[Publication],
    ) -> Result<(), PublishError> {
        if messages.iter().all(|message| message.key().is_none()) {
            return Ok(());
        }
        let channel = self.find(name).map(|slot| &self.channels[slot]);
        let rule = channel.map_or_else(|| shared.rules.find(name.name), |channel| channel.rule);
        let log = channel.and_then(|channel| channel.log.as_deref());
        let value_of = |key: &str| Ok::<_, Infallible>(log.and_then(|log| log.value_of(key)));
        let Ok(change) = KeyChange::of(messages, shared.rules.get(rule).state, value_of);
        let (keys, bytes) = log.map_or((0, 0), |log| (log.state_keys(), log.state_bytes()));
        let grows = change?.check(keys as u64, bytes as u64)?;
        let keyed = messages.iter().find(|message| message.key().is_some());
        if grows > 0
            && let Some(keyed) = keyed
        {
            shared.check_room_for_state(keyed.holder, grows as usize)?;
        }
        Ok(())
    }

    /// Fails unless a key has the value that a change is made for.
    pub(super) fn check_condition(
        &self,
        shared: &Shared,
        name: Hashed<'_>,
        condition: &KeyCondition,
    ) -> Result<(), ChangeError> {
        let log = self.find(name).and_then(|slot| self.channels[slot].log.as_deref());
        let newest = log.and_then(|log| log.newest_of(&condition.key));
        let newest = newest.map(|offset| shared.message_id(offset));
        if newest == condition.newest { Ok(()) } else { Err(ChangeError::KeyConflict(newest)) }
    }

    /// A page of a channel's state.
    pub(in crate::memory) fn keys(
        &mut self,
        shared: &Shared,
        now_ms: u64,
        name: Hashed<'_>,
        query: &KeyQuery,
    ) -> KeyPage {
        let head = self.state(shared, name).head;
        let slot = self.find(name);
        let channel = slot.and_then(|slot| self.channels.get_mut(slot));
        let Some(channel) = channel else {
            return KeyPage { head, messages: Vec::new(), next: None };
        };
        channel.expire(shared, now_ms);
        let page = channel.log.as_mut().map(|log| log.state_page(query)).unwrap_or_default();
        KeyPage { head, messages: page.0, next: page.1 }
    }

    /// Plans a look for expired values of a channel's keys, if it has any that expire.
    pub(super) fn plan_look(&mut self, slot: u32) {
        let log = self.channels.get_mut(slot).and_then(|channel| channel.log.as_mut());
        if let Some(time_ms) = log.and_then(|log| log.plan_look()) {
            self.looks.push(Reverse((time_ms, slot)));
        }
    }

    /// The time of the next look for expired values.
    pub(in crate::memory) fn next_look_ms(&self) -> Option<u64> {
        self.looks.peek().map(|Reverse((time_ms, _))| *time_ms)
    }

    /// Removes the keys whose values have expired, and tells those who follow their channels. Wake
    /// the returned workers once the lock is released.
    pub(in crate::memory) fn remove_expired_keys(&mut self, shared: &Shared, now_ms: u64) -> Wake {
        let mut wake = Wake::new();
        while let Some(&Reverse((time_ms, slot))) = self.looks.peek()
            && time_ms <= now_ms
        {
            self.looks.pop();
            // It may be another channel's slot by now, or an earlier look has come before.
            let log = self.channels.get_mut(slot).and_then(|channel| channel.log.as_mut());
            if !log.is_some_and(|log| log.begin_look(time_ms)) {
                continue;
            }
            self.channels[slot].expire(shared, now_ms);
            wake.extend(self.append_tombstones(shared, now_ms, slot));
            self.plan_look(slot);
        }
        wake
    }

    /// Appends the tombstones of keys whose values have expired or were erased.
    pub(super) fn append_tombstones(&mut self, shared: &Shared, now_ms: u64, slot: u32) -> Wake {
        let mut wake = Wake::new();
        let log = self.channels[slot].log.as_mut();
        for key in log.map(|log| log.take_ended_keys()).unwrap_or_default() {
            wake.extend(self.append_tombstone(shared, now_ms, slot, &key));
        }
        wake
    }

    /// Publishes the oldest value of a channel's state again, if subscriptions could soon not begin
    /// before it: no cursor is as far behind. Each publication renews one at most.
    pub(super) fn renew_oldest_value(&mut self, shared: &Shared, now_ms: u64, slot: u32) -> Wake {
        let channel = &self.channels[slot];
        let Some(log) = channel.log.as_ref().filter(|log| log.has_keys()) else {
            return Wake::new();
        };
        let oldest = log.oldest_value(channel.head.saturating_sub(RENEWED_AFTER));
        let Some((content, offset)) = oldest.zip(shared.next_offset(channel.head).ok()) else {
            return Wake::new();
        };
        let holder = content.key().map_or(RoomHolder::NOBODY, |key| log.holder_of(key));
        let publication = Publication { holder, ..Publication::again(&content, now_ms) };
        self.append_at(shared, now_ms, (slot, offset), publication).wake
    }

    fn append_tombstone(&mut self, shared: &Shared, now_ms: u64, slot: u32, key: &str) -> Wake {
        let Ok(offset) = shared.next_offset(self.channels[slot].head) else { return Wake::new() };
        let name = self.names.name(self.channels[slot].name);
        let publication = Publication::tombstone(name, key);
        self.append_at(shared, now_ms, (slot, offset), publication).wake
    }
}
