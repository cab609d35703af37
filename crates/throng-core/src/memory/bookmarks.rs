//! What users go on from in channels after their connections have died.

use super::MemoryEngine;
use crate::bookmarks::{Bookmark, BookmarkMetrics};
use crate::clock;
use crate::frozen::{
    Decoder, Encoder, OFFSET_MAX, RecordKind, ThawError, decode_name, encode_name,
};
use crate::id::{Epoch, MessageId};
use crate::name::ChannelName;

impl MemoryEngine {
    /// A connection of a user has died, which need not be sent again what a channel had up to this
    /// message. Nothing happens unless the rule of the channel says that users go on.
    pub fn leave_bookmark(&self, now_ms: u64, user: &str, channel: &ChannelName, place: MessageId) {
        let Some(rule) = self.shared.rules.resume(channel) else { return };
        let until_ms = now_ms + rule.for_ms;
        let bookmark = Bookmark { channel: channel.clone(), place, count: 1, until_ms };
        self.bookmarks.leave(user, bookmark, rule);
    }

    /// The last message that the next subscription of a user to a channel need not begin with, if
    /// an earlier one has died; `None` if it begins anew.
    pub fn bookmark(&self, now_ms: u64, user: &str, channel: &ChannelName) -> Option<MessageId> {
        self.bookmarks.find(now_ms, user, channel)
    }

    /// True if some user may go on in a channel.
    pub fn has_bookmarks_in(&self, channel: &ChannelName) -> bool {
        self.bookmarks.has_any_in(channel)
    }

    /// The same, for a subscription that begins there. Each is for one.
    pub fn take_bookmark(
        &self,
        now_ms: u64,
        user: &str,
        channel: &ChannelName,
    ) -> Option<MessageId> {
        self.bookmarks.take(now_ms, user, channel)
    }

    /// Takes over what other processes have said and given of a user's bookmarks in a channel.
    pub fn bring_bookmarks(
        &self,
        now_ms: u64,
        (user, channel): (&str, &ChannelName),
        places: &[MessageId],
        is_given: bool,
    ) {
        let Some(rule) = self.shared.rules.resume(channel) else { return };
        // Frozen state has no others.
        for (nth, place) in places.iter().filter(|it| it.offset <= OFFSET_MAX).enumerate() {
            let until_ms = now_ms + rule.for_ms;
            let (channel, place) = (channel.clone(), *place);
            let bookmark = Bookmark { channel, place, count: 1, until_ms };
            // One of them counts, and the others only say where they are.
            self.bookmarks.bring((user, bookmark), rule, is_given && nth == 0);
        }
    }

    /// Another process was to give a bookmark, and has not answered in time.
    pub fn note_unanswered_bookmark(&self) {
        self.bookmarks.note_unanswered();
    }

    /// As [`MemoryEngine::take_bookmark`], for another process.
    pub fn give_bookmark(
        &self,
        now_ms: u64,
        user: &str,
        channel: &ChannelName,
    ) -> Option<MessageId> {
        self.bookmarks.give(now_ms, user, channel)
    }

    /// For how long a user may still go on in a channel, in milliseconds.
    pub fn bookmark_left_ms(&self, now_ms: u64, user: &str, channel: &ChannelName) -> u64 {
        self.bookmarks.until_ms(user, channel).saturating_sub(now_ms)
    }

    /// Counts of these.
    pub fn bookmark_metrics(&self) -> BookmarkMetrics {
        self.bookmarks.metrics()
    }

    /// Writes them, with a record for each user.
    pub(super) fn freeze_bookmarks<E>(
        &self,
        write: &mut dyn FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.bookmarks.each(|user, all| {
            let mut encoder = Encoder::new(RecordKind::Bookmarks);
            encoder.bytes(user.as_bytes());
            encoder.u32(all.len() as u32);
            for Bookmark { channel, place, count, until_ms } in all {
                encode_name(&mut encoder, channel);
                encoder.u64(place.epoch.number());
                encoder.u64(place.offset);
                encoder.u32(*count);
                encoder.u64(clock::wall_ms(*until_ms));
            }
            write(encoder.finish())
        })
    }

    /// Reads a record of [`MemoryEngine::freeze_bookmarks`]. Those of channels whose rules do not
    /// say so any more are left out.
    pub(super) fn thaw_bookmarks(&self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        let user = decoder.text()?;
        for _ in 0..decoder.u32()? {
            let channel = decode_name(&mut decoder)?;
            let (epoch, offset) = (Epoch::numbered(decoder.u64()?), decoder.u64()?);
            let (count, until_ms) = (decoder.u32()?, clock::from_wall_ms(decoder.u64()?));
            if offset > OFFSET_MAX || count == 0 {
                return Err(ThawError::Invalid("what a user goes on from"));
            }
            if let Some(rule) = self.shared.rules.resume(&channel) {
                let place = MessageId { epoch, offset };
                self.bookmarks.thaw(user, Bookmark { channel, place, count, until_ms }, rule);
            }
        }
        decoder.finish()
    }
}
