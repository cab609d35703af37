//! Reading: the messages, heads and numbers of channels.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use throng_core::change::{KnownRecord, LogState};
use throng_core::frozen::ThawError;
use throng_core::{ChannelName, Content, Epoch, MessageId, Stamp, clock};

use super::erasure_notes::Rewriting;
use super::format::{self, ForgottenMark, LogHead, Measure, Table};
use super::group::{ChannelMap, GroupChannel};
use super::room::{Room, SEED_BYTES};
use super::state_rows::CreatorRow;
use crate::storage::{KeyOrder, Space, Storage, StorageError};
use crate::sync_policy::SyncPolicy;

/// How the last run ended, and what it promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenedLogs {
    /// The epoch of all channels.
    pub epoch: Epoch,
    /// True if acknowledged messages may have been lost, so that the epoch is new.
    pub may_have_lost: bool,
    /// True if that is because the storage is an older copy that was put back.
    pub is_restored: bool,
    /// No earlier run has given out a stamp beyond this one.
    pub stamps: Stamp,
}

/// The logs of all channels.
pub struct Logs {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) epoch: Epoch,
    pub(super) boot: String,
    /// The channels for which a commit is under way.
    pub(super) unacknowledged: Mutex<Arc<ChannelMap<GroupChannel>>>,
    /// Told when there are none any more.
    pub(super) acknowledged: Condvar,
    /// How often a commit was made again with other stamps.
    pub(super) retries: AtomicU64,
    /// Facts about all channels that were forgotten.
    pub(super) mark: Mutex<ForgottenMark>,
    pub(super) rewriting: Rewriting,
    pub(super) room: Room,
}

/// Where a channel's log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// The id of the newest message.
    pub head: MessageId,
    /// The offset of the newest message that is no longer there, but for those that the log's state
    /// keeps.
    pub floor: u64,
    /// No message up to this offset is there.
    pub(crate) base: u64,
    /// The offset of the newest message that was dropped though nothing had superseded it.
    pub(crate) lost_offset: u64,
    /// The stamp of the newest message that is no longer there.
    pub lost: Stamp,
    /// True if a message in the log expires, or has expired.
    pub(crate) has_expiring: bool,
    /// True if the log has a record.
    pub(crate) has_record: bool,
    /// True if the log has a state.
    pub(crate) has_keys: bool,
    /// True if the channel has ended.
    pub(crate) has_ended: bool,
}

pub(super) fn unreadable(error: ThawError) -> StorageError {
    StorageError::Damaged(format!("an entry cannot be read: {error}"))
}

