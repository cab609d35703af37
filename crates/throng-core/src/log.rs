//! The retained messages of one channel.
//!
//! Invariant: offsets grow, times and stamps do not fall, and each message's `previous` is the
//! offset of the one before it, whether that is still in the log or not. A reader whose cursor is
//! below `floor`, the offset of the newest message that was dropped, has a gap.
//!
//! A message that [expires](Content::expires_ms) or is erased loses its body and stays in its place
//! until the retention drops it: so it is no gap for a reader that was away meanwhile. It does not
//! count among the messages that the retention keeps, nor do notices: see
//! [`EntryCount`](crate::EntryCount).
//!
//! While another process takes over, most messages are sealed: they lie in [segments](segment),
//! which both processes map. A reader takes its messages out.
//!
//! | module | what it is |
//! |---|---|
//! | `entry` | one message, on the heap or in a segment |
//! | `keys` | which messages are the newest of their keys |
//! | `page` | pages of those that can be read |
//! | `record`, `recorded` | facts beside the messages |
//! | `runs` | runs of expired ones |
//! | `sealed` | the segments of a log |
//! | `segment` | messages in memory that two processes share |
//! | `state` | what is kept because it is the newest of its key |

mod entry;
mod keys;
pub(crate) mod page;
mod record;
mod recorded;
mod runs;
mod sealed;
pub(crate) mod segment;
mod state;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Weak};

use self::entry::Entry;
pub(crate) use self::entry::{Kept, Place, View};
pub(crate) use self::keys::FrozenKeys;
use self::keys::Keys;
use self::recorded::Recorded;
use self::runs::Runs;
use self::sealed::SealedIn;
use self::segment::{Sealed, Segment};
use crate::entry_count::EntryCount;
use crate::holder::RoomHolder;
use crate::message::{Content, Message};
use crate::rules::{Retention, StateLimits};
use crate::stamp::Stamp;

/// The tail of a channel's log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    messages: VecDeque<Entry>,
    bytes: usize,
    /// No message of the channel beyond this stamp has been dropped.
    lost: Stamp,
    /// The offset up to which the user has read, in the log of an inbox; 0 if that is not known.
    read: u64,
    /// `None` until a message comes that expires.
    expiring: Option<Box<Expiring>>,
    /// `None` until a message comes that has a key.
    keys: Option<Box<Keys>>,
    /// The segments that have some of the messages; mostly `None`.
    sealed: Option<Box<SealedIn>>,
    /// The facts that are kept beside the messages; mostly `None`.
    record: Option<Box<Recorded>>,
}

/// The messages of a log that expire, or were erased.
#[derive(Debug, Default)]
struct Expiring {
    /// When each expires, and its offset; the next one first. Those that were dropped earlier are
    /// found not to be there.
    next: BinaryHeap<Reverse<(u64, u64)>>,
    /// The messages in the log without their bodies.
    expired: usize,
    /// The notices in the log.
    notices: usize,
    /// The runs of them.
    runs: Runs,
}

/// A heap with fewer entries is not worth a look for dropped messages.
const EXPIRING_MIN: usize = 32;

impl Log {
    /// A log without messages. All messages of its channel up to `lost` may have been dropped.
    pub(crate) fn new(lost: Stamp) -> Log {
        Log { lost, ..Log::default() }
    }

    /// No message of the channel beyond this stamp has been dropped.
    pub(crate) fn lost(&self) -> Stamp {
        self.lost
    }

    /// The stamp of the newest message.
    pub(crate) fn newest_stamp(&self) -> Option<Stamp> {
        self.messages.back().map(|last| self.view(last).stamp())
    }

    fn view<'a>(&'a self, entry: &'a Entry) -> View<'a> {
        entry.view(self.sealed.as_deref())
    }

    /// Adds the newest message. `message` is the one on its way to subscribers, if any; `holder` is
    /// charged if it has a key. Returns its bytes.
    pub(crate) fn append(
        &mut self,
        content: Arc<Content>,
        message: Weak<Message>,
        holder: RoomHolder,
    ) -> usize {
        let bytes = content.weight_bytes();
        debug_assert!(self.messages.back().map(|last| self.view(last)).is_none_or(|last| {
            (last.offset() == content.previous
                || (self.keys.is_some() && last.offset() < content.previous))
                && last.time_ms() <= content.time_ms
                && last.stamp() <= content.stamp
        }));
        self.note_key(&content, holder);
        self.bytes += bytes;
        if let Some(expires_ms) = content.expires_ms {
            let is_over = content.is_without_body();
            self.note_expiring(expires_ms.get(), content.id.offset, is_over);
        }
        if content.is_notice() {
            self.expiring.get_or_insert_default().notices += 1;
            self.note_end(&content);
        }
        self.messages.push_back(Entry::Here { content, message });
        bytes
    }

