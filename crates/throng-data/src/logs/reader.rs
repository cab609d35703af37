//! Reading: the messages, heads and numbers of channels.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::frozen::ThawError;
use throng_core::{ChannelName, Content, Epoch, MessageId, Stamp};

use super::format::{self, ForgottenMark, LogHead};
use super::group::{ChannelMap, GroupChannel};
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
    /// Facts about all channels that were forgotten.
    pub(super) mark: Mutex<ForgottenMark>,
}

/// Where a channel's log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// The id of the newest message.
    pub head: MessageId,
    /// The offset of the newest message that is no longer there.
    pub floor: u64,
    /// The stamp of the newest message that is no longer there.
    pub lost: Stamp,
    /// True if a message in the log expires, or has expired.
    pub(crate) has_expiring: bool,
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
        let logs = Logs { storage, epoch, boot: boot.to_owned(), unacknowledged, mark };
        let stamps = Stamp(stamps.unwrap_or(0));
        Ok((logs, OpenedLogs { epoch, may_have_lost, is_restored, stamps }))
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
        Ok(LogBounds {
            head: MessageId { epoch: self.epoch, offset },
            floor: head.floor.min(offset),
            lost: Stamp(head.lost),
            has_expiring: head.expiring > 0,
        })
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
        let first = after.max(bounds.floor).saturating_add(1);
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
        let LogBounds { floor, lost, .. } = self.bounds(name)?;
        Ok(LogBounds { floor, lost, ..bounds })
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
        let (mut low, mut high) = (bounds.floor, bounds.head.offset);
        // The message at `low` has the stamp or an earlier one, all after `high` have later ones.
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let value = self.storage.get(Space::Messages, &format::message(name, middle))?;
            let measure = value.map(|value| format::measure(&value).map_err(unreadable));
            // One that was trimmed meanwhile is older than all others.
            if measure.transpose()?.is_none_or(|measure| measure.stamp <= stamp.0) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Ok(low)
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