impl Logs {
    /// Opens the logs of a storage. `boot` names the time since the machine was started: while it
    /// is the same, nothing is lost that was committed.
    ///
    /// The epoch stays, unless acknowledged messages may be missing: if the machine has ended and
    /// the last run did not sync before it acknowledged, nor end cleanly, or after
    /// [`Logs::note_restored`]. Their ids would be given to others.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn open(storage: Arc<dyn Storage>, boot: &str) -> Result<(Logs, OpenedLogs), StorageError> {
        let known = storage.get(Space::Meta, format::EPOCH)?.map(|value| format::epoch(&value));
        let run = storage.get(Space::Meta, format::RUN)?;
        if run.as_deref().is_some_and(|run| run != format::CLEAN) {
            // A sync may have failed before the process ended.
            storage.recover()?;
        }
        let is_restored = run.as_deref() == Some(format::RESTORED);
        let is_safe = run.is_none_or(|run| {
            run == format::CLEAN
                || run.starts_with(format::SYNCED)
                || [SyncPolicy::Interval, SyncPolicy::Never]
                    .iter()
                    .any(|sync| run == format::run(*sync, boot))
        });
        let known = known.transpose().map_err(unreadable)?;
        let may_have_lost = known.is_some() && !is_safe;
        let epoch = known.filter(|_| is_safe).unwrap_or_else(Epoch::random);
        let stamps = storage.get(Space::Meta, format::STAMPS)?;
        let stamps = stamps.map(|value| format::number(&value)).transpose().map_err(unreadable)?;
        let (unacknowledged, mark) = (Mutex::default(), Mutex::new(Logs::read_mark(&*storage)?));
        let (acknowledged, retries, rewriting) = Default::default();
        let (boot, room) = (boot.to_owned(), Room::read(&*storage)?);
        let logs = Logs {
            storage,
            epoch,
            boot,
            unacknowledged,
            acknowledged,
            retries,
            mark,
            rewriting,
            room,
        };
        let stamps = Stamp(stamps.unwrap_or(0));
        Ok((logs, OpenedLogs { epoch, may_have_lost, is_restored, stamps }))
    }

    /// The seed by which the publishers are told apart that hold room on the disk, if there is one.
    pub fn holder_seed(&self) -> Option<[u8; SEED_BYTES]> {
        *self.room.seed()
    }

    /// Has publishers told apart by this seed: it is kept with the next run.
    pub(crate) fn use_holder_seed(&self, seed: [u8; SEED_BYTES]) {
        *self.room.seed() = Some(seed);
    }

    /// Values and creations that were refused since the start: see
    /// [`refused`](throng_core::RoomGate::refused).
    pub(crate) fn states_refused(&self) -> [u64; 2] {
        self.room.gate.refused()
    }

    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// The epoch of all channels.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn unacknowledged(&self) -> MutexGuard<'_, Arc<ChannelMap<GroupChannel>>> {
        self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of commits that were made again with other stamps: what was read before that is
    /// acknowledged may have stamps that no message has.
    pub(crate) fn retries(&self) -> u64 {
        self.retries.load(Ordering::SeqCst)
    }

    /// All that was committed is acknowledged.
    pub(super) fn acknowledge(&self) {
        *self.unacknowledged() = Arc::default();
        self.acknowledged.notify_all();
    }

    pub(super) fn read_mark(storage: &dyn Storage) -> Result<ForgottenMark, StorageError> {
        let known = storage.get(Space::Meta, format::FORGOTTEN)?;
        let known =
            known.map(|value| ForgottenMark::decode(&value)).transpose().map_err(unreadable)?;
        Ok(known.unwrap_or_default())
    }

    pub(super) fn mark(&self) -> ForgottenMark {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn raise_mark(&self, mark: ForgottenMark) {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = mark;
    }

    /// The head of a channel as it was committed last, acknowledged or not: what was stored of it,
    /// and what was added since. That of a busy channel is stored once for many messages.
    pub(super) fn committed_head(&self, name: &ChannelName) -> Result<LogHead, StorageError> {
        match self.storage.get(Space::Heads, &format::name(name))? {
            // In this order: what was forgotten is not beyond the mark.
            None => Ok(self.mark().head()),
            Some(value) => self.advance(name, LogHead::decode(&value).map_err(unreadable)?),
        }
    }

    /// The head with the messages that it does not count yet.
    pub(super) fn advance(
        &self,
        name: &ChannelName,
        mut head: LogHead,
    ) -> Result<LogHead, StorageError> {
        if !head.may_lag {
            return Ok(head);
        }
        let range = (format::message(name, head.offset + 1), format::message(name, u64::MAX));
        let mut broken = None;
        let mut add = |key: &[u8], value: &[u8]| {
            let measured = format::message_of(key)
                .and_then(|(_, offset)| Ok((offset, format::measure(value)?)));
            match measured {
                Ok((offset, measure)) => head.add(offset, &measure),
                Err(error) => {
                    broken = Some(unreadable(error));
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        };
        self.storage.scan(Space::Messages, (&range.0, &range.1), KeyOrder::Up, &mut add)?;
        broken.map_or(Ok(head), Err)
    }

    /// Where a channel's log begins and ends.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn bounds(&self, name: &ChannelName) -> Result<LogBounds, StorageError> {
        // In this order: whoever sees a commit also sees that it is not acknowledged, or it is.
        let head = self.committed_head(name)?;
        let acknowledged = self.unacknowledged().get(name).map(|channel| channel.acknowledged);
        let offset = acknowledged.map_or(head.offset, |offset| offset.min(head.offset));
        let floor = head.floor.min(offset);
        let state = if head.has_keys { self.state_row(name)? } else { None };
        let (base, lost_offset) = state.map_or((floor, floor), |row| (row.base, row.floor));
        Ok(LogBounds {
            head: MessageId { epoch: self.epoch, offset },
            floor,
            base,
            lost_offset,
            lost: Stamp(head.lost),
            has_expiring: head.expiring > 0,
            has_record: head.has_record,
            has_keys: head.has_keys,
            has_ended: head.has_ended,
        })
    }

    /// The record of a log as it was committed last, acknowledged or not.
    pub(super) fn committed_record(
        &self,
        name: &ChannelName,
    ) -> Result<Option<KnownRecord>, StorageError> {
        let value = self.storage.get(Space::Records, &format::of_table(Table::LogRecords, name))?;
        value.map(|value| format::record(&value).map_err(unreadable)).transpose()
    }

    /// The room that the creation of a channel takes, as it was committed last.
    pub(super) fn creator(&self, name: &ChannelName) -> Result<Option<CreatorRow>, StorageError> {
        let row = self.storage.get(Space::Records, &format::of_table(Table::Creators, name))?;
        row.map(|row| CreatorRow::decode(&row).map_err(unreadable)).transpose()
    }

    /// Calls `each` with the channels that may go at some time.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub(crate) fn each_mortal(
        &self,
        each: &mut dyn FnMut(&ChannelName),
    ) -> Result<(), StorageError> {
        let (from, to) = ([Table::LogRecords as u8], [Table::LogRecords as u8 + 1]);
        let mut take = |key: &[u8], value: &[u8]| {
            // Of one that cannot be read, the check of the directory tells.
            let known = format::record(value).ok().filter(|known| known.record.is_of_mortal());
            if let (Some(_), Ok(name)) = (known, format::name_of(&key[1..])) {
                each(&name);
            }
            ControlFlow::Continue(())
        };
        self.storage.scan(Space::Records, (&from, &to), KeyOrder::Up, &mut take)
    }

    /// The record of a log.
    fn record(&self, name: &ChannelName) -> Result<Option<KnownRecord>, StorageError> {
        // In the order of [`Logs::bounds`].
        let record = self.committed_record(name)?;
        let unacknowledged = Arc::clone(&self.unacknowledged());
        let known = unacknowledged.get(name).and_then(|channel| channel.record.as_ref());
        Ok(known.map_or(record, |known| known.acknowledged.clone()))
    }

    /// The state of a log; `None` if its record was changed meanwhile: then call it again.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub(crate) fn state(&self, name: &ChannelName) -> Result<Option<LogState>, StorageError> {
        let record = self.record(name)?;
        let head = self.bounds(name)?.head;
        let is_same = record == self.record(name)?;
        Ok(is_same.then_some(LogState { head, record }))
    }

    /// Visits the messages after one offset and before another, until `each` breaks. Returns where
    /// the log began and ended: what is trimmed while it is read is beyond its begin.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn visit(
        &self,
        name: &ChannelName,
        (after, before): (u64, u64),
        order: KeyOrder,
        each: &mut dyn FnMut(Content) -> ControlFlow<()>,
    ) -> Result<LogBounds, StorageError> {
        let bounds = self.bounds(name)?;
        let last = before.saturating_sub(1).min(bounds.head.offset);
        let first = after.max(bounds.base).saturating_add(1);
        if first > last {
            return Ok(bounds);
        }
        let range = (format::message(name, first), format::message(name, last + 1));
        let mut broken = None;
        let mut visit = |_: &[u8], value: &[u8]| match format::content(value, self.epoch, name) {
            Ok(content) => each(content),
            Err(error) => {
                broken = Some(unreadable(error));
                ControlFlow::Break(())
            }
        };
        self.storage.scan(Space::Messages, (&range.0, &range.1), order, &mut visit)?;
        if let Some(error) = broken {
            return Err(error);
        }
        let LogBounds { floor, base, lost_offset, lost, .. } = self.bounds(name)?;
        Ok(LogBounds { floor, base, lost_offset, lost, ..bounds })
    }

    /// The offset of the newest message up to a stamp. All messages beyond it are in the log.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub(crate) fn offset_at(
        &self,
        name: &ChannelName,
        bounds: &LogBounds,
        stamp: Stamp,
    ) -> Result<u64, StorageError> {
        self.last_earlier(name, bounds, |measure| measure.stamp <= stamp.0)
    }

    /// The offset of the newest message before a time, by [`clock::now_ms`]; that of the newest
    /// one that is no longer there if none in the log is earlier. If the machine's clock was set
    /// back, so that times fall, it is any earlier message that is followed by none or by a later
    /// one.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub(crate) fn offset_before(
        &self,
        name: &ChannelName,
        time_ms: u64,
    ) -> Result<u64, StorageError> {
        let wall_ms = clock::wall_ms(time_ms);
        self.last_earlier(name, &self.bounds(name)?, |measure| measure.time_ms < wall_ms)
    }

    /// The offset of a message that is among the earlier ones and followed by one that is not, or
    /// by none; where the log begins if there is no such message. Found by halves, so that it is
    /// the last earlier one if the earlier ones come first.
    fn last_earlier(
        &self,
        name: &ChannelName,
        bounds: &LogBounds,
        is_earlier: impl Fn(Measure) -> bool,
    ) -> Result<u64, StorageError> {
        let (mut low, mut high) = (bounds.base, bounds.head.offset);
        // The message at `low` is earlier, the one after `high` is not.
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let (at, measure) = self.measure_from(name, middle, bounds)?;
            // One that was trimmed meanwhile is older than all others.
            if measure.is_none_or(&is_earlier) {
                low = at;
            } else {
                high = middle - 1;
            }
        }
        Ok(low)
    }

    /// The message at an offset, or the next one where only those are left that the log's state
    /// keeps.
    fn measure_from(
        &self,
        name: &ChannelName,
        offset: u64,
        bounds: &LogBounds,
    ) -> Result<(u64, Option<Measure>), StorageError> {
        let read = |value: &[u8]| format::measure(value).map_err(unreadable);
        if offset > bounds.floor || !bounds.has_keys {
            let value = self.storage.get(Space::Messages, &format::message(name, offset))?;
            return Ok((offset, value.map(|value| read(&value)).transpose()?));
        }
        let range = [offset, bounds.head.offset + 1].map(|at| format::message(name, at));
        let mut found = None;
        let mut first = |key: &[u8], value: &[u8]| {
            found = Some((format::message_of(key).map_err(unreadable), read(value)));
            ControlFlow::Break(())
        };
        self.storage.scan(Space::Messages, (&range[0], &range[1]), KeyOrder::Up, &mut first)?;
        let Some((at, measure)) = found else { return Ok((bounds.head.offset, None)) };
        Ok((at?.1, Some(measure?)))
    }

    /// Visits the channels whose numbers are above `after`, in their order, until `each` breaks.
    ///
    /// # Errors
    ///
    /// An error of the storage.
    pub fn list(
        &self,
        after: u64,
        each: &mut dyn FnMut(u64, ChannelName) -> ControlFlow<()>,
    ) -> Result<(), StorageError> {
        let mut broken = None;
        let mut visit =
            |key: &[u8], value: &[u8]| match (format::number(key), format::name_of(value)) {
                (Ok(number), Ok(name)) => each(number, name),
                (Err(error), _) | (_, Err(error)) => {
                    broken = Some(unreadable(error));
                    ControlFlow::Break(())
                }
            };
        let (from, to) = (after.saturating_add(1).to_be_bytes(), u64::MAX.to_be_bytes());
        self.storage.scan(Space::Numbers, (&from, &to), KeyOrder::Up, &mut visit)?;
        broken.map_or(Ok(()), Err)
    }

    /// The highest number of a channel.
    pub(super) fn newest_number(&self) -> Result<u64, StorageError> {
        let mut newest = Ok(0);
        let mut visit = |key: &[u8], _: &[u8]| {
            newest = format::number(key).map_err(unreadable);
            ControlFlow::Break(())
        };
        let range: (&[u8], &[u8]) = (&[], &u64::MAX.to_be_bytes());
        self.storage.scan(Space::Numbers, range, KeyOrder::Down, &mut visit)?;
        newest
    }
}