    /// The offset of the message at a place, if it has expired.
    fn expired_at(&self, at: Option<usize>) -> Option<u64> {
        let view = self.view(self.messages.get(at?)?);
        view.is_expired().then(|| view.offset())
    }

    /// Notes when a message that is appended expires.
    fn note_expiring(&mut self, expires_ms: u64, offset: u64, is_over: bool) {
        let before = self.expired_at(self.messages.len().checked_sub(1));
        let Log { messages, expiring, sealed, .. } = self;
        let Expiring { next, expired, runs, .. } = &mut **expiring.get_or_insert_default();
        if is_over {
            *expired += 1;
            runs.add(offset, [before, None]);
            return;
        }
        if next.len() >= EXPIRING_MIN && next.len() > 2 * messages.len() {
            let first = messages.front().map(|first| first.view(sealed.as_deref()).offset());
            let first = first.unwrap_or(u64::MAX);
            next.retain(|Reverse((_, offset))| *offset >= first);
        }
        next.push(Reverse((expires_ms, offset)));
    }

    /// Takes the bodies of the messages that expire at `now_ms` or earlier. Returns how many these
    /// are, and their bytes.
    pub(crate) fn expire(&mut self, now_ms: u64) -> (usize, usize) {
        let (mut messages, bytes_before) = (0, self.bytes);
        while let Some(offset) = self.next_expired(now_ms) {
            if let Some(key) = self.unkey(offset) {
                self.note_ended_key(key);
            }
            // It may have been dropped before, or erased.
            messages += usize::from(self.take_body_of(offset).is_some());
        }
        (messages, bytes_before - self.bytes)
    }

    /// The next message that expires at `now_ms` or earlier, once.
    fn next_expired(&mut self, now_ms: u64) -> Option<u64> {
        let next = &mut self.expiring.as_mut()?.next;
        let &Reverse((expires_ms, offset)) = next.peek()?;
        if expires_ms > now_ms {
            return None;
        }
        next.pop();
        Some(offset)
    }

    /// Takes the body of a message. Returns its bytes; `None` if no such message can be read.
    fn take_body_of(&mut self, offset: u64) -> Option<usize> {
        self.take_body(self.place_of(offset)?)
    }

    /// Leaves a placeholder of the message at a place. Returns how many bytes that saves; `None` if
    /// it is one already.
    fn take_body(&mut self, at: usize) -> Option<usize> {
        let around = [self.expired_at(at.checked_sub(1)), self.expired_at(Some(at + 1))];
        let (entry, sealed) = (&mut self.messages[at], self.sealed.as_deref());
        if entry.view(sealed).is_expired() {
            return None;
        }
        let content = entry.content(sealed);
        let rest = Arc::new(content.without_body());
        let bytes = content.weight_bytes() - rest.weight_bytes();
        let is_last_of_segment = entry.leave(sealed);
        *entry = Entry::Here { content: rest, message: Weak::new() };
        self.bytes -= bytes;
        let expiring = self.expiring.get_or_insert_default();
        expiring.expired += 1;
        expiring.runs.add(content.id.offset, around);
        expiring.notices -= usize::from(content.is_notice());
        self.note_gone(at, bytes);
        if is_last_of_segment {
            self.forget_segments();
        }
        Some(bytes)
    }

    /// Takes the body of a message. Returns its bytes; `None` if no such message can be read. The
    /// value of a key needs a tombstone then, because clients may have an earlier value.
    pub(crate) fn erase(&mut self, offset: u64) -> Option<usize> {
        if let Some(key) = self.unkey(offset) {
            self.note_ended_key(key);
        }
        self.take_body_of(offset)
    }

    /// True if nothing is kept.
    pub(crate) fn is_unused(&self) -> bool {
        self.record.is_none() && self.is_bare()
    }

