//! What is to be done with the newest messages of keys at a time: a value that has expired gets a
//! tombstone, a tombstone that is old or one of too many is dropped, and a value that is nearly out
//! of reach is published again.
//!
//! Each is an entry of its own, which the writer makes like those of publishers.

use std::ops::ControlFlow;
use std::sync::Arc;

use throng_core::{
    ChannelName, Content, Publication, RENEWED_AFTER, Retention, Stamp, TOMBSTONES_MIN, clock,
};

use super::super::ages::AgeNow;
use super::super::entry::{Appended, DueAction, DueKey, Entry};
use super::super::format::{self, Table};
use super::super::group::Group;
use super::super::reader::unreadable;
use super::super::retention::RetentionOf;
use super::super::state_rows::{self as rows, KeyRow};
use super::super::writer::Writer;
use crate::storage::{KeyOrder, Space, StorageError, Write};

/// Entries of one step: some milliseconds of work.
const DUE_PER_STEP: usize = 500;

/// Channels of one step that are looked at for other reasons than the time.
const CHANNELS_PER_STEP: usize = 16;

/// Values of a channel that are published again in one step: as many as it has messages between two
/// steps.
const RENEWED_PER_STEP: usize = 64;

/// How long an entry waits whose channel is not durable now.
const NOT_DURABLE_MS: u64 = 10 * 60_000;

impl Writer {
    /// What is due now, some of it at a time, and whether there may be more. `retention_of` has
    /// nothing for a channel that is not durable now.
    ///
    /// # Errors
    ///
    /// An error of the storage. Then call [`Writer::retry`].
    pub(crate) fn due_entries(
        &mut self,
        now_ms: u64,
        retention_of: RetentionOf<'_>,
    ) -> Result<(Vec<Entry>, bool), StorageError> {
        let now = self.ages.read(now_ms);
        let mut due = self.due_keys(now)?;
        let mut has_more = due.len() >= DUE_PER_STEP;
        for _ in 0..CHANNELS_PER_STEP {
            let Some(name) = self.key_work.iter().next().cloned() else { break };
            self.key_work.remove(&name);
            let before = due.len();
            match self.key_work_of(&name, &mut due) {
                Ok(true) => drop(self.key_work.insert(name)),
                Ok(false) => {}
                Err(error @ StorageError::Damaged(_)) => self.unreadable.note(&name, &error),
                Err(error) => return Err(error),
            }
            has_more |= due.len() > before && !self.key_work.is_empty();
        }
        let entry = |due: DueKey| {
            let retention = retention_of(&due.channel);
            Entry::Due(due, retention)
        };
        Ok((due.into_iter().map(entry).collect(), has_more))
    }

