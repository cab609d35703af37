//! Drops messages beyond the retention of their channels, and idempotency keys whose time is over.
//!
//! A commit drops some messages only, as everything else waits for it. A log that is still too long
//! then is due at once in [`Space::Expiry`], so that [`Writer::expire`] goes on with it, also after
//! a restart.

use std::ops::ControlFlow;

use throng_core::{ChannelName, Retention};

use super::ages::{AgeNow, Expiries, Note};
use super::due::{Earliest, time_of};
use super::forgotten::{QUIET_MIN_MS, quiet_ms};
use super::format::{self, LogHead, Measure};
use super::group::{ChannelMap, Group, GroupChannel, TRIMMED_PER_COMMIT, WriteBatch};
use super::reader::unreadable;
use super::unreadable::RETRY_MS;
use super::writer::Writer;
use crate::storage::{KeyOrder, Space, StorageError};

/// Entries of the tables of expiries that one step of [`Writer::expire`] removes: some milliseconds
/// of work.
const EXPIRED_PER_STEP: usize = 1_000;

/// The time of a note that says that a log is beyond its limits. It is of no message.
const AT_ONCE_MS: u64 = 0;

/// The retention of a channel, if it is durable.
pub(super) type RetentionOf<'a> = &'a dyn Fn(&ChannelName) -> Option<Retention>;

impl Writer {
    /// Drops the oldest messages that the retention does not cover, as many as the group may, and
    /// notes when the next one expires.
    pub(super) fn trim(
        &self,
        batch: &mut WriteBatch,
        (name, channel): (&ChannelName, &mut GroupChannel),
        retention: &Retention,
        now: AgeNow,
        note: Note,
    ) {
        let now_ms = now.aged_ms;
        let (mut oldest, mut must_note) = (None, false);
        let mut expiries = Expiries::new(&self.ages, now, retention);
        let first_floor = channel.head.floor;
        while channel.head.floor < channel.head.offset {
            let head = &channel.head;
            let is_first = head.floor == first_floor;
            let is_due = is_first && note == Note::Due;
            let is_beyond_limits = head.entries().exceeds(retention.max_messages)
                || head.bytes > retention.max_bytes as u64;
            let may_drop = is_due || is_beyond_limits;
            let Some(measure) = self.measure_oldest(batch, name, channel, may_drop) else {
                (oldest, must_note) = (Some(now_ms.saturating_add(RETRY_MS)), true);
                break;
            };
            let Measure { time_ms, stamp, .. } = measure;
            let passing = if channel.head.has_keys {
                match self.load_passing(batch, (name, channel), (now, may_drop)) {
                    Some(passing) => Some(passing),
                    None => {
                        (oldest, must_note) = (Some(now_ms.saturating_add(RETRY_MS)), true);
                        break;
                    }
                }
            } else {
                None
            };
            let (expires_ms, needs_note) = expiries.next(time_ms, is_due);
            if !is_beyond_limits && expires_ms > now_ms {
                oldest = Some(expires_ms);
                // An earlier note is not of this message, and would drop it.
                must_note = needs_note && (!is_first || note == Note::Outdated);
                break;
            }
            let Some(left) = batch.trims_left.checked_sub(1) else {
                (oldest, must_note) = (Some(AT_ONCE_MS), true);
                break;
            };
            batch.trims_left = left;
            let head = &mut channel.head;
            head.drop_oldest(&measure);
            match passing {
                Some(passing) => self.pass(batch, name, channel, &passing),
                None => {
                    batch.remove(Space::Messages, format::message(name, head.floor));
                    head.lost = head.lost.max(stamp);
                }
            }
        }
        let head = &mut channel.head;
        if head.floor == head.offset {
            // An earlier note is of a message.
            must_note |= head.floor != first_floor;
            oldest = forgotten_ms(head, now_ms, retention);
        }
        // A note that is too early costs one visit when it is due.
        let is_noted =
            |oldest_ms| head.expires_ms.is_some_and(|at_ms| now_ms < at_ms && at_ms <= oldest_ms);
        if must_note || !oldest.is_some_and(is_noted) {
            note_expiry(batch, name, head, oldest);
        }
    }