    /// True if no message is kept.
    fn is_bare(&self) -> bool {
        self.messages.is_empty() || self.is_spent()
    }

    /// Lets go of the segments without messages of this log.
    fn forget_segments(&mut self) {
        self.sealed.take_if(|sealed| !sealed.forget_empty());
    }

    /// Calls `each` with the messages after `offset` and up to `last` that can be sealed: not those
    /// that are on their way, whose content would stay on the heap, and not what is left of expired
    /// ones, nor notices. Stops when it returns false; returns whether it never did.
    pub(crate) fn each_sealable(
        &self,
        offset: u64,
        last: Stamp,
        mut each: impl FnMut(&Content) -> bool,
    ) -> bool {
        let from = self.messages.partition_point(|entry| self.view(entry).offset() <= offset);
        for entry in self.messages.range(from..) {
            let Entry::Here { content, message } = entry else { continue };
            if content.stamp > last {
                break;
            }
            // Those with keys are read by key, and notices are looked for.
            let is_plain =
                !content.is_without_body() && content.key().is_none() && !content.is_notice();
            let may_be = message.strong_count() == 0 && is_plain;
            if may_be && !each(content) {
                return false;
            }
        }
        true
    }

    /// Replaces a message by the same one in a segment, if it is still here. Returns whether.
    pub(crate) fn seal(&mut self, segment: &Arc<Segment>, at: u32) -> bool {
        let Sealed { head, .. } = segment.get(at);
        let view_of = |entry: &Entry| entry.view(self.sealed.as_deref()).offset();
        let Ok(place) = self.messages.binary_search_by_key(&head.offset, view_of) else {
            return false;
        };
        match &self.messages[place] {
            // Another channel of this name may have the offset again, but not the stamp.
            Entry::Here { content, .. }
                if content.stamp == head.stamp && !content.is_without_body() => {}
            _ => return false,
        }
        self.sealed.get_or_insert_default().enter(segment, 1);
        self.messages[place] = Entry::Sealed { segment: segment.number(), at };
        true
    }

    /// Adds consecutive messages of a segment, which are the newest ones, if `check` takes each.
    /// Returns their bytes. After an error some have been added.
    pub(crate) fn append_sealed<E>(
        &mut self,
        segment: &Arc<Segment>,
        places: Range<u32>,
        mut check: impl FnMut(&Sealed<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let (number, bytes_before) = (segment.number(), self.bytes);
        self.sealed.get_or_insert_default().enter(segment, places.len() as u32);
        self.messages.reserve(places.len());
        for at in places {
            let message = segment.get(at);
            check(&message)?;
            self.bytes += message.weight_bytes;
            if let Some(expires_ms) = message.head.expires_ms {
                self.note_expiring(expires_ms.get(), message.head.offset, false);
            }
            self.messages.push_back(Entry::Sealed { segment: number, at });
        }
        Ok(self.bytes - bytes_before)
    }

    /// Takes the messages out of all segments up to the one with this number.
    pub(crate) fn unseal(&mut self, last: u32) {
        let Log { messages, sealed, .. } = self;
        let Some(sealed_in) = sealed.as_deref() else { return };
        let mut left = sealed_in.count_up_to(last);
        for entry in messages.iter_mut() {
            if left == 0 {
                break;
            }
            if matches!(entry, Entry::Sealed { segment, .. } if *segment <= last) {
                let content = entry.content(Some(sealed_in));
                entry.leave(Some(sealed_in));
                *entry = Entry::Here { content, message: Weak::new() };
                left -= 1;
            }
        }
        self.forget_segments();
    }

    /// The messages, oldest first.
    pub(crate) fn views(&self) -> impl DoubleEndedIterator<Item = View<'_>> + ExactSizeIterator {
        self.messages.iter().map(|entry| self.view(entry))
    }

