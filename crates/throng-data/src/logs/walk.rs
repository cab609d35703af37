//! The retention may have changed since the last run, and a quiet channel has no publication that
//! would drop the excess. So the heads of all channels are visited once, some at a time, beside
//! other writes.
//!
//! The retention that all logs follow is noted in [`Space::Meta`] when the visit is over. Without
//! the note the next run begins anew.

use std::ops::ControlFlow;

use throng_core::frozen::ThawError;

use super::ages::Note;
use super::format::{self, LogHead};
use super::group::{Group, GroupChannel, TRIMMED_PER_COMMIT, WriteBatch};
use super::reader::unreadable;
use super::retention::RetentionOf;
use super::writer::{Walk, Writer};
use crate::storage::{KeyOrder, Space, StorageError, Write};

/// Channels that are visited in a step: some milliseconds of work.
const VISITED_PER_STEP: usize = 500;

/// A key, and the head of the channel.
type ReadHead = (Vec<u8>, Result<LogHead, ThawError>);

/// Beyond the keys of all heads.
const HEADS_END: &[u8] = &[u8::MAX];

impl Writer {
    /// Has all logs follow the retention of this run, which `retention` distinguishes from other
    /// runs': [`Writer::walk`] does it. Call it before anything is appended.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub(crate) fn apply_retention(&mut self, retention: &str) -> Result<(), StorageError> {
        let known = self.storage().get(Space::Meta, format::RETENTION)?;
        if known.as_deref() == Some(retention.as_bytes()) {
            return Ok(());
        }
        self.storage().commit(&[Write::remove(Space::Meta, format::RETENTION)])?;
        self.walk = Some(Walk { retention: retention.into(), next: Vec::new() });
        Ok(())
    }

    /// Visits some channels, and drops what is too much or leaves that to [`Writer::expire`].
    /// Returns whether there may be more for either.
    ///
    /// # Errors
    ///
    /// An error of the storage. Then call [`Writer::retry`].
    pub(crate) fn walk(
        &mut self,
        now_ms: u64,
        retention_of: RetentionOf<'_>,
    ) -> Result<bool, StorageError> {
        let now = self.ages.read(now_ms);
        if self.ages.must_visit {
            self.walk_again()?;
            self.ages.must_visit = false;
        }
        let Some(walk) = &self.walk else { return Ok(false) };
        let heads = match self.heads_from(&walk.next) {
            Ok(heads) => heads,
            Err(error) => {
                // The next run begins the visit anew.
                self.unreadable.add(error.to_string());
                self.walk = None;
                return Ok(false);
            }
        };
        let mut group = Group::with_trims(TRIMMED_PER_COMMIT);
        let Group { batch, channels, .. } = &mut group;
        for (key, before) in &heads {
            let name = match format::name_of(key) {
                Ok(name) => name,
                Err(error) => {
                    batch.unreadable.add(unreadable(error).to_string());
                    continue;
                }
            };
            let Some(retention) = retention_of(&name) else { continue };
            let before = before.clone().map_err(unreadable);
            let before = match before.and_then(|before| self.logs.advance(&name, before)) {
                Ok(before) => before,
                Err(error) => {
                    batch.unreadable.note(&name, &error);
                    continue;
                }
            };
            let mut channel = GroupChannel::read(before);
            self.trim(batch, (&name, &mut channel), &retention, now, Note::Outdated);
            if channel.head != before {
                channel.store(batch, &name);
                channels.insert(name, channel);
            }
        }
        let has_more = heads.len() == VISITED_PER_STEP;
        if !has_more {
            batch.put(Space::Meta, format::RETENTION, &walk.retention);
        }
        // The excess of a log that is too long is due at once.
        let is_over = batch.trims_left > 0 && !has_more;
        let next = heads.into_iter().next_back().map(|(mut key, _)| {
            key.push(0);
            key
        });
        self.unreadable.append(std::mem::take(&mut group.batch.unreadable));
        self.key_work.extend(group.batch.key_work.drain(..));
        self.earliest = self.earliest.with(group.batch.earliest);
        let WriteBatch { charged, writes, .. } = &mut group.batch;
        let held = self.logs.room.write(charged.drain(), writes);
        if !group.batch.writes.is_empty() {
            self.storage().commit(&group.batch.writes)?;
            self.logs.room.note(held);
            self.remember(group.channels);
        }
        match (&mut self.walk, next) {
            (Some(walk), Some(next)) if has_more => walk.next = next,
            (walk, _) => *walk = None,
        }
        Ok(!is_over)
    }

    /// Begins a visit, or the one that is under way anew: notes of when messages expire may be far
    /// in the future, as the machine's clock was set back.
    fn walk_again(&mut self) -> Result<(), StorageError> {
        match &mut self.walk {
            Some(walk) => walk.next.clear(),
            None => {
                let known = self.storage().get(Space::Meta, format::RETENTION)?;
                self.storage().commit(&[Write::remove(Space::Meta, format::RETENTION)])?;
                self.walk = known.map(|retention| Walk { retention, next: Vec::new() });
            }
        }
        Ok(())
    }

    /// The heads of some channels from a key on, with their keys.
    fn heads_from(&self, from: &[u8]) -> Result<Vec<ReadHead>, StorageError> {
        let mut heads = Vec::new();
        self.storage().scan(Space::Heads, (from, HEADS_END), KeyOrder::Up, &mut |key, value| {
            heads.push((key.to_vec(), LogHead::decode(value)));
            if heads.len() < VISITED_PER_STEP {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        Ok(heads)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use throng_core::{Body, ChannelName, Publication, Retention, Stamp};

    use super::*;
    use crate::logs::{Entry, Logs};
    use crate::storage::memory::MemoryStorage;
    use crate::sync_policy::SyncPolicy;

    const NOW_MS: u64 = 1_700_000_000_000;
    const MANY: Retention =
        Retention { max_messages: usize::MAX, max_bytes: usize::MAX, max_age_ms: 1_000_000 };
    const ONE: Retention = Retention { max_messages: 1, ..MANY };

    struct ExpiredRun {
        logs: Arc<Logs>,
        writer: Writer,
        retention: Option<Retention>,
    }

    impl ExpiredRun {
        fn new(storage: &MemoryStorage, retention: Option<Retention>) -> ExpiredRun {
            let (logs, opened) = Logs::open(Arc::new(storage.clone()), "boot").expect("it opens");
            let logs = Arc::new(logs);
            let mut writer =
                Writer::begin(&logs, SyncPolicy::Never, opened.stamps).expect("it writes");
            writer.apply_retention(&format!("{retention:?}")).expect("it writes");
            ExpiredRun { logs, writer, retention }
        }

        fn publish(&mut self, channel: &str, count: usize) {
            let publication =
                Publication::new(ChannelName::channel(channel), Body::Text("x".into()));
            let retention = self.retention.expect("it is durable");
            let publications: Vec<_> =
                (0..count).map(|_| Entry::Publication(publication.clone(), retention)).collect();
            let mut stamp = Stamp::default;
            self.writer.append(NOW_MS, &publications, Vec::new(), &mut stamp).expect("it writes");
        }

        /// One step. Returns whether there may be more.
        fn step(&mut self, now_ms: u64) -> bool {
            let retention = self.retention;
            let more = self.writer.expire(now_ms, &|_| retention).expect("it writes");
            self.writer.walk(now_ms, &|_| retention).expect("it writes") || more
        }

        fn settle(&mut self, now_ms: u64) {
            while self.step(now_ms) {}
        }

        fn kept(&self, channel: &str) -> u64 {
            let bounds = self.logs.bounds(&ChannelName::channel(channel)).expect("it is read");
            bounds.head.offset - bounds.floor
        }
    }

    #[test]
    fn channels_that_are_quiet_follow_what_is_kept_now() {
        let storage = MemoryStorage::default();
        let mut before = ExpiredRun::new(&storage, Some(MANY));
        before.publish("quiet", 5);
        before.publish("long", 3 * TRIMMED_PER_COMMIT);
        before.settle(NOW_MS);
        assert_eq!(before.kept("quiet"), 5);
        drop(before);
        let mut after = ExpiredRun::new(&storage, Some(ONE));
        after.settle(NOW_MS);
        assert_eq!((after.kept("quiet"), after.kept("long")), (1, 1));
        drop(after);
        // A shorter age, too, and a longer one.
        let brief = Retention { max_age_ms: 10, ..ONE };
        let mut last = ExpiredRun::new(&storage, Some(brief));
        last.settle(NOW_MS);
        assert_eq!(last.kept("quiet"), 1);
        last.settle(NOW_MS + 10);
        assert_eq!(last.kept("quiet"), 0);
    }

    #[test]
    fn only_an_unfinished_visit_begins_anew() {
        let storage = MemoryStorage::default();
        let names: Vec<_> = (0..2 * VISITED_PER_STEP).map(|n| format!("{n:06}")).collect();
        let mut before = ExpiredRun::new(&storage, Some(MANY));
        before.settle(NOW_MS);
        names.iter().for_each(|name| before.publish(name, 2));
        drop(before);
        let mut cut_off = ExpiredRun::new(&storage, Some(ONE));
        assert!(cut_off.step(NOW_MS), "there are more");
        let left = |run: &ExpiredRun| names.iter().filter(|name| run.kept(name) > 1).count();
        assert_eq!(left(&cut_off), names.len() - VISITED_PER_STEP);
        drop(cut_off);
        // The messages of the first run, and then of the second one.
        drop(ExpiredRun::new(&storage, Some(MANY)));
        let mut again = ExpiredRun::new(&storage, Some(ONE));
        again.settle(NOW_MS);
        assert_eq!(left(&again), 0);
        drop(again);
        assert!(ExpiredRun::new(&storage, Some(ONE)).writer.walk.is_none());
    }

    #[test]
    fn what_is_not_durable_any_more_stays_until_it_is_again() {
        let storage = MemoryStorage::default();
        let mut before = ExpiredRun::new(&storage, Some(MANY));
        before.publish("quiet", 5);
        drop(before);
        let mut off = ExpiredRun::new(&storage, None);
        off.settle(NOW_MS + MANY.max_age_ms);
        assert_eq!(off.kept("quiet"), 5);
        drop(off);
        let mut on = ExpiredRun::new(&storage, Some(MANY));
        on.settle(NOW_MS + MANY.max_age_ms - 1);
        assert_eq!(on.kept("quiet"), 5);
        on.settle(NOW_MS + MANY.max_age_ms);
        assert_eq!(on.kept("quiet"), 0);
    }
}