#[cfg(test)]
mod tests {
    use throng_core::{Body, Publication, Retention};

    use super::*;
    use crate::logs::{Appended, Writer};
    use crate::storage::memory::MemoryStorage;

    const NOW_MS: u64 = 1_700_000_000_000;
    const DAY_MS: u64 = 24 * 3_600_000;

    /// A log of messages of these times, and the times that they have there.
    fn log_of(published_ms: &[u64]) -> (Arc<Logs>, Vec<u64>) {
        let (logs, opened) =
            Logs::open(Arc::new(MemoryStorage::default()), "boot").expect("it opens");
        let logs = Arc::new(logs);
        let mut writer = Writer::begin(&logs, SyncPolicy::Never, opened.stamps).expect("it begins");
        let retention =
            Retention { max_messages: 4, max_bytes: usize::MAX, max_age_ms: u64::MAX / 2 };
        let mut append = |now_ms: &u64| {
            let publication = Publication::new(ChannelName::channel("a"), Body::Text("x".into()));
            let publications = [(publication, retention).into()];
            let appended = writer.append(*now_ms, &publications, Vec::new(), &mut Stamp::default);
            match &appended.expect("it writes")[..] {
                [Appended::New(content)] => content.time_ms,
                other => panic!("one message, not {other:?}"),
            }
        };
        let times = published_ms.iter().map(&mut append).collect();
        (logs, times)
    }