    /// Measures the oldest message of a channel; `None` if it cannot be read now. One that is
    /// damaged counts as very old if it `may_drop`: dropping it loses nothing.
    fn measure_oldest(
        &self,
        batch: &mut WriteBatch,
        name: &ChannelName,
        channel: &GroupChannel,
        may_drop: bool,
    ) -> Option<Measure> {
        let LogHead { floor, offset, bytes, .. } = channel.head;
        let known = channel.measure(floor + 1);
        if known.is_some() {
            return known;
        }
        let of_bytes = |bytes| Measure { bytes, ..Measure::default() };
        match self.storage().get(Space::Messages, &format::message(name, floor + 1)) {
            Ok(Some(value)) => Some(format::measure(&value).unwrap_or_else(|error| {
                batch.unreadable.note(name, &unreadable(error));
                of_bytes(value.len() as u64)
            })),
            // Lost with the machine, in an epoch before this one.
            Ok(None) => Some(Measure::default()),
            Err(error) => {
                batch.unreadable.note(name, &error);
                let is_damaged = matches!(error, StorageError::Damaged(_));
                // As many bytes as the others have.
                (is_damaged && may_drop).then(|| of_bytes(bytes / (offset - floor)))
            }
        }
    }

    /// Drops messages and idempotency keys whose time is over, some at a time. Returns whether
    /// there may be more. `retention_of` has nothing for a channel that is not durable now: its
    /// messages stay, until it is durable again.
    ///
    /// # Errors
    ///
    /// An error of the storage. Then call [`Writer::retry`].
    pub fn expire(
        &mut self,
        now_ms: u64,
        retention_of: RetentionOf<'_>,
    ) -> Result<bool, StorageError> {
        let now = self.ages.read(now_ms);
        let mut group = Group::with_trims(TRIMMED_PER_COMMIT);
        let mut earliest = self.earliest;
        let due = self.due((Space::Expiry, now.aged_ms), &mut earliest, &mut group);
        let keys = self.due((Space::KeyExpiry, now.wall_ms), &mut earliest, &mut group);
        let has_more = due.len() + keys.len() >= EXPIRED_PER_STEP / 2;
        let mut forgotten = ChannelMap::default();
        let Group { batch, channels, .. } = &mut group;
        for entry in due {
            if batch.trims_left == 0 {
                batch.earliest.note(Space::Expiry, &entry);
                break;
            }
            let name = match format::name_of(&entry[format::TIME_BYTES..]) {
                Ok(name) => name,
                Err(error) => {
                    batch.unreadable.add(unreadable(error).to_string());
                    batch.remove(Space::Expiry, entry);
                    continue;
                }
            };
            let known = channels.remove(&name).map(Ok);
            let known =
                known.unwrap_or_else(|| self.logs.committed_head(&name).map(GroupChannel::read));
            let mut channel = match known {
                Ok(channel) => channel,
                Err(error) => {
                    batch.unreadable.note(&name, &error);
                    postpone(batch, Space::Expiry, entry, now.aged_ms);
                    continue;
                }
            };
            let is_it = |at_ms| format::at(at_ms, &[]) == entry[..format::TIME_BYTES];
            let noted_ms = channel.head.expires_ms.take_if(|at_ms| is_it(*at_ms));
            let is_due = noted_ms.is_some_and(|at_ms| at_ms != AT_ONCE_MS);
            let is_over = is_due && channel.head.is_over();
            batch.remove(Space::Expiry, entry);
            match retention_of(&name) {
                Some(_) if is_over && self.may_forget(&name, &channel.head) => {
                    self.forget(batch, &mut forgotten, (name, channel.head));
                    continue;
                }
                Some(_) if is_over && channel.head.is_erased => {
                    note_expiry(batch, &name, &mut channel.head, Some(now.aged_ms + RETRY_MS));
                }
                Some(retention) => {
                    let note = if is_due { Note::Due } else { Note::Later };
                    self.trim(batch, (&name, &mut channel), &retention, now, note);
                }
                None => note_expiry(batch, &name, &mut channel.head, None),
            }
            channel.store(batch, &name);
            channels.insert(name, channel);
        }
        self.expire_keys(&mut group, keys, now);
        let has_more = has_more || group.batch.trims_left == 0;
        self.unreadable.append(std::mem::take(&mut group.batch.unreadable));
        self.key_work.extend(group.batch.key_work.drain(..));
        let earliest = earliest.with(group.batch.earliest);
        let WriteBatch { charged, writes, .. } = &mut group.batch;
        let held = self.logs.room.write(charged.drain(), writes);
        if !forgotten.is_empty() {
            self.commit_forgotten(&mut group.batch, forgotten, now)?;
        } else if !group.batch.writes.is_empty() {
            self.storage().commit(&group.batch.writes)?;
        }
        self.logs.room.note(held);
        self.earliest = earliest;
        self.remember(group.channels);
        Ok(has_more)
    }

