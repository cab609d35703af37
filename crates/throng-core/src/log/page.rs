//! Pages of a log's messages that can be read.
//!
//! Messages that have expired stay in the log without their bodies. A page passes each run of them
//! at once, so it looks at no more than twice as many entries as it has messages. Nor has it the
//! end of the channel; an end that is over is as an expired message.

use std::sync::Arc;

use super::runs::Run;
use super::{Kept, Log};
use crate::message::Message;

/// Messages in the direction of a page, and whether there are more of them.
pub(crate) struct LogPage {
    pub(crate) messages: Vec<Arc<Message>>,
    pub(crate) has_more: bool,
    /// The entries that were looked at.
    pub(crate) visited: usize,
}

/// Where a page goes from its first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl Log {
    /// The oldest messages after an offset that can be read.
    pub(crate) fn page_after(&mut self, after: u64, limit: usize) -> LogPage {
        let from = self.messages.partition_point(|entry| self.view(entry).offset() <= after);
        self.page(limit, Some(from), Direction::Up)
    }

    /// The newest messages before an offset that can be read, the newest first.
    pub(crate) fn page_before(&mut self, before: u64, limit: usize) -> LogPage {
        let end = self.messages.partition_point(|entry| self.view(entry).offset() < before);
        self.page(limit, end.checked_sub(1), Direction::Down)
    }

    fn page(&mut self, limit: usize, from: Option<usize>, direction: Direction) -> LogPage {
        let (mut found, mut has_more, mut visited) = (Vec::new(), false, 0);
        let mut place = from;
        while let Some(at) = place
            && let Some(entry) = self.messages.get(at)
        {
            visited += 1;
            let view = self.view(entry);
            if view.is_expired() {
                place = self.beyond(at, view.offset(), direction);
                continue;
            }
            if view.is_end() {
                place = next(at, direction);
                continue;
            }
            has_more = found.len() >= limit;
            if has_more {
                break;
            }
            found.push(at);
            place = next(at, direction);
        }
        let (entries, sealed) = (&mut self.messages, self.sealed.as_deref());
        let messages = found.into_iter().filter_map(|at| {
            let entry = entries.get_mut(at)?;
            Some(Kept::new(entry, sealed).message())
        });
        LogPage { messages: messages.collect(), has_more, visited }
    }

    /// The place behind the run of the expired message at a place.
    fn beyond(&self, at: usize, offset: u64, direction: Direction) -> Option<usize> {
        let run = self.expiring.as_ref().and_then(|expiring| expiring.runs.find(offset));
        debug_assert!(run.is_some(), "each expired message is in a run");
        let Run { first, last } = run.unwrap_or(Run { first: offset, last: offset });
        let passed =
            |most: u64| self.messages.partition_point(|entry| self.view(entry).offset() <= most);
        match direction {
            _ if first == last => next(at, direction),
            Direction::Up => Some(passed(last)),
            Direction::Down => passed(first - 1).checked_sub(1),
        }
    }

    /// The cursor before the last `count` messages that can be read and are no notices, at least
    /// one; `None` if there are fewer.
    pub(crate) fn before_last(&self, count: usize) -> Option<u64> {
        if self.expiring.is_none() {
            let at = self.messages.len().checked_sub(count)?;
            return self.messages.get(at).map(|entry| self.view(entry).previous());
        }
        let mut left = count.checked_sub(1)?;
        let mut place = self.messages.len().checked_sub(1);
        while let Some(at) = place {
            let view = self.view(&self.messages[at]);
            if view.is_expired() {
                place = self.beyond(at, view.offset(), Direction::Down);
                continue;
            }
            if !view.is_blank() {
                if left == 0 {
                    return Some(view.previous());
                }
                left -= 1;
            }
            place = at.checked_sub(1);
        }
        None
    }
}

