//! The state of a log: which of its messages are the newest of their keys.
//!
//! The messages of a log with keys are in two parts. The older part has those that the retention
//! does not cover and that are kept all the same, because each is the newest of its key; the rest
//! is the window, which the retention bounds. The window moves on over the messages and moves none
//! of them. A message that is kept for neither reason leaves a placeholder in the older part, as an
//! expired one does, until many of them are taken out at once.
//!
//! Invariants: each key names a message of the log that has it and can be read. The newest message
//! is always in the log, be it as a placeholder, so that a log ends at its channel's head.
//! `floor` is the offset of the newest message that was dropped though nothing has superseded it.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::keys::{FrozenKeys, Keys, Newest};
use super::{Kept, Log, View};
use crate::holder::RoomHolder;
use crate::message::{Content, Message};
use crate::rules::{Retention, StateLimits};
use crate::stamp::Stamp;
use crate::state::{KEYS_LOOKED_AT_MAX, KeyQuery, KeyValue, tombstones, value_bytes};

/// Fewer placeholders are not worth a pass.
const GONE_MIN: usize = 32;

impl Log {
    /// The bytes of the log's state, as its limits count them.
    pub(crate) fn state_bytes(&self) -> usize {
        self.keys.as_ref().map_or(0, |keys| keys.bytes)
    }

    /// The bytes of tombstones, which no limit of the log counts. But they are memory that is not
    /// there for others' messages.
    pub(crate) fn tombstone_bytes(&self) -> usize {
        self.keys.as_ref().map_or(0, |keys| keys.removed_bytes)
    }

    /// The number of keys that have a value.
    pub(crate) fn state_keys(&self) -> usize {
        self.keys.as_ref().map_or(0, |keys| keys.newest.len() - keys.removed)
    }

    /// The offset of the message that has set a key; `None` if the key has no value.
    pub(crate) fn newest_of(&self, key: &str) -> Option<u64> {
        let offset = self.keys.as_ref()?.offset_of(key)?;
        let is_value = self.view_of(offset).is_some_and(|view| !removes_key(&view));
        is_value.then_some(offset)
    }

    /// The value of a key, as limits count it.
    pub(crate) fn value_of(&self, key: &str) -> Option<KeyValue> {
        let view = self.newest_of(key).and_then(|offset| self.view_of(offset))?;
        let bytes = value_bytes(key, view.weight_bytes()) as u64;
        Some(KeyValue { bytes, can_be_read: true })
    }

