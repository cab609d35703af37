//! Names whose logs have been empty for so long that the disk forgets them, with their heads and
//! numbers. Otherwise everybody who may publish to a pattern would fill the disk for good.
//!
//! # Invariants
//!
//! * An id that was given to a message is given to no other one of its channel: one mark is at or
//!   beyond the offsets of all that were forgotten, and a channel that is not there begins after
//!   it. A client with an older id is told of a gap: nobody knows any more what it has missed.
//! * The mark is as safe as acknowledged messages before anybody reads it, and before anything is
//!   forgotten. Nobody reads that a channel is not there before that is as safe, too: until then it
//!   is empty.

use std::ops::ControlFlow;
use std::sync::Arc;

use throng_core::{ChannelName, Retention};

use super::ages::AgeNow;
use super::format::{self, LogHead};
use super::group::{ChannelMap, GroupChannel, WriteBatch};
use super::names::NameIndex;
use super::reader::{Logs, unreadable};
use super::writer::Writer;
use crate::storage::{KeyOrder, Space, StorageError, Write};

/// The least time for which a log stays empty before it is forgotten, however little is kept: what
/// clients come back in after a moment without a network. A log that was erased with its name is
/// forgotten then, whatever its age.
pub(super) const QUIET_MIN_MS: u64 = 5_000;

/// That time if nothing says how old messages become.
const QUIET_MS: u64 = 24 * 3_600_000;

/// Ages beyond this one are none.
const AGE_MAX_MS: u64 = 10 * 366 * 24 * 3_600_000;

/// How long a log stays empty before it is forgotten: as long as it has kept its messages.
pub(super) fn quiet_ms(retention: &Retention) -> u64 {
    match retention.max_age_ms {
        0..QUIET_MIN_MS => QUIET_MIN_MS,
        age_ms @ QUIET_MIN_MS..AGE_MAX_MS => age_ms,
        AGE_MAX_MS.. => QUIET_MS,
    }
}

/// Names that one step of counting looks at: some milliseconds of work.
const COUNTED_PER_STEP: u64 = 10_000;

/// Names of erased logs that a commit forgets at most.
const FORGOTTEN_PER_COMMIT: usize = 2_000;

impl Logs {
    /// True if idempotency keys of a channel are known.
    fn has_keys_of(&self, name: &ChannelName) -> Result<bool, StorageError> {
        let (from, to) = format::keys(name);
        let mut has_some = false;
        self.storage.scan(Space::Keys, (&from, &to), KeyOrder::Up, &mut |_, _| {
            has_some = true;
            ControlFlow::Break(())
        })?;
        Ok(has_some)
    }