    /// The keys whose time has come.
    fn due_keys(&mut self, now: AgeNow) -> Result<Vec<DueKey>, StorageError> {
        let (mut due, mut broken) = (Vec::new(), Vec::new());
        if self.earliest.states() > now.wall_ms {
            return Ok(due);
        }
        let place = |at_ms: u64| [&[Table::KeyExpiry as u8], &*format::at(at_ms, &[])].concat();
        let range = (place(self.earliest.states()), place(now.wall_ms.saturating_add(1)));
        let mut last = None;
        let mut each = |place: &[u8], key: &[u8]| {
            match rows::due_of(place).and_then(|due| Ok((due, rows::text(key)?))) {
                Ok(((at_ms, channel, offset), key)) => {
                    last = Some(at_ms);
                    due.push(DueKey { channel, key, offset, action: DueAction::At(at_ms) });
                }
                Err(error) => broken.push((place.to_vec(), error)),
            }
            if due.len() + broken.len() < DUE_PER_STEP {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let scanned =
            self.storage().scan(Space::Records, (&range.0, &range.1), KeyOrder::Up, &mut each);
        if let Err(error) = scanned {
            self.unreadable.add(error.to_string());
        }
        if !broken.is_empty() {
            let remove = |(place, _): &(Vec<u8>, _)| Write::remove(Space::Records, &**place);
            self.storage().commit(&broken.iter().map(remove).collect::<Vec<_>>())?;
            broken.into_iter().for_each(|(_, error)| {
                self.unreadable.add(unreadable(error).to_string());
            });
        }
        if let Some(at_ms) = last {
            self.earliest.set_states(at_ms);
        }
        Ok(due)
    }

    /// What else is to be done in a channel. Returns whether there is more.
    fn key_work_of(&self, name: &ChannelName, due: &mut Vec<DueKey>) -> Result<bool, StorageError> {
        let Some(row) = self.logs.state_row(name)? else { return Ok(false) };
        let max = self.state_limits(name).max_keys.max(TOMBSTONES_MIN) as u64;
        let surplus = row.older_removed.saturating_sub(max) as usize;
        let left = DUE_PER_STEP.saturating_sub(due.len());
        if surplus > 0 {
            let places = [0, u64::MAX].map(|offset| rows::tombstone(name, offset));
            let mut taken = Vec::new();
            let mut each = |place: &[u8], key: &[u8]| {
                if taken.len() >= surplus.min(left) {
                    return ControlFlow::Break(());
                }
                let found = place.get(1..).unwrap_or_default();
                if let (Ok((_, offset)), Ok(key)) = (format::message_of(found), rows::text(key)) {
                    taken.push((key, offset));
                }
                ControlFlow::Continue(())
            };
            self.storage().scan(
                Space::Records,
                (&places[0], &places[1]),
                KeyOrder::Up,
                &mut each,
            )?;
            let surplus = |(key, offset)| DueKey {
                channel: name.clone(),
                key,
                offset,
                action: DueAction::Surplus,
            };
            due.extend(taken.into_iter().map(surplus));
        }
        let head = self.logs.committed_head(name)?;
        let reach = head.offset.saturating_sub(RENEWED_AFTER).min(head.floor);
        let mut renewed = Vec::new();
        if reach > row.base {
            let mut each = |content: Content| {
                if let Some(key) = content.key().filter(|_| content.sets_key()) {
                    renewed.push((Box::from(key), content.id.offset));
                }
                if renewed.len() < RENEWED_PER_STEP {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            };
            self.logs.scan(name, (row.base, reach + 1), KeyOrder::Up, &mut each)?;
        }
        let renew =
            |(key, offset)| DueKey { channel: name.clone(), key, offset, action: DueAction::Renew };
        due.extend(renewed.into_iter().map(renew));
        Ok(surplus > left)
    }

    /// Does what is due, unless the message is not the newest of its key any more. Fails without
    /// any effect.
    pub(in crate::logs) fn do_due(
        &self,
        group: &mut Group,
        now: AgeNow,
        due: &DueKey,
        retention: Option<&Retention>,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Appended, StorageError> {
        let DueKey { channel: name, key, offset, action } = due;
        let channel = self.channel(&mut group.channels, name)?;
        let row = self.load_key(name, channel, key)?;
        let row = row.filter(|row| row.offset == *offset);
        let done = |contents: Vec<Arc<Content>>| Ok(Appended::Changed(contents, 0));
        let Some(row) = row.filter(|row| match action {
            DueAction::At(at_ms) => row.due_ms == *at_ms,
            DueAction::Surplus => row.is_older_tombstone(),
            DueAction::Renew => row.is_value_at(now.wall_ms),
        }) else {
            if let DueAction::At(at_ms) = action {
                group.batch.remove(Space::Records, rows::due(*at_ms, name, *offset));
            }
            return done(Vec::new());
        };
        let Some(retention) = retention else {
            if let DueAction::At(_) = action
                && let Some(state) = &mut channel.state
            {
                state.postpone(key, now.wall_ms.saturating_add(NOT_DURABLE_MS));
            }
            return done(Vec::new());
        };
        if row.is_tombstone() {
            self.drop_tombstone(group, now, due, retention, next_stamp)?;
            return done(Vec::new());
        }
        let publication = match action {
            DueAction::Renew => {
                let value = self.storage().get(Space::Messages, &format::message(name, *offset))?;
                let Some(value) = value else { return done(Vec::new()) };
                let content = format::content(&value, self.logs.epoch(), name);
                let content = content.map_err(unreadable)?;
                let again = Publication::again(&content, clock::from_wall_ms(now.wall_ms));
                Publication { holder: row.holder, ..again }
            }
            _ => Publication::tombstone(name.clone(), key),
        };
        done(vec![self.add_message(group, now, &publication, retention, next_stamp)?])
    }

    /// Drops a tombstone before the bounds of its log.
    fn drop_tombstone(
        &self,
        group: &mut Group,
        now: AgeNow,
        due: &DueKey,
        retention: &Retention,
        next_stamp: &mut dyn FnMut() -> Stamp,
    ) -> Result<Option<KeyRow>, StorageError> {
        let DueKey { channel: name, key, offset, .. } = due;
        let value = self.storage().get(Space::Messages, &format::message(name, *offset));
        let measure = value.ok().flatten().and_then(|value| format::measure(&value).ok());
        // If it cannot be read, all that there are now are earlier.
        let stamp = measure.map_or_else(|| next_stamp().0, |measure| measure.stamp);
        let Group { batch, channels, .. } = &mut *group;
        let channel = self.channel(channels, name)?;
        let Some(state) = &mut channel.state else { return Ok(None) };
        let dropped = state.take(key, channel.head.floor);
        batch.remove(Space::Messages, format::message(name, *offset));
        state.lose(*offset);
        channel.head.lost = channel.head.lost.max(stamp);
        if state.row().is_over() {
            channel.head.has_keys = false;
            self.note_if_empty(group, now, name, retention)?;
        }
        Ok(dropped)
    }
}