    fn view_of(&self, offset: u64) -> Option<View<'_>> {
        let at = self.place_of(offset)?;
        Some(self.view(&self.messages[at]))
    }

    pub(super) fn place_of(&self, offset: u64) -> Option<usize> {
        self.messages.binary_search_by_key(&offset, |entry| self.view(entry).offset()).ok()
    }

    /// Notes the key of the newest message, which is about to be appended. The earlier message of
    /// the key is superseded.
    pub(super) fn note_key(&mut self, content: &Content, holder: RoomHolder) {
        let Some(key) = content.key() else { return };
        if self.keys.is_none() {
            self.begin_keys(self.floor().unwrap_or(content.previous));
        }
        self.forget_key(key);
        let Some(keys) = &mut self.keys else { return };
        let bytes = value_bytes(key, content.weight_bytes());
        keys.uncounted.add(holder, bytes as isize);
        if content.removes_key() {
            keys.removed += 1;
            keys.removed_bytes += bytes;
            keys.tombstones.push_back((content.time_ms, content.id.offset));
        } else {
            keys.bytes += bytes;
        }
        keys.newest.insert(key.into(), Newest { offset: content.id.offset, holder });
    }

    /// Takes a key out of the index. Its message stays as long as the retention covers it.
    fn forget_key(&mut self, key: &str) {
        let Some(keys) = &self.keys else { return };
        let (older, Some(offset)) = (keys.older, keys.offset_of(key)) else { return };
        let unkeyed = self.unkey(offset);
        debug_assert!(unkeyed.is_some(), "the newest message of a key is in its log");
        if let Some(at) = self.place_of(offset).filter(|at| *at < older) {
            self.take_body(at);
        }
    }

    /// A message is about to lose its body, because it has expired or is erased: then it is the
    /// newest of no key any more. Returns that key, if it was.
    pub(super) fn unkey(&mut self, offset: u64) -> Option<Box<str>> {
        self.keys.as_ref()?;
        let view = self.view_of(offset)?;
        let key: Box<str> = view.key()?.into();
        let newest = self.keys.as_ref()?.newest.get(&key).copied();
        let Newest { holder, .. } = newest.filter(|newest| newest.offset == offset)?;
        let is_tombstone = removes_key(&view);
        let bytes = value_bytes(&key, view.weight_bytes());
        let keys = self.keys.as_mut()?;
        keys.newest.remove(&key);
        keys.uncounted.add(holder, -(bytes as isize));
        if is_tombstone {
            keys.removed -= 1;
            keys.removed_bytes -= bytes;
        } else {
            keys.bytes -= bytes;
        }
        Some(key)
    }

    /// A message has become a placeholder: it is counted as gone if it is before the window.
    pub(super) fn note_gone(&mut self, at: usize, bytes: usize) {
        if let Some(keys) = self.keys.as_mut().filter(|keys| at < keys.older) {
            keys.older_bytes -= bytes;
            keys.gone += 1;
        }
    }

    /// A key whose value has expired or is erased.
    pub(super) fn note_ended_key(&mut self, key: Box<str>) {
        if let Some(keys) = &mut self.keys {
            keys.ended.push(key);
        }
    }

    /// Plans a look for expired values. Returns its time, if none so early is planned.
    pub(crate) fn plan_look(&mut self) -> Option<u64> {
        let keys = self.keys.as_mut()?;
        let Reverse((next_ms, _)) = *self.expiring.as_ref()?.next.peek()?;
        if keys.look_ms.is_some_and(|look_ms| look_ms <= next_ms) {
            return None;
        }
        keys.look_ms = Some(next_ms);
        Some(next_ms)
    }

    /// Begins the look that was planned for this time. Returns false if that is another one.
    pub(crate) fn begin_look(&mut self, planned_ms: u64) -> bool {
        let keys = self.keys.as_mut().filter(|keys| keys.look_ms == Some(planned_ms));
        keys.map(|keys| keys.look_ms = None).is_some()
    }

    /// The keys whose values have expired or were erased since the last call. Each needs a
    /// tombstone, unless it has got a value meanwhile.
    pub(crate) fn take_ended_keys(&mut self) -> Vec<Box<str>> {
        let Some(keys) = &mut self.keys else { return Vec::new() };
        let ended = std::mem::take(&mut keys.ended);
        ended.into_iter().filter(|key| !keys.newest.contains_key(key)).collect()
    }

    /// [`Log::trim`] of a log with keys.
    pub(super) fn trim_keyed(&mut self, retention: &Retention, now_ms: u64, max: StateLimits) {
        while let Some((_, bytes, oldest_ms)) = self.window() {
            let is_over = self.count().exceeds(retention.max_messages)
                || bytes > retention.max_bytes
                || oldest_ms.saturating_add(retention.max_age_ms) <= now_ms;
            if !is_over || !self.narrow_window() {
                break;
            }
        }
        self.drop_tombstones(now_ms, max);
        self.take_out_gone();
    }

    /// The number of messages in the window, their bytes, and the time of the oldest.
    fn window(&self) -> Option<(usize, usize, u64)> {
        let keys = self.keys.as_ref()?;
        let first = self.view(self.messages.get(keys.older)?);
        Some((self.messages.len() - keys.older, self.bytes - keys.older_bytes, first.time_ms()))
    }

    /// Moves the start of the window behind its oldest message. Returns false if that is the newest
    /// one, of which nothing is left.
    pub(super) fn narrow_window(&mut self) -> bool {
        let Some(keys) = &self.keys else { return false };
        let at = keys.older;
        let Some(entry) = self.messages.get(at) else { return false };
        let view = self.view(entry);
        let (offset, stamp, bytes) = (view.offset(), view.stamp(), view.weight_bytes());
        let is_last = at + 1 == self.messages.len();
        let newest = view.key().map(|key| keys.offset_of(key));
        if newest == Some(Some(offset)) {
            self.pass_into_older(bytes);
            return !is_last;
        }
        if !view.is_expired() {
            // No tombstone remembers a key that the index does not have.
            let is_superseded = matches!(newest, Some(Some(_)));
            self.take_body(at);
            if !is_superseded {
                self.lose(offset, stamp);
            }
        }
        if is_last {
            return false;
        }
        if at == 0 {
            self.drop_front();
        } else {
            let bytes = self.messages.get(at).map_or(0, |entry| self.view(entry).weight_bytes());
            self.pass_into_older(bytes);
            if let Some(keys) = &mut self.keys {
                keys.gone += 1;
            }
        }
        true
    }

    /// The window begins behind its oldest message, which has these bytes.
    fn pass_into_older(&mut self, bytes: usize) {
        if let Some(keys) = &mut self.keys {
            keys.older += 1;
            keys.older_bytes += bytes;
        }
    }

    /// A message is dropped that nothing has superseded.
    fn lose(&mut self, offset: u64, stamp: Stamp) {
        if let Some(keys) = &mut self.keys {
            keys.floor = keys.floor.max(offset);
        }
        self.lost = self.lost.max(stamp);
    }

    /// Takes out the first message, a placeholder.
    fn drop_front(&mut self) {
        let Some(first) = self.messages.pop_front() else { return };
        let view = self.view(&first);
        let (bytes, offset) = (view.weight_bytes(), view.offset());
        self.bytes -= bytes;
        if let Some(expiring) = &mut self.expiring {
            expiring.expired -= 1;
            expiring.runs.forget_up_to(offset);
        }
    }

    /// Drops the oldest tombstones before the window, as far as there are too many or they are too
    /// old. Those in the window are of use to whoever resumes there, whatever their age.
    fn drop_tombstones(&mut self, now_ms: u64, max: StateLimits) {
        let (max_tombstones, age_ms) = tombstones(max);
        loop {
            let Some(keys) = &self.keys else { return };
            let Some(&(time_ms, offset)) = keys.tombstones.front() else { return };
            let view = self.view_of(offset);
            let key = view.and_then(|view| Some((view.stamp(), Box::<str>::from(view.key()?))));
            let newest = key.filter(|(_, key)| keys.offset_of(key) == Some(offset));
            if let Some((stamp, key)) = newest {
                let is_over = time_ms.saturating_add(age_ms) <= now_ms
                    || keys.tombstones.len() > max_tombstones;
                if !is_over || self.place_of(offset) >= Some(keys.older) {
                    return;
                }
                self.forget_key(&key);
                self.lose(offset, stamp);
            }
            if let Some(keys) = &mut self.keys {
                keys.tombstones.pop_front();
            }
        }
    }

    /// Takes the placeholders before the window out: the first ones, and the others if they are
    /// many.
    fn take_out_gone(&mut self) {
        while self.keys.as_ref().is_some_and(|keys| keys.gone > 0)
            && self.messages.front().is_some_and(|first| self.view(first).is_expired())
        {
            let bytes = self.messages.front().map_or(0, |first| self.view(first).weight_bytes());
            self.drop_front();
            if let Some(keys) = &mut self.keys {
                keys.older -= 1;
                keys.gone -= 1;
                keys.older_bytes -= bytes;
            }
        }
        let Some(keys) = &mut self.keys else { return };
        let window = self.messages.len() - keys.older;
        if keys.gone < GONE_MIN || keys.gone < keys.older / 2 || keys.gone < window / 8 {
            return;
        }
        // The newest message stays, if only its place.
        let rest = self.messages.split_off(keys.older.min(self.messages.len() - 1));
        let sealed = self.sealed.as_deref();
        let (mut bytes, mut count) = (0, 0);
        self.messages.retain(|entry| {
            let view = entry.view(sealed);
            if view.is_expired() {
                bytes += view.weight_bytes();
                count += 1;
            }
            !view.is_expired()
        });
        debug_assert!(count <= keys.gone, "the placeholders before the window are counted");
        self.bytes -= bytes;
        keys.older_bytes -= bytes;
        keys.older -= count;
        keys.gone -= count;
        let before_rest = rest.front().map_or(u64::MAX, |first| first.view(sealed).offset() - 1);
        if let Some(expiring) = &mut self.expiring {
            expiring.expired -= count;
            expiring.runs.forget_up_to(before_rest);
        }
        self.messages.extend(rest);
    }

    /// True if nothing is left of the log but the placeholder of its newest message.
    pub(super) fn is_spent(&self) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.newest.is_empty() && keys.ended.is_empty())
            && self.messages.len() - self.expired() == 0
    }

    /// When the oldest message of the window was published that can be dropped for room.
    pub(super) fn oldest_in_window_ms(&self) -> Option<u64> {
        let (messages, _, oldest_ms) = self.window()?;
        let is_placeholder = messages == 1
            && self.messages.back().is_some_and(|last| {
                let view = self.view(last);
                view.is_expired() || view.key().is_some()
            });
        (!is_placeholder).then_some(oldest_ms)
    }

    /// The offset of the newest message that is no longer here though nothing has superseded it.
    pub(super) fn keyed_floor(&self) -> Option<u64> {
        self.keys.as_ref().map(|keys| keys.floor)
    }

    /// The number of messages before the window, and the floor; `None` without keys.
    pub(crate) fn frozen_keys(&self) -> Option<FrozenKeys> {
        let keys = self.keys.as_ref()?;
        let mut last = BTreeMap::new();
        for entry in &self.messages {
            let view = self.view(entry);
            if let Some(key) = view.key() {
                last.insert(key.to_owned(), view.offset());
            }
        }
        let is_ended = |(key, offset): &(String, u64)| keys.offset_of(key) != Some(*offset);
        let ended = last.into_iter().filter(is_ended).map(|(_, offset)| offset).collect();
        let held = keys.newest.values().filter(|newest| newest.holder != RoomHolder::NOBODY);
        let holders = held.map(|newest| (newest.offset, newest.holder)).collect();
        Some(FrozenKeys { older: keys.older as u32, floor: keys.floor, ended, holders })
    }

    /// Begins to keep the newest message of each key. The newest message that was dropped has the
    /// offset `floor`.
    pub(crate) fn begin_keys(&mut self, floor: u64) {
        self.keys = Some(Box::new(Keys { floor, ..Keys::default() }));
    }

    /// Goes on as a log that was frozen, once all of its messages are here.
    pub(crate) fn thaw_keys(&mut self, frozen: &FrozenKeys) {
        for &offset in &frozen.ended {
            self.unkey(offset);
        }
        frozen.holders.iter().for_each(|&(offset, holder)| self.thaw_holder(offset, holder));
        let older = (frozen.older as usize).min(self.messages.len());
        let (mut older_bytes, mut gone) = (0, 0);
        for entry in self.messages.range(..older) {
            let view = self.view(entry);
            older_bytes += view.weight_bytes();
            gone += usize::from(view.is_expired());
        }
        let keys = self.keys.get_or_insert_default();
        (keys.older, keys.older_bytes, keys.gone) = (older, older_bytes, gone);
        keys.floor = frozen.floor;
    }

    /// A message that is the newest of its key is held by this publisher.
    fn thaw_holder(&mut self, offset: u64, holder: RoomHolder) {
        let Some(view) = self.view_of(offset) else { return };
        let Some(key) = view.key().map(Box::<str>::from) else { return };
        let bytes = value_bytes(&key, view.weight_bytes());
        let Some(keys) = &mut self.keys else { return };
        let newest = keys.newest.get_mut(&key).filter(|newest| newest.offset == offset);
        if let Some(newest) = newest.filter(|newest| newest.holder == RoomHolder::NOBODY) {
            newest.holder = holder;
            keys.uncounted.add(holder, bytes as isize);
        }
    }

    /// The publisher that holds the newest message of a key.
    pub(crate) fn holder_of(&self, key: &str) -> RoomHolder {
        let newest = self.keys.as_ref().and_then(|keys| keys.newest.get(key));
        newest.map_or(RoomHolder::NOBODY, |newest| newest.holder)
    }

    /// Nobody holds any message from now on.
    pub(crate) fn release_all(&mut self) {
        let Some(keys) = &self.keys else { return };
        let mut held = Vec::new();
        for (key, Newest { offset, holder }) in &keys.newest {
            if *holder != RoomHolder::NOBODY
                && let Some(view) = self.view_of(*offset)
            {
                held.push((*holder, value_bytes(key, view.weight_bytes())));
            }
        }
        let Some(keys) = &mut self.keys else { return };
        keys.newest.values_mut().for_each(|newest| newest.holder = RoomHolder::NOBODY);
        held.into_iter().for_each(|(holder, bytes)| keys.uncounted.add(holder, -(bytes as isize)));
    }

    /// The bytes that publishers hold more or less since the last call.
    pub(crate) fn take_uncounted(&mut self) -> impl Iterator<Item = (RoomHolder, isize)> {
        self.keys.iter_mut().flat_map(|keys| keys.uncounted.drain())
    }

    /// True if some message has a key, or had.
    pub(crate) fn has_keys(&self) -> bool {
        self.keys.is_some()
    }

    /// The value that no later message precedes, if its offset is at most `limit`.
    pub(crate) fn oldest_value(&self, limit: u64) -> Option<Arc<Content>> {
        let keys = self.keys.as_ref()?;
        let first = self.messages.front()?;
        let view = self.view(first);
        let offset = Some(view.offset()).filter(|offset| *offset <= limit)?;
        let is_newest = keys.offset_of(view.key()?) == Some(offset);
        (is_newest && !removes_key(&view)).then(|| first.content(self.sealed.as_deref()))
    }

    /// The messages after `offset` for a subscription that begins, oldest first: without those that
    /// are superseded, and if it begins with the state, without tombstones. The last one is always
    /// there.
    pub(crate) fn backlog(&mut self, offset: u64, is_state: bool) -> Vec<Arc<Message>> {
        if self.keys.is_none() {
            return self.after(offset).map(Kept::message).collect();
        }
        let from = self.messages.partition_point(|entry| self.view(entry).offset() <= offset);
        let last = self.messages.len().saturating_sub(1);
        let Log { messages, sealed, keys, .. } = self;
        let sealed = sealed.as_deref();
        let Some(keys) = keys.as_deref() else { return Vec::new() };
        // Each message is looked at for each subscription: no key is read that need not be.
        let hides_tombstones = is_state && keys.removed > 0;
        let is_newest = |at: usize, view: &View<'_>| match view {
            // Whatever is left before the window is the newest of its key.
            view if at < keys.older => !view.is_expired(),
            view => match view.key() {
                Some(key) => keys.offset_of(key) == Some(view.offset()),
                None => !view.is_expired(),
            },
        };
        let is_wanted = |at: usize, view: &View<'_>| {
            at == last || is_newest(at, view) && !(hides_tombstones && removes_key(view))
        };
        let entries = messages.range_mut(from..).enumerate();
        let wanted = entries.filter(|(at, entry)| is_wanted(from + at, &entry.view(sealed)));
        wanted.map(|(_, entry)| Kept::new(entry, sealed).message()).collect()
    }

    /// The values of the keys of a page, in the order of the keys, and the last key that was looked
    /// at if there may be more.
    pub(crate) fn state_page(&mut self, query: &KeyQuery) -> (Vec<Arc<Message>>, Option<Box<str>>) {
        let Some(keys) = self.keys.as_deref() else { return Default::default() };
        let from = match &query.after {
            Some(after) if **after >= *query.prefix => Bound::Excluded(&**after),
            _ => Bound::Included(&*query.prefix),
        };
        let (mut found, mut last, mut next) = (Vec::new(), None, None);
        let all = keys.newest.range::<str, _>((from, Bound::Unbounded));
        let all = all.take_while(|(key, _)| key.starts_with(&*query.prefix));
        for (looked_at, (key, Newest { offset, .. })) in all.enumerate() {
            if found.len() >= query.limit || looked_at >= query.limit + KEYS_LOOKED_AT_MAX {
                next = last;
                break;
            }
            last = Some(key.clone());
            let view = self.view_of(*offset);
            if view.is_some_and(|view| !removes_key(&view)) {
                found.push(*offset);
            }
        }
        let page = found.into_iter().filter_map(|offset| {
            let at = self.place_of(offset)?;
            Some(Kept::new(&mut self.messages[at], self.sealed.as_deref()).message())
        });
        (page.collect(), next)
    }
}

fn removes_key(view: &View<'_>) -> bool {
    view.attributes().is_some_and(crate::attributes::Attributes::removes_key)
}
