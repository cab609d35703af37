//! Reads parts of logs: what a subscription starts with, and pages of history.
//!
//! A message that has expired keeps its place and loses its body, so that no hole shows. Pages have
//! only others: they pass over the expired ones, some thousand in each turn of a reading.

use std::sync::Arc;

use throng_core::parts::{Limits, Page, Start};
use throng_core::{ChannelName, Content, EntryCount, HistoryQuery, MessageId, Stamp, StartAt};

use super::expired_runs::{END, ExpiredRun, ExpiredRuns, ON};
use crate::logs::{LogBounds, Logs};
use crate::storage::{KeyOrder, StorageError};

/// Bytes that are read for one page at most, so that it stays small beside what a server holds.
pub(super) const PAGE_BYTES_MAX: usize = 4 << 20;

/// Expired messages that one turn passes over, at most: some milliseconds of work.
const PASSED_OVER_MAX: usize = 4_096;

/// Reads one channel's log as it is at a time.
pub(super) struct LogReader<'a> {
    pub(super) logs: &'a Logs,
    pub(super) name: &'a ChannelName,
    pub(super) now_ms: u64,
    /// True if a position of [`StartAt::Since`] was given out by this server.
    pub(super) is_known: bool,
    pub(super) expired: &'a ExpiredRuns,
}

/// Messages that were read, and what is not among them.
struct Taken {
    bounds: LogBounds,
    messages: Vec<Arc<Content>>,
    /// True if there may be more in the direction of the reading.
    has_more: bool,
}

impl Taken {
    /// True if nothing was found yet among many expired messages.
    fn goes_on(&self) -> bool {
        self.has_more && self.messages.is_empty()
    }
}

