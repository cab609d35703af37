//! Pages of a log's messages that can be read.
//!
//! Messages that have expired stay in the log without their bodies, and a page passes over them. So
//! that a long run of them is not passed message by message each time, the longest one is
//! remembered; and a page that has a message ends after a number of them.

use std::sync::Arc;

use super::run::{RUN_MIN, Run};
use super::{Kept, Log};
use crate::message::Message;

/// Messages that are looked at for a page that has one, at most: some ten microseconds.
const LOOKED_AT_MAX: usize = 4_096;

/// Messages in the direction of a page, and whether there may be more of them.
pub(crate) struct LogPage {
    pub(crate) messages: Vec<Arc<Message>>,
    pub(crate) has_more: bool,
}

impl Log {
    /// The oldest messages after an offset that can be read.
    pub(crate) fn page_after(&mut self, after: u64, limit: usize) -> LogPage {
        let from = self.messages.partition_point(|entry| self.view(entry).offset() <= after);
        self.page(
            limit,
            from,
            |at| Some(at + 1),
            |log, run| log.messages.partition_point(|entry| log.view(entry).offset() <= run.last),
        )
    }

    /// The newest messages before an offset that can be read, the newest first.
    pub(crate) fn page_before(&mut self, before: u64, limit: usize) -> LogPage {
        let end = self.messages.partition_point(|entry| self.view(entry).offset() < before);
        let from = end.checked_sub(1).unwrap_or(usize::MAX);
        self.page(
            limit,
            from,
            |at| at.checked_sub(1),
            |log, run| {
                let first =
                    log.messages.partition_point(|entry| log.view(entry).offset() < run.first);
                first.checked_sub(1).unwrap_or(usize::MAX)
            },
        )
    }

    fn page(
        &mut self,
        limit: usize,
        from: usize,
        next: impl Fn(usize) -> Option<usize>,
        beyond: impl Fn(&Log, Run) -> usize,
    ) -> LogPage {
        let known = self.expiring.as_ref().and_then(|expiring| expiring.run);
        let (mut found, mut has_more) = (Vec::new(), false);
        let (mut run, mut longest): (Option<Run>, _) = (None, known);
        let (mut place, mut looked_at) = (Some(from), 0);
        while let Some(at) = place
            && let Some(entry) = self.messages.get(at)
        {
            let view = self.view(entry);
            if !view.is_expired() {
                run = None;
                has_more = found.len() >= limit;
                if has_more {
                    break;
                }
                found.push(at);
                place = next(at);
                continue;
            }
            looked_at += 1;
            if looked_at > LOOKED_AT_MAX && !found.is_empty() {
                has_more = true;
                break;
            }
            let offset = view.offset();
            let is_in = |known: &Run| (known.first..=known.last).contains(&offset);
            let seen = known.filter(is_in).unwrap_or(Run { first: offset, last: offset });
            let (first, last) = run.map_or((seen.first, seen.last), |run| {
                (run.first.min(seen.first), run.last.max(seen.last))
            });
            run = Some(Run { first, last });
            longest = [longest, run].into_iter().flatten().max_by_key(|run| run.length());
            place = if seen.length() > 0 { Some(beyond(self, seen)) } else { next(at) };
        }
        if let Some(expiring) = &mut self.expiring {
            expiring.run = longest.filter(|run| run.length() >= RUN_MIN);
        }
        let sealed = self.sealed.as_deref();
        let entries = &mut self.messages;
        let messages = found.into_iter().filter_map(|at| {
            let entry = entries.get_mut(at)?;
            Some(Kept::new(entry, sealed).message())
        });
        LogPage { messages: messages.collect(), has_more }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::super::tests::content;
    use super::*;
    use crate::state::Holder;

    fn offsets(page: &LogPage) -> Vec<u64> {
        page.messages.iter().map(|message| message.id.offset).collect()
    }

    /// A log with messages that can be read at these offsets, up to the last one.
    fn log(readable: &[u64]) -> Log {
        let mut log = Log::default();
        for offset in 1..=*readable.last().expect("there is one") {
            let expires_ms = (!readable.contains(&offset)).then_some(1);
            log.append(content(offset, expires_ms), Weak::new(), Holder::NOBODY);
        }
        log.expire(1);
        log
    }

    #[test]
    fn a_page_skips_a_known_run_of_expired_messages_at_once() {
        let last = 3 * LOOKED_AT_MAX as u64;
        let mut log = log(&[1, 2, last]);
        let first = log.page_before(u64::MAX, 9);
        assert_eq!((offsets(&first), first.has_more), (vec![last], true), "it ends after many");
        let before = log.page_before(last, 9);
        assert_eq!((offsets(&before), before.has_more), (vec![2, 1], false));
        let run = log.expiring.as_ref().and_then(|expiring| expiring.run).expect("it is known");
        assert_eq!((run.first, run.last), (3, last - 1));
        for _ in 0..2 {
            let newest = log.page_before(u64::MAX, 9);
            assert_eq!((offsets(&newest), newest.has_more), (vec![last, 2, 1], false));
            let oldest = log.page_after(0, 2);
            assert_eq!((offsets(&oldest), oldest.has_more), (vec![1, 2], true));
            let rest = log.page_after(2, 9);
            assert_eq!((offsets(&rest), rest.has_more), (vec![last], false));
        }
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
