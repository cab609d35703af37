//! The retained messages of one channel.
//!
//! Invariant: offsets grow, times and stamps do not fall, and each message's `previous` is the
//! offset of the one before it, whether that is still in the log or not. A reader whose cursor is
//! below `floor`, the offset of the newest message that was dropped, has a gap.
//!
//! A message that [expires](Content::expires_ms) loses its body and stays in its place until the
//! retention drops it: so it is no gap for a reader that was away meanwhile.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Weak};

use crate::message::{Content, Message};
use crate::rules::Retention;
use crate::stamp::Stamp;

/// A message in a log.
#[derive(Debug)]
pub(crate) struct Kept {
    content: Arc<Content>,
    /// The message while it is on its way to a subscriber, with its encodings.
    message: Weak<Message>,
}

impl Kept {
    /// Whether the message has expired.
    pub(crate) fn is_expired(&self) -> bool {
        self.content.is_without_body()
    }

    /// The message for one more subscriber: the one that is on its way to others, if any.
    pub(crate) fn message(&mut self) -> Arc<Message> {
        self.message.upgrade().unwrap_or_else(|| {
            let message = Arc::new(Message::from(Arc::clone(&self.content)));
            self.message = Arc::downgrade(&message);
            message
        })
    }
}

/// The tail of a channel's log.
#[derive(Debug, Default)]
pub(crate) struct Log {
    messages: VecDeque<Kept>,
    bytes: usize,
    /// No message of the channel beyond this stamp has been dropped.
    lost: Stamp,
    /// The offset up to which the user has read, in the log of an inbox; 0 if that is not known.
    read: u64,
    /// `None` until a message comes that expires.
    expiring: Option<Box<Expiring>>,
}