    /// Removes idempotency keys whose time is over, by their entries in the table of expiries.
    fn expire_keys(&self, group: &mut Group, keys: Vec<Vec<u8>>, now: AgeNow) {
        for entry in keys {
            let key = entry[format::TIME_BYTES..].to_vec();
            // The key may have been used again since.
            let known = match self.known_key(group, &key) {
                Ok(known) => known,
                Err(error) => {
                    group.batch.unreadable.add(error.to_string());
                    postpone(&mut group.batch, Space::KeyExpiry, entry, now.wall_ms);
                    continue;
                }
            };
            if known.is_some_and(|known| self.is_known(now, known)) {
                // The clock was set forward, or the key was used again.
                postpone(&mut group.batch, Space::KeyExpiry, entry, now.wall_ms);
                continue;
            }
            group.batch.remove(Space::Keys, key);
            group.batch.remove(Space::KeyExpiry, entry);
        }
    }

    /// Keys of a table that is ordered by time, up to now, as far as they can be read. The table
    /// begins behind them.
    fn due(
        &self,
        (space, now_ms): (Space, u64),
        earliest: &mut Earliest,
        group: &mut Group,
    ) -> Vec<Vec<u8>> {
        let mut due: Vec<Vec<u8>> = Vec::new();
        if earliest.get(space) > now_ms {
            return due;
        }
        let begin = format::at(earliest.get(space), &[]);
        let end = format::at(now_ms.saturating_add(1), &[]);
        let scanned = self.storage().scan(space, (&begin, &end), KeyOrder::Up, &mut |key, _| {
            due.push(key.to_vec());
            if due.len() < EXPIRED_PER_STEP / 2 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        match (scanned, due.last()) {
            (Err(error), _) => group.batch.unreadable.add(error.to_string()),
            (Ok(()), Some(last)) => earliest.set(space, time_of(last)),
            (Ok(()), None) => {}
        }
        due
    }
}

/// Moves an entry of a table that is ordered by time to a later one.
fn postpone(batch: &mut WriteBatch, space: Space, entry: Vec<u8>, now_ms: u64) {
    let later_ms = now_ms.saturating_add(RETRY_MS);
    batch.put(space, format::at(later_ms, &entry[format::TIME_BYTES..]), []);
    batch.remove(space, entry);
}

/// When a log without messages is forgotten: never, if it has a record or a state.
fn forgotten_ms(head: &LogHead, now_ms: u64, retention: &Retention) -> Option<u64> {
    let quiet_ms = if head.is_erased { QUIET_MIN_MS } else { quiet_ms(retention) };
    (!head.has_record && !head.has_keys).then(|| now_ms.saturating_add(quiet_ms))
}

/// Notes when a log is forgotten that has no messages any more.
pub(super) fn note_empty(
    batch: &mut WriteBatch,
    name: &ChannelName,
    head: &mut LogHead,
    now_ms: u64,
    retention: &Retention,
) {
    let at_ms = forgotten_ms(head, now_ms, retention);
    note_expiry(batch, name, head, at_ms);
}

/// Notes when the oldest message of a channel expires.
fn note_expiry(batch: &mut WriteBatch, name: &ChannelName, head: &mut LogHead, at_ms: Option<u64>) {
    if head.expires_ms == at_ms {
        return;
    }
    if let Some(before_ms) = head.expires_ms {
        batch.remove(Space::Expiry, format::at(before_ms, &format::name(name)));
    }
    if let Some(at_ms) = at_ms {
        batch.put(Space::Expiry, format::at(at_ms, &format::name(name)), []);
    }
    head.expires_ms = at_ms;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use throng_core::{Body, IDEMPOTENCY_MS, Publication, Stamp};

    use super::*;
    use crate::logs::writer::HEADS_MAX;
    use crate::logs::{Appended, Entry, LogBounds, Logs};
    use crate::storage::memory::MemoryStorage;
    use crate::sync_policy::SyncPolicy;

    const NOW_MS: u64 = 1_700_000_000_000;
    const LONG: Retention =
        Retention { max_messages: usize::MAX, max_bytes: usize::MAX, max_age_ms: 1_000 };

    fn publication(channel: &str) -> Publication {
        Publication::new(ChannelName::channel(channel), Body::Text("x".into()))
    }

    /// As many messages of a channel.
    fn many(count: usize, retention: Retention) -> Vec<Entry> {
        (0..count).map(|_| Entry::from((publication("a"), retention))).collect()
    }

    fn open(storage: &MemoryStorage) -> (Arc<Logs>, Writer) {
        let (logs, opened) = Logs::open(Arc::new(storage.clone()), "boot").expect("it opens");
        let logs = Arc::new(logs);
        let writer =
            Writer::begin(&logs, SyncPolicy::Never, opened.stamps).expect("it can be written");
        (logs, writer)
    }

    fn append<'a>(
        writer: &mut Writer,
        channels: impl Iterator<Item = &'a str>,
        retention: Retention,
    ) {
        let publications: Vec<_> =
            channels.map(|name| Entry::from((publication(name), retention))).collect();
        append_at(writer, NOW_MS, &publications);
    }

    fn append_at(writer: &mut Writer, now_ms: u64, publications: &[Entry]) -> Vec<Appended> {
        let appended = writer.append(now_ms, publications, Vec::new(), &mut Stamp::default);
        let appended = appended.expect("it writes");
        assert_eq!(appended.len(), publications.len());
        appended
    }

    fn kept(logs: &Logs, channel: &str) -> u64 {
        let bounds = logs.bounds(&ChannelName::channel(channel)).expect("it is read");
        let LogBounds { head, floor, .. } = bounds;
        head.offset - floor
    }

    #[test]
    fn a_log_that_is_much_too_long_is_dropped_in_steps() {
        const MESSAGES: usize = 3 * TRIMMED_PER_COMMIT;
        let few = Retention { max_messages: 10, ..LONG };
        let (logs, mut writer) = open(&MemoryStorage::default());
        append(&mut writer, std::iter::repeat_n("long", MESSAGES), LONG);
        append(&mut writer, std::iter::once("long"), few);
        let mut before = kept(&logs, "long");
        assert!(before > (MESSAGES - TRIMMED_PER_COMMIT - 10) as u64, "{before} are left");
        while writer.expire(NOW_MS, &|_| Some(few)).expect("it writes") {
            let left = kept(&logs, "long");
            assert!(before - left <= TRIMMED_PER_COMMIT as u64, "{before}, then {left}");
            before = left;
        }
        assert_eq!(kept(&logs, "long"), 10);
    }

    #[test]
    fn a_busy_log_that_is_too_long_becomes_shorter() {
        let few = Retention { max_messages: 10, ..LONG };
        let (logs, mut writer) = open(&MemoryStorage::default());
        append(&mut writer, std::iter::repeat_n("long", 20_000), LONG);
        for _ in 0..3 {
            append(&mut writer, std::iter::repeat_n("long", 4_096), few);
        }
        assert!(kept(&logs, "long") < 20_000, "{} are left", kept(&logs, "long"));
    }

    /// The machine's clock was a year ahead for a moment.
    #[test]
    fn messages_of_the_future_expire_like_others() {
        const FUTURE_MS: u64 = NOW_MS + 365 * 24 * 3_600_000;
        let one = |name| [Entry::from((publication(name), LONG))];
        for is_new_run in [false, true] {
            let storage = MemoryStorage::default();
            let (mut logs, mut writer) = open(&storage);
            writer.apply_retention("long").expect("it writes");
            while writer.walk(NOW_MS, &|_| Some(LONG)).expect("it writes") {}
            for name in ["busy", "quiet"] {
                append_at(&mut writer, FUTURE_MS, &one(name));
                append_at(&mut writer, FUTURE_MS + 100, &one(name));
            }
            if is_new_run {
                drop(writer);
                (logs, writer) = open(&storage);
            }
            writer.ages.must_visit = true;
            let appended = append_at(&mut writer, NOW_MS, &one("busy"));
            let Appended::New(content) = &appended[0] else { panic!("no key") };
            assert_eq!(content.time_ms, NOW_MS, "its time is right again");
            let mut expire = |now_ms| {
                let retention_of = |_: &ChannelName| Some(LONG);
                while writer.expire(now_ms, &retention_of).expect("it writes")
                    || writer.walk(now_ms, &retention_of).expect("it writes")
                {}
                (kept(&logs, "busy"), kept(&logs, "quiet"))
            };
            assert_eq!(expire(NOW_MS), (3, 2));
            assert_eq!(expire(NOW_MS + 999), (3, 2));
            assert_eq!(expire(NOW_MS + 1_000), (2, 1), "as if it was published when it was seen");
            assert_eq!(expire(NOW_MS + 1_099), (2, 1));
            assert_eq!(expire(NOW_MS + 1_100), (0, 0), "and the next one 100 ms later");
        }
    }

    /// Lets what is due expire at a time. Returns what is kept.
    fn expire_at(logs: &Logs, writer: &mut Writer, now_ms: u64, retention: Retention) -> u64 {
        while writer.expire(now_ms, &|_| Some(retention)).expect("it writes") {}
        kept(logs, "a")
    }

    /// A note of a message that is not there any more drops nothing of the future.
    #[test]
    fn a_note_of_another_message_drops_none_of_the_future() {
        const FUTURE_MS: u64 = NOW_MS + 365 * 24 * 3_600_000;
        let few = Retention { max_messages: 10, ..LONG };
        let (logs, mut writer) = open(&MemoryStorage::default());
        let many = many(20, few);
        append_at(&mut writer, NOW_MS, &many);
        append_at(&mut writer, FUTURE_MS, &many);
        append_at(&mut writer, NOW_MS + 500, &self::many(1, few));
        assert_eq!(expire_at(&logs, &mut writer, NOW_MS + 1_000, few), 10);
        assert_eq!(expire_at(&logs, &mut writer, NOW_MS + 1_499, few), 10);
        assert_eq!(expire_at(&logs, &mut writer, NOW_MS + 1_500, few), 0);
    }

    /// Nor does the note that a log is too long.
    #[test]
    fn what_is_left_of_a_log_that_is_too_long_is_not_due() {
        const FUTURE_MS: u64 = NOW_MS + 365 * 24 * 3_600_000;
        let some = Retention { max_messages: 100, ..LONG };
        let (logs, mut writer) = open(&MemoryStorage::default());
        append_at(&mut writer, FUTURE_MS, &many(3 * TRIMMED_PER_COMMIT, LONG));
        append_at(&mut writer, NOW_MS, &many(1, some));
        assert_eq!(expire_at(&logs, &mut writer, NOW_MS, some), 100);
        assert_eq!(expire_at(&logs, &mut writer, NOW_MS + 999, some), 100);
        assert_eq!(expire_at(&logs, &mut writer, NOW_MS + 1_000, some), 0);
    }

    #[test]
    fn a_key_of_the_future_is_not_known_for_longer_than_others() {
        const HOUR_MS: u64 = 3_600_000;
        let storage = MemoryStorage::default();
        let (_, mut writer) = open(&storage);
        let publication = Publication { idempotency_key: Some("k".into()), ..publication("a") };
        let one = [Entry::from((publication, LONG))];
        let mut is_new =
            |now_ms| matches!(append_at(&mut writer, now_ms, &one)[..], [Appended::New(_)]);
        assert!(is_new(NOW_MS + HOUR_MS));
        assert!(!is_new(NOW_MS), "the retry of a publication");
        assert!(!is_new(NOW_MS + IDEMPOTENCY_MS - 1));
        assert!(is_new(NOW_MS + IDEMPOTENCY_MS));
    }

    /// Keys were stored by their text alone before publishers were told apart.
    #[test]
    fn channels_that_expire_do_not_fill_the_memory() {
        let (logs, mut writer) = open(&MemoryStorage::default());
        let names: Vec<_> = (0..HEADS_MAX + 1_000).map(|n| n.to_string()).collect();
        for group in names.chunks(4_096) {
            append(&mut writer, group.iter().map(String::as_str), LONG);
        }
        while writer.expire(NOW_MS + 1_000, &|_| Some(LONG)).expect("it writes") {}
        assert_eq!(kept(&logs, "0") + kept(&logs, names.last().expect("there are some")), 0);
        assert!(writer.heads.len() <= HEADS_MAX, "{}", writer.heads.len());
    }
}