/// The place after another one in a direction.
fn next(at: usize, direction: Direction) -> Option<usize> {
    match direction {
        Direction::Up => Some(at + 1),
        Direction::Down => at.checked_sub(1),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::super::tests::content;
    use super::*;
    use crate::attributes::{Attributes, Extras};
    use crate::holder::RoomHolder;
    use crate::message::Content;

    fn offsets(page: &LogPage) -> Vec<u64> {
        page.messages.iter().map(|message| message.id.offset).collect()
    }

    /// A log with messages that can be read at these offsets, up to the last one.
    fn log(readable: &[u64]) -> Log {
        let mut log = Log::default();
        for offset in 1..=*readable.last().expect("there is one") {
            let expires_ms = (!readable.contains(&offset)).then_some(1);
            log.append(content(offset, expires_ms), Weak::new(), RoomHolder::NOBODY);
        }
        log.expire(1);
        log
    }

    #[test]
    fn a_page_passes_each_run_of_expired_messages_at_once() {
        let last = 30_000;
        let mut log = log(&[1, 2, 9_000, last]);
        for _ in 0..2 {
            let newest = log.page_before(u64::MAX, 9);
            assert_eq!((offsets(&newest), newest.has_more), (vec![last, 9_000, 2, 1], false));
            let oldest = log.page_after(0, 2);
            assert_eq!((offsets(&oldest), oldest.has_more), (vec![1, 2], true));
            let middle = log.page_after(5_000, 1);
            assert_eq!((offsets(&middle), middle.has_more), (vec![9_000], true));
            let visited = [newest.visited, oldest.visited, middle.visited];
            assert_eq!(visited, [6, 4, 4]);
            assert_eq!(
                [1, 2, 4, 5].map(|n| log.before_last(n)),
                [Some(last - 1), Some(8_999), Some(0), None]
            );
        }
        // What is between two runs expires, and they become one.
        assert!(log.erase(9_000).is_some());
        let newest = log.page_before(u64::MAX, 9);
        assert_eq!((offsets(&newest), newest.visited), (vec![last, 2, 1], 4));
        assert!(log.erase(last).is_some() && log.erase(1).is_some() && log.erase(2).is_some());
        let none = log.page_after(0, 9);
        assert_eq!((none.messages.len(), none.has_more, none.visited), (0, false, 1));
    }

    #[test]
    fn a_page_looks_at_twice_as_many_entries_as_it_has_messages_at_most() {
        let readable: Vec<_> = (1..=2_000).map(|n| n * 7).collect();
        let mut log = log(&readable);
        for limit in [1, 10, 500] {
            for page in [log.page_before(u64::MAX, limit), log.page_after(0, limit)] {
                assert_eq!(page.messages.len(), limit);
                assert!(page.visited <= 2 * (limit + 1), "{} for {limit}", page.visited);
            }
        }
    }

    #[test]
    fn a_page_has_no_end_and_passes_those_that_are_over_at_once() {
        let mut log = Log::default();
        for offset in 1..=1_000 {
            let mut content = content(offset, None);
            if offset > 3 {
                let extras = Extras::new(None, Some(Attributes::of_end()));
                content =
                    Arc::new(Content { extras, ..Arc::into_inner(content).expect("it is new") });
            }
            log.append(content, Weak::new(), RoomHolder::NOBODY);
            assert_eq!(log.newest_end(), (offset > 3).then_some(offset));
            if (4..1_000).contains(&offset) {
                assert!(log.erase(offset).is_some(), "it is opened again");
            }
        }
        assert_eq!(log.readable(), 3);
        let newest = log.page_before(u64::MAX, 2);
        assert_eq!((offsets(&newest), newest.has_more, newest.visited), (vec![3, 2], true, 5));
        let oldest = log.page_after(2, 2);
        assert_eq!((offsets(&oldest), oldest.has_more, oldest.visited), (vec![3], false, 3));
    }

    #[test]
    fn a_run_that_was_dropped_hides_nothing() {
        let mut log = log(&[1, 200]);
        assert_eq!(offsets(&log.page_before(u64::MAX, 9)), [200, 1]);
        (0..150).for_each(|_| assert!(log.drop_oldest() > 0));
        assert_eq!(offsets(&log.page_before(u64::MAX, 9)), [200]);
        assert_eq!(offsets(&log.page_after(0, 9)), [200]);
    }
}
