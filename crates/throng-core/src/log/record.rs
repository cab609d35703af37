//! The record of a log: facts that are kept beside its messages.

use super::recorded::Recorded;
use super::{Log, View};
use crate::change::KnownRecord;
use crate::holder::RoomHolder;
use crate::message::Content;

/// Bytes of a log that has a record and nothing else, besides the record's block and the name of
/// the channel.
const RECORDED_BYTES: usize = size_of::<Log>() + size_of::<Recorded>() + CHANNEL_BYTES;

/// Bytes of a channel in its shard: its slot, its places in indexes.
const CHANNEL_BYTES: usize = 72;

impl Log {
    /// The facts that are kept beside the messages.
    pub(crate) fn record(&self) -> Option<&KnownRecord> {
        self.record.as_ref().map(|recorded| &recorded.known)
    }

    /// True if the channel has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.record().is_some_and(|known| known.record.is_of_end())
    }

    /// True if somebody has created the channel.
    pub(crate) fn is_created(&self) -> bool {
        self.record().is_some_and(|known| known.record.is_of_creation())
    }

    /// The bytes of the record of a channel that somebody has created: it stays whatever else needs
    /// room.
    pub(crate) fn creation_bytes(&self) -> usize {
        let recorded = self.record.as_ref().filter(|it| it.known.record.is_of_creation());
        recorded.map_or(0, |recorded| recorded.bytes)
    }

    /// A thawed log learns when its channel has ended.
    pub(super) fn note_end(&mut self, notice: &Content) {
        let ended = self.record.as_mut().filter(|_| notice.is_end());
        ended.into_iter().for_each(|recorded| recorded.since_ms = notice.time_ms);
    }

    /// The offset of the newest end of the channel. Scans the entries behind it, once each time
    /// that the channel is opened again.
    pub(crate) fn newest_end(&self) -> Option<u64> {
        self.views().rev().find(View::is_end).map(|view| view.offset())
    }

    /// The publisher that has created the channel.
    pub(crate) fn creator(&self) -> RoomHolder {
        self.record.as_ref().map_or(RoomHolder::NOBODY, |recorded| recorded.creator)
    }

    /// Replaces these facts, of a channel with a name of this length, which `creator` creates if it
    /// was not before. Returns the bytes that they take, and took before.
    pub(crate) fn set_record(
        &mut self,
        now_ms: u64,
        record: Option<KnownRecord>,
        (name_bytes, creator): (usize, RoomHolder),
    ) -> [usize; 2] {
        let bytes = |it: &Log| it.record.as_ref().map_or(0, |recorded| recorded.bytes);
        let before = bytes(self);
        let creator = if self.is_created() { self.creator() } else { creator };
        self.record = record.map(|known| {
            let bytes = RECORDED_BYTES + known.record.block().len() + name_bytes;
            Box::new(Recorded { known, since_ms: now_ms, bytes, creator })
        });
        [bytes(self), before]
    }

    /// When the channel has ended, if nothing is kept but that it has.
    pub(crate) fn bare_end_ms(&self) -> Option<u64> {
        let is_bare = || self.is_ended() && !self.is_created() && self.is_bare();
        let recorded = self.record.as_ref().filter(|_| is_bare());
        recorded.map(|recorded| recorded.since_ms)
    }
}
