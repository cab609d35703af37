//! How far users have read channels in memory.
//!
//! The markers of a user are under one lock, which is taken before any lock of a shard. So markers
//! and the notices of them have one order. A marker ends with the messages of its channel: after a
//! while the [tick](MemoryEngine::tick) finds that there are none.

use throng_wire::ErrorCode;

use super::{MemoryEngine, SHARDS};
use crate::channel_markers::OfUser;
use crate::frozen::{Decoder, Encoder, OFFSET_MAX, RecordKind, ThawError};
use crate::id::WorkerId;
use crate::name::ChannelName;
use crate::read_marker::{Mark, Marked, MarkerKey, MarkersErased, MarkersOf, Mover, ReadMarker};

impl MemoryEngine {
    /// The part of a user's markers.
    fn part_of(&self, user: &str) -> usize {
        self.find(&ChannelName::user(user)).0
    }

    /// The marker of a user in a channel, after `mark`.
    fn read_channel(
        &self,
        now_ms: u64,
        of: &MarkerKey,
        (user, mark): (&str, Option<Mark>),
    ) -> Marked {
        let mut part = self.markers.lock(self.part_of(user));
        let channel = of.log();
        let at = |all: &OfUser| all.binary_search_by(|(of, _)| of.cmp(channel)).ok();
        let before = part.get(user).and_then(|all| Some(all[at(all)?].1)).unwrap_or(0);
        let (shard, name) = self.find(channel);
        let asked = (mark, of.unread_max());
        let marker = self.lock(shard).read_marker(&self.shared, (now_ms, name), before, asked);
        if marker.has_moved {
            let offset = marker.read.map_or(0, |id| id.offset);
            self.markers.set(&mut part, (user, channel), offset, !self.is_memory_short())?;
            self.tell_unread(now_ms, of, &marker, mark.and_then(|mark| mark.mover));
        }
        Ok(marker)
    }

    /// Counts a marker that was refused because there are too many.
    pub(crate) fn note_marked(&self, marked: &Marked) {
        if marked.as_ref().is_err_and(|error| error.code == ErrorCode::TooManyChannels) {
            self.markers.refuse();
        }
    }

    /// Erases markers in channels in memory, and with those of a user where it would go on.
    pub fn erase_markers(&self, of: MarkersOf<'_>) -> MarkersErased {
        let count = match of {
            MarkersOf::User(user) => {
                self.bookmarks.forget(user);
                self.markers.remove(self.part_of(user), user)
            }
            MarkersOf::Channel(name) => {
                (0..SHARDS).map(|at| self.markers.retain(at, |_, channel| channel != name)).sum()
            }
        };
        MarkersErased { count, are_more: false }
    }

    /// Drops those of some users whose channels have no messages any more.
    pub(super) fn drop_ended_markers(&self, at: usize) {
        // Mostly there are none.
        if !self.markers.are_none() {
            self.markers.retain(at, |_, channel| {
                let (shard, name) = self.find(channel);
                self.lock(shard).has_log(name)
            });
        }
    }

    /// Writes the markers of all users, with a record for each.
    pub(super) fn freeze_markers<E>(
        &self,
        write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        for at in 0..SHARDS {
            for (user, all) in self.markers.lock(at).iter() {
                let mut encoder = Encoder::new(RecordKind::Markers);
                encoder.bytes(user.as_bytes());
                encoder.u32(all.len() as u32);
                for (channel, offset) in all {
                    encoder.bytes(channel.name().as_bytes());
                    encoder.u64(*offset);
                }
                write(encoder.finish())?;
            }
        }
        Ok(())
    }

    /// Reads a record of [`MemoryEngine::freeze_markers`]. Markers in channels that have none any
    /// more, or another journal, are left out.
    pub(super) fn thaw_markers(&self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        let user = decoder.text()?;
        let mut part = self.markers.lock(self.part_of(user));
        for _ in 0..decoder.u32()? {
            let (channel, offset) = (ChannelName::channel(decoder.text()?), decoder.u64()?);
            if offset > OFFSET_MAX {
                return Err(ThawError::Invalid("the read marker of a user"));
            }
            let rule = self.rule(&channel);
            if rule.read_markers && rule.journal.is_none() {
                // What is beyond the limit is dropped, and its messages are unread.
                let _ = self.markers.set(&mut part, (user, &channel), offset, true);
            }
        }
        decoder.finish()
    }

    /// As [`Channels::read_marker`](crate::Channels::read_marker), of a log in memory.
    pub fn read_marker(&self, now_ms: u64, of: &MarkerKey, mark: Option<Mark>) -> Marked {
        match of.reader() {
            None => Ok(self.move_in_inbox(now_ms, of, mark).0),
            Some(user) => {
                let marked = self.read_channel(now_ms, of, (user, mark));
                self.note_marked(&marked);
                marked
            }
        }
    }

    /// The marker of an inbox, with the number of subscriptions that the notice is posted for, if
    /// there is one.
    pub(crate) fn move_in_inbox(
        &self,
        now_ms: u64,
        of: &MarkerKey,
        mark: Option<Mark>,
    ) -> (ReadMarker, Option<u64>) {
        let (at, name) = self.find(of.log());
        let (marker, told) = self.lock(at).read_inbox(&self.shared, (now_ms, name), of, mark);
        (marker, self.wake_told(told))
    }

    /// Tells those that follow a user's inbox here that a marker has moved, if it has.
    pub(crate) fn tell_unread(
        &self,
        now_ms: u64,
        of: &MarkerKey,
        marker: &ReadMarker,
        mover: Option<Mover>,
    ) {
        let inbox = of.told();
        let (at, name) = self.find(&inbox);
        let told = self.lock(at).tell_unread(&self.shared, (now_ms, name), of, marker, mover);
        self.wake_told(told);
    }

    fn wake_told(&self, told: Option<(u64, Vec<WorkerId>)>) -> Option<u64> {
        let (subscribers, workers) = told?;
        self.wake(workers);
        Some(subscribers)
    }
}