    /// Where the messages are, oldest first.
    pub(crate) fn places(&self) -> impl ExactSizeIterator<Item = Place<'_>> {
        self.messages.iter().map(Entry::place)
    }

    /// A message that is in a segment of the log.
    pub(crate) fn sealed_content(&self, segment: u32, at: u32) -> Content {
        SealedIn::find(self.sealed.as_deref(), segment).content(at)
    }

    /// Drops the messages that `retention` does not cover at `now_ms`, but for the newest ones of
    /// keys. Returns their bytes.
    pub(crate) fn trim(&mut self, retention: &Retention, now_ms: u64, max: StateLimits) -> usize {
        let before = self.bytes;
        if self.keys.is_some() {
            self.trim_keyed(retention, now_ms, max);
            return before - self.bytes;
        }
        while let Some(oldest_ms) = self.oldest_ms() {
            let is_over = self.count().exceeds(retention.max_messages)
                || self.bytes > retention.max_bytes
                || oldest_ms.saturating_add(retention.max_age_ms) <= now_ms;
            if !is_over {
                break;
            }
            self.drop_oldest();
        }
        before - self.bytes
    }

    /// Drops the oldest message that is not the newest of its key. Returns its bytes.
    pub(crate) fn drop_oldest(&mut self) -> usize {
        if self.keys.is_some() {
            let before = self.bytes;
            while self.bytes == before && self.narrow_window() {}
            return before - self.bytes;
        }
        let Some(first) = self.messages.pop_front() else { return 0 };
        let view = self.view(&first);
        let (stamp, bytes) = (view.stamp(), view.weight_bytes());
        let (is_expired, is_blank, offset) = (view.is_expired(), view.is_blank(), view.offset());
        self.lost = stamp;
        self.bytes -= bytes;
        if let Some(expiring) = &mut self.expiring
            && is_blank
        {
            let count = if is_expired { &mut expiring.expired } else { &mut expiring.notices };
            *count -= 1;
            expiring.runs.forget_up_to(offset);
        }
        if first.leave(self.sealed.as_deref()) {
            self.forget_segments();
        }
        if self.messages.capacity() > 32 && self.messages.len() * 4 < self.messages.capacity() {
            self.messages.shrink_to(self.messages.len() * 2);
        }
        bytes
    }

    /// Drops all messages. Returns their bytes.
    pub(crate) fn clear(&mut self) -> usize {
        let before = self.bytes;
        // None is the newest of its key any more.
        self.keys = None;
        while !self.is_empty() {
            self.drop_oldest();
        }
        before - self.bytes
    }

    /// The offset up to which the user has read; 0 if that is not known.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// Records up to which offset the user has read.
    pub(crate) fn set_read(&mut self, offset: u64) {
        self.read = offset;
    }

    /// The number of messages after `offset` that are unread, at most `max`: those that can be read
    /// and are no notices of erasure.
    pub(crate) fn unread_after(&self, offset: u64, max: usize) -> usize {
        let from = self.messages.partition_point(|entry| self.view(entry).offset() <= offset);
        if self.expiring.is_none() {
            return (self.messages.len() - from).min(max);
        }
        // The newest first: those that have expired are mostly old.
        let newest = self.messages.range(from..).rev().take(max);
        newest.filter(|entry| !self.view(entry).is_blank()).count()
    }

    /// The bytes of all messages.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The number of messages, with those that have expired.
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// The number of messages that can be read, without notices.
    pub(crate) fn readable(&self) -> usize {
        self.messages.len() - self.expired() - self.notices()
    }

    fn expired(&self) -> usize {
        self.expiring.as_ref().map_or(0, |expiring| expiring.expired)
    }

    fn notices(&self) -> usize {
        self.expiring.as_ref().map_or(0, |expiring| expiring.notices)
    }

    /// The entries that the retention counts: in a log with keys, those of the window.
    fn count(&self) -> EntryCount {
        let (older, gone) = self.keys.as_ref().map_or((0, 0), |keys| (keys.older, keys.gone));
        let blanks = self.expired() - gone + self.notices();
        let messages = self.messages.len() - older - blanks;
        EntryCount { messages: messages as u64, blanks: blanks as u64 }
    }

    /// The age of the log, by which it is found when there is no room: when its oldest message was
    /// published, or if there is none, when its channel has ended.
    pub(crate) fn age_ms(&self) -> Option<u64> {
        self.oldest_ms().or_else(|| self.bare_end_ms())
    }

    /// When the oldest message was published.
    ///
    /// In a log with keys, of those that can be dropped.
    pub(crate) fn oldest_ms(&self) -> Option<u64> {
        if self.keys.is_some() {
            return self.oldest_in_window_ms();
        }
        self.messages.front().map(|first| self.view(first).time_ms())
    }

    /// The offset of the newest message.
    pub(crate) fn newest_offset(&self) -> Option<u64> {
        self.messages.back().map(|last| self.view(last).offset())
    }

    /// When the newest message was published.
    pub(crate) fn newest_ms(&self) -> Option<u64> {
        self.messages.back().map(|last| self.view(last).time_ms())
    }

    /// The offset of the newest message that is no longer here; `None` if the log is empty.
    ///
    /// In a log with keys, of those that nothing has superseded.
    pub(crate) fn floor(&self) -> Option<u64> {
        if let Some(floor) = self.keyed_floor() {
            return Some(floor);
        }
        self.messages.front().map(|first| self.view(first).previous())
    }

    /// The cursor before all messages; `None` if the log is empty.
    pub(crate) fn start(&self) -> Option<u64> {
        self.messages.front().map(|first| self.view(first).previous())
    }

    /// The cursor before the first message beyond `stamp`; `None` if there is none.
    pub(crate) fn before_stamp(&self, stamp: Stamp) -> Option<u64> {
        self.before_first(|view| view.stamp() <= stamp)
    }

    /// The cursor before the first message of this time or later; `None` if there is none.
    pub(crate) fn before_time(&self, time_ms: u64) -> Option<u64> {
        self.before_first(|view| view.time_ms() < time_ms)
    }

    /// The cursor before the first message that is not among the earlier ones.
    fn before_first(&self, is_earlier: impl Fn(View<'_>) -> bool) -> Option<u64> {
        let at = self.messages.partition_point(|entry| is_earlier(self.view(entry)));
        self.messages.get(at).map(|entry| self.view(entry).previous())
    }

    /// The kept messages after `offset`, oldest first, with those that have expired.
    pub(crate) fn after(
        &mut self,
        offset: u64,
    ) -> impl DoubleEndedIterator<Item = Kept<'_>> + ExactSizeIterator {
        let from = self.messages.partition_point(|entry| self.view(entry).offset() <= offset);
        let Log { messages, sealed, .. } = self;
        let sealed = sealed.as_deref();
        messages.range_mut(from..).map(move |entry| Kept::new(entry, sealed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, ChannelName, Epoch, MessageId, Rule};

    pub(super) fn content(offset: u64, expires_ms: Option<u64>) -> Arc<Content> {
        Arc::new(Content {
            expires_ms: expires_ms.and_then(std::num::NonZeroU64::new),
            ..Content::new(
                MessageId { epoch: Epoch::numbered(1), offset },
                offset - 1,
                0,
                ChannelName::channel("a"),
                Body::Text("hi".into()),
            )
        })
    }

    fn log_of_one() -> Log {
        let mut log = Log::default();
        log.append(content(1, None), Weak::new(), RoomHolder::NOBODY);
        log
    }

    #[test]
    fn what_expires_is_forgotten_with_the_messages_that_are_dropped() {
        let mut log = Log::default();
        let retention = Retention { max_messages: 3, max_bytes: usize::MAX, max_age_ms: u64::MAX };
        for offset in 1..=10_000 {
            let content = content(offset, Some(1_000_000 + offset));
            log.append(content, Weak::new(), RoomHolder::NOBODY);
            log.trim(&retention, 1, Rule::default().state);
        }
        let noted = log.expiring.as_ref().map_or(0, |expiring| expiring.next.len());
        assert!(noted <= EXPIRING_MIN + 1, "{noted} are noted of 3");
        assert_eq!(log.expire(1_009_999), (2, 4), "two messages of two bytes");
        assert_eq!((log.len(), log.readable()), (3, 1));
        log.drop_oldest();
        assert_eq!((log.len(), log.readable()), (2, 1));
        assert_eq!(log.expire(u64::MAX).0, 1);
        assert_eq!(log.before_last(1), None);
    }

    #[test]
    fn encodings_are_shared_and_end_with_the_last_reader() {
        let mut log = log_of_one();
        let mut message = || log.after(0).next().expect("it is kept").message();
        let (first, second) = (message(), message());
        let encoded = first.encoding(0, |_| b"encoded".to_vec()).as_ptr();
        assert_eq!(second.encoding(0, |_| unreachable!("it is there")).as_ptr(), encoded);
        drop(first);
        assert!(message().is_encoded(), "the second is still on its way");
        drop(second);
        assert!(!message().is_encoded());
    }
}