impl LogReader<'_> {
    /// The first messages of a subscription that starts at `start`. If it lacks more than `limits`,
    /// it gets the newest messages within them and is not recovered.
    pub(super) fn start(&self, start: StartAt, limits: Limits) -> Result<Start, StorageError> {
        let after = match start {
            // Of a log without keys.
            StartAt::Live | StartAt::Last(0) | StartAt::State => {
                let LogBounds { head, has_ended: is_ended, .. } = self.logs.bounds(self.name)?;
                let messages = Vec::new();
                return Ok(Start {
                    head,
                    cursor: head.offset,
                    is_recovered: None,
                    is_sparse: false,
                    is_ended,
                    messages,
                });
            }
            StartAt::Last(count) => return self.last(count, limits, None),
            StartAt::After(id) => self.after_id(id)?,
            StartAt::Since(position) => self.after_stamp(position.stamp)?,
            StartAt::From(time_ms) => Some(self.logs.offset_before(self.name, time_ms)?),
        };
        let recovered = |is_recovered| (!matches!(start, StartAt::From(_))).then_some(is_recovered);
        if let Some(after) = after {
            let taken = self.take((after, u64::MAX), KeyOrder::Up, limits, false)?;
            // The retention may have gone on meanwhile.
            if !taken.has_more && after >= taken.bounds.floor {
                let Taken { bounds, messages, .. } = taken;
                return Ok(Start {
                    head: bounds.head,
                    cursor: after,
                    is_recovered: recovered(true),
                    is_sparse: false,
                    is_ended: bounds.has_ended,
                    messages,
                });
            }
        }
        self.last(limits.messages, limits, recovered(false))
    }

    /// The last messages, `count` of which can be read and are no notices.
    fn last(
        &self,
        count: usize,
        limits: Limits,
        is_recovered: Option<bool>,
    ) -> Result<Start, StorageError> {
        let mut left = count.min(limits.messages);
        let (mut messages, mut bytes, mut entries) = (Vec::new(), 0, EntryCount::default());
        let mut each = |content: Content| {
            let content = self.readable(content);
            bytes += content.weight_bytes();
            entries.add(content.is_blank());
            let is_over = entries.exceeds(limits.messages) || bytes > limits.bytes;
            if left == 0 || (is_over && !messages.is_empty()) {
                return END;
            }
            left -= usize::from(!content.is_blank());
            messages.push(Arc::new(content));
            ON
        };
        let range = (0, u64::MAX);
        let bounds = self.logs.visit(self.name, range, KeyOrder::Down, &mut each)?;
        let LogBounds { head, base, has_ended: is_ended, .. } = bounds;
        messages.reverse();
        // Before a channel that has begun anew, those who follow it may have missed nothing.
        let cursor = messages.first().map_or(head.offset, |first| first.previous.max(base));
        Ok(Start { head, cursor, is_recovered, is_sparse: false, is_ended, messages })
    }

    /// A page of at most `limit` messages, or of as many as `limits` allow. `None` if it takes
    /// more than one turn: call it again then, and it goes on where it was.
    pub(super) fn page(
        &self,
        query: HistoryQuery,
        limit: usize,
        limits: Limits,
    ) -> Result<Option<Page>, StorageError> {
        let after = match query {
            HistoryQuery::Newest => return self.page_before(u64::MAX, limit, limits),
            HistoryQuery::Before(id) if id.epoch == self.logs.epoch() => {
                return self.page_before(id.offset, limit, limits);
            }
            // Offsets of different epochs do not compare: such a page begins at the newest message.
            HistoryQuery::Before(_) => return self.page_before(u64::MAX, limit, limits),
            HistoryQuery::FirstOfLast(count) => return self.first_of_last(count, limits).map(Some),
            HistoryQuery::After(id) => self.after_id(id)?,
            HistoryQuery::Since(position) => self.after_stamp(position.stamp)?,
            HistoryQuery::From(time_ms) => Some(self.logs.offset_before(self.name, time_ms)?),
        };
        let limits = Limits { messages: limit, ..limits };
        let taken = self.take((after.unwrap_or(0), u64::MAX), KeyOrder::Up, limits, true)?;
        if taken.goes_on() && limit > 0 {
            return Ok(None);
        }
        let is_recovered = after.is_some_and(|after| after >= taken.bounds.lost_offset);
        let is_recovered = (!matches!(query, HistoryQuery::From(_))).then_some(is_recovered);
        let Taken { bounds, messages, has_more } = taken;
        let LogBounds { head, has_ended: is_ended, .. } = bounds;
        Ok(Some(Page { head, messages, has_more, is_ended, is_recovered }))
    }

    fn page_before(
        &self,
        before: u64,
        limit: usize,
        limits: Limits,
    ) -> Result<Option<Page>, StorageError> {
        let limits = Limits { messages: limit, ..limits };
        let mut taken = self.take((0, before), KeyOrder::Down, limits, true)?;
        if taken.goes_on() && limit > 0 {
            return Ok(None);
        }
        taken.messages.reverse();
        let Taken { bounds, messages, has_more } = taken;
        let LogBounds { head, has_ended: is_ended, .. } = bounds;
        Ok(Some(Page { head, messages, has_more, is_ended, is_recovered: None }))
    }

    /// The first message that a subscription would start with which asks for the last ones.
    fn first_of_last(&self, count: usize, limits: Limits) -> Result<Page, StorageError> {
        let bounds = self.logs.bounds(self.name)?;
        let (mut head, mut messages) = (bounds.head, Vec::new());
        if bounds.has_expiring || bounds.has_keys {
            let start = self.last(count, limits, None)?;
            (head, messages) = (start.head, start.messages);
            messages.truncate(1);
        } else if count > 0 {
            // Where it is needs no other message.
            let count = count.min(limits.messages) as u64;
            let after = head.offset.saturating_sub(count);
            let one = Limits { messages: 1, bytes: usize::MAX, ..limits };
            messages = self.take((after, u64::MAX), KeyOrder::Up, one, false)?.messages;
        }
        let is_ended = bounds.has_ended;
        Ok(Page { head, messages, has_more: false, is_ended, is_recovered: None })
    }

    /// The cursor of a client whose last message is `id`, if the log has all messages after it.
    fn after_id(&self, id: MessageId) -> Result<Option<u64>, StorageError> {
        let LogBounds { head, lost_offset, .. } = self.logs.bounds(self.name)?;
        let is_known = id.epoch == head.epoch && (lost_offset..=head.offset).contains(&id.offset);
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

    /// Messages after one offset and before another, within limits; one at least, if there is one.
    /// With `is_readable` those that have expired are left out, and ends: if there are many of
    /// them, it stops before it has all, and passes over them the next time. Other notices count.
    fn take(
        &self,
        (mut after, mut before): (u64, u64),
        order: KeyOrder,
        limits: Limits,
        is_readable: bool,
    ) -> Result<Taken, StorageError> {
        if limits.messages == 0 {
            return self.take_none((after, before));
        }
        let known = if is_readable { self.expired.of(self.name) } else { Default::default() };
        let (mut messages, mut bytes, mut has_more) = (Vec::new(), 0, false);
        let mut entries = EntryCount::default();
        let (mut head, mut passed_over) = (None, 0);
        loop {
            let (mut run, mut found): (Option<ExpiredRun>, _) = (None, Vec::new());
            let mut beyond = None;
            let mut each = |content: Content| {
                let offset = content.id.offset;
                if is_readable && (content.is_expired(self.now_ms) || content.is_end()) {
                    passed_over += 1;
                    let jump = known.find(offset);
                    let seen = jump.unwrap_or(ExpiredRun::of(offset));
                    run = Some(run.map_or(seen, |run| run.with(seen)));
                    beyond = jump.map(|run| run.end(order));
                    has_more = beyond.is_none() && passed_over >= PASSED_OVER_MAX;
                    return if beyond.is_some() || has_more { END } else { ON };
                }
                found.extend(run.take());
                let content = self.readable(content);
                bytes += content.weight_bytes();
                entries.add(!is_readable && content.is_blank());
                has_more = entries.exceeds(limits.messages)
                    || (bytes > limits.bytes && !messages.is_empty());
                if has_more {
                    return END;
                }
                messages.push(Arc::new(content));
                ON
            };
            let bounds = self.logs.visit(self.name, (after, before), order, &mut each)?;
            for run in found.into_iter().chain(run) {
                self.expired.note(self.name, run, bounds.floor);
            }
            // A page that goes down begins with the head that it has seen first.
            let first = *head.get_or_insert(bounds.head);
            match (beyond, order) {
                (Some(last), KeyOrder::Up) => after = last,
                (Some(first), KeyOrder::Down) => before = first,
                (None, KeyOrder::Down) => {
                    let bounds = LogBounds { head: first, ..bounds };
                    return Ok(Taken { bounds, messages, has_more });
                }
                (None, KeyOrder::Up) => return Ok(Taken { bounds, messages, has_more }),
            }
        }
    }

    /// Whether there are any messages.
    fn take_none(&self, (after, before): (u64, u64)) -> Result<Taken, StorageError> {
        let bounds = self.logs.bounds(self.name)?;
        let last = before.saturating_sub(1).min(bounds.head.offset);
        let has_more = last > after.max(bounds.base);
        Ok(Taken { bounds, messages: Vec::new(), has_more })
    }

    /// The messages after an offset that can be read and are no notices, at most `max`,
    /// of as many of the newest ones.
    pub(super) fn unread(&self, after: u64, max: usize) -> Result<usize, StorageError> {
        let LogBounds { head, floor, has_expiring, .. } = self.logs.bounds(self.name)?;
        if !has_expiring {
            let count = head.offset.saturating_sub(after.max(floor));
            return Ok(usize::try_from(count).map_or(max, |count| count.min(max)));
        }
        let (mut count, mut left) = (0, max);
        let mut each = |content: Content| {
            let is_unread = !content.is_expired(self.now_ms) && !content.is_notice();
            count += usize::from(is_unread);
            left -= 1;
            if left > 0 { ON } else { END }
        };
        let range = (after.max(floor), u64::MAX);
        self.logs.visit(self.name, range, KeyOrder::Down, &mut each)?;
        Ok(count)
    }

    pub(super) fn readable(&self, content: Content) -> Content {
        if content.is_expired(self.now_ms) { content.without_body() } else { content }
    }
}
