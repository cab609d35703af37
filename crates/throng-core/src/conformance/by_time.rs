//! Checks of pages that begin at a time.
//!
//! They compare with the times that the messages have: a journal may take these from elsewhere, so
//! that all are the same.

use super::{NOW_MS, RETAINED, Subject, ids, name, publication};
use crate::publication::Publication;
use crate::reading::{HistoryQuery, StartAt};

impl Subject {
    pub(super) fn a_page_begins_at_a_time(&self) {
        self.check_pages_from_times(NOW_MS);
        // One more than are kept, two of which have the same time.
        for n in 0..=RETAINED as u64 {
            let time_ms = NOW_MS + 10 * n.min(RETAINED as u64 - 1);
            self.outcome_at(time_ms, publication(&name(), "x")).expect("there is room");
            self.check_pages_from_times(time_ms);
        }
    }

    pub(super) fn a_page_from_a_time_has_no_expired_messages(&self) {
        let expiries = [Some(1_000), Some(2_000), None];
        for (time_ms, expires_in_ms) in (NOW_MS..).step_by(10).zip(expiries) {
            let publication = Publication { expires_in_ms, ..publication(&name(), "x") };
            self.outcome_at(time_ms, publication).expect("there is room");
        }
        for (now_ms, left) in [(NOW_MS + 20, 3), (NOW_MS + 1_020, 2), (NOW_MS + 2_020, 1)] {
            assert_eq!(self.check_pages_from_times(now_ms), left);
        }
    }

    /// Compares the pages from around the times of all messages with the newest page, which has
    /// all that can be read. Returns their number.
    fn check_pages_from_times(&self, now_ms: u64) -> usize {
        let newest = self.history_at(now_ms, HistoryQuery::Newest, RETAINED);
        let kept = &newest.messages;
        assert!(kept.is_sorted_by_key(|message| message.time_ms));
        let times = kept.iter().map(|message| message.time_ms).chain([NOW_MS]);
        for from_ms in times.flat_map(|ms| [ms - 1, ms, ms + 1]).chain([0, u64::MAX]) {
            let expected = &kept[kept.partition_point(|message| message.time_ms < from_ms)..];
            for limit in 0..=RETAINED + 1 {
                let page = self.history_at(now_ms, HistoryQuery::From(from_ms), limit);
                let first = &expected[..limit.min(expected.len())];
                assert_eq!(ids(&page.messages), ids(first), "{limit} from {from_ms}");
                assert_eq!(page.has_more, limit < expected.len(), "{limit} from {from_ms}");
                assert_eq!((page.head, page.is_recovered), (newest.head, None));
            }
            let followed = self.follow_at(now_ms, &name(), 0, StartAt::From(from_ms));
            let readable = followed.backlog.iter().filter(|it| !it.is_expired(now_ms));
            let readable: Vec<_> = readable.map(|message| message.id).collect();
            assert_eq!(readable, ids(expected), "a subscription from {from_ms}");
            assert_eq!((followed.head, followed.is_recovered), (newest.head, None));
        }
        kept.len()
    }
}