    /// Forgets the names of erased logs, but of those with idempotency keys, while no server runs.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn forget_erased(&self) -> Result<(), StorageError> {
        let mut next = Vec::new();
        loop {
            let mut erased = Vec::new();
            let range: (&[u8], &[u8]) = (&next, &[u8::MAX]);
            self.storage.scan(Space::Heads, range, KeyOrder::Up, &mut |key, value| {
                // A check tells of those that cannot be read.
                let head = LogHead::decode(value).ok().filter(|head| head.is_erased);
                erased.extend(head.map(|head| (key.to_vec(), head)));
                if erased.len() < FORGOTTEN_PER_COMMIT {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            let Some((last, _)) = erased.last() else { return Ok(()) };
            next = [last, &[0][..]].concat();
            let mut mark = self.mark();
            let mut writes = Vec::new();
            for (key, head) in erased {
                let name = format::name_of(&key).map_err(unreadable)?;
                let head = self.advance(&name, head)?;
                if !head.is_erased || self.has_keys_of(&name)? {
                    continue;
                }
                mark = mark.with(&head);
                let due = head.expires_ms.map(|at_ms| format::at(at_ms, &key));
                writes.extend(due.map(|due| Write::remove(Space::Expiry, due)));
                writes.push(Write::remove(Space::Numbers, head.number.to_be_bytes()));
                writes.push(Write::remove(Space::Heads, key));
            }
            writes.push(Write::put(Space::Meta, format::FORGOTTEN, mark.encode()));
            self.storage.commit(&writes)?;
            self.raise_mark(mark);
        }
    }
}

impl Writer {
    /// True if a channel that has been empty for long may be forgotten. Those who follow it know
    /// its head, and go on from there. The name of an erased one stays with its idempotency keys,
    /// as its bytes would: after it nothing has them removed from the files.
    pub(super) fn may_forget(&self, name: &ChannelName, head: &LogHead) -> bool {
        self.followed_head(name).is_none()
            && (!head.is_erased || self.logs.has_keys_of(name).is_ok_and(|has_some| !has_some))
    }

    /// Removes what is known of a channel that has no messages.
    pub(super) fn forget(
        &self,
        batch: &mut WriteBatch,
        forgotten: &mut ChannelMap<GroupChannel>,
        (name, head): (ChannelName, LogHead),
    ) {
        batch.remove(Space::Heads, format::name(&name));
        batch.remove(Space::Numbers, head.number.to_be_bytes());
        forgotten.insert(name, GroupChannel::read(head));
    }

    /// Commits what [`Writer::forget`] has added, with all else.
    pub(super) fn commit_forgotten(
        &mut self,
        batch: &mut WriteBatch,
        forgotten: ChannelMap<GroupChannel>,
        now: AgeNow,
    ) -> Result<(), StorageError> {
        let erasures = self.erasures;
        if forgotten.values().any(|channel| channel.head.is_erased) {
            self.erasures.add(&self.logs.rewriting, batch, now.wall_ms);
        }
        let committed = self.commit_with_mark(&batch.writes, forgotten);
        if committed.is_err() {
            self.erasures = erasures;
        }
        committed
    }

    /// Commits these changes after the mark.
    fn commit_with_mark(
        &mut self,
        writes: &[Write],
        forgotten: ChannelMap<GroupChannel>,
    ) -> Result<(), StorageError> {
        let before = self.logs.mark();
        let mark = forgotten.values().fold(before, |mark, channel| mark.with(&channel.head));
        if mark != before {
            let note = Write::put(Space::Meta, format::FORGOTTEN, mark.encode());
            self.storage().commit(&[note])?;
            self.sync_if_promised()?;
            self.logs.raise_mark(mark);
        }
        let forgotten = Arc::new(forgotten);
        *self.logs.unacknowledged() = Arc::clone(&forgotten);
        self.storage().commit(writes)?;
        self.sync_if_promised()?;
        self.logs.acknowledge();
        for (name, channel) in &*forgotten {
            self.heads.remove(name);
            self.names.forget(channel.head.number);
        }
        Ok(())
    }

    /// Counts some of the names that were there at the start, and returns what is known now.
    pub(crate) fn count_names(&mut self) -> NameIndex {
        let NameIndex { counted, last, .. } = self.names;
        if counted >= last {
            return self.names;
        }
        let mut left = COUNTED_PER_STEP;
        let (mut found, mut reached) = (0, last);
        let (from, to) = ((counted + 1).to_be_bytes(), (last + 1).to_be_bytes());
        let scanned =
            self.storage().scan(Space::Numbers, (&from, &to), KeyOrder::Up, &mut |key, _| {
                if left == 0 {
                    return ControlFlow::Break(());
                }
                left -= 1;
                found += 1;
                if let (0, Ok(number)) = (left, format::number(key)) {
                    reached = number;
                }
                ControlFlow::Continue(())
            });
        if scanned.is_ok() {
            self.names.kept += found;
            self.names.counted = reached;
        }
        self.names
    }
}

#[cfg(test)]
mod tests {
    use throng_core::{Body, Content, Publication, Stamp};

    use super::*;
    use crate::logs::{Appended, Logs};
    use crate::storage::Storage as _;
    use crate::storage::memory::MemoryStorage;
    use crate::sync_policy::SyncPolicy;

    const NOW_MS: u64 = 1_700_000_000_000;
    const AGE_MS: u64 = 10_000;
    const KEPT: Retention =
        Retention { max_messages: 100, max_bytes: usize::MAX, max_age_ms: AGE_MS };
    /// When what was published at [`NOW_MS`] has been empty for as long as it was kept.
    const QUIET_AT_MS: u64 = NOW_MS + 2 * AGE_MS;

    struct ExpiredRun {
        storage: MemoryStorage,
        logs: Arc<Logs>,
        writer: Writer,
        stamp: u64,
    }

    fn name(channel: &str) -> ChannelName {
        ChannelName::channel(channel)
    }

    impl ExpiredRun {
        fn open(storage: &MemoryStorage) -> ExpiredRun {
            let (logs, opened) = Logs::open(Arc::new(storage.clone()), "boot").expect("it opens");
            let logs = Arc::new(logs);
            let mut writer =
                Writer::begin(&logs, SyncPolicy::Always, opened.stamps).expect("it writes");
            writer.apply_retention("all").expect("it writes");
            ExpiredRun { storage: storage.clone(), logs, writer, stamp: opened.stamps.0 }
        }

        /// The same, some of whose channels are followed.
        fn following(storage: &MemoryStorage, heads: &'static [(&str, u64)]) -> ExpiredRun {
            let mut run = ExpiredRun::open(storage);
            run.writer = run.writer.with_followers(Box::new(move |name| {
                let head = heads.iter().find(|(channel, _)| name.name() == *channel);
                head.map(|(_, offset)| *offset)
            }));
            run
        }

        fn publish(&mut self, now_ms: u64, channel: &str) -> Arc<Content> {
            let publication = Publication::new(name(channel), Body::Text("x".into()));
            let mut next = || {
                self.stamp += 1;
                Stamp(self.stamp)
            };
            let appended =
                self.writer.append(now_ms, &[(publication, KEPT).into()], vec![], &mut next);
            match appended.expect("it writes").pop() {
                Some(Appended::New(content)) => content,
                other => panic!("{other:?}"),
            }
        }

        fn settle(&mut self, now_ms: u64) {
            while self.writer.expire(now_ms, &|_| Some(KEPT)).expect("it writes")
                || self.writer.walk(now_ms, &|_| Some(KEPT)).expect("it writes")
            {}
        }

        /// Expires and forgets until then, a second after the other.
        fn pass(&mut self, until_ms: u64) {
            (NOW_MS..=until_ms).step_by(1_000).for_each(|now_ms| self.settle(now_ms));
        }

        fn entries(&self, space: Space) -> usize {
            let mut count = 0;
            let mut each = |_: &[u8], _: &[u8]| {
                count += 1;
                ControlFlow::Continue(())
            };
            self.storage
                .scan(space, (&[], &[u8::MAX]), KeyOrder::Up, &mut each)
                .expect("it is read");
            count
        }

        fn names(&self) -> [usize; 3] {
            [Space::Heads, Space::Numbers, Space::Expiry].map(|space| self.entries(space))
        }

        fn bounds(&self, channel: &str) -> (u64, u64) {
            let bounds = self.logs.bounds(&name(channel)).expect("it is read");
            (bounds.floor, bounds.head.offset)
        }
    }

    #[test]
    fn a_long_empty_channel_is_forgotten() {
        let mut run = ExpiredRun::open(&MemoryStorage::default());
        for _ in 0..7 {
            run.publish(NOW_MS, "long");
        }
        let lost = run.publish(NOW_MS, "brief").stamp;
        run.pass(QUIET_AT_MS - 1_000);
        assert_eq!(run.names(), [2; 3], "whoever resumes is told the truth");
        assert_eq!((run.bounds("long"), run.bounds("brief")), ((7, 7), (1, 1)));
        run.settle(QUIET_AT_MS);
        assert_eq!(run.names(), [0; 3]);
        assert!(run.writer.heads.is_empty());
        for channel in ["long", "brief", "another"] {
            let bounds = run.logs.bounds(&name(channel)).expect("it is read");
            assert_eq!((bounds.floor, bounds.head.offset, bounds.lost), (7, 7, lost));
        }
        for is_new_run in [false, true] {
            if is_new_run {
                run = ExpiredRun::open(&run.storage);
            }
            let content = run.publish(QUIET_AT_MS, "brief");
            assert_eq!(content.id.offset, 8 + u64::from(is_new_run));
            assert_eq!(content.previous, content.id.offset - 1);
            assert_eq!(run.bounds("brief"), (7, content.id.offset), "an older id has a gap");
        }
        let at_rest = Logs::at_rest(Arc::new(run.storage.clone())).expect("it opens");
        assert_eq!(at_rest.check(&mut |fault| panic!("{fault}")).channels, 1);
    }

    #[test]
    fn a_message_begins_the_time_anew() {
        let mut run = ExpiredRun::open(&MemoryStorage::default());
        run.publish(NOW_MS, "a");
        run.pass(QUIET_AT_MS - 1_000);
        run.publish(QUIET_AT_MS - 1_000, "a");
        run.pass(QUIET_AT_MS - 1_000 + 2 * AGE_MS - 1_000);
        assert_eq!((run.names(), run.bounds("a")), ([1; 3], (2, 2)));
        run.pass(QUIET_AT_MS - 1_000 + 2 * AGE_MS);
        assert_eq!(run.names(), [0; 3]);
    }

    #[test]
    fn what_is_followed_stays_until_it_is_not() {
        let storage = MemoryStorage::default();
        let mut run = ExpiredRun::following(&storage, &[("a", 1)]);
        run.publish(NOW_MS, "a");
        run.publish(NOW_MS, "b");
        run.pass(QUIET_AT_MS + 5 * AGE_MS);
        assert_eq!(run.names(), [1; 3]);
        let mut run = ExpiredRun::open(&storage);
        run.pass(QUIET_AT_MS + 7 * AGE_MS);
        assert_eq!(run.names(), [0; 3]);
    }

    #[test]
    fn those_who_wait_for_a_first_message_see_no_hole_before_it() {
        let mut run = ExpiredRun::following(&MemoryStorage::default(), &[("waiting", 2)]);
        for _ in 0..9 {
            run.publish(NOW_MS, "long");
        }
        run.pass(QUIET_AT_MS);
        let content = run.publish(QUIET_AT_MS, "waiting");
        assert_eq!((content.previous, content.id.offset), (2, 10));
        let content = run.publish(QUIET_AT_MS, "waiting");
        assert_eq!((content.previous, content.id.offset), (10, 11));
    }

    #[test]
    fn names_are_counted() {
        let storage = MemoryStorage::default();
        let mut run = ExpiredRun::open(&storage);
        let last = COUNTED_PER_STEP + 10;
        for number in 0..last {
            run.publish(NOW_MS + number % 2 * AGE_MS, &number.to_string());
        }
        let figures = |names: NameIndex| (names.kept, names.forgotten);
        assert_eq!(figures(run.writer.count_names()), (last, 0));
        let mut run = ExpiredRun::open(&storage);
        assert_eq!(figures(run.writer.count_names()), (COUNTED_PER_STEP, 0));
        run.publish(NOW_MS + AGE_MS, "another");
        run.pass(QUIET_AT_MS);
        assert_eq!(figures(run.writer.count_names()), (last / 2 + 1, last / 2));
        assert_eq!(run.names(), [(last / 2 + 1) as usize; 3]);
        assert_eq!(figures(run.writer.count_names()), (last / 2 + 1, last / 2));
    }

    #[test]
    fn how_long_a_log_stays_empty_follows_from_its_age() {
        let of = |max_age_ms| quiet_ms(&Retention { max_age_ms, ..KEPT });
        assert_eq!([0, 1_000, 60_000, u64::MAX].map(of), [5_000, 5_000, 60_000, QUIET_MS]);
    }
}