/// The messages of a log that expire.
#[derive(Debug, Default)]
struct Expiring {
    /// When each expires, and its offset; the next one first. Those that were dropped earlier are
    /// found not to be there.
    next: BinaryHeap<Reverse<(u64, u64)>>,
    /// The messages in the log that have expired.
    expired: usize,
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
        self.messages.back().map(|last| last.content.stamp)
    }

    /// Adds the newest message. `message` is the one on its way to subscribers, if any. Returns its
    /// bytes.
    pub(crate) fn append(&mut self, content: Arc<Content>, message: Weak<Message>) -> usize {
        let bytes = content.weight_bytes();
        debug_assert!(self.messages.back().is_none_or(|last| {
            last.content.id.offset == content.previous
                && last.content.time_ms <= content.time_ms
                && last.content.stamp <= content.stamp
        }));
        self.bytes += bytes;
        if let Some(expires_ms) = content.expires_ms {
            self.note_expiring(expires_ms.get(), &content);
        }
        self.messages.push_back(Kept { content, message });
        bytes
    }

    /// Notes when a message that is appended expires.
    fn note_expiring(&mut self, expires_ms: u64, content: &Content) {
        let Expiring { next, expired } = &mut **self.expiring.get_or_insert_default();
        if content.is_without_body() {
            *expired += 1;
            return;
        }
        if next.len() >= EXPIRING_MIN && next.len() > 2 * self.messages.len() {
            let first = self.messages.front().map_or(u64::MAX, |kept| kept.content.id.offset);
            next.retain(|Reverse((_, offset))| *offset >= first);
        }
        next.push(Reverse((expires_ms, content.id.offset)));
    }

    /// Takes the bodies of the messages that expire at `now_ms` or earlier. Returns how many these
    /// are, and their bytes.
    pub(crate) fn expire(&mut self, now_ms: u64) -> (usize, usize) {
        let Some(expiring) = &mut self.expiring else { return (0, 0) };
        let (before, bytes_before) = (expiring.expired, self.bytes);
        while let Some(&Reverse((expires_ms, offset))) = expiring.next.peek()
            && expires_ms <= now_ms
        {
            expiring.next.pop();
            let at = self.messages.binary_search_by_key(&offset, |kept| kept.content.id.offset);
            // It may have been dropped before.
            let Ok(at) = at else { continue };
            let rest = Arc::new(self.messages[at].content.without_body());
            let bytes = self.messages[at].content.weight_bytes() - rest.weight_bytes();
            self.messages[at] = Kept { content: rest, message: Weak::new() };
            self.bytes -= bytes;
            expiring.expired += 1;
        }
        (expiring.expired - before, bytes_before - self.bytes)
    }

    /// The messages, oldest first.
    pub(crate) fn contents(&self) -> impl ExactSizeIterator<Item = &Content> {
        self.messages.iter().map(|kept| &*kept.content)
    }

    /// Drops the messages that `retention` does not cover at `now_ms`. Returns their bytes.
    pub(crate) fn trim(&mut self, retention: &Retention, now_ms: u64) -> usize {
        let before = self.bytes;
        while let Some(oldest_ms) = self.oldest_ms() {
            let is_over = self.messages.len() > retention.max_messages
                || self.bytes > retention.max_bytes
                || oldest_ms.saturating_add(retention.max_age_ms) <= now_ms;
            if !is_over {
                break;
            }
            self.drop_oldest();
        }
        before - self.bytes
    }

    /// Drops the oldest message. Returns its bytes.
    pub(crate) fn drop_oldest(&mut self) -> usize {
        let Some(first) = self.messages.pop_front() else { return 0 };
        self.lost = first.content.stamp;
        let bytes = first.content.weight_bytes();
        self.bytes -= bytes;
        if let Some(expiring) = &mut self.expiring
            && first.is_expired()
        {
            expiring.expired -= 1;
        }
        if self.messages.capacity() > 32 && self.messages.len() * 4 < self.messages.capacity() {
            self.messages.shrink_to(self.messages.len() * 2);
        }
        bytes
    }

    /// The offset up to which the user has read; 0 if that is not known.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// Records up to which offset the user has read.
    pub(crate) fn set_read(&mut self, offset: u64) {
        self.read = offset;
    }

    /// The number of messages after `offset` that can be read, at most `max`.
    pub(crate) fn readable_after(&self, offset: u64, max: usize) -> usize {
        let from = self.messages.partition_point(|kept| kept.content.id.offset <= offset);
        if self.expired() == 0 {
            return (self.messages.len() - from).min(max);
        }
        // The newest first: those that have expired are mostly old.
        let newest = self.messages.range(from..).rev().take(max);
        newest.filter(|kept| !kept.is_expired()).count()
    }

    /// Whether the log has no messages.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The number of messages, with those that have expired.
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// The number of messages that can be read.
    pub(crate) fn readable(&self) -> usize {
        self.messages.len() - self.expired()
    }

    fn expired(&self) -> usize {
        self.expiring.as_ref().map_or(0, |expiring| expiring.expired)
    }

    /// When the oldest message was published.
    pub(crate) fn oldest_ms(&self) -> Option<u64> {
        self.messages.front().map(|first| first.content.time_ms)
    }

    /// The offset of the newest message.
    pub(crate) fn newest_offset(&self) -> Option<u64> {
        self.messages.back().map(|last| last.content.id.offset)
    }

    /// When the newest message was published.
    pub(crate) fn newest_ms(&self) -> Option<u64> {
        self.messages.back().map(|last| last.content.time_ms)
    }

    /// The offset of the newest message that is no longer here; `None` if the log is empty.
    pub(crate) fn floor(&self) -> Option<u64> {
        self.messages.front().map(|first| first.content.previous)
    }

    /// The cursor before the last `count` messages that can be read, at least one; `None` if there
    /// are fewer.
    pub(crate) fn before_last(&self, count: usize) -> Option<u64> {
        if self.expired() > 0 {
            let mut readable = self.messages.iter().rev().filter(|kept| !kept.is_expired());
            return readable.nth(count.checked_sub(1)?).map(|kept| kept.content.previous);
        }
        let at = self.messages.len().checked_sub(count)?;
        self.messages.get(at).map(|kept| kept.content.previous)
    }

    /// The cursor before the first message beyond `stamp`; `None` if there is none.
    pub(crate) fn before_stamp(&self, stamp: Stamp) -> Option<u64> {
        let at = self.messages.partition_point(|kept| kept.content.stamp <= stamp);
        self.messages.get(at).map(|kept| kept.content.previous)
    }

    /// The kept messages after `offset`, oldest first, with those that have expired.
    pub(crate) fn after(
        &mut self,
        offset: u64,
    ) -> impl DoubleEndedIterator<Item = &mut Kept> + ExactSizeIterator {
        let from = self.messages.partition_point(|kept| kept.content.id.offset <= offset);
        self.messages.range_mut(from..)
    }

    /// The kept messages before `offset`, oldest first, with those that have expired.
    pub(crate) fn before(
        &mut self,
        offset: u64,
    ) -> impl DoubleEndedIterator<Item = &mut Kept> + ExactSizeIterator {
        let to = self.messages.partition_point(|kept| kept.content.id.offset < offset);
        self.messages.range_mut(..to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, ChannelName, Epoch, MessageId};

    fn content(offset: u64, expires_ms: Option<u64>) -> Arc<Content> {
        Arc::new(Content {
            id: MessageId { epoch: Epoch::numbered(1), offset },
            stamp: crate::Stamp(offset),
            previous: offset - 1,
            time_ms: 0,
            channel: ChannelName::channel("a"),
            body: Body::Text("hi".into()),
            content_type: None,
            excluded: None,
            expires_ms: expires_ms.and_then(std::num::NonZeroU64::new),
        })
    }

    fn log_of_one() -> Log {
        let mut log = Log::default();
        log.append(content(1, None), Weak::new());
        log
    }

    #[test]
    fn what_expires_is_forgotten_with_the_messages_that_are_dropped() {
        let mut log = Log::default();
        let retention = Retention { max_messages: 3, max_bytes: usize::MAX, max_age_ms: u64::MAX };
        for offset in 1..=10_000 {
            log.append(content(offset, Some(1_000_000 + offset)), Weak::new());
            log.trim(&retention, 1);
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
