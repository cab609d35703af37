//! Reads parts of logs: what a subscription starts with, and pages of history.
//!
//! A message that has expired keeps its place and loses its body, so that no hole shows.

use std::ops::ControlFlow;
use std::sync::Arc;

use throng_core::parts::{Limits, Page, Start};
use throng_core::{ChannelName, Content, HistoryQuery, MessageId, Stamp, StartAt};

use crate::logs::{Bounds, Logs};
use crate::storage::{Order, StorageError};

/// What is read at most for one page, so that it stays small beside what a server holds.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// Reads one channel's log as it is at a time.
pub(super) struct Reader<'a> {
    pub(super) logs: &'a Logs,
    pub(super) name: &'a ChannelName,
    pub(super) now_ms: u64,
    /// Whether a position of [`StartAt::Since`] was given out by this server.
    pub(super) is_known: bool,
}

/// Messages that were read, and what is not among them.
struct Taken {
    bounds: Bounds,
    messages: Vec<Arc<Content>>,
    /// Whether there are more in the direction of the reading.
    has_more: bool,
}

impl Reader<'_> {
    /// What a subscription that starts at `start` gets. If it lacks more than `limits`, it gets the
    /// newest messages within them and is not recovered.
    pub(super) fn start(&self, start: StartAt, limits: Limits) -> Result<Start, StorageError> {
        let after = match start {
            StartAt::Live | StartAt::Last(0) => {
                let head = self.logs.bounds(self.name)?.head;
                let messages = Vec::new();
                return Ok(Start { head, cursor: head.offset, is_recovered: None, messages });
            }
            StartAt::Last(count) => return self.last(count, limits, None),
            StartAt::After(id) => self.after_id(id)?,
            StartAt::Since(position) => self.after_stamp(position.stamp)?,
        };
        if let Some(after) = after {
            let taken = self.take((after, u64::MAX), Order::Up, limits, false)?;
            // The retention may have gone on meanwhile.
            if !taken.has_more && after >= taken.bounds.floor {
                let Taken { bounds: Bounds { head, .. }, messages, .. } = taken;
                return Ok(Start { head, cursor: after, is_recovered: Some(true), messages });
            }
        }
        self.last(limits.messages, limits, Some(false))
    }

    /// The last messages, `count` of which can be read.
    fn last(
        &self,
        count: usize,
        limits: Limits,
        is_recovered: Option<bool>,
    ) -> Result<Start, StorageError> {
        let mut left = count;
        let (mut messages, mut bytes) = (Vec::new(), 0);
        let mut each = |content: Content| {
            let content = self.readable(content);
            bytes += content.weight_bytes();
            let is_over = messages.len() >= limits.messages || bytes > limits.bytes;
            if left == 0 || (is_over && !messages.is_empty()) {
                return ControlFlow::Break(());
            }
            left -= usize::from(!content.is_expired(self.now_ms));
            messages.push(Arc::new(content));
            ControlFlow::Continue(())
        };
        let range = (0, u64::MAX);
        let Bounds { head, .. } = self.logs.visit(self.name, range, Order::Down, &mut each)?;
        messages.reverse();
        let cursor = messages.first().map_or(head.offset, |first| first.previous);
        Ok(Start { head, cursor, is_recovered, messages })
    }

    /// A page of at most `limit` messages.
    pub(super) fn page(&self, query: HistoryQuery, limit: usize) -> Result<Page, StorageError> {
        let after = match query {
            HistoryQuery::Newest => return self.page_before(u64::MAX, limit),
            HistoryQuery::Before(id) if id.epoch == self.logs.epoch() => {
                return self.page_before(id.offset, limit);
            }
            // Offsets of different epochs do not compare: such a page begins at the newest message.
            HistoryQuery::Before(_) => return self.page_before(u64::MAX, limit),
            HistoryQuery::After(id) => self.after_id(id)?,
            HistoryQuery::Since(position) => self.after_stamp(position.stamp)?,
        };
        let limits = Limits { messages: limit, bytes: PAGE_BYTES_MAX };
        let taken = self.take((after.unwrap_or(0), u64::MAX), Order::Up, limits, true)?;
        let is_recovered = after.is_some_and(|after| after >= taken.bounds.floor);
        let Taken { bounds: Bounds { head, .. }, messages, has_more } = taken;
        Ok(Page { head, messages, has_more, is_recovered: Some(is_recovered) })
    }

    fn page_before(&self, before: u64, limit: usize) -> Result<Page, StorageError> {
        let limits = Limits { messages: limit, bytes: PAGE_BYTES_MAX };
        let Taken { bounds, mut messages, has_more } =
            self.take((0, before), Order::Down, limits, true)?;
        messages.reverse();
        Ok(Page { head: bounds.head, messages, has_more, is_recovered: None })
    }

    /// The cursor of a client whose last message is `id`, if the log has all messages after it.
    fn after_id(&self, id: MessageId) -> Result<Option<u64>, StorageError> {
        let Bounds { head, floor, .. } = self.logs.bounds(self.name)?;
        let is_known = id.epoch == head.epoch && id.offset <= head.offset && id.offset >= floor;
        Ok(is_known.then_some(id.offset))
    }

    /// The cursor of a client that has all messages up to a stamp, if the log has all after it.
    fn after_stamp(&self, stamp: Stamp) -> Result<Option<u64>, StorageError> {
        let bounds = self.logs.bounds(self.name)?;
        if !self.is_known || stamp < bounds.lost {
            return Ok(None);
        }
        self.logs.offset_at(self.name, &bounds, stamp).map(Some)
    }

    /// Messages after one offset and before another, within limits; one at least. With
    /// `is_readable` those that have expired are left out.
    fn take(
        &self,
        range: (u64, u64),
        order: Order,
        limits: Limits,
        is_readable: bool,
    ) -> Result<Taken, StorageError> {
        let (mut messages, mut bytes, mut has_more) = (Vec::new(), 0, false);
        let mut each = |content: Content| {
            let content = self.readable(content);
            if is_readable && content.is_expired(self.now_ms) {
                return ControlFlow::Continue(());
            }
            bytes += content.weight_bytes();
            has_more =
                messages.len() >= limits.messages || (bytes > limits.bytes && !messages.is_empty());
            if has_more {
                return ControlFlow::Break(());
            }
            messages.push(Arc::new(content));
            ControlFlow::Continue(())
        };
        let bounds = self.logs.visit(self.name, range, order, &mut each)?;
        Ok(Taken { bounds, messages, has_more })
    }

    /// The messages after an offset that can be read, at most `max`.
    pub(super) fn unread(&self, after: u64, max: usize) -> Result<usize, StorageError> {
        let Bounds { head, floor, has_expiring, .. } = self.logs.bounds(self.name)?;
        if !has_expiring {
            let count = head.offset.saturating_sub(after.max(floor));
            return Ok(usize::try_from(count).map_or(max, |count| count.min(max)));
        }
        let mut count = 0;
        let mut each = |content: Content| {
            count += usize::from(!content.is_expired(self.now_ms));
            if count < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.logs.visit(self.name, (after, u64::MAX), Order::Down, &mut each)?;
        Ok(count)
    }

    fn readable(&self, content: Content) -> Content {
        if content.is_expired(self.now_ms) { content.without_body() } else { content }
    }
}
