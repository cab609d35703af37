//! Checks of channels that end.

use super::{NOW_MS, RETAINED, Subject, ids, name, publication};
use crate::attributes::Erasure;
use crate::change::{ChangeError, Erase, LogChange};
use crate::id::MessageId;
use crate::publication::PublishError;
use crate::reading::{HistoryQuery, StartAt};

impl Subject {
    /// Ends the channel. Returns the ids of the last message, if there is one, and of the notice.
    fn end(&self, last: Option<&str>) -> Vec<MessageId> {
        let last = last.map(|text| publication(&name(), text));
        self.changed(LogChange::end(name(), last, &self.state_of(&name()))).ids
    }

    pub(super) fn a_channel_that_has_ended_takes_no_messages(&self) {
        let first = self.publish(&name(), "first").id;
        assert!(!self.follow(&name(), 0, StartAt::Live).is_ended);
        let before = self.state_of(&name());
        let [last, end] = self.end(Some("last"))[..] else { panic!("a message and a notice") };
        let messages = self.messages(0);
        assert_eq!(ids(&messages), [last, end]);
        assert!(messages[1].is_end() && !messages[0].is_end());
        assert!(self.state_of(&name()).is_ended());
        // Whoever comes later reads the log, and that it has ended.
        for (start, found, is_recovered) in [
            (StartAt::After(first), vec![last, end], Some(true)),
            (StartAt::After(end), vec![], Some(true)),
            // The end is no message.
            (StartAt::Last(1), vec![last, end], None),
        ] {
            let late = self.follow(&name(), 1, start);
            assert_eq!((late.is_recovered, late.is_ended), (is_recovered, true), "{start:?}");
            assert_eq!((ids(&late.backlog), late.head), (found, end), "{start:?}");
        }
        let first_of_last = self.history(HistoryQuery::FirstOfLast(1), 1);
        assert_eq!(ids(&first_of_last.messages), [last]);
        let page = self.history(HistoryQuery::Newest, 9);
        assert_eq!((ids(&page.messages), page.is_ended), (vec![first, last], true));
        // Nobody publishes, and nobody ends it again.
        assert_eq!(self.outcome(publication(&name(), "late")), Err(PublishError::Ended));
        let late = LogChange::append(name(), vec![publication(&name(), "late")]);
        assert_eq!(self.change(late), Err(ChangeError::Refused(PublishError::Ended)));
        let again = self.change(LogChange::end(name(), None, &before));
        assert!(matches!(again, Err(ChangeError::Conflict(_))), "{again:?}");
        let again = self.change(LogChange::end(name(), None, &self.state_of(&name())));
        assert_eq!(again, Err(ChangeError::Refused(PublishError::Ended)));
        // Messages may still be erased.
        self.changed(LogChange::notice(name(), Erasure::of(first.offset)));
        let other = crate::ChannelName::channel("other");
        assert!(self.outcome(publication(&other, "a")).is_ok());
    }

    pub(super) fn a_channel_that_has_ended_may_be_opened_again(&self) {
        let none = LogChange::open(name(), &self.state_of(&name()));
        assert!(none.is_none(), "it has not ended");
        let first = self.publish(&name(), "first").id;
        self.end(None);
        self.open();
        assert!(!self.state_of(&name()).is_ended());
        let next = self.publish(&name(), "next").id;
        let followed = self.follow(&name(), 0, StartAt::After(first));
        assert_eq!((followed.is_recovered, followed.is_ended), (Some(true), false));
        // The notice of the end that is over tells nothing.
        assert!(followed.backlog.iter().all(|message| !message.is_end()));
        assert_eq!(followed.backlog.last().map(|message| message.id), Some(next));
        let page = self.history(HistoryQuery::Newest, 9);
        assert_eq!((ids(&page.messages), page.is_ended), (vec![first, next], false));
        let [end] = self.end(None)[..] else { panic!("a notice") };
        assert_eq!(self.follow(&name(), 1, StartAt::After(next)).head, end);
        self.engine.tick(NOW_MS);
        assert!(self.state_of(&name()).is_ended());
    }

    fn open(&self) {
        let open = LogChange::open(name(), &self.state_of(&name())).expect("it has ended");
        self.changed(open);
    }

    pub(super) fn ends_take_no_places_of_pages(&self) {
        let published = [self.publish(&name(), "first").id, self.publish(&name(), "second").id];
        for round in 0..RETAINED {
            self.end(None);
            let are_kept = !self.profile.counts_notices || published.len() + round < RETAINED;
            self.check_pages(if are_kept { &published } else { &[] });
            if round + 1 < RETAINED {
                self.open();
            }
        }
        let erased = self.erase(Erase::History).messages;
        assert!(erased.is_none_or(|erased| erased == 2), "{erased:?} messages");
        assert!(self.erase(Erase::History).messages.is_none_or(|erased| erased == 0));
    }

    /// Checks the pages of each size of a channel that has these messages, if `kept` has any.
    fn check_pages(&self, kept: &[MessageId]) {
        let newest = self.history(HistoryQuery::Newest, RETAINED);
        let all = ids(&newest.messages);
        assert!(kept.is_empty() || all == kept, "{all:?}");
        for limit in 1..=RETAINED {
            let before = self.history(HistoryQuery::Newest, limit);
            let first = all.len().saturating_sub(limit);
            assert_eq!(
                (ids(&before.messages), before.has_more),
                (all[first..].to_vec(), first > 0)
            );
            let after = self.history(HistoryQuery::From(0), limit);
            let last = limit.min(all.len());
            assert_eq!(ids(&after.messages), all[..last]);
            assert_eq!(after.has_more, last < all.len());
        }
    }
}