    /// A log of six messages that keeps four, whose times rise, are the same or fall.
    #[test]
    fn a_page_from_a_time_begins_behind_an_earlier_message() {
        let rising = [0, 10, 20, 20, 20, 30];
        let falling = [0, 10, DAY_MS, DAY_MS + 10, 20, 30];
        for after_ms in [rising, falling] {
            let published_ms = after_ms.map(|after_ms| NOW_MS + after_ms);
            let (logs, times) = log_of(&published_ms);
            assert_eq!(times, published_ms);
            let is_sorted = times.is_sorted();
            for from_ms in times.iter().flat_map(|ms| [ms - 1, *ms, ms + 1]).chain([0, u64::MAX]) {
                let after = logs.offset_before(&ChannelName::channel("a"), from_ms);
                let after = after.expect("it is read") as usize;
                assert!((2..=6).contains(&after), "the first two are gone, not {after}");
                assert!(after == 2 || times[after - 1] < from_ms, "{after} is before {from_ms}");
                assert!(times.get(after).is_none_or(|ms| *ms >= from_ms), "{from_ms}: {after}");
                let earlier = times.iter().filter(|ms| **ms < from_ms).count();
                assert!(!is_sorted || after == earlier.max(2), "{from_ms}: {after}");
            }
        }
    }
}
